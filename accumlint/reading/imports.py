"""Finds the file of the project that an import means; nothing outside the project is ever one.

A project begins where its repository, its packaging files or its outermost package begin. Absolute imports are looked
for beside the importing file and in every folder above it up to there, each with its `src`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from accumlint.common.memo import Memory

# What stands in the table of frameworks is never followed as source, not even in its own repository.
MODELLED = frozenset(
    {
        "torch", "accelerate", "deepspeed", "lightning", "lightning_fabric", "pytorch_lightning", "transformers",
        "timm", "apex",
    }
)  # fmt: skip
_REPOSITORY = (".git", ".hg")
_PACKAGING = ("pyproject.toml", "setup.py", "setup.cfg")
# In so many folders, `src` folders included, it is looked for what an absolute import means.
_MOST_ROOTS = 32
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class Imports:
    """Answers for one run what imports mean; every file and folder is asked for once."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._files: dict[str, bool] = {}
        self._folders: dict[str, bool] = {}
        # None for a folder that cannot be listed.
        self._names: dict[str, frozenset[str] | None] = {}

    def located(self, path: str, importer: str) -> tuple[str, tuple[str, ...]] | None:
        """The file that the dotted `path` leads into when `importer` imports it, and the names left over.

        A path that begins with dots is relative. Both files are absolute paths.
        """
        found = self._located(path, importer)
        if found is not None and not self._is_inside(found[0], os.path.dirname(importer)):
            return None
        return found

    def _located(self, path: str, importer: str) -> tuple[str, tuple[str, ...]] | None:
        name = path.lstrip(".")
        parts = name.split(".") if name else []
        folder = os.path.dirname(importer)
        if name != path:
            for _ in range(len(path) - len(name) - 1):
                folder = os.path.dirname(folder)
            return self._below(folder, parts)
        if not os.path.isabs(importer) or parts[0] in MODELLED:
            return None
        for root in self.roots(folder):
            if self._is_package_of(root, parts[0]):
                continue
            found = self._below(root, parts) if self._is_module(root, parts[0]) else None
            if found is not None:
                return found
        return None

    def roots(self, folder: str) -> tuple[str, ...]:
        """The folders in which a file in `folder` may find absolute imports, nearest first."""

        def nearest() -> tuple[str, ...]:
            found = tuple(self._upwards(folder, self.top(folder)))
            # In a tree that is deep past all measure, each import would be looked for everywhere.
            return found if len(found) <= _MOST_ROOTS else (*found[: _MOST_ROOTS - 2], *found[-2:])

        return self.memory.once(("roots", folder), nearest, ())

    def _below(self, folder: str, parts: list[str]) -> tuple[str, tuple[str, ...]] | None:
        for position, part in enumerate(parts):
            inner = os.path.join(folder, part)
            if not self._is_folder(inner):
                if self._is_file(inner + ".py"):
                    return inner + ".py", tuple(parts[position + 1 :])
                break
            folder = inner
        else:
            position = len(parts)
        package = os.path.join(folder, "__init__.py")
        return (package, tuple(parts[position:])) if self._is_file(package) else None

    def _upwards(self, folder: str, top: str) -> Iterator[str]:
        while True:
            if os.path.basename(folder) not in _INSTALLED:
                yield folder
                if self._is_folder(source := os.path.join(folder, "src")):
                    yield source
            above = os.path.dirname(folder)
            if folder == top or above == folder:
                return
            folder = above

    def top(self, folder: str) -> str:
        """The folder in which the project of `folder` begins."""
        return self.memory.once(("top", folder), lambda: self._top(folder), folder)

    def _top(self, folder: str) -> str:
        top = above = folder
        while os.path.basename(above) not in _INSTALLED:
            if self._is_repository(above):
                return above
            if any(self._is_file(os.path.join(above, name)) for name in _PACKAGING):
                top = above
            parent = os.path.dirname(above)
            if above == top and self._is_file(os.path.join(above, "__init__.py")):
                top = parent
            if parent == above:
                break
            above = parent
        return top

    def _is_inside(self, path: str, folder: str) -> bool:
        """False for what dots or a link lead to outside of the project."""

        def inside() -> bool:
            top = os.path.realpath(self.top(folder))
            return os.path.realpath(path).startswith(os.path.join(top, ""))

        return self.memory.once(("inside", path, folder), inside, True)

    def _is_repository(self, folder: str) -> bool:
        marks = (os.path.join(folder, name) for name in _REPOSITORY)
        # Of a git worktree or submodule, `.git` is a file.
        return any(self._is_folder(mark) or self._is_file(mark) for mark in marks)

    def _is_package_of(self, folder: str, name: str) -> bool:
        """True inside the package `name`, whose own name means it and not the module of that name within."""
        return os.path.basename(folder) == name and self._is_file(
            os.path.join(folder, "__init__.py")
        )

    def _is_module(self, folder: str, name: str) -> bool:
        path = os.path.join(folder, name)
        if self._lacks(folder, name):
            self.memory.met.update((path, path + ".py"))
            return False
        return self._is_file(path + ".py") or self._is_folder(path)

    def _lacks(self, folder: str, name: str) -> bool:
        """True where nothing in a folder has a module's name: most imports mean nothing in most folders."""
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(n.removesuffix(".py") for n in os.listdir(folder))
            except (OSError, ValueError):
                self._names[folder] = None
        names = self._names[folder]
        return names is not None and name not in names

    def _is_file(self, path: str) -> bool:
        self.memory.met.add(path)
        if path not in self._files:
            self._files[path] = os.path.isfile(path)
        return self._files[path]

    def _is_folder(self, path: str) -> bool:
        self.memory.met.add(path)
        if path not in self._folders:
            self._folders[path] = os.path.isdir(path)
        return self._folders[path]
