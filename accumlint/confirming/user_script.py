"""Resolves a user's script: its file, its arguments, and the project modules that it imports."""

from __future__ import annotations

import ast
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from accumlint.common.frozen import frozen
from accumlint.common.memo import Memory
from accumlint.common.problem import Misuse
from accumlint.files.regular import contents
from accumlint.files.source import UndecodableSource, decode
from accumlint.reading.imports import Imports

_STARTERS = {"python", "python3", "torchrun", "accelerate", "deepspeed"}
# The limit of imported modules that are read.
_MOST = 300


@frozen
class Script:
    """A script as `shown` by the user and its arguments; `module` is the name for `-m`, "" for a file."""

    file: str
    shown: str
    arguments: tuple[str, ...]
    folder: str
    module: str = ""

    @property
    def command(self) -> str:
        """The command line."""
        return shlex.join((*self.shown.split(), *self.arguments))


def found(words: Sequence[str], folder: str) -> Script:
    """The script in the words behind `--`, with its arguments.

    Raises:
        Misuse: where there is none.
    """
    if words[0] == "-m" and len(words) > 1:
        name = words[1]
        base = Path(folder, *name.split("."))
        for file in (base.with_suffix(".py"), base / "__main__.py"):
            if file.is_file():
                return Script(str(file), f"-m {name}", tuple(words[2:]), folder, name)
        raise Misuse(f"{name}: no such module in this folder")
    file = Path(folder, words[0])
    if file.is_file():
        return Script(os.path.abspath(file), words[0], tuple(words[1:]), folder)
    if words[0] in _STARTERS:
        raise Misuse(f"behind -- comes the script itself, without {words[0]}")
    raise Misuse(f"{words[0]}: no such script")


def modules(script: Script) -> list[str]:
    """The script and the project files that it imports, directly or not, as paths relative to its folder."""
    imports = Imports(Memory())
    waiting, files = [script.file], dict.fromkeys([script.file])
    while waiting and len(files) < _MOST:
        importer = waiting.pop(0)
        for path in _imported(importer):
            located = imports.located(path, importer)
            if located is not None and located[0] not in files:
                files[located[0]] = None
                waiting.append(located[0])
    return [_shown(file, script.folder) for file in files]


def _imported(file: str) -> Iterator[str]:
    """The dotted paths that a file imports."""
    try:
        tree = ast.parse(text_of(file) or "")
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            dot = "" if base.endswith(".") else "."
            yield from (f"{base}{dot}{alias.name}" for alias in node.names if alias.name != "*")
            if node.module:
                yield base


def _shown(file: str, folder: str) -> str:
    beside = os.path.relpath(file, folder)
    return file if beside.startswith("..") else beside


def text_of(file: str) -> str | None:
    """The text of a source file, None for an unreadable one."""
    try:
        return decode(contents(file))
    except (OSError, UndecodableSource):
        return None
