"""Fixes files: makes the edits that findings offer, checks again, and writes what came of it."""

from accumlint.diagnostics.fixing.fix_files import fix_files, written
from accumlint.diagnostics.fixing.rounds import Fixed, fix, fixed

__all__ = ["Fixed", "fix", "fix_files", "fixed", "written"]
