"""Where a file lies, for readers that know it by its place in the repository."""

from __future__ import annotations

import os
from pathlib import Path


def repository(folder: Path) -> Path:
    """The root of the repository around a folder, or the folder itself outside of one; links are followed."""
    here = folder.resolve()
    return next((home for home in (here, *here.parents) if (home / ".git").exists()), here)


def relative(file: str, root: Path) -> str:
    """A file's path below the root with forward slashes; its whole path if it lies elsewhere, "-" for stdin."""
    if file == "-":
        return file
    real = Path(os.path.realpath(file))
    return (real.relative_to(root) if root in real.parents else real).as_posix()
