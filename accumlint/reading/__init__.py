"""Reads a source file into a `Program`."""

from __future__ import annotations

import ast

from accumlint.files.source import UnreadableSource
from accumlint.reading import pruning
from accumlint.reading.lowering import lowered
from accumlint.reading.neighbours import neighbours
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.reading.syntax import Source

__all__ = ["UnreadableSource", "read"]


def read(text: str, path: str, project: Project) -> Program:
    """The program in `text`, the file `path` of `project`.

    Raises:
        UnreadableSource: on a syntax error.
    """
    source = Source(path, text)
    module, lines = source.tree, source.lines
    # What is left out of a long file has no say in training.
    silent = pruning.silent(module, lines) if len(lines) > pruning.LONG else frozenset[ast.AST]()
    return Program(
        source,
        lowered(module.body, source, silent),
        read_import=project.imported,
        read_neighbours=lambda program: neighbours(program, project),
    )
