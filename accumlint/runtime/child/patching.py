"""Replaces functions of torch by observers, and restores them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Patches:
    """Patched attributes, with the functions that restore them."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def put(self, owner: Any, name: str, value: Any, *, everywhere: bool = False) -> None:
        """Replaces an attribute; with `everywhere`, also in modules that have imported it by name."""
        original = getattr(owner, name)
        owners = [(owner, name)]
        if everywhere:
            owners += [
                (module, key)
                for module in list(sys.modules.values())
                for key, value_ in list(getattr(module, "__dict__", {}).items())
                if value_ is original and (module, key) != (owner, name)
            ]
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
