"""The statements that have failed while a loop ran with fakes, and which names would have kept each from it."""

from __future__ import annotations

import ast
import inspect
import traceback
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

from accumlint.confirming.harness.missing_names import missing_names

# What failed first tells why; a loop that fails in every round tells nothing new.
_MOST = 64


class Failures:
    """What has failed, in order; each statement once for each reason. `told` are the names that have fakes."""

    def __init__(self, file: str, told: Mapping[str, str]) -> None:
        self._file = file
        self._text = ""
        self._loop = range(0)
        self._told = told
        self._noted: dict[tuple[int, str], dict[str, Any]] = {}
        self._latest: tuple[BaseException, dict[str, Any]] | None = None

    def read(self, text: str, line: int) -> None:
        """The source that runs, and the line of the finding, whose loop is the one that has to train."""
        if text != self._text:
            self._text, self._loop = text, _around(ast.parse(text), line)

    def note(self, error: BaseException, line: int, names: Iterable[str]) -> None:
        """A statement that has failed; its `names` get fakes. `line` is where it begins."""
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == self._file), None) or line
        reason = f"{type(error).__name__}: {error}".split("\n")[0][:160]
        known = self._noted.get((line, reason))
        if known is None:
            if len(self._noted) >= _MOST:
                return
            wanted = missing_names(error, self._file, self._text, self._told)
            inside = self._is_inside(inspect.currentframe())
            known = self._noted[line, reason] = {
                "line": line, "reason": reason, "names": [], "wanted": wanted, "inside": inside,
            }  # fmt: skip
        known["names"] = list(dict.fromkeys([*known["names"], *names]))
        self._latest = (error, known)

    def bind(self, error: BaseException, name: str) -> None:
        """A name that a block has left unbound, since it failed."""
        if self._latest is not None and self._latest[0] is error:
            names = self._latest[1]["names"]
            if name not in names:
                names.append(name)

    def _is_inside(self, frame: FrameType | None) -> bool:
        """Whether the loop of the finding is being run."""
        while frame is not None:
            if frame.f_code.co_filename == self._file and frame.f_lineno in self._loop:
                return True
            frame = frame.f_back
        return False

    def plain(self) -> list[dict[str, Any]]:
        """All of them, in order."""
        return list(self._noted.values())


def _around(tree: ast.Module, line: int) -> range:
    """The lines of the smallest loop around a line, or else of its function."""
    for kinds in ((ast.For, ast.AsyncFor, ast.While), (ast.FunctionDef, ast.AsyncFunctionDef)):
        found = (n for n in ast.walk(tree) if isinstance(n, kinds))
        spans = [range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in found]
        holding = [span for span in spans if line in span]
        if holding:
            return min(holding, key=len)
    return range(0)
