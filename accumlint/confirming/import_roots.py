"""The folders on the import path of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def package(file: Path) -> tuple[Path, str]:
    """The root folder of a file's package, and the package's dotted name."""
    folder = file.parent
    parts: list[str] = []
    while (folder / "__init__.py").exists() and folder.parent != folder:
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def roots_of(file: str) -> tuple[str, ...]:
    """The folders on the import path of a file."""
    return tuple(_folders(package(Path(file))[0], Path(file).parent))


def _folders(*folders: Path) -> Iterator[str]:
    """Each folder, and its `src` if there is one."""
    for folder in dict.fromkeys(folders):
        yield str(folder)
        if (folder / "src").is_dir():
            yield str(folder / "src")
