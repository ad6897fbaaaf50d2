"""Classifies source files: project, installed package or accumlint."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType

OURS = str(Path(__file__).parents[2]) + os.sep
INSTALLED = ("site-packages", "dist-packages")


def is_library(frame: FrameType) -> bool:
    """True for code of an installed package."""
    return any(folder in frame.f_code.co_filename for folder in INSTALLED)


def is_of_project(file: str) -> bool:
    """True for a file of neither Python, an installed package nor accumlint."""
    foreign = (*INSTALLED, "/lib/python")
    return (
        bool(file)
        and not file.startswith(("<", OURS))
        and not any(part in file for part in foreign)
    )
