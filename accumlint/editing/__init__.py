"""Turns what a fix does, said in a few verbs, into edits of the file's text.

Here are the verbs, which rules use. What makes edits of them needs libcst, and is imported when a fix is tried.
"""

from accumlint.editing.operations import (
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
    "Enclose",
    "Guard",
    "Import",
    "Insert",
    "Move",
    "Rename",
    "Replace",
    "Sink",
    "Verb",
    "Where",
]
