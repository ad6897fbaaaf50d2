"""Knows what checking a file gave the last time, and whether that still holds.

The cache is a folder with a JSON file for each set of settings, by default the user's own and not in the tree that is
checked. The names of its files are made with a key that only the user can read: who does not know it, such as the
author of what is checked, cannot put a file where one is looked for; nor can who sees the names in a shared folder
write or exchange such files, which are signed with the key. A file without a training loop is known by its
size and time. What was found in any other rests on the paths that were looked at for it: its own, and those that its
imports led to or would have led to. Each is known by size and time, and by its text's hash where these differ. Where
it counts which files import the checked one, it rests on the imports of all files of the project as well. A
cache that cannot be read or written is no cache, and never a fault.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

import accumlint
from accumlint import config
from accumlint.diagnostics.results.report import Checked
from accumlint.diagnostics.results.serialization import plain, rich
from accumlint.files import import_index
from accumlint.files.folder import Folder
from accumlint.files.regular import contents
from accumlint.registry import packs

if TYPE_CHECKING:
    from pathlib import Path

    from accumlint.config import Settings
    from accumlint.files.inputs.discovery import Target

# A time may stand still for that long while a file is written again (FAT counts in two seconds).
_MOMENT = 2 * 10**9
_MONTH = 30 * 24 * 3600
# A run that was killed may have left such a file; none takes longer to write it.
_HOUR = 3600
# Seconds to wait for another run that writes the same file.
_PATIENCE = 2.0
_LARGEST = 512 * 1024 * 1024
TAG, KEY = "CACHEDIR.TAG", "key"
_MADE = re.compile(r"[0-9a-f]{32}\.json(?P<part>\.\d+\.\d+)?|key(?P<begun>\.[0-9a-f]{16})")
_TAGGED = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# What accumlint found the last time; may be removed at any time.\n"
)

# What a path was found to be: "" for nothing, "file", "folder"; of a file whose text counts: size, time and hash.
State: TypeAlias = "str | list[int | str]"


class Cache:
    """What earlier runs found in files, kept in a folder; nothing where that is none of ours, or there is no key."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.key = _key() if not os.path.lexists(folder) or _is_ours_to_use(folder) else None
        self.paths = _Paths()
        self._shelves: dict[Settings, _Shelf] = {}

    def find(self, target: Target) -> Checked | None:
        """What checking a file would give; None where that is not known."""
        return None if target.stdin else self._shelf(target.settings).find(target)

    def keep(
        self, target: Target, checked: Checked, read: Collection[str], met: Collection[str]
    ) -> None:
        """Remembers what checking a file gave, the files read for it and the paths looked for."""
        # What went wrong may go better the next time.
        if not target.stdin and not checked.problems:
            self._shelf(target.settings).keep(target, checked, read, met)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.save()

    def save(self) -> None:
        """Writes what is new."""
        changed = [shelf for shelf in self._shelves.values() if shelf.new and self.key]
        if not changed:
            return
        with contextlib.suppress(OSError):
            os.makedirs(self.folder, exist_ok=True)
            with Folder(self.folder) as folder:
                # Since the run began the path may have come to mean another one.
                if _is_usable(folder):
                    _furnish(folder)
                    for shelf in changed:
                        shelf.save(folder)

    def _shelf(self, settings: Settings) -> _Shelf:
        if settings not in self._shelves:
            about = repr((settings, _text(settings.baseline))).encode("utf-8", "backslashreplace")
            name = hmac.new(self.key or b"", about, sha256).hexdigest()[:32]
            file = os.path.join(self.folder, f"{name}.json") if self.key else ""
            self._shelves[settings] = _Shelf(file, self.key or b"", self.paths)
        return self._shelves[settings]


def is_ours(folder: Folder) -> bool:
    """True for a folder that accumlint made."""
    with contextlib.suppress(OSError):
        return folder.contents(TAG, len(_TAGGED)) == _TAGGED.encode()
    return False


def clear(folder: Folder) -> None:
    """Removes what accumlint made in a folder of its own."""
    for name, _ in _made_in(folder):
        folder.remove(name)
    for name in (".gitignore", KEY, TAG):
        folder.remove(name)


def _furnish(folder: Folder) -> None:
    """Tells git and backups to pass a folder over, and removes what was not used for long."""
    for name, text in ((".gitignore", "*\n"), (TAG, _TAGGED)):
        with contextlib.suppress(FileExistsError):
            folder.make(name, text.encode())
    for name, is_part in _made_in(folder):
        if folder.age(name) > (_HOUR if is_part else _MONTH):
            folder.remove(name)


def _made_in(folder: Folder) -> list[tuple[str, bool]]:
    """The files that runs made in a folder, and whether each is a part that was not finished."""
    return [
        (name, bool(match["part"] or match["begun"]))
        for name in folder.files()
        if (match := _MADE.fullmatch(name))
    ]


