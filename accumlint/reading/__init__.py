"""Reads a source file into a `Program`."""

from __future__ import annotations

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
    return Program(source, parsed(text, source), text, read_data=project.data_of)
