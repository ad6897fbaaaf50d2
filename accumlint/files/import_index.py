"""Which files of a project may import which: all of them by the words of their imports."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from hashlib import sha256

from accumlint.files.regular import contents

# Larger projects are not searched for the files that import one: so many files, folders, bytes and words of imports.
_MOST_FILES, _MOST_FOLDERS, _MOST_BYTES, _MOST_WORDS = 2000, 500, 64 * 1024 * 1024, 300_000
# A trainer's steps are often set in one of these; so many are read.
_SETTINGS, _MOST_SETTINGS = (".yaml", ".yml", ".sh"), 500
# Longer files are no callers of a loop.
_LARGEST = 256 * 1024
_IMPORTS = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+([^\n#]+)|import[ \t]+([^\n#]+))", re.MULTILINE
)
_WORD = re.compile(r"\w+")
# How settings of accumulation steps are called, and the key of the files that name them.
ACCUMULATING = r"accum\w*_(?:grad|step|iter|batch)|grad\w*_accum"
_ACCUMULATING = re.compile(ACCUMULATING.encode())
STEPS = "accumulation steps"
_SKIPPED = (
    "node_modules",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "build",
    "venv",
    "tests",
    "test",
)
# What stands behind a folder's path for the index of all that is below it.
_MARK = f"{os.sep}**"


def index(top: str) -> dict[str, list[str]]:
    """The files below a folder by the words of their imports, and those that name accumulation steps, settings too."""
    found: dict[str, list[str]] = {}
    size = count = 0
    for file in _files(top):
        if not file:
            return {}
        try:
            data = contents(file, _LARGEST, follow=False)
        except OSError:
            continue
        text = data.decode("utf-8", "replace") if file.endswith(".py") else ""
        words = {
            word
            for match in _IMPORTS.finditer(text)
            for part in match.groups()
            if part
            for word in _WORD.findall(part)
        }
        if _ACCUMULATING.search(data):
            words.add(STEPS)
        size += len(data)
        count += len(words)
        if size > _MOST_BYTES or count > _MOST_WORDS:
            return {}
        for word in words:
            found.setdefault(word, []).append(file)
    return found


def _files(top: str) -> Iterator[str]:
    """The files below a folder that may import others, "" where there are too many, and some of the settings."""
    count = settings = 0
    for number, (folder, folders, files) in enumerate(os.walk(top)):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
        names = [f for f in files if f.endswith(".py") and not f.startswith(("test_", "conftest"))]
        count += len(names)
        if number > _MOST_FOLDERS or count > _MOST_FILES:
            yield ""
            return
        given = sorted(f for f in files if f.endswith(_SETTINGS))[: _MOST_SETTINGS - settings]
        settings += len(given)
        yield from (os.path.join(folder, name) for name in (*sorted(names), *given))


def marked(top: str) -> str:
    """A path that stands for the index of a folder among those that a result rests on."""
    return f"{top}{_MARK}"


def is_marked(path: str) -> bool:
    """True for a path that stands for an index."""
    return path.endswith(_MARK)


def stamp(path: str) -> str:
    """What tells the files behind a marked path, by their sizes and times, from any others; none of them is read."""
    seen = [(file, *_size_and_time(file)) for file in _files(path.removesuffix(_MARK))]
    return sha256(json.dumps(seen).encode()).hexdigest()


def newest(path: str) -> int:
    """When the last of the files behind a marked path was changed, in nanoseconds."""
    files = _files(path.removesuffix(_MARK))
    return max((time for _, time in map(_size_and_time, files)), default=0)


def digest(path: str) -> str:
    """What tells the index behind a marked path from any other."""
    return sha256(json.dumps(sorted(index(path.removesuffix(_MARK)).items())).encode()).hexdigest()


def _size_and_time(file: str) -> tuple[int, int]:
    try:
        found = os.lstat(file)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