def _is_ours_to_use(path: str) -> bool:
    with contextlib.suppress(OSError), Folder(path) as folder:
        return _is_usable(folder)
    return False


def _is_usable(folder: Folder) -> bool:
    """False for somebody's folder: it must not be hidden, nor be cleaned one day."""
    # The key, and what another run has just begun with.
    known = {KEY, TAG, ".gitignore"}
    return is_ours(folder) or all(
        name in known or name.startswith(f"{KEY}.") for name in folder.names()
    )


def _key() -> bytes | None:
    """What the names of our files are made with: the user's own, or None where there is no place to keep it."""
    try:
        home = config.user_cache()
        if home is None or _is_of_the_tree(str(home)):
            return None
        file = os.path.join(home, KEY)
        if not os.path.lexists(file):
            _make_key(file)
        # One that others may read, or that came with a checkout, is no secret.
        key = contents(file, 64, follow=False, private=True)
        return key if len(key) == 64 else None
    except OSError:
        return None


def _is_of_the_tree(folder: str) -> bool:
    """True for a folder in the repository or the folder that is worked in: its key may have come with them.

    Who works in a folder that holds their home works in no tree of somebody else's.
    """
    here, real, home = (os.path.realpath(p) for p in (os.curdir, folder, os.path.expanduser("~")))
    above = [here]
    while above[-1] != os.path.dirname(above[-1]):
        above.append(os.path.dirname(above[-1]))
    top = next((f for f in above if os.path.lexists(os.path.join(f, ".git"))), here)
    inside = os.path.join(top, "")
    return real.startswith(inside) and not os.path.join(home, "").startswith(inside)


def _make_key(file: str) -> None:
    """Makes a key, unless another run does so first."""
    os.makedirs(os.path.dirname(file), exist_ok=True)
    temporary = f"{file}.{secrets.token_hex(8)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, file)
    except OSError:
        # Not every file system has such links.
        os.replace(temporary, file)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


