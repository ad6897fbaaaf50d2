"""Assignment of values to names of a user's source: replaces unknown values by the fake that the name requires."""
# pyright: reportPrivateUsage=false
# Private attributes of a stub stay out of the way of the user's names.

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from accumlint.confirming.harness.fakes.batches import Batch
from accumlint.confirming.harness.fakes.loss_functions import grads_of
from accumlint.confirming.harness.fakes.name_words import (
    AVERAGE,
    CLASS,
    DATA,
    OPTIONS,
    is_auxiliary,
)
from accumlint.confirming.harness.fakes.networks import Criterion, Member, Model
from accumlint.confirming.harness.fakes.outputs import Losses, Output
from accumlint.confirming.harness.fakes.role_stubs import Fakes
from accumlint.confirming.harness.fakes.stub import ITEM, UNKNOWN, Stub
from accumlint.confirming.harness.fakes.usual_settings import setting
from accumlint.confirming.harness.rewriting.slicing import Pattern, flat
from accumlint.confirming.harness.setup_objects import are_batches, wraps
from accumlint.confirming.harness.value_inspection import is_settings, is_training_object, look_up
from accumlint.reading import names

_LOSS = re.compile(r"(^|_)loss(es)?$")
# Parts of a loss, as numbers to log.
_ITEMS = re.compile(r"(^|_)loss(es)?_(items?|parts?|terms?|components?|values?)$")
_EPOCHS = re.compile(r"^((num|n|max|total|train)_(train_)?)?epochs$")


