"""Objects of packages that are not here, which go backward, step and clear for the optimizers that they are given."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own annotations are partial.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from accumlint.confirming.harness.fakes.outputs import Output
from accumlint.reading import names

_CLEARS = {"zero_grad", "clear_grad", "clear_grads", "clear_gradients"}
# What says nothing of a window; a number may be its size.
_PLAIN = (torch.optim.Optimizer, torch.nn.Module, torch.Tensor, str, bool, float, type(None))


class Managers:
    """What each such object was given, by its text; one that may know the accumulation steps is left alone.

    What knows of no window cannot divide by its size: it goes backward through what it is given, and steps and clears
    when it is asked to. `note` hears of those that have gone backward.
    """

    def __init__(self, steps: int, note: Callable[[str], None]) -> None:
        self.steps = steps
        self.note = note
        self.optimizers: dict[str, list[torch.optim.Optimizer]] = {}
        self.told: set[str] = set()

    def rename(self, text: str, name: str) -> None:
        """An object has got a name."""
        if text in self.optimizers:
            self.optimizers.setdefault(name, self.optimizers[text])
        if text in self.told:
            self.told.add(name)

    def called(self, text: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Does what a call asks for; False where that is another's business."""
        owner, _, method = text.rpartition(".")
        given = (*args, *kwargs.values())
        held = self.optimizers.get(owner, []) if owner not in self.told else []
        if method == "backward" and held and args:
            loss = args[0].loss if isinstance(args[0], Output) else args[0]
            if isinstance(loss, torch.Tensor) and loss.requires_grad:
                self.note(owner)
                loss.backward()
                return True
        if method in ("step", *_CLEARS) and held and not given:
            for optimizer in held:
                if method == "step":
                    optimizer.step()
                else:
                    optimizer.zero_grad()
            return True
        self._gave(f"{text}()", given, kwargs)
        self._gave(owner, given, kwargs)
        return False

    def _gave(self, name: str, given: Sequence[Any], words: Iterable[str]) -> None:
        """Something was given to an object, when it was made or by a method of its own."""
        optimizers = [x for x in given if isinstance(x, torch.optim.Optimizer)]
        if optimizers:
            self.optimizers.setdefault(name, []).extend(optimizers)
        if self._may_tell(given) or any(map(names.is_steps, words)):
            self.told.add(name)

    def _may_tell(self, given: Sequence[Any]) -> bool:
        """Whether something may hold the accumulation steps."""
        return any(not self._is_plain(value) for value in given)

    def _is_plain(self, value: Any) -> bool:
        if isinstance(value, list | tuple | set):
            return all(map(self._is_plain, value))
        if type(value) is int:
            return value != self.steps
        return isinstance(value, _PLAIN)
