"""Binds the names of a user's source to stand-ins while it runs: what the rewritten source calls."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false
# torch's own annotations are partial; a stub's own attributes must not look like what it stands for.

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from accumlint.confirming.child.batches import Batch, Loader, is_beside
from accumlint.confirming.child.given import Kept, wraps
from accumlint.confirming.child.guard import Forbidden
from accumlint.confirming.child.looking import (
    holds_batch,
    is_misuse,
    is_settings,
    is_thing,
    look_up,
    make_module,
    may_mend,
)
from accumlint.confirming.child.networks import Criterion, Member, Model, regression
from accumlint.confirming.child.outputs import Output
from accumlint.confirming.child.settings import LOSS_LIKE, setting
from accumlint.confirming.child.slicing import Pattern, flat
from accumlint.confirming.child.stub import ITEM, UNKNOWN, Stub
from accumlint.confirming.child.things import Things, Unbound
from accumlint.confirming.child.watching import replaced
from accumlint.confirming.child.window import tells_window
from accumlint.confirming.child.wording import AVERAGE, COMPUTING, DATA, OPTIONS, evaluates
from accumlint.reading import frameworks, names

_LOSS = re.compile(r"(^|_)loss(es)?$")
# What a loss is made of, as numbers to look at.
_ITEMS = re.compile(r"(^|_)loss(es)?_(items?|parts?|terms?|components?|values?)$")
_EPOCHS = re.compile(r"^((num|n|max|total|train)_(train_)?)?epochs$")
_PER_EPOCH = re.compile(r"(steps|iters|iterations|batches|updates)_per_epoch$")
# The name of a class, which is not the thing that is made of it.
_CLASS = re.compile(r"^_*[A-Z]\w*[a-z]")
# Parameters that take whatever is left.
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


# Where accumlint itself is.
_OWN = str(Path(__file__).parents[2])


# A loop that prepares something goes on for no longer.
_MOST_ROUNDS = 2000


class Binding(Things):
    """What a rewritten source calls while it runs: values enter names through it, and so do loops and failures."""

    # What the rewritten source calls

    def entering(self, bound: Pattern, value: Any) -> Any:
        """A value as it enters names."""
        if isinstance(bound, str):
            return self._named(bound, value)
        return self._taken_apart(bound, value)

    def quotient(self, bound: Pattern, value: Any) -> Any:
        """As `entering`, for a quotient: settings that nobody knows may leave 0, which is no counter's start."""
        return self.entering(bound, 1 if type(value) is int and value == 0 else value)

    def share(self, bound: Pattern, value: Any) -> Any:
        """As `entering`, for how often something goes into data, which is longer than its stand-in."""
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

    def _named(self, bound: str, value: Any) -> Any:
        last = bound.rpartition(".")[2]
        if bound in self.given:
            own = self.take(bound)
            return value if wraps(value, own) else own
        if isinstance(value, Batch):
            return value.use()
        if value is None and (
            self.choices.get(f"{bound} is None") == "false"
            or (self.scaled and self.roles.get(bound) == "scaler")
        ):
            # On the path of the finding it is there.
            found = self.value(bound)
            return None if found is UNKNOWN else found
        if type(value) is dict and not value and self.roles.get(bound) == "optimizer":
            # A table that nobody here fills.
            return {last: self.thing("optimizer", bound)}
        if type(value) is dict and (whole := self.data.batches.get(self.data.current)):
            # A micro-batch that was moved part by part is the micro-batch.
            value = whole.use() if whole.is_made_of(value) else value
        if isinstance(value, Member) and (self.roles.get(bound) or names.role_of(last)) == "model":
            # A part of a network trains as the whole does.
            return value._model
        if isinstance(value, Output):
            if last in self.sized and _LOSS.search(last.lower()):
                return value.unreduced()
            keys = self.keyed.get(bound, ())
            return value.named(last) if not keys else value.keyed(last, keys)
        if (
            names.is_steps(last)
            and isinstance(value, int | float | Stub)
            and not isinstance(value, bool)
        ):
            if value == 0 and not isinstance(value, Stub):
                # A counter's start.
                return value
            return self.counted(bound, value)
        if type(value) is int and value == 0 and _PER_EPOCH.search(last):
            # Of data that is not here, an epoch has what the run's has.
            return self.data.length
        if isinstance(value, Stub):
            if is_settings(bound) and not is_settings(value._text) and not value._made:
                # What it holds are settings, wherever they come from.
                return self.stub(bound)
            if self.lenient and self._is_plain(value) and _LOSS.search(last.lower()):
                found = self.own_loss()
                if found is not None:
                    return found
            if value._text.endswith(ITEM):
                return self._unknown(bound, value)
            if value._of_data and is_beside(last):
                return self._made_of_data(last)
            found = self.value(bound)
            if isinstance(found, nn.Module) and value._text.removesuffix("()") in self.takers:
                # It may have put the model in a wrapper that reduces.
                self.recorder.notes.wrapped.append(value._text)
            if isinstance(found, torch.optim.Optimizer):
                self.managers.rename(value._text, "optimizer")
            if isinstance(found, Criterion | Model) and value._told:
                found.told_ = True
            if found is not UNKNOWN:
                return found
            if DATA.search(last.lower()) and not any(
                map(names.is_configuration, (bound, value._text))
            ):
                return self._piece(bound)
        if is_settings(bound) or dataclasses.is_dataclass(value):
            self._ask_for_steps(bound, value)
        if isinstance(value, nn.Module) and not isinstance(value, Model):
            if not AVERAGE.search(f"{bound} {type(value).__name__}"):
                self.own(value)
        if isinstance(value, torch.Tensor) and value.dim() and _LOSS.search(last.lower()):
            # The first thing that a network gives is its loss where that is the name it gets.
            given = self.data.last
            if isinstance(given, Output) and value is given.logits:
                return given.loss
        return value

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

    def _piece(self, bound: str) -> Any:
        """Data by its name: of the micro-batch in hand, or of a new one where it begins one."""
        low = bound.lower()
        if "batch" in low or low.lstrip("_").startswith(
            ("x", "inp", "image", "img", "data", "token")
        ):
            batch = self._batch(bound)
            self.tell(bound, "micro-batches made on the spot")
            return batch.use() if "batch" in low else batch.tensor(bound)
        key = (bound, self.data.current)
        if key in self.pieces and not self.data.fed:
            self.data.fetch().use()
        self.pieces.add((bound, self.data.current))
        return self.data.now().tensor(bound)

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

    def _batch(self, bound: Pattern) -> Batch:
        """The micro-batch that names begin: a new one, or the one in hand that a loader gave and that is not spent."""
        if self.data.fed == self.data.current and not self.data.spent:
            return self.data.now()
        return self.data.fetch()

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

    def word(self, value: Any, text: str) -> Any:
        """What is compared with words: a name from the settings, and not the thing of that name."""
        return self.stub(text) if isinstance(value, nn.Module | torch.optim.Optimizer) else value

    def entry(self, table: Any, key: Any) -> Any:
        """What a table of the user's holds under a key; where a setting that nobody knows is to choose, the first."""
        if not isinstance(key, Stub) or type(table) is not dict or key in table:
            return table[key]
        if not table:
            return self.stub(key._text)
        first = next(iter(table))
        self.tell(key._text, repr(first))
        return table[first]

    def reached(self, value: Any, ahead: int) -> Any:
        """A count that nobody keeps here: how many micro-batches there have been, less those that the guard adds."""
        return max(self.data.fetched - ahead, 0) if isinstance(value, Stub) else value

    def missing(self, bound: Pattern, failure: Exception) -> Any:
        """Stand-ins for the names of a statement that failed.

        What is refused before training begins is a failure like any other, since it has not happened and a verdict
        rests on the windows; so is what evaluates. Once training has begun, or where a module of the project is lost
        to it with everything in it, going on would measure another loop.
        """
        if isinstance(failure, Unbound | StopIteration | torch.cuda.OutOfMemoryError):
            raise failure
        if isinstance(failure, Forbidden) and (self._training(failure) or self._importing(failure)):
            raise failure
        frame = sys._getframe(1)
        self.failures.note(failure, frame.f_lineno, flat(bound))
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.optim.Optimizer) and may_mend(type(owner)):
            name = f"{type(owner).__name__}.{frame.f_code.co_name}"
            self.recorder.notes.handed.append(name)
        if isinstance(bound, str) and bound in self.given:
            return self.take(bound)
        if self.lenient:
            return self._made_up(bound, failure)
        # A loss is never made up; what would give one and could not be made is the usual one.
        if isinstance(bound, str) and COMPUTING.search(bound.rpartition(".")[2]):
            return self.thing("criterion", bound)
        if any(LOSS_LIKE.search(n.lower()) for n in flat(bound)):
            raise failure
        return self._missing(bound)

    def unmade(self, bound: Pattern, failure: Exception) -> Any:
        """Stand-ins for things and numbers that could not be made, as long as nothing has been done with others."""
        if self.data.last is not None or self.data.backwards:
            raise failure
        return self.missing(bound, failure)

    def _made_up(self, bound: Pattern, failure: Exception) -> Any:
        """As `_missing`, where the loss may be another one; what misuses a scaler or an optimizer raises for good."""
        if is_misuse(failure):
            raise failure
        if self.exact and (self._elsewhere(failure) or any(map(callable, self.given.values()))):
            # What another file computes may know the window, that of a set-up file included, however it fails.
            return self._missing(bound)
        if isinstance(bound, str) and LOSS_LIKE.search(bound.lower()):
            found = self.own_loss()
            if found is not None:
                return found
        return self._missing(bound, failed=True)

    def root(self, value: Any) -> Any:
        """What goes backward; a loss where that came to a plain number or to nothing that is known."""
        if self.exact or not isinstance(value, int | float | Stub | None):
            return value
        return self._lost(value)

    def given_loss(self, value: Any) -> Any:
        """What a method gives a framework as its loss; another one where that has no gradient, if one may be."""
        moves = isinstance(value, torch.Tensor) and value.requires_grad
        unknown = isinstance(value, Stub) and not self._is_plain(value)
        unknown = unknown or (self.exact and not self.undivided)
        return value if moves or unknown or not self.lenient else self._lost(value)

    def _is_plain(self, value: Stub) -> bool:
        """Whether another loss may take the place of what is unknown: where it counts how large it is, what is not here
        and gives a loss may have divided it."""
        return not self.exact or not value._text.endswith((")", "]"))

    def _lost(self, value: Any) -> Any:
        """Another loss in the place of what is none."""
        found = self.own_loss()
        if found is None and self.world == 1:
            # Where ranks have nothing to tell each other, it does not matter where the network was called.
            for model in list(self.models.values())[:1]:
                model(self.data.now())
            found = self.own_loss()
        return value if found is None else found

    def allowed(self, test: Callable[[], Any], refusing: bool) -> bool:
        """A guard of which one side, `refusing`, only raises: settings that nobody knows do not lead there."""
        before = len(self.asked)
        found = bool(test())
        if found != refusing:
            return found
        for text in dict.fromkeys(self.asked[before:]):
            known = self.choices.get(text)
            self.choices[text] = "false" if self.choice(text) else "true"
            if bool(test()) != refusing:
                return not refusing
            self.choices.pop(text)
            if known is not None:
                self.choices[text] = known
        # What refuses to run without a GPU is run without.
        with mock.patch.object(torch.cuda, "is_available", return_value=True):
            return bool(test())

    def one_of(
        self,
        text: str,
        compared: Callable[[], Any],
        first: Callable[[], Any],
        others: Callable[[], Any],
    ) -> Any:
        """The first of several words that something is compared with: it is this one where nobody knows which."""
        found = first()
        if found or not isinstance(compared(), Stub) or others():
            return found
        self.tell(text, "the first word that it is compared with")
        return True

    def truth(self, value: Any) -> bool:
        """What a guard comes to."""
        return bool(value)

    def unknown(self, text: str, failure: Exception) -> bool:
        """What a guard that failed is taken for."""
        self.missing((), failure)
        return self.choice(text)

    def absent(
        self, bound: tuple[str, ...], failure: Exception, called: tuple[str, ...] = ()
    ) -> Any:
        """Stand-ins for what could not be imported or defined: a class is not the thing that is made of it.

        What the source calls is no data and no setting, whatever its name.
        """
        self.missing((), failure)
        return tuple(self._absent(name, name in called) for name in bound)

    def _absent(self, name: str, is_called: bool) -> Any:
        if _CLASS.search(name):
            return self.stub(name)
        if not is_called:
            return self._missing(name)
        found = self.value(name)
        return found if callable(found) else self.stub(name)

    def either(self, name: str, now: Callable[[], Any], failure: Exception | None) -> Any:
        """What a name means after the block that binds it has failed: what it got, or else a stand-in."""
        try:
            return now()
        except NameError:
            if failure is not None:
                self.failures.bind(failure, name)
            return self._missing(name)

    def _training(self, failure: Exception) -> bool:
        """True where a failure comes once training has begun, but for what another file does to evaluate."""
        own = self.recorder.settings.file
        frames = traceback.extract_tb(failure.__traceback__)
        return bool(self.data.fetched) and not evaluates(
            f.name for f in frames if f.filename != own
        )

    def _importing(self, failure: Exception) -> bool:
        """True where a failure ends the import of another file."""
        own = self.recorder.settings.file
        frames = traceback.extract_tb(failure.__traceback__)
        return any(f.name == "<module>" and f.filename != own for f in frames)

    def _elsewhere(self, failure: Exception) -> bool:
        """True where a failure comes from another file of the project."""
        frames = traceback.extract_tb(failure.__traceback__)
        files = {f.filename for f in frames} - {self.recorder.settings.file}
        return any(
            "site-packages" not in file and "/lib/python" not in file and _OWN not in file
            for file in files
        )

    def _missing(self, bound: Pattern, failed: bool = False) -> Any:
        """Stand-ins for names that are not here, or whose statement has `failed`."""
        if isinstance(bound, tuple):
            texts = [n for n in bound if isinstance(n, str)]
            known = [n for n in texts if DATA.search(n.lower())]
            if texts and all(n in known or n == "_" or self._beside(n) for n in texts):
                self.tell(", ".join(texts), "micro-batches made on the spot")
                batch = self._batch(bound) if known or not any(texts) else self.data.now()
                return batch.use().parts(tuple(map(self._as_data, bound)))
            return tuple(self._missing(n, failed) for n in bound)
        if (
            self.lenient
            and (failed or not self.exact)
            and _LOSS.search(bound.rpartition(".")[2].lower())
        ):
            own = self.own_loss()
            if own is not None:
                return own
        if bound in frameworks.WRAPPERS:
            # A class by a name that a wrapped model may have too.
            return self.stub(bound)
        found = self.value(bound)
        if found is not UNKNOWN:
            return found
        last = bound.rpartition(".")[2]
        if DATA.search(last.lower()) and not (
            names.is_configuration(bound) or OPTIONS.match(bound)
        ):
            return self._piece(bound)
        return self.stub(bound)

    def iterate(
        self, iterable: Any, text: str, bound: Pattern, trains: bool = False
    ) -> Iterator[Any]:
        """What a loop goes through, and whether something is trained in it; of unknown optimizers, one."""
        if isinstance(iterable, Stub):
            inner = self.value(iterable._text)
            if isinstance(inner, Loader):
                iterable = inner
            elif isinstance(inner, int):
                iterable = range(min(inner, 1000))
            elif re.search(r"window|group|chunk", text.lower()):
                iterable = self.windows(text)
            elif re.search(r"load|data|batch|iter", text.lower()) or (
                (trains or isinstance(bound, tuple))
                and any(DATA.search(n.lower()) for n in flat(bound))
            ):
                iterable = self.loader(text)
            elif isinstance(bound, str) and names.role_of(bound) == "optimizer":
                iterable = self.optimizers[-1:] or [self.value(bound)]
            else:
                iterable = range(2)
        epoch = False
        pieces, before = self.data.pieces, self.recorder.epoch
        for item in iterable:
            self.turn(True)
            if not epoch and holds_batch(item):
                epoch = True
                self.recorder.epoch += 1
            if isinstance(item, Batch):
                item.use()
            yield item
            # A batch's rows may come in whatever the loop has made of them.
            if trains and self.data.pieces > pieces and self.recorder.epoch == before:
                epoch = True
                self.recorder.epoch += 1
        if epoch:
            if self.recorder.settings.sabotage == "flush":
                self.recorder.step_now()
            self.recorder.note("epoch")

    def turn(self, value: Any) -> Any:
        """Called when a loop begins a round: ends a pass that has seen enough, or that goes nowhere."""
        self.recorder.turn()
        self.turns += 1
        if self.turns > 20_000:
            raise Unbound("a loop goes on without taking a step")
        return value

    def idle(self, value: Any, line: int) -> Any:
        """As `turn`, for a loop in which nothing is trained: one that would not end fails."""
        rounds = self.rounds.get(line, 0) + 1 if value else 0
        self.rounds[line] = rounds
        if rounds > _MOST_ROUNDS:
            # Nor will it where it begins again.
            self.rounds[line] = _MOST_ROUNDS
            raise RuntimeError("this loop does not end with stand-ins")
        return value

    def start(self, first: Any, last: Any) -> Any:
        """Where a range of settings begins: one that would be empty, at 0."""
        return 0 if isinstance(first, int) and isinstance(last, int) and first >= last else first

    def settings(self, owner: Any) -> Any:
        """What `vars` gives: of settings that nobody knows, something that has them all."""
        return owner if isinstance(owner, Stub) or hasattr(owner, "as_mapping_") else vars(owner)

    def argument(self, name: str) -> Any:
        """What a library would call a function with."""
        found = self.value(name)
        return self.stub(name) if found is UNKNOWN else found

    def without(
        self, mapping: Any, names_: tuple[str, ...], called: Any = None, places: int = 0
    ) -> Any:
        """What `**mapping` gives to what is `called`, beside keywords of these names and so many arguments.

        A micro-batch has whatever it is asked for; settings that nobody knows have what a function must be given, and
        are no number, whatever their name.
        """
        mapping = self.stub("args") if isinstance(mapping, int | float) else mapping
        if isinstance(mapping, Stub) and isinstance(called, types.FunctionType):
            given = list(inspect.signature(called).parameters.values())[places:]
            wanted = (p for p in given if p.default is p.empty and p.kind not in _REST)
            return {p.name: self.argument(p.name) for p in wanted if p.name not in names_}
        if isinstance(mapping, torch.Tensor):
            mapping = self.data.now()
        if not isinstance(mapping, Batch):
            return mapping
        return {k: v for k, v in mapping.use().items() if k not in names_}

    def moved(self, whole: Any, parts: Callable[[], Any]) -> Any:
        """What becomes of all parts of a whole that are moved elsewhere: of a micro-batch, itself."""
        return whole.use() if isinstance(whole, Batch) else parts()

    def casting(self, made: Callable[[], Any]) -> Any:
        """An autocast, or nothing where its settings could not be read."""
        try:
            return made()
        except Exception:  # noqa: BLE001 (the user's settings may raise anything)
            return nullcontext()

    def lasts(self, value: Any, count: Any, bound: Any) -> Any:
        """Whether a training loop goes on, by its test: as long as it is wanted, where its bound is unknown."""
        return value or isinstance(count, Stub) or isinstance(bound, Stub)

    def chosen(self, text: str, value: bool) -> bool:
        """A flag as it was decided on the path of the finding."""
        return value

    def clipping(self, text: str, clip: Callable[[], Any]) -> Any:
        """A clip of the user's own, by the text of what is called: in its place, torch's, at the run's threshold."""
        result, clips = replaced(self.recorder, clip)
        if clips:
            self.tell(text, "torch's own clipping")
        return result

    def open_loss(self, name: str, owner: Any, *given: Any) -> Any:
        """What a method of an object gives that subclasses are to write: a loss of the network that it has, or is."""
        text = f"{type(owner).__name__}.{name}"
        self.tell(text, "a loss of its network's, since subclasses write it")
        if tells_window(given, {}):
            self.told(text)
        batch = next((one for one in given if isinstance(one, Batch)), None) or self.data.now()
        if isinstance(owner, nn.Module):
            return regression(owner, batch.use())
        held = [v for v in vars(owner).values() if isinstance(v, nn.Module)]
        held += [v for name in self.kept if isinstance(v := self.given[name], nn.Module)]
        found = held[0] if held else self.value("self.model")
        if isinstance(found, nn.ModuleDict | nn.ModuleList):
            # Which of them is called, and with what, subclasses know.
            return regression(found, batch.use())
        return Criterion(self.data)(found(batch.use()), batch.labels)

    def averaged(self) -> None:
        """The running average of the weights is about to move."""
        self.recorder.note("average")

    def defined(self, cls: type) -> type:
        """A class of the user's, whose objects have what a set-up file gives under `self`."""
        make_module(cls)
        for name in self.kept:
            owner, _, attribute = name.rpartition(".")
            if owner == "self":
                setattr(cls, attribute, Kept(self.take(name)))
        return cls

    def made(self, name: str, function: Any) -> None:
        """A function has been defined; the run may have to call it."""
        self.functions[name] = function