class ValueEntry(Fakes):
    """The fakes of a pass with the rules for values that are assigned to names or go backward."""

    def entering(self, bound: Pattern, value: Any) -> Any:
        """A value that is assigned to names."""
        if isinstance(bound, str):
            return self._named(bound, value)
        return self._unpacked(bound, value)

    def quotient(self, bound: Pattern, value: Any) -> Any:
        """As `entering`, for a quotient of accumulation steps, which unknown settings may reduce to 0."""
        return self.entering(bound, 1 if type(value) is int and value == 0 else value)

    def share(self, bound: Pattern, value: Any) -> Any:
        """As `entering`, for a quotient of the data's length, which is longer than its fake."""
        empty = type(value) is int and value == 0
        return self.entering(bound, max(1, self.data.length // self.steps_) if empty else value)

    def item(self, bound: Pattern, value: Any) -> Any:
        """The item of a loop; an iteration count is no setting, whatever its name."""
        if isinstance(value, int):
            return value
        if isinstance(bound, tuple) and isinstance(value, tuple) and len(bound) == len(value):
            return tuple(self.item(n, v) for n, v in zip(bound, value, strict=True))
        return self.entering(bound, value)

    def items(self, bound: Pattern, iterable: Any) -> Iterator[Any]:
        """The items of a comprehension that unpacks them."""
        return (self.item(bound, value) for value in iterable)

    def built(self, bound: Pattern, mentions: tuple[str, ...], later: Callable[[], Any]) -> Any:
        """A call that may build an object with a role: executed only if its arguments include real objects."""
        if isinstance(bound, str) and bound in self.provided:
            return self.take(bound)
        frame = sys._getframe(1)
        is_provided = isinstance(bound, str) and f"self.{bound}" in self.provided_attributes
        if is_provided or any(is_training_object(look_up(frame, name)) for name in mentions):
            return self.entering(bound, later())
        if isinstance(bound, str):
            found = self.value(bound)
            return found if found is not UNKNOWN else self.entering(bound, later())
        return self._missing(bound)

    def _named(self, bound: str, value: Any) -> Any:
        last = bound.rpartition(".")[2]
        if bound in self.provided:
            provided = self.take(bound)
            return value if wraps(value, provided) else provided
        if isinstance(value, Batch):
            return value.use()
        if are_batches(value) and (bound in self.fakes or not self.data.fetched):
            # A list that is built later may contain pieces of a micro-batch.
            if bound in self.source.windows:
                self.note_fake(bound, "micro-batches made on the spot, as many as the loop lists")
                return [self.data.fetch() for _ in value]
            return self.loader(bound)
        if value is None and (
            self.choices.get(f"{bound} is None") == "false"
            or (self.config.scaled and self.roles.get(bound) == "scaler")
        ):
            # On the path of the finding it is not None.
            found = self.value(bound)
            return None if found is UNKNOWN else found
        if type(value) is dict and (whole := self.data.batches.get(self.data.current)):
            # A micro-batch that is moved part by part stays the micro-batch.
            value = whole.use() if whole.is_made_of(value) else value
        if isinstance(value, Member) and (self.roles.get(bound) or names.role_of(last)) == "model":
            # A submodule trains as the whole network.
            return value._model
        if isinstance(value, Output):
            keys = self.source.keyed.get(bound, ())
            return value.keyed(last, keys) if keys else value.named(last)
        if isinstance(value, torch.Tensor) and value.requires_grad and not value.dim():
            return Losses({"loss": value}) if bound in self.source.subscripted else value
        is_steps = names.is_steps(last) or self.roles.get(bound) == "steps"
        if is_steps and isinstance(value, int | float | Stub) and not isinstance(value, bool):
            # 0 is the initial value of a counter.
            starts = not isinstance(value, Stub) and value == 0
            return value if starts else self.counted(bound, value)
        if isinstance(value, Stub) and (found := self._made(bound, last, value)) is not UNKNOWN:
            return found
        if is_settings(bound) or dataclasses.is_dataclass(value):
            self._adapt_settings(bound, value)
        if isinstance(value, nn.Module) and not isinstance(value, Model):
            if not AVERAGE.search(f"{bound} {type(value).__name__}"):
                self.register_module(value)
        return value

    def _made(self, bound: str, last: str, value: Stub) -> Any:
        """The value that a name gives to a stub, `UNKNOWN` where the name has no meaning."""
        if is_settings(bound) and not is_settings(value._text) and not value._made:
            # A settings object, whatever its source.
            return self.stub(bound)
        if self.config.lenient and self._is_plain(value) and _LOSS.search(last.lower()):
            if (found := self.substitute_loss()) is not None:
                return found
        if value._text.endswith(ITEM):
            return self._unknown(bound, value)
        if value._from_data and is_auxiliary(last):
            return self._derived_data(last)
        found = self.value(bound)
        if isinstance(found, nn.Module) and value._text.removesuffix("()") in self.model_receivers:
            # It may have wrapped the model in one that reduces.
            self.recorder.notes.wrapped.append(value._text)
        if isinstance(found, Criterion | Model) and value._window_aware:
            found.window_aware_ = True
        is_data = found is UNKNOWN and DATA.search(last.lower())
        if is_data and not any(map(names.is_configuration, (bound, value._text))):
            return self._piece(bound)
        return found

    def _adapt_settings(self, bound: str, value: Any) -> None:
        """Sets the accumulation steps of the run, and several epochs, in settings objects of the project."""
        for name, current in list(vars(value).items()) if hasattr(value, "__dict__") else ():
            if type(current) is not int:
                continue
            if names.is_steps(name):
                wanted = self.counted(f"{bound}.{name}", current)
            else:
                wanted = setting(name.lower()) if current == 1 and _EPOCHS.search(name) else current
            with suppress(AttributeError):
                # Read-only attributes stay unchanged.
                setattr(value, name, wanted)

    def _unpacked(self, bound: tuple[Pattern, ...], value: Any) -> Any:
        if isinstance(value, torch.Tensor) and isinstance(last := self.data.last, Output):
            # A loss with further values, or behind them.
            behind = isinstance(bound[-1], str) and _LOSS.search(bound[-1].lower())
            value = last if value is last._loss and (len(bound) > 2 or behind) else value
        if isinstance(value, Batch):
            return value.use().parts(bound)
        if isinstance(value, Output):
            return value.parts(bound)
        if isinstance(value, torch.Tensor) and len(bound) == 2 and value.dim() == 0:
            second = bound[1] if isinstance(bound[1], str) else ""
            return value, value.detach() if _ITEMS.search(second.lower()) else {}
        if isinstance(value, Stub):
            return self._unknown(bound, value)
        items = list(value)
        starred = [i for i, n in enumerate(bound) if isinstance(n, str) and n.startswith("*")]
        if not starred and len(items) == len(bound):
            return tuple(self.entering(n, v) for n, v in zip(bound, items, strict=True))
        return items

    def _unknown(self, bound: Pattern, value: Stub) -> Any:
        """Fakes for an unknown value: an item of an unknown iterable is a micro-batch."""
        if not value._text.endswith(ITEM):
            if value._from_data:
                return self._derived_data(bound)
            found = self._trained(bound, value)
            return self._missing(bound, self._is_plain(value)) if found is None else found
        self.note_fake(value._text.removesuffix(ITEM), "micro-batches made on the spot")
        batch = self._batch(bound).use()
        return batch if isinstance(bound, str) else batch.parts(bound)

    def _derived_data(self, bound: Pattern) -> Any:
        """Fakes for a value that an unknown function computed from the current micro-batch."""
        if isinstance(bound, tuple):
            return tuple(map(self._derived_data, bound))
        if not self._is_auxiliary(bound) and not DATA.search(bound.lower()):
            return self._missing(bound)
        self.note_fake(bound, "made on the spot of the micro-batch in hand")
        name = self._as_data(bound)
        if self.data.fed > self.data.current:
            # The function received it directly from the loader, before it had a name.
            self.data.batches[self.data.fed].use()
        return self.data.now().tensor(name if isinstance(name, str) else bound)

    def _is_auxiliary(self, name: str) -> bool:
        return is_auxiliary(name) or self.roles.get(name) == "mask"

    def _as_data(self, name: Pattern) -> Pattern:
        """The name of data as the micro-batch resolves it."""
        return "mask" if isinstance(name, str) and self.roles.get(name) == "mask" else name

    def _trained(self, bound: Pattern, value: Stub) -> Any:
        """Fakes for the results of an unknown call that include a loss: that of the trained network."""
        called = value._text.removesuffix("()")
        if called == value._text or len(self.models) > 1 or isinstance(bound, str):
            return None
        if not any(_LOSS.search(n.rpartition(".")[2].lower()) for n in flat(bound)):
            return None
        self.note_fake(called, "the loss of a network of about a hundred parameters")
        model = next(iter(self.models.values()), None) or self.model(called)
        return model(self._batch(bound).use()).parts(bound)

    def _piece(self, bound: str) -> Any:
        """Data by its name: of the current micro-batch, or of a new one where the name begins one."""
        low = bound.lower()
        if "batch" in low or low.lstrip("_").startswith(
            ("x", "inp", "image", "img", "data", "token")
        ):
            batch = self._batch(bound)
            self.note_fake(bound, "micro-batches made on the spot")
            whole = "batch" in low or bound in self.source.subscripted
            return batch.use() if whole else batch.tensor(bound)
        if (bound, self.data.current) in self.pieces and not self.data.fed:
            self.data.fetch().use()
        self.pieces.add((bound, self.data.current))
        batch = self.data.now()
        return batch.use() if bound in self.source.subscripted else batch.tensor(bound)

    def _batch(self, bound: Pattern) -> Batch:
        """A new micro-batch, or the current one if a loader yielded it and it is not spent."""
        if self.data.fed == self.data.current and not self.data.spent:
            return self.data.now()
        return self.data.fetch()

    def _missing(self, bound: Pattern, failed: bool = False) -> Any:
        """Fakes for absent names, or names whose statement has `failed`."""
        if isinstance(bound, tuple):
            texts = [n for n in bound if isinstance(n, str)]
            known = [n for n in texts if DATA.search(n.lower())]
            if texts and all(n in known or n == "_" or self._is_auxiliary(n) for n in texts):
                self.note_fake(", ".join(texts), "micro-batches made on the spot")
                batch = self._batch(bound) if known or not any(texts) else self.data.now()
                return batch.use().parts(tuple(map(self._as_data, bound)))
            return tuple(self._missing(n, failed) for n in bound)
        last = bound.rpartition(".")[2].lower()
        if self.config.lenient and (failed or not self.config.exact) and _LOSS.search(last):
            if (substitute := self.substitute_loss()) is not None:
                return substitute
        if CLASS.search(bound):
            return self.stub(bound)
        if (found := self.value(bound)) is not UNKNOWN:
            return found
        settings = names.is_configuration(bound) or OPTIONS.match(bound)
        return self._piece(bound) if DATA.search(last) and not settings else self.stub(bound)

    def root(self, value: Any) -> Any:
        """The root of a backward; a substitute loss for a number, an unknown value, or a loss without effect."""
        if self.config.exact:
            return value
        if isinstance(value, torch.Tensor) and value.requires_grad and self.data.outputs:
            with self.recorder.quiet():
                found = grads_of(value, list(self.data.outputs.values()))
            moves = any(g is not None and bool(g.isfinite().all() and g.any()) for g in found)
            # Nothing can be compared where fakes are all masked or have no logarithm.
            return value if moves or self.data.poisoned else self._with_substitute_loss(value)
        if not isinstance(value, int | float | Stub | None):
            return value
        return self._with_substitute_loss(value)

    def returned_loss(self, value: Any) -> Any:
        """The loss that a method returns to a framework; a substitute where it has no gradient and one is allowed."""
        moves = isinstance(value, torch.Tensor) and value.requires_grad
        unknown = isinstance(value, Stub) and not self._is_plain(value)
        unknown = unknown or (self.config.exact and not self.config.undivided)
        return (
            value
            if moves or unknown or not self.config.lenient
            else self._with_substitute_loss(value)
        )

    def _with_substitute_loss(self, value: Any) -> Any:
        """A substitute loss, else the value."""
        found = self.substitute_loss()
        if found is None and self.world == 1:
            # A single rank may call the network late.
            for model in list(self.models.values())[:1]:
                model(self.data.now())
            found = self.substitute_loss()
        return value if found is None else found

    def _is_plain(self, value: Stub) -> bool:
        """Whether a substitute loss may replace an unknown value: where the size counts, absent code that returns a
        loss may have divided it."""
        return not self.config.exact or not value._text.endswith((")", "]"))
