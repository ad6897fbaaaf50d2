"""Runtime of the rewritten source: choices, failures and loops of a user's source while it runs on fakes.

Values that enter names are handled in `value_entry`.
"""
# pyright: reportPrivateUsage=false
# Private attributes of a stub stay out of the way of the user's names.

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
from accumlint.confirming.harness.fakes.name_words import CLASS, COMPUTING, DATA, evaluates
from accumlint.confirming.harness.fakes.networks import Criterion, regression
from accumlint.confirming.harness.fakes.steps_number import passes_steps
from accumlint.confirming.harness.fakes.stub import Stub
from accumlint.confirming.harness.fakes.usual_settings import LOSS_LIKE
from accumlint.confirming.harness.isolation.audit_hooks import Forbidden
from accumlint.confirming.harness.recording.torch_hooks import replaced
from accumlint.confirming.harness.rewriting.slicing import Pattern, flat
from accumlint.confirming.harness.setup_objects import ProvidedAttribute
from accumlint.confirming.harness.source_files import is_of_project
from accumlint.confirming.harness.value_entry import ValueEntry
from accumlint.confirming.harness.value_inspection import (
    contains_batch,
    has_project_base,
    is_misuse,
    make_module,
    may_change_gradients,
)
from accumlint.reading import names

# The name of a class, as opposed to an instance of it.
# The most iterations of a loop that does not train.
_MOST_ROUNDS = 2000


