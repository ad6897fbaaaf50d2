"""Binds the names of a user's source to fakes while it runs: what the rewritten source calls.

How values enter names is told in `entering`; here are choices, failures and loops.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false
# torch's own annotations are partial; a stub's own attributes must not look like what it stands for.

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from accumlint.confirming.harness.fakes.accelerators import Unbound
from accumlint.confirming.harness.fakes.batches import Batch
from accumlint.confirming.harness.fakes.loaders import Loader
from accumlint.confirming.harness.fakes.name_words import COMPUTING, DATA, evaluates
from accumlint.confirming.harness.fakes.networks import Criterion, regression
from accumlint.confirming.harness.fakes.steps_number import tells_window
from accumlint.confirming.harness.fakes.stub import UNKNOWN, Stub
from accumlint.confirming.harness.fakes.usual_settings import LOSS_LIKE
from accumlint.confirming.harness.isolation.audit_hooks import Forbidden
from accumlint.confirming.harness.recording.torch_hooks import replaced
from accumlint.confirming.harness.rewriting.slicing import Pattern, flat
from accumlint.confirming.harness.setup_objects import Kept
from accumlint.confirming.harness.source_files import is_of_project
from accumlint.confirming.harness.value_entry import Entering
from accumlint.confirming.harness.value_inspection import (
    has_base_elsewhere,
    holds_batch,
    is_misuse,
    make_module,
    may_mend,
)
from accumlint.reading import names

# The name of a class, which is not the thing that is made of it.
_CLASS = re.compile(r"^_*[A-Z]\w*[a-z]")
# A loop that prepares something goes on for no longer.
_MOST_ROUNDS = 2000


class Binding(Entering):
    """What a rewritten source calls while it runs: values enter names through it, and so do loops and failures."""

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

    def option(self, table: Any, key: str, text: str) -> Any:
        """A setting of a table of settings; one that nobody here has put there is told by its name."""
        if not isinstance(table, Mapping) or key in table:
            return table[key]
        return self.known(text)

    def reached(self, value: Any, ahead: int) -> Any:
        """A count that nobody keeps here: how many micro-batches there have been, less those that the guard adds."""
        return max(self.data.fetched - ahead, 0) if isinstance(value, Stub) else value

    def written(self, size: float) -> float:
        """The size of a window that the source writes as a number: one where nothing is to accumulate."""
        return 1 if self.steps_ == 1 else size

    def missing(self, bound: Pattern, failure: Exception) -> Any:
        """Fakes for the names of a statement that failed.

        What is refused before training begins is a failure like any other, since it has not happened and a verdict
        rests on the windows; so is what evaluates. Once training has begun, or where a module of the project is lost
        to it with everything in it, going on would measure another loop.
        """
        if isinstance(failure.__cause__, StopIteration):
            # A generator's own way to say that data has come to its end.
            raise failure.__cause__
        if isinstance(failure, Unbound | StopIteration | torch.cuda.OutOfMemoryError):
            raise failure
        if isinstance(failure, Forbidden) and self._ends_the_run(failure):
            raise failure
        frame = sys._getframe(1)
        self.failures.note(failure, frame.f_lineno, flat(bound))
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.optim.Optimizer) and may_mend(type(owner)):
            name = f"{type(owner).__name__}.{frame.f_code.co_name}"
            self.recorder.notes.handed.append(name)
        if isinstance(bound, str) and bound in self.given:
            return self.take(bound)
        if self.way.lenient:
            return self._made_up(bound, failure)
        # A loss is never made up; what would give one and could not be made is the usual one.
        if isinstance(bound, str) and COMPUTING.search(bound.rpartition(".")[2]):
            return self.thing("criterion", bound)
        if any(LOSS_LIKE.search(n.lower()) for n in flat(bound)):
            raise failure
        return self._missing(bound)

    def unmade(self, bound: Pattern, failure: Exception) -> Any:
        """Fakes for things and numbers that could not be made, as long as nothing has been done with others."""
        if self.data.last is not None or self.data.backwards:
            raise failure
        return self.missing(bound, failure)

    def _made_up(self, bound: Pattern, failure: Exception) -> Any:
        """As `_missing`, where the loss may be another one; what misuses a scaler or an optimizer raises for good."""
        if is_misuse(failure):
            raise failure
        if self.way.exact and (self._elsewhere(failure) or any(map(callable, self.given.values()))):
            # What another file computes may know the window, that of a set-up file included, however it fails.
            return self._missing(bound)
        if isinstance(bound, str) and LOSS_LIKE.search(bound.lower()):
            found = self.own_loss()
            if found is not None:
                return found
        return self._missing(bound, failed=True)

    def allowed(self, test: Callable[[], Any], refusing: bool) -> bool:
        """A guard of which one side, `refusing`, gives up: settings that nobody knows do not lead there."""
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
        # What refuses to run without a GPU, or without a file, is run without.
        with (
            mock.patch.object(torch.cuda, "is_available", return_value=True),
            mock.patch.object(os.path, "exists", return_value=True),
            mock.patch.object(Path, "exists", return_value=True),
        ):
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

    def unknown(self, text: str, failure: Exception) -> bool:
        """What a guard that failed is taken for."""
        self.missing((), failure)
        return self.choice(text)

    def absent(
        self, bound: tuple[str, ...], failure: Exception, called: tuple[str, ...] = ()
    ) -> Any:
        """Fakes for what could not be imported or defined: a class is not the thing that is made of it.

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
        """What a name means after the block that binds it has failed: what it got, or else a fake."""
        try:
            return now()
        except NameError:
            if failure is not None:
                self.failures.bind(failure, name)
            return self._missing(name)

    def _in_other_files(self, failure: Exception) -> list[traceback.FrameSummary]:
        """Where a failure has come through other files."""
        frames = traceback.extract_tb(failure.__traceback__)
        return [f for f in frames if f.filename != self.recorder.settings.file]

    def _ends_the_run(self, failure: Exception) -> bool:
        """True where a failure ends the import of another file, or comes in training and not as another evaluates."""
        functions = [f.name for f in self._in_other_files(failure)]
        return "<module>" in functions or bool(self.data.fetched and not evaluates(functions))

    def _elsewhere(self, failure: Exception) -> bool:
        """True where a failure comes from another file of the project."""
        return any(is_of_project(f.filename) for f in self._in_other_files(failure))

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
            # What is only evaluated ends no epoch.
            if not epoch and holds_batch(item) and torch.is_grad_enabled():
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
            raise RuntimeError("this loop does not end with fakes")
        return value

    def start(self, first: Any, last: Any) -> Any:
        """Where a range of settings begins: one that would be empty, at 0."""
        return 0 if isinstance(first, int) and isinstance(last, int) and first >= last else first

    def settings(self, owner: Any) -> Any:
        """What `vars` gives: of settings that nobody knows, something that has them all."""
        return owner if isinstance(owner, Stub) else vars(owner)

    def argument(self, name: str) -> Any:
        """What a library would call a function with."""
        found = self.value(name)
        return self.stub(name) if found is UNKNOWN else found

    def without(self, mapping: Any, names_: tuple[str, ...]) -> Any:
        """What `**mapping` gives beside keywords of these names; settings are no number, whatever their name."""
        mapping = self.stub("args") if isinstance(mapping, int | float) else mapping
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
        if getattr(cls, "__abstractmethods__", None):
            # What subclasses are to write does not keep the rest from running.
            setattr(cls, "__abstractmethods__", frozenset())  # noqa: B010 (pyright knows no such attribute)
        if has_base_elsewhere(cls):
            # What that base gives an object is not on the way that is run.
            self.complete(cls)
        for name in self.kept:
            owner, _, attribute = name.rpartition(".")
            if owner == "self":
                setattr(cls, attribute, Kept(self.take(name)))
        return cls

    def made(self, name: str, function: Any) -> None:
        """A function has been defined; the run may have to call it."""
        self.functions[name] = function
