"""Reads a source file into a `Program`."""

from __future__ import annotations

from accumlint.reading import reducing
from accumlint.reading.parsing import UnreadableSource, parsed
from accumlint.reading.program import Program, Source
from accumlint.reading.project import Project
from accumlint.source import lines

__all__ = ["UnreadableSource", "read"]


def read(text: str, path: str, project: Project) -> Program:
    """The program in `text`, the file `path` of `project`.

    Raises:
        UnreadableSource: on a syntax error.
    """
    source = Source(path, lines(text))
    # What is left out of a long file has no say in training: `text` and the source's lines are whole all the same.
    is_long = len(source.lines) > reducing.LONG
    read = reducing.reduced(text, source.lines) if is_long else text
    return Program(source, parsed(read, source), text, read_import=project.imported)
