"""Records the statements that failed in a run, each with the names that a set-up file could provide."""

from __future__ import annotations

import ast
import inspect
import traceback
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

from accumlint.confirming.harness.missing_names import missing_names

# The first failures matter; a loop that fails in every iteration adds nothing.
_MOST = 64


class Failures:
    """The failures in order, each statement once for each reason. `fakes` are the names that have fakes."""

    def __init__(self, file: str, fakes: Mapping[str, str]) -> None:
        self._file = file
        self._text = ""
        self._loop = range(0)
        self._fakes = fakes
        self._noted: dict[tuple[int, str], dict[str, Any]] = {}
        self._latest: tuple[BaseException, dict[str, Any]] | None = None

    def read(self, text: str, line: int) -> None:
        """Sets the source and the line of the finding, whose loop has to train."""
        if text != self._text:
            self._text, self._loop = text, _around(ast.parse(text), line)

    def note(self, error: BaseException, line: int, names: Iterable[str]) -> None:
        """Records a failed statement that begins at `line`; its `names` get fakes."""
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == self._file), None) or line
        reason = f"{type(error).__name__}: {error}".split("\n")[0][:160]
        known = self._noted.get((line, reason))
        if known is None:
            if len(self._noted) >= _MOST:
                return
            wanted = missing_names(error, self._file, self._text, self._fakes)
            inside = self._is_inside(inspect.currentframe())
            known = self._noted[line, reason] = {
                "line": line, "reason": reason, "names": [], "wanted": wanted, "inside": inside,
            }  # fmt: skip
        known["names"] = list(dict.fromkeys([*known["names"], *names]))
        self._latest = (error, known)

    def bind(self, error: BaseException, name: str) -> None:
        """Adds a name that a failed block left unbound."""
        if self._latest is not None and self._latest[0] is error:
            names = self._latest[1]["names"]
            if name not in names:
                names.append(name)

    def _is_inside(self, frame: FrameType | None) -> bool:
        """Whether the loop of the finding is running."""
        while frame is not None:
            if frame.f_code.co_filename == self._file and frame.f_lineno in self._loop:
                return True
            frame = frame.f_back
        return False

    def plain(self) -> list[dict[str, Any]]:
        """All failures in order, as plain values."""
        return list(self._noted.values())


def _around(tree: ast.Module, line: int) -> range:
    """The lines of the smallest loop around a line, else of its function."""
    for kinds in ((ast.For, ast.AsyncFor, ast.While), (ast.FunctionDef, ast.AsyncFunctionDef)):
        found = (n for n in ast.walk(tree) if isinstance(n, kinds))
        spans = [range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in found]
        containing = [span for span in spans if line in span]
        if containing:
            return min(containing, key=len)
    return range(0)
