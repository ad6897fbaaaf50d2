"""Reads a source file into a `Program`."""

from __future__ import annotations

from accumlint.files.source import UnreadableSource
from accumlint.reading.neighbours import neighbours
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.reading.stock_trainers import stock_trainers

__all__ = ["UnreadableSource", "read"]


def read(text: str, path: str, project: Project) -> Program:
    """The program in `text`, the file `path` of `project`.

    Where the file holds that very text, other files that are followed into it meet the same nodes.

    Raises:
        UnreadableSource: on a syntax error.
    """
    module = project.as_read(path, text)
    return Program(
        module.source,
        module.body,
        read_import=project.imported,
        read_stars=project.starred,
        read_neighbours=lambda program: neighbours(program, project),
        read_evidence=lambda caller: project.memory.once(
            ("evidence", caller.path), lambda: caller.evidence, ()
        ),
        read_trainers=lambda program: stock_trainers(program, project),
        keep=lambda: project.keep(module),
    )
