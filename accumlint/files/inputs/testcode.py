"""Tells tests from code that trains: by their path, and by what pytest and unittest look for in a file."""

from __future__ import annotations

import os
from fnmatch import fnmatch
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accumlint.files.inputs.discovery import Target
    from accumlint.reading.program import Program

_FOLDERS = {"test", "tests", "unittest", "unittests"}
_FILES = ("test_*.py", "*_test.py", "conftest.py")
_FRAMEWORKS = ("pytest", "unittest", "torch.testing")
# Of a file outside of the settings' folder, nobody knows where its project begins.
_NEAR = 3


def is_test_by_path(target: Target) -> bool:
    """True for a file in a folder of tests, or with a name that pytest looks for."""
    below = os.path.relpath(target.file, target.settings.root)
    parts = below.split(os.sep)
    if parts[0] == os.pardir or os.path.isabs(below):
        parts = target.file.split(os.sep)[-_NEAR:]
    *folders, name = parts
    return not _FOLDERS.isdisjoint(folders) or any(fnmatch(name, p) for p in _FILES)


def is_test_by_idiom(program: Program) -> bool:
    """True for a file that imports a framework for tests and defines what it looks for."""
    if not any(path.lstrip("*").startswith(_FRAMEWORKS) for path in program.imports.values()):
        return False
    tests = any(f.name.startswith("test_") for f in program.functions)
    cases = (base for cls in program.classes.values() for base in cls.bases)
    return tests or any(base.endswith("TestCase") for base in cases)