@contextlib.contextmanager
def _alone(folder: Folder) -> Generator[None]:
    """While no other run writes in a folder, as far as the system can tell."""
    if sys.platform == "win32" or folder.handle is None:
        yield
        return
    import fcntl

    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(folder.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > until:
                break
            time.sleep(0.02)
    try:
        yield
    finally:
        fcntl.flock(folder.handle, fcntl.LOCK_UN)


class _Paths:
    """What paths are in this run; each is looked at once."""

    def __init__(self) -> None:
        self._start = time.time_ns()
        self._stats: dict[str, os.stat_result | None] = {}
        self._hashes: dict[str, str] = {}
        self._indexes: dict[tuple[str, Callable[[str], str]], str] = {}
        self._newest: dict[str, int] = {}

    def stat(self, path: str) -> os.stat_result | None:
        if path not in self._stats:
            try:
                self._stats[path] = os.stat(path)
            except (OSError, ValueError):
                self._stats[path] = None
        return self._stats[path]

    def hash(self, path: str) -> str:
        if path not in self._hashes:
            try:
                self._hashes[path] = sha256(contents(path)).hexdigest()
            except OSError:
                self._hashes[path] = ""
        return self._hashes[path]

    def size_and_time(self, path: str) -> list[int]:
        found = self.stat(path)
        return [found.st_size, found.st_mtime_ns] if found else []

    def kind(self, path: str) -> str:
        found = self.stat(path)
        if found is None:
            return ""
        return "folder" if stat.S_ISDIR(found.st_mode) else "file"

    def met(self, path: str) -> str:
        """The state of a path of which it only counts what is there, or what the files below it import."""
        if not import_index.is_marked(path):
            return self.kind(path)
        return f"{self.index(path, import_index.stamp)} {self.index(path, import_index.digest)}"

    def text(self, path: str) -> State:
        """The state of a file whose text counts."""
        return [*self.size_and_time(path), self.hash(path)] if self.stat(path) else ""

    def index(self, path: str, told: Callable[[str], str]) -> str:
        """What an index is told by, worked out once."""
        if (path, told) not in self._indexes:
            self._indexes[path, told] = told(path)
        return self._indexes[path, told]

    def is_still(self, path: str, state: State) -> bool:
        """True when a path is what it was."""
        if import_index.is_marked(path):
            stamp, _, digest = str(state).partition(" ")
            same = self.index(path, import_index.stamp) == stamp
            return same or self.index(path, import_index.digest) == digest
        if isinstance(state, str):
            return self.kind(path) == state
        return self.size_and_time(path) == state[:2] or self.hash(path) == state[2] != ""

    def is_settled(self, path: str) -> bool:
        """False for what changed so shortly before the run, or in it, that it may have been read before or after."""
        if import_index.is_marked(path):
            if path not in self._newest:
                self._newest[path] = import_index.newest(path)
            return self._newest[path] < self._start - _MOMENT
        found = self.stat(path)
        return found is None or found.st_mtime_ns < self._start - _MOMENT


class _Shelf:
    """What is known under one set of settings, by file.

    Of a file where nothing was looked for this is its size and time; of others a list: the path as the user wrote it,
    the paths that the result rests on with their states, and the result.
    """

    def __init__(self, file: str, key: bytes, paths: _Paths) -> None:
        self.file = file
        self.key = key
        self.paths = paths
        self.known: dict[str, Any] = _loaded(file, key)
        self.new: dict[str, Any] = {}

    def find(self, target: Target) -> Checked | None:
        try:
            match self.known.get(target.file):
                case [int(), int()] as then:
                    same = self.paths.size_and_time(target.file) == then
                    return Checked(target.shown) if same else None
                case [target.shown, rests_on, result]:
                    same = all(self.paths.is_still(path, state) for path, state in rests_on)
                    return rich(Checked, result) if same else None
                case _:
                    return None
        except (TypeError, ValueError, LookupError):
            return None

    def keep(
        self, target: Target, checked: Checked, read: Collection[str], met: Collection[str]
    ) -> None:
        texts = [target.file, *sorted(read)]
        settled = all(map(self.paths.is_settled, [*texts, *filter(import_index.is_marked, met)]))
        if not self.paths.size_and_time(target.file) or not settled:
            return
        if checked == Checked(target.shown) and not read and not met:
            self.new[target.file] = self.paths.size_and_time(target.file)
            return
        rests_on = [[path, self.paths.text(path)] for path in texts]
        rests_on += [[path, self.paths.met(path)] for path in sorted(met)]
        self.new[target.file] = [target.shown, rests_on, plain(checked)]

    def save(self, folder: Folder) -> None:
        """Adds what is new to what other runs have written, and leaves out files that are gone."""
        name = os.path.basename(self.file)
        temporary = f"{name}.{os.getpid()}.{time.time_ns()}"
        with _alone(folder):
            text = self._text({**_loaded(self.file, self.key), **self.new})
            try:
                folder.make(temporary, signed(text, name, self.key))
                folder.replace(temporary, name)
            except BaseException:
                with contextlib.suppress(OSError):
                    folder.remove(temporary)
                raise

    def _text(self, held: dict[str, Any]) -> str:
        """What is written of results; the few states that many rest on stand in it once."""
        states: dict[str, int] = {}
        known = {file: entry for file, entry in held.items() if self.paths.stat(file)}
        for file, entry in known.items():
            if len(entry) == 3:
                shown, rests_on, result = entry
                numbers = [states.setdefault(json.dumps(s), len(states)) for s in rests_on]
                known[file] = [shown, numbers, result]
        made = {**_provenance(), "states": [*map(json.loads, states)], "known": known}
        return json.dumps(made, separators=(",", ":"))


def signed(text: str, file: str, key: bytes) -> bytes:
    """What stands in a file of the cache: a text, and a line that only who knows the key can write for that file."""
    about = f"{os.path.basename(file)}\n{text}".encode("ascii")
    return f"{text}\n{hmac.new(key, about, sha256).hexdigest()}\n".encode("ascii")


def _loaded(file: str, key: bytes) -> dict[str, Any]:
    """What a file of the cache holds; nothing where it is broken, not ours, or made by other code."""
    try:
        data = contents(file, _LARGEST, follow=False)
        text = data.partition(b"\n")[0].decode("ascii")
        if not hmac.compare_digest(data, signed(text, file, key)):
            return {}
        held = json.loads(text)
        if held["installed"] != _installed() or held["code"] != _stamp(held["folders"]):
            return {}
        states = held["states"]
        for entry in held["known"].values():
            if len(entry) == 3:
                entry[1] = [states[number] for number in entry[1]]
        return held["known"]
    except (OSError, TypeError, ValueError, LookupError, AttributeError, RecursionError):
        return {}


def _provenance() -> dict[str, Any]:
    """The code that finds what is found: the folders of accumlint and of the packs of rules, and what is in them."""
    folders = [os.path.dirname(accumlint.__file__), *map(str, packs.folders())]
    return {"installed": _installed(), "folders": folders, "code": _stamp(tuple(folders))}


@cache
def _installed() -> str:
    """Changes when a package comes or goes, and so perhaps a pack of rules: asking for these takes longer."""
    held = [sys.version]
    for folder in sys.path:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            held += (
                f"{entry.path} {entry.stat().st_mtime_ns}"
                for entry in entries
                if entry.name.endswith((".dist-info", ".egg-info"))
            )
    return _hash("\n".join(held))


def _stamp(folders: Iterable[str]) -> str:
    """Changes when code in a folder, or below it, does."""
    return _hash("\n".join(sorted(line for folder in folders for line in _lines(folder))))


def _lines(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                found = entry.stat()
                yield f"{entry.path} {found.st_size} {found.st_mtime_ns}"
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _lines(entry.path)


def _text(file: Path | None) -> str:
    """The text of a baseline: which findings it knows is part of the settings."""
    try:
        return contents(file).hex() if file else ""
    except OSError:
        return ""


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
