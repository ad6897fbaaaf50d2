"""Values as they enter the names of a user's source: what a name tells of what it is to hold."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false
# torch's own annotations are partial; a stub's own attributes must not look like what it stands for.

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from accumlint.confirming.harness.fakes.batches import Batch, is_beside
from accumlint.confirming.harness.fakes.name_words import AVERAGE, DATA, OPTIONS
from accumlint.confirming.harness.fakes.networks import Criterion, Member, Model
from accumlint.confirming.harness.fakes.outputs import Output
from accumlint.confirming.harness.fakes.role_stubs import Things
from accumlint.confirming.harness.fakes.stub import ITEM, UNKNOWN, Stub
from accumlint.confirming.harness.fakes.usual_settings import setting
from accumlint.confirming.harness.rewriting.slicing import Pattern, flat
from accumlint.confirming.harness.setup_objects import are_batches, wraps
from accumlint.confirming.harness.value_inspection import is_settings, is_thing, look_up
from accumlint.reading import names

_LOSS = re.compile(r"(^|_)loss(es)?$")
# What a loss is made of, as numbers to look at.
_ITEMS = re.compile(r"(^|_)loss(es)?_(items?|parts?|terms?|components?|values?)$")
_EPOCHS = re.compile(r"^((num|n|max|total|train)_(train_)?)?epochs$")


class Entering(Things):
    """What becomes of a value, known or not, where it gets a name or goes backward."""

    def entering(self, bound: Pattern, value: Any) -> Any:
        """A value as it enters names."""
        if isinstance(bound, str):
            return self._named(bound, value)
        return self._taken_apart(bound, value)

    def quotient(self, bound: Pattern, value: Any) -> Any:
        """As `entering`, for a quotient: settings that nobody knows may leave 0, which is no counter's start."""
        return self.entering(bound, 1 if type(value) is int and value == 0 else value)

    def share(self, bound: Pattern, value: Any) -> Any:
        """As `entering`, for how often something goes into data, which is longer than its fake."""
        empty = type(value) is int and value == 0
        return self.entering(bound, max(1, self.data.length // self.steps_) if empty else value)

    def item(self, bound: Pattern, value: Any) -> Any:
        """What a loop gives its target: a count of rounds is no setting, whatever its name."""
        if isinstance(value, int):
            return value
        if isinstance(bound, tuple) and isinstance(value, tuple) and len(bound) == len(value):
            return tuple(self.item(n, v) for n, v in zip(bound, value, strict=True))
        return self.entering(bound, value)

    def items(self, bound: Pattern, iterable: Any) -> Iterator[Any]:
        """What a comprehension that takes its items apart goes through."""
        return (self.item(bound, value) for value in iterable)

    def built(self, bound: Pattern, mentions: tuple[str, ...], later: Callable[[], Any]) -> Any:
        """A call that may build a thing with a role: made for real only from things that are here already."""
        if isinstance(bound, str) and bound in self.given:
            return self.take(bound)
        frame = sys._getframe(1)
        is_given = isinstance(bound, str) and f"self.{bound}" in self.kept
        if is_given or any(is_thing(look_up(frame, name)) for name in mentions):
            return self.entering(bound, later())
        if isinstance(bound, str):
            found = self.value(bound)
            return found if found is not UNKNOWN else self.entering(bound, later())
        return self._missing(bound)

    def _named(self, bound: str, value: Any) -> Any:
        last = bound.rpartition(".")[2]
        if bound in self.given:
            own = self.take(bound)
            return value if wraps(value, own) else own
        if isinstance(value, Batch):
            return value.use()
        if are_batches(value) and (bound in self.fakes or not self.data.fetched):
            # What is listed later may be pieces of a micro-batch.
            if bound in self.source.windows:
                self.tell(bound, "micro-batches made on the spot, as many as the loop lists")
                return [self.data.fetch() for _ in value]
            return self.loader(bound)
        if value is None and (
            self.choices.get(f"{bound} is None") == "false"
            or (self.way.scaled and self.roles.get(bound) == "scaler")
        ):
            # On the path of the finding it is there.
            found = self.value(bound)
            return None if found is UNKNOWN else found
        if type(value) is dict and (whole := self.data.batches.get(self.data.current)):
            # A micro-batch that was moved part by part is the micro-batch.
            value = whole.use() if whole.is_made_of(value) else value
        if isinstance(value, Member) and (self.roles.get(bound) or names.role_of(last)) == "model":
            # A part of a network trains as the whole does.
            return value._model
        if isinstance(value, Output):
            keys = self.source.keyed.get(bound, ())
            return value.keyed(last, keys) if keys else value.named(last)
        is_steps = names.is_steps(last) or self.roles.get(bound) == "steps"
        if is_steps and isinstance(value, int | float | Stub) and not isinstance(value, bool):
            # 0 is a counter's start.
            starts = not isinstance(value, Stub) and value == 0
            return value if starts else self.counted(bound, value)
        if isinstance(value, Stub) and (found := self._made(bound, last, value)) is not UNKNOWN:
            return found
        if is_settings(bound) or dataclasses.is_dataclass(value):
            self._ask_for_steps(bound, value)
        if isinstance(value, nn.Module) and not isinstance(value, Model):
            if not AVERAGE.search(f"{bound} {type(value).__name__}"):
                self.own(value)
        return value

    def _made(self, bound: str, last: str, value: Stub) -> Any:
        """What a name makes of an unknown value, `UNKNOWN` where it says nothing."""
        if is_settings(bound) and not is_settings(value._text) and not value._made:
            # What it holds are settings, wherever they come from.
            return self.stub(bound)
        if self.way.lenient and self._is_plain(value) and _LOSS.search(last.lower()):
            if (found := self.own_loss()) is not None:
                return found
        if value._text.endswith(ITEM):
            return self._unknown(bound, value)
        if value._of_data and is_beside(last):
            return self._made_of_data(last)
        found = self.value(bound)
        if isinstance(found, nn.Module) and value._text.removesuffix("()") in self.takers:
            # It may have put the model in a wrapper that reduces.
            self.recorder.notes.wrapped.append(value._text)
        if isinstance(found, Criterion | Model) and value._told:
            found.told_ = True
        is_data = found is UNKNOWN and DATA.search(last.lower())
        if is_data and not any(map(names.is_configuration, (bound, value._text))):
            return self._piece(bound)
        return found

    def _ask_for_steps(self, bound: str, value: Any) -> None:
        """Has settings that somebody else has made ask for the run's accumulation steps, and for several epochs."""
        for name, own in list(vars(value).items()) if hasattr(value, "__dict__") else ():
            if type(own) is not int:
                continue
            if names.is_steps(name):
                told = self.counted(f"{bound}.{name}", own)
            else:
                told = setting(name.lower()) if own == 1 and _EPOCHS.search(name) else own
            with suppress(AttributeError):
                # What cannot be changed stays.
                setattr(value, name, told)

    def _taken_apart(self, bound: tuple[Pattern, ...], value: Any) -> Any:
        if isinstance(value, torch.Tensor) and isinstance(last := self.data.last, Output):
            # A loss with something beside it.
            value = last if value is last._loss and len(bound) > 2 else value
        if isinstance(value, Batch):
            return value.use().parts(bound)
        if isinstance(value, Output):
            return value.parts(bound)
        if isinstance(value, torch.Tensor) and len(bound) == 2 and value.dim() == 0:
            beside = bound[1] if isinstance(bound[1], str) else ""
            return value, value.detach() if _ITEMS.search(beside.lower()) else {}
        if isinstance(value, Stub):
            return self._unknown(bound, value)
        items = list(value)
        starred = [i for i, n in enumerate(bound) if isinstance(n, str) and n.startswith("*")]
        if not starred and len(items) == len(bound):
            return tuple(self.entering(n, v) for n, v in zip(bound, items, strict=True))
        return items

    def _unknown(self, bound: Pattern, value: Stub) -> Any:
        """Names for an unknown value: what `next` takes from an unknown source is a micro-batch."""
        if not value._text.endswith(ITEM):
            if value._of_data:
                return self._made_of_data(bound)
            found = self._trained(bound, value)
            return self._missing(bound, self._is_plain(value)) if found is None else found
        self.tell(value._text.removesuffix(ITEM), "micro-batches made on the spot")
        batch = self._batch(bound).use()
        return batch if isinstance(bound, str) else batch.parts(bound)

    def _made_of_data(self, bound: Pattern) -> Any:
        """Names for what an unknown function made of the micro-batch in hand."""
        if isinstance(bound, tuple):
            return tuple(map(self._made_of_data, bound))
        if not self._beside(bound) and not DATA.search(bound.lower()):
            return self._missing(bound)
        self.tell(bound, "made on the spot of the micro-batch in hand")
        name = self._as_data(bound)
        if self.data.fed > self.data.current:
            # The function was given it as the loader gave it, and it went by no name before.
            self.data.batches[self.data.fed].use()
        return self.data.now().tensor(name if isinstance(name, str) else bound)

    def _beside(self, name: str) -> bool:
        return is_beside(name) or self.roles.get(name) == "mask"

    def _as_data(self, name: Pattern) -> Pattern:
        """A name of data as a micro-batch knows it."""
        return "mask" if isinstance(name, str) and self.roles.get(name) == "mask" else name

    def _trained(self, bound: Pattern, value: Stub) -> Any:
        """Names for what an unknown call gave, of which one is a loss: that of the network that is trained."""
        called = value._text.removesuffix("()")
        if called == value._text or len(self.models) > 1 or isinstance(bound, str):
            return None
        if not any(_LOSS.search(n.rpartition(".")[2].lower()) for n in flat(bound)):
            return None
        self.tell(called, "the loss of a network of about a hundred parameters")
        model = next(iter(self.models.values()), None) or self.model(called)
        return model(self._batch(bound).use()).parts(bound)

    def _piece(self, bound: str) -> Any:
        """Data by its name: of the micro-batch in hand, or of a new one where it begins one."""
        low = bound.lower()
        if "batch" in low or low.lstrip("_").startswith(
            ("x", "inp", "image", "img", "data", "token")
        ):
            batch = self._batch(bound)
            self.tell(bound, "micro-batches made on the spot")
            return batch.use() if "batch" in low else batch.tensor(bound)
        if (bound, self.data.current) in self.pieces and not self.data.fed:
            self.data.fetch().use()
        self.pieces.add((bound, self.data.current))
        return self.data.now().tensor(bound)

    def _batch(self, bound: Pattern) -> Batch:
        """The micro-batch that names begin: a new one, or the one in hand that a loader gave and that is not spent."""
        if self.data.fed == self.data.current and not self.data.spent:
            return self.data.now()
        return self.data.fetch()

    def _missing(self, bound: Pattern, failed: bool = False) -> Any:
        """Fakes for names that are not here, or whose statement has `failed`."""
        if isinstance(bound, tuple):
            texts = [n for n in bound if isinstance(n, str)]
            known = [n for n in texts if DATA.search(n.lower())]
            if texts and all(n in known or n == "_" or self._beside(n) for n in texts):
                self.tell(", ".join(texts), "micro-batches made on the spot")
                batch = self._batch(bound) if known or not any(texts) else self.data.now()
                return batch.use().parts(tuple(map(self._as_data, bound)))
            return tuple(self._missing(n, failed) for n in bound)
        last = bound.rpartition(".")[2].lower()
        if self.way.lenient and (failed or not self.way.exact) and _LOSS.search(last):
            if (own := self.own_loss()) is not None:
                return own
        if (found := self.value(bound)) is not UNKNOWN:
            return found
        settings = names.is_configuration(bound) or OPTIONS.match(bound)
        return self._piece(bound) if DATA.search(last) and not settings else self.stub(bound)

    def root(self, value: Any) -> Any:
        """What goes backward; a loss where that came to a plain number or to nothing that is known."""
        if self.way.exact or not isinstance(value, int | float | Stub | None):
            return value
        return self._lost(value)

    def given_loss(self, value: Any) -> Any:
        """What a method gives a framework as its loss; another one where that has no gradient, if one may be."""
        moves = isinstance(value, torch.Tensor) and value.requires_grad
        unknown = isinstance(value, Stub) and not self._is_plain(value)
        unknown = unknown or (self.way.exact and not self.way.undivided)
        return value if moves or unknown or not self.way.lenient else self._lost(value)

    def _lost(self, value: Any) -> Any:
        """Another loss in the place of what is none."""
        found = self.own_loss()
        if found is None and self.world == 1:
            # Where ranks have nothing to tell each other, it does not matter where the network was called.
            for model in list(self.models.values())[:1]:
                model(self.data.now())
            found = self.own_loss()
        return value if found is None else found

    def _is_plain(self, value: Stub) -> bool:
        """Whether another loss may take the place of what is unknown: where it counts how large it is, what is not here
        and gives a loss may have divided it."""
        return not self.way.exact or not value._text.endswith((")", "]"))
