"""Puts observers in the place of torch's functions, and takes them out again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Patches:
    """What was put where, with what to do to undo it."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def put(self, owner: Any, name: str, value: Any, *, everywhere: bool = False) -> None:
        """Puts an attribute; with `everywhere`, also where modules have imported it by name already."""
        original = getattr(owner, name)
        owners = [(owner, name)]
        if everywhere:
            owners += [
                (module, key)
                for module in list(sys.modules.values())
                for key, held in list(getattr(module, "__dict__", {}).items())
                if held is original and (module, key) != (owner, name)
            ]
        for one, key in owners:
            setattr(one, key, value)
            self._undo.append(lambda one=one, key=key: setattr(one, key, original))

    def undo_by(self, undo: Callable[[], object]) -> None:
        """Has something else done when all is undone."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Undoes everything, the last first."""
        while self._undo:
            self._undo.pop()()
