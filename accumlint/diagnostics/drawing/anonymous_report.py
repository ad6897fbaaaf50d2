"""Writes a file's loops and findings as Markdown that can be shared: its names anonymised, its comments left out."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace

from accumlint import __version__, check
from accumlint.common.problem import Misuse
from accumlint.diagnostics.drawing import traced_loops
from accumlint.diagnostics.reporting.loops_text import loops
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.report import Checked
from accumlint.editing.anonymous import UnreadableText, anonymised
from accumlint.files.inputs.discovery import Target
from accumlint.files.source import UndecodableSource, decode
from accumlint.registry import packs

_WIDTH = 100
_NAME = "anonymous.py"
# The anonymised text is read alone: it lies in a folder that is not there, so in no project.
_FILE = os.path.join(os.sep, "nowhere", _NAME)
_KEPT = """\
Words that many public training scripts use, and numbers, are kept; other words of names and strings have placeholders.
Comments and docstrings are left out. Read it before you share it."""


def report(data: bytes, target: Target, line: int) -> Iterator[str]:
    """What accumlint finds in a file and in its anonymised text, that text, and its loops.

    `line` is one of the file's: where it is not 0, only the loop around it is drawn.

    Raises:
        Misuse: when the file cannot be read, is a notebook, or has no training loop at the line.
    """
    text = anonymised_text(data, target)
    alone = replace(target, shown=_NAME, file=_FILE, stdin=True)
    there = check.check_bytes(data, target)
    here = check.check_bytes(text.encode(), alone)
    shown = traced_loops.show(data, target)
    groups = traced_loops.selected(shown, target, line)
    # The same loops in the anonymised text: both have them in the order of the source.
    drawn = traced_loops.show(text.encode(), alone)
    same = len(drawn.loops) == len(shown.loops)
    wanted = [index for index, group in enumerate(shown.loops) if group in groups]
    chosen = [drawn.loops[index][0] for index in wanted] if same else [g[0] for g in drawn.loops]

    yield f"accumlint {__version__}, rules {packs.version()}, Python {platform.python_version()}"
    yield ""
    yield f"- found in the file, with its project around it: {_codes(there)}"
    yield f"- found in the text below, alone: {_codes(here, lines=True)}"
    yield ""
    yield from _fenced("python", text.splitlines())
    yield ""
    if chosen:
        yield from _fenced("text", list(loops(chosen, Look(), _WIDTH)))
        yield ""
    yield _KEPT


def anonymised_text(data: bytes, target: Target) -> str:
    """The text of a Python file, anonymised.

    Raises:
        Misuse: when it cannot be read or is a notebook.
    """
    if target.is_notebook:
        raise Misuse(f"{target.shown}: is a notebook; --report takes Python files")
    try:
        return anonymised(decode(data))
    except (UndecodableSource, UnreadableText) as problem:
        raise Misuse(f"{target.shown}: {problem}") from None


def _codes(checked: Checked, *, lines: bool = False) -> str:
    """The codes of what was found, in the order of the lines."""
    at = [f"{r.code} at line {r.mark.place.line}" if lines else r.code for r in checked.reports]
    return ", ".join(at) or "no finding"


def _fenced(language: str, lines: Sequence[str]) -> Iterator[str]:
    """Lines as a block of Markdown; none of them can end it."""
    longest = max((len(line) for line in lines if line and not line.strip("`")), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}{language}"
    yield from lines
    yield fence
