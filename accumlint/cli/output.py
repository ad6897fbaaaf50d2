"""Puts lines where they belong: on standard output, in files, and problems on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from accumlint.common.problem import Kind, Misuse, Problem
from accumlint.diagnostics.reporting.terminal import printable, printable_path
from accumlint.files.outputs import refuse_detours


def put(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Prints lines; a reader that has seen enough (`| head`) is no fault."""
    out = stream or sys.stdout
    try:
        for line in lines:
            out.write(line + "\n")
        out.flush()
    except BrokenPipeError:
        _close(out)
    except OSError as problem:
        _close(out)
        reason = problem.strerror or problem
        raise Misuse(f"{out.name.strip('<>')}: cannot be written: {reason}") from None


def _close(stream: TextIO) -> None:
    """Python flushes once more at exit, which must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write(lines: Iterable[str], file: str, mode: str = "w") -> Kind:
    """Writes lines to a file, and says how that went."""
    try:
        refuse_detours(file)
        with open(file, mode, encoding="utf-8", errors="backslashreplace") as stream:
            stream.writelines(f"{line}\n" for line in lines)
    except OSError as problem:
        tell(Problem(file, f"cannot be written: {problem.strerror or problem}"))
        return Kind.UNREADABLE
    return Kind.WARNING


def tell(problem: Problem) -> None:
    """Prints a problem on standard error, in one line and what traceback it has."""
    line = f":{problem.line}" if problem.line else ""
    kind = "warning: " if problem.kind is Kind.WARNING else ""
    text = f"{printable_path(problem.path)}{line}: {kind}{printable(problem.message)}"
    print(text, problem.traceback, sep="\n" if problem.traceback else "", file=sys.stderr)