class Binding(ValueEntry):
    """The object that rewritten code calls as `__accumlint__`: binds names to fakes, handles loops and failures."""

    def word(self, value: Any, text: str) -> Any:
        """An operand of a comparison with strings: a model or optimizer under that name is read as a setting."""
        return self.stub(text) if isinstance(value, nn.Module | torch.optim.Optimizer) else value

    def entry(self, table: Any, key: Any) -> Any:
        """`table[key]`; the first entry where the key is an unknown setting."""
        if not isinstance(key, Stub) or type(table) is not dict or key in table:
            return table[key]
        if not table:
            return self.stub(key._text)
        first = next(iter(table))
        self.note_fake(key._text, repr(first))
        return table[first]

    def option(self, table: Any, key: str, text: str) -> Any:
        """`table[key]` of a table of settings; a missing one is chosen by its name."""
        if not isinstance(table, Mapping) or key in table:
            return table[key]
        return self.known(text)

    def reached(self, value: Any, ahead: int) -> Any:
        """A step counter in a window's guard: an unknown one is the number of fetched micro-batches, less `ahead`."""
        return max(self.data.fetched - ahead, 0) if isinstance(value, Stub) else value

    def written(self, size: float) -> float:
        """The literal window size of the source: 1 in passes without accumulation."""
        return 1 if self.steps_ == 1 else size

    def missing(self, bound: Pattern, failure: Exception) -> Any:
        """Fakes for the names of a statement that failed.

        What the sandbox refuses before training or during evaluation is a failure like any other. Once training has
        begun, or where the import of a project module fails with it, the refusal ends the run: going on would measure
        another loop.
        """
        if isinstance(failure.__cause__, StopIteration):
            # A generator that raises StopIteration ends its data.
            raise failure.__cause__
        if isinstance(failure, Unbound | StopIteration | torch.cuda.OutOfMemoryError):
            raise failure
        if isinstance(failure, Forbidden) and self._ends_the_run(failure):
            raise failure
        frame = sys._getframe(1)
        self.failures.note(failure, frame.f_lineno, flat(bound))
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.optim.Optimizer) and may_change_gradients(type(owner)):
            name = f"{type(owner).__name__}.{frame.f_code.co_name}"
            self.recorder.notes.opaque_calls.append(name)
        if isinstance(bound, str) and bound in self.provided:
            return self.take(bound)
        if self.config.lenient:
            return self._fake_after_failure(bound, failure)
        # A loss is not faked; a callable that computes one and could not be built becomes the usual criterion.
        if isinstance(bound, str) and COMPUTING.search(bound.rpartition(".")[2]):
            return self.fake_for("criterion", bound)
        if any(LOSS_LIKE.search(n.lower()) for n in flat(bound)):
            raise failure
        return self._missing(bound)

    def unbegun(self, failure: Exception) -> None:
        """Called before a total in a table gets its first value."""
        if not isinstance(failure, KeyError):
            raise failure

    def unmade(self, bound: Pattern, failure: Exception) -> Any:
        """Fakes for models and numbers that could not be built, as long as training has not begun."""
        if self.data.last is not None or self.data.backwards:
            raise failure
        return self.missing(bound, failure)

    def _fake_after_failure(self, bound: Pattern, failure: Exception) -> Any:
        """As `_missing`, where a substitute loss is allowed; misuse of a scaler or an optimizer is always raised."""
        if is_misuse(failure):
            raise failure
        if self.config.exact and (
            self._raised_in_project(failure) or any(map(callable, self.provided.values()))
        ):
            # Project code or a provided function may depend on the window size, however it fails.
            return self._missing(bound)
        if isinstance(bound, str) and LOSS_LIKE.search(bound.lower()):
            found = self.substitute_loss()
            if found is not None:
                return found
        return self._missing(bound, failed=True)

    def allowed(self, test: Callable[[], Any], refusing: bool) -> bool:
        """A guard of which one side, `refusing`, raises or returns: unknown settings do not lead there."""
        before = len(self.queried)
        found = bool(test())
        if found != refusing:
            return found
        for text in dict.fromkeys(self.queried[before:]):
            known = self.choices.get(text)
            self.choices[text] = "false" if self.choice(text) else "true"
            if bool(test()) != refusing:
                return not refusing
            self.choices.pop(text)
            if known is not None:
                self.choices[text] = known
        # A loop that refuses to run without a GPU or a file is run without.
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
        """The first of several words in a chain of comparisons: it is the match where the compared value is unknown."""
        found = first()
        if found or not isinstance(compared(), Stub) or others():
            return found
        self.note_fake(text, "the first word that it is compared with")
        return True

    def unknown(self, text: str, failure: Exception) -> bool:
        """The value of a guard that raised."""
        self.missing((), failure)
        return self.choice(text)

    def absent(
        self, bound: tuple[str, ...], failure: Exception, called: tuple[str, ...] = ()
    ) -> Any:
        """Fakes for names that failed to be imported or defined; those that the source calls are functions."""
        self.missing((), failure)
        return tuple(self._absent(name, name in called) for name in bound)

    def _absent(self, name: str, is_called: bool) -> Any:
        if CLASS.search(name):
            return self.stub(name)
        if not is_called:
            return self._missing(name)
        found = self.value(name)
        return found if callable(found) else self.stub(name)

    def either(self, name: str, now: Callable[[], Any], failure: Exception | None) -> Any:
        """The value of a name after the block that binds it has failed: its binding if there is one, else a fake."""
        try:
            return now()
        except NameError:
            if failure is not None:
                self.failures.bind(failure, name)
            return self._missing(name)

    def _foreign_frames(self, failure: Exception) -> list[traceback.FrameSummary]:
        """The frames of a failure that are in other files."""
        frames = traceback.extract_tb(failure.__traceback__)
        return [f for f in frames if f.filename != self.recorder.settings.file]

    def _ends_the_run(self, failure: Exception) -> bool:
        """True where a failure ends the import of another file, or occurs in training and outside of evaluation."""
        functions = [f.name for f in self._foreign_frames(failure)]
        return "<module>" in functions or bool(self.data.fetched and not evaluates(functions))

    def _raised_in_project(self, failure: Exception) -> bool:
        """True where a failure occurred in another file of the project."""
        return any(is_of_project(f.filename) for f in self._foreign_frames(failure))

    def iterate(
        self, iterable: Any, text: str, bound: Pattern, trains: bool = False
    ) -> Iterator[Any]:
        """Iterates as the loop does; `trains` where the body trains. An unknown iterable of optimizers has one."""
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
            self.turn(True, trains)
            # Iterations without gradients are evaluation and end no epoch.
            if not epoch and contains_batch(item) and torch.is_grad_enabled():
                epoch = True
                self.recorder.epoch += 1
            if isinstance(item, Batch):
                item.use()
            yield item
            # The loop may cut a batch into pieces under any name.
            if trains and self.data.pieces > pieces and self.recorder.epoch == before:
                epoch = True
                self.recorder.epoch += 1
        if epoch:
            if self.recorder.settings.sabotage == "flush":
                self.recorder.step_now()
            self.recorder.note("epoch")

    def turn(self, value: Any, trains: bool = True) -> Any:
        """Called at each loop iteration: ends a pass that is complete, and a loop that makes no progress."""
        self.recorder.turn()
        done = (self.data.fetched, self.recorder.stepped)
        self.turns = self.turns + 1 if done == self.done else 0
        self.done = done
        if self.turns > 20_000 and trains:
            raise Unbound("a loop goes on without taking a step")
        if self.turns > 5_000 and not trains:
            # Nor would it end when it is restarted.
            raise RuntimeError("this loop does not end with fakes")
        return value

    def idle(self, value: Any, line: int) -> Any:
        """As `turn`, for a loop without training: an endless one raises."""
        rounds = self.rounds.get(line, 0) + 1 if value else 0
        self.rounds[line] = rounds
        if rounds > _MOST_ROUNDS:
            # Nor would it end when it is restarted.
            self.rounds[line] = _MOST_ROUNDS
            raise RuntimeError("this loop does not end with fakes")
        return value

    def start(self, first: Any, last: Any) -> Any:
        """The start of a range over settings: 0 where the range would be empty."""
        return 0 if isinstance(first, int) and isinstance(last, int) and first >= last else first

    def settings(self, owner: Any) -> Any:
        """`vars(owner)`; an unknown object has every setting."""
        return owner if isinstance(owner, Stub) else vars(owner)

    def without(self, mapping: Any, names_: tuple[str, ...]) -> Any:
        """The mapping of `**mapping` without explicit keywords; a number under that name is a settings object."""
        mapping = self.stub("args") if isinstance(mapping, int | float) else mapping
        if isinstance(mapping, torch.Tensor):
            mapping = self.data.now()
        if not isinstance(mapping, Batch):
            return mapping
        return {k: v for k, v in mapping.use().items() if k not in names_}

    def moved(self, whole: Any, parts: Callable[[], Any]) -> Any:
        """A batch whose parts are moved to another device: a faked micro-batch stays itself."""
        return whole.use() if isinstance(whole, Batch) else parts()

    def casting(self, made: Callable[[], Any]) -> Any:
        """An autocast context, or a null context where its settings fail."""
        try:
            return made()
        except Exception:  # noqa: BLE001 (the user's settings may raise anything)
            return nullcontext()

    def lasts(self, value: Any, count: Any, bound: Any) -> Any:
        """The test of a training loop: true where the bound or the counter is unknown."""
        return value or isinstance(count, Stub) or isinstance(bound, Stub)

    def clipping(self, text: str, clip: Callable[[], Any]) -> Any:
        """A clipping function of the project: torch's clipping replaces it, at the threshold of the run."""
        result, clips = replaced(self.recorder, clip)
        if clips:
            self.note_fake(text, "torch's own clipping")
        return result

    def open_loss(self, name: str, owner: Any, *arguments: Any) -> Any:
        """The loss of an abstract method: the usual loss of the network that its object holds, or is."""
        text = f"{type(owner).__name__}.{name}"
        self.note_fake(text, "a loss of its network's, since subclasses write it")
        if passes_steps(arguments, {}):
            self.note_window_aware(text)
        batch = next((one for one in arguments if isinstance(one, Batch)), None) or self.data.now()
        if isinstance(owner, nn.Module):
            return regression(owner, batch.use())
        modules = [v for v in vars(owner).values() if isinstance(v, nn.Module)]
        modules += [
            v
            for name in self.provided_attributes
            if isinstance(v := self.provided[name], nn.Module)
        ]
        found = modules[0] if modules else self.value("self.model")
        return Criterion(self.data)(found(batch.use()), batch.labels)

    def averaged(self) -> None:
        """Called before the running average of the weights is updated."""
        self.recorder.note("average")

    def defined(self, cls: type) -> type:
        """A class of the project; its objects get the attributes that a set-up file provides under `self`."""
        make_module(cls)
        if getattr(cls, "__abstractmethods__", None):
            # Unimplemented abstract methods must not prevent instantiation.
            setattr(cls, "__abstractmethods__", frozenset())  # noqa: B010 (pyright knows no such attribute)
        if has_project_base(cls):
            # The project's base class may not run, so its attributes are chosen by name.
            self.complete(cls)
        for name in self.provided_attributes:
            owner, _, attribute = name.rpartition(".")
            if owner == "self":
                setattr(cls, attribute, ProvidedAttribute(self.take(name)))
        return cls

    def made(self, name: str, function: Any) -> None:
        """Registers a function that has been defined, since the run may have to call it."""
        self.functions[name] = function
