"""Replaces functions of torch by observers, and restores them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

_FUNCTIONS = (FunctionType, BuiltinFunctionType)


class Patches:
    """Patched attributes, with the functions that restore them."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        # By the id of a function, the modules that hold it and its name there. Each module is searched once.
        self._holders: dict[int, list[tuple[Any, str]]] = {}
        self._searched: set[int] = set()

    def put(self, owner: Any, name: str, value: Any, *, everywhere: bool = False) -> None:
        """Replaces an attribute; with `everywhere`, also in modules that have imported it by name."""
        original = getattr(owner, name)
        owners = [(owner, name)]
        if everywhere:
            owners += [at for at in self._imported(original) if at != (owner, name)]
        for target, key in owners:
            setattr(target, key, value)
            self._undo.append(lambda target=target, key=key: setattr(target, key, original))

    def undo_by(self, undo: Callable[[], object]) -> None:
        """Adds a function to call at the end."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Restores everything in reverse order."""
        while self._undo:
            self._undo.pop()()

    def _imported(self, function: Any) -> Iterator[tuple[Any, str]]:
        """The modules that hold a function, with its name there."""
        for module in list(sys.modules.values()):
            if id(module) in self._searched:
                continue
            self._searched.add(id(module))
            for key, value in list(getattr(module, "__dict__", {}).items()):
                # `isinstance` would ask some values for their class, which imports or warns.
                if type(value) in _FUNCTIONS:
                    self._holders.setdefault(id(value), []).append((module, key))
        # A notebook goes on to import.
        main = sys.modules.get("__main__")
        yield from ((main, key) for key, value in [*vars(main).items()] if value is function)
        for module, key in self._holders.get(id(function), ()):
            if getattr(module, key, None) is function:
                yield module, key
