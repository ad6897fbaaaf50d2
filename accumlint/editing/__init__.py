"""Turns what a fix does, said in a few verbs, into edits of the file's text."""

from accumlint.editing.edits import Edit, applied
from accumlint.editing.layout import Layout
from accumlint.editing.resolving import edits
from accumlint.editing.verbs import (
    After,
    Append,
    Before,
    Delete,
    DropArgument,
    Enclose,
    Guard,
    Import,
    Insert,
    Move,
    Rename,
    Replace,
    Sink,
    Verb,
    Where,
)

__all__ = [
    "After",
    "Append",
    "Before",
    "Delete",
    "DropArgument",
    "Edit",
    "Enclose",
    "Guard",
    "Import",
    "Insert",
    "Layout",
    "Move",
    "Rename",
    "Replace",
    "Sink",
    "Verb",
    "Where",
    "applied",
    "edits",
]
