"""Binds the names of a user's source to stand-ins while it runs, by the roles that the reading gave them."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false
# torch's own annotations are partial; a stub's own attributes must not look like what it stands for.

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from accumlint.confirming.child.batches import Batch, Data, Loader
from accumlint.confirming.child.guard import Forbidden
from accumlint.confirming.child.networks import Criterion, Engine, Model, Output
from accumlint.confirming.child.recorder import Recorder
from accumlint.confirming.child.settings import LENGTH, LOSS_LIKE, setting
from accumlint.confirming.child.slicing import Pattern, flat, negated
from accumlint.confirming.child.standins import Optimizer, Scheduler, Stepper, scaler
from accumlint.confirming.child.stub import ITEM, UNKNOWN, Absent, Answers, Stub
from accumlint.reading import names

DATA = re.compile(
    r"^(?!.*(time|meter|izer|processor|norm|metric|stat|log|count|num|size|idx|index|sampler|fn$|func|hook)).*(batch|data$|input|image|sample|target|label|text$|audio|token|mask|img|^[xy]s?(_train|_batch|_tr|_?b)?$|feature|video|^inp)"
)
# Functions that make a thing are not the thing.
_MACHINERY = re.compile(r"torch/(amp|optim|autograd|nn/parallel)/")
_WINDOW = re.compile(
    r"^(optim(izer)?|update|effective|global|total|virtual|target|desired|logical)_batch_?size$"
    r"|(accum|acc|update)\w*_(?P<tokens>n_?tokens|num_tokens|tokens)$"
)
# Flags that are off in the ordinary course of training, and ends that come once in a long while.
_SELDOM = re.compile(
    r"fsdp|deepspeed|compile|throughput|benchmark|(^|[._])(do_)?(eval|test)|\(\)$"
    r"|new_epoch|epoch_end|is_last|is_end|exhausted|finished|early_stop|overflow"
)
_CLASS = re.compile(r"^_*[A-Z]\w*[a-z]")
_NO_LOADER = re.compile(r"config|cfg|conf$|kwargs|args$|class|cls$|^(n|num|max|total)_")
_LOSS = re.compile(r"(^|_)loss(es)?$")
_MAKERS = re.compile(r"^(get|build|create|make|init|setup|set|load|save|configure|prepare)_")
_CRITERION = re.compile(r"^(loss|criterion)_?(fn|func|function)$")
_IGNORED = re.compile(r"ignore_?ind|ignore_?id|pad_?(token_?)?id|padding_idx")


class Unbound(Exception):
    """The loop cannot be run with stand-ins; the message says why."""


class Binding:
    """The runtime of a rewritten source. `steps` are the accumulation steps that free counts become."""

    def __init__(
        self,
        recorder: Recorder,
        data: Data,
        steps: int,
        roles: dict[str, str],
        choices: dict[str, str],
        wrapped: int,
        given: dict[str, Any],
        copies: int = 1,
        driven: tuple[str, ...] = (),
        unwrapped: bool = False,
        lenient: bool = False,
        ordinary: bool = True,
        steppers: tuple[str, ...] = (),
        prepares: bool = True,
    ) -> None:
        self.recorder = recorder
        self.data = data
        data.models = recorder.models
        data.unknown = self.found
        self.steps_ = steps
        self.roles = roles
        self.choices = choices
        self.world = wrapped
        self.given = given
        self.copies = copies
        self.driven = driven
        self.unwrapped = unwrapped
        self.lenient = lenient
        self.ordinary = ordinary
        self.steppers = steppers
        self.prepares = prepares
        self.accelerators: list[Any] = []
        if lenient:
            data.outputs = {}
            recorder.own_loss = self.own_loss
        recorder.spent = data.spend
        self.wrapped: dict[str, nn.Module] = {}
        self.answers = Answers(self.value, self.choice, self.touched, self.tell, self.backward)
        self.models: dict[str, Model] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.functions: dict[str, Any] = {}
        self.standins: dict[str, str] = {}
        self.failed: list[str] = []
        self.turns = 0
        self.pieces: set[tuple[str, int]] = set()
        self.positive = {
            text.removesuffix(" > 0").rpartition(".")[2]
            for text, choice in choices.items()
            if text.endswith(" > 0") and choice == "true"
        }

    # What stubs ask

    def value(self, text: str) -> Any:
        """A value for a dotted name, `UNKNOWN` where its name says nothing."""
        if text in self.given:
            return self.take(text)
        last = text.rpartition(".")[2]
        if text in self.choices:
            choice = self.choices[text]
            return choice == "true" if choice in ("true", "false") else literal(choice)
        if self.choices.get(f"{text} is None") == "true":
            return None
        if last.endswith((")", "]")):
            return UNKNOWN
        if names.is_steps(last):
            self.tell(text, f"the accumulation steps, {self.steps_}")
            return self.steps_
        role = self.roles.get(text, "")
        if not role and not names.is_configuration(text) and not _MAKERS.search(last):
            role = "criterion" if _CRITERION.search(last) else names.role_of(last)
        if role == "loader" and _NO_LOADER.search(last.lower()):
            role = ""
        if role:
            made = self.thing(role, text)
            if made is not UNKNOWN:
                return made
        low = last.lower()
        if found := _WINDOW.search(low):
            # A window may be asked for by what it holds.
            return self.steps_ * 2 * (LENGTH if found["tokens"] else 1)
        if low in ("device", "dev"):
            return self.data.device
        if low in ("world_size", "num_processes", "n_gpu", "num_gpus", "nprocs"):
            return self.world
        if low in ("rank", "process_index", "global_rank"):
            return self.data.rank
        if low in ("is_main_process", "is_local_main_process"):
            return self.data.rank == 0
        if low in ("sync_gradients",):
            return UNKNOWN
        if _IGNORED.search(low):
            return self.data.ignored
        found = setting(low)
        # What the finding's path takes for positive, like a warm-up, is a long one.
        return 1000 if found == 0 and last in self.positive else found

    def take(self, text: str) -> Any:
        """An object of the set-up file; the parameters of a module take part in what is measured."""
        self.tell(text, "as the set-up file gives it")
        value = self.given[text]
        if isinstance(value, nn.Module):
            self._own(value)
        return value

    def choice(self, text: str) -> bool:
        if text in self.choices:
            return self.choices[text] == "true"
        other = negated(text)
        if other in self.choices:
            return self.choices[other] != "true"
        if " == " in text:
            symbol, _, literal = text.partition(" == ")
            return self.choices.get(symbol) == literal.strip("'\"")
        if " in " in text or any(f" {sign} " in text for sign in ("<", "<=", ">", ">=")):
            return False
        return (
            self.ordinary and not names.is_off_by_default(text) and not _SELDOM.search(text.lower())
        )

    def touched(self, text: str) -> None:
        if text not in self.recorder.notes.touched:
            self.recorder.notes.touched.append(text)

    def backward(self, text: str) -> None:
        """What goes backward is unknown."""
        found = self.own_loss() if self.lenient else None
        if found is None:
            self.touched(text)
        else:
            found.backward()

    def tell(self, name: str, standin: str) -> None:
        self.standins.setdefault(name, standin)

    def found(self, text: str) -> Any:
        """A part of a thing: a loader or the size of a window, where its name says so; else it may be anything."""
        last = text.rpartition(".")[2].lower()
        asked = _WINDOW.search(last) or names.is_steps(last) or names.role_of(last) == "loader"
        return self.value(text) if asked else self.stub(text)

    def stub(self, text: str) -> Stub:
        return Stub(text, self.answers)

    # Things with roles

    def thing(self, role: str, text: str) -> Any:
        """A stand-in for a thing with a role."""
        match role:
            case "engine":
                return self.model(text, engine=True)
            case "model":
                made = self.model(text)
                return self.wrap(text, made) if self.unwrapped and self.world > 1 else made
            case "optimizer":
                return self.optimizer(text)
            case "scheduler":
                self.tell(text, "a LambdaLR")
                kind = Stepper if text.rpartition(".")[2] in self.steppers else Scheduler
                return kind(self.optimizer(text), self.found)
            case "scaler":
                self.tell(text, "a GradScaler")
                return scaler()
            case "loader":
                return self.loader(text)
            case "accelerator":
                return self.own_accelerator(text)
            case "criterion":
                self.tell(text, "the usual loss, a mean over the targets that count")
                return Criterion(self.data)
            case _:
                return UNKNOWN

    def model(self, text: str, engine: bool = False) -> Model:
        key = text.rpartition(".")[2]
        if key not in self.models:
            seed = 17 + len(self.models)
            made = Engine(self.data, seed, self.steps_) if engine else Model(self.data, seed)
            self.models[key] = made
            self.recorder.models.append(made)
            what = "DeepSpeed's contract around a" if engine else "a"
            self.tell(text, f"{what} network of about a hundred parameters")
        return self.models[key]

    def wrap(self, text: str, model: Model) -> nn.Module:
        """A model that the source gets in DDP, which it is put in elsewhere."""
        if text not in self.wrapped:
            self.tell(text, "a network of about a hundred parameters, in DDP")
            self.wrapped[text] = nn.parallel.DistributedDataParallel(model)
        return self.wrapped[text]

    def attribute(self, made: Any, name: str) -> Any:
        """An attribute of an object of the user's that nothing has set; it is set for good.

        Raises:
            AttributeError: for what Python and libraries ask of any object.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        found = self.value(f"self.{name}")
        found = self.stub(f"self.{name}") if found is UNKNOWN else found
        object.__setattr__(made, name, found)
        return found

    def optimizer(self, text: str) -> torch.optim.Optimizer:
        if self.optimizers and not text.endswith("optimizer"):
            return self.optimizers[-1]
        self.tell(text, "SGD over the stand-in's parameters")
        models = list(self.models.values()) or [self.model("model")]
        params = [p for m in models for p in m.parameters()]
        made: torch.optim.Optimizer = Optimizer(params, self.found)
        if self.accelerators and (text.startswith("self.") or not self.prepares):
            # What hands it out has prepared it.
            made = self.accelerators[-1].prepare_optimizer(made)
        self.optimizers.append(made)
        return made

    def loader(self, text: str) -> Loader:
        self.tell(text, f"{self.data.length} micro-batches made on the spot")
        return Loader(self.data, self.copies)

    def windows(self, text: str) -> Iterator[list[Batch]]:
        """Whole windows of micro-batches."""
        self.tell(text, f"windows of {self.steps_} micro-batches made on the spot")
        for _ in range(self.data.length // self.steps_):
            yield [self.data.fetch() for _ in range(self.steps_)]

    def own_accelerator(self, text: str) -> Any:
        """Accelerate's object, where the source gets it from elsewhere.

        Raises:
            Unbound: where Accelerate is not installed.
        """
        try:
            from accelerate import Accelerator  # pyright: ignore[reportMissingTypeStubs]
        except ImportError:
            raise Unbound("accelerate drives this loop and is not installed here") from None
        if not self.accelerators:
            self.tell(text, f"an Accelerator with {self.steps_} accumulation steps")
            self.accelerator(Accelerator, gradient_accumulation_steps=self.steps_)
        return self.accelerators[-1]

    def accelerator(self, cls: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Accelerate's own object; without a GPU it has no GradScaler, which float16 has elsewhere.

        Keywords are left out that nobody knows the value of, or that the version which is here does not have.
        """
        known = inspect.signature(cls).parameters
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            self.tell(cls.__name__, f"without {', '.join(unknown)}, unknown to this version")
        given = {k: v for k, v in kwargs.items() if k in known and not isinstance(v, Stub)}
        if any(name.endswith("_plugin") for name in kwargs):
            # A plug-in that is not here may have held them.
            given.setdefault("gradient_accumulation_steps", self.steps_)
        made = cls(*args, **given)
        if getattr(made, "mixed_precision", "") == "fp16" and made.scaler is None:
            made.scaler = torch.amp.GradScaler("cuda")
            made.native_amp = True
        self.accelerators.append(made)
        return made

    # What the rewritten source calls

    def entering(self, bound: Pattern, value: Any) -> Any:
        """A value as it enters names."""
        if isinstance(bound, str):
            return self._named(bound, value)
        return self._taken_apart(bound, value)

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
            return self.take(bound)
        if isinstance(value, Batch):
            return value.use()
        if isinstance(value, Output):
            return value.named(last)
        if (
            names.is_steps(last)
            and isinstance(value, int | float | Stub)
            and not isinstance(value, bool)
        ):
            if value == 0 and not isinstance(value, Stub):
                # A counter's start.
                return value
            if isinstance(value, Stub) or self.steps_ == 1 or not 2 <= value <= 16:
                self.tell(bound, f"the accumulation steps, {self.steps_}")
                return self.steps_
            return value
        if isinstance(value, Stub):
            if self.lenient and _LOSS.search(last.lower()):
                found = self.own_loss()
                if found is not None:
                    return found
            if value._text.endswith(ITEM):
                return self._unknown(bound, value)
            found = self.value(bound)
            if found is not UNKNOWN:
                return found
            if DATA.search(last.lower()) and not names.is_configuration(bound):
                return self._piece(bound)
        if isinstance(value, nn.Module) and not isinstance(value, Model):
            self._own(value)
        return value

    def _own(self, module: nn.Module) -> None:
        """A module of the user's that holds parameters of its own takes part in what is measured."""
        known = {id(p) for p in self.recorder.parameters()}
        fresh = [p for p in module.parameters() if id(p) not in known]
        if fresh:
            module.to(self.data.dtype)
            self.recorder.models.append(module)

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
        if isinstance(value, Batch):
            return value.use().parts(bound)
        if isinstance(value, Output):
            return value.parts(bound)
        if isinstance(value, torch.Tensor) and len(bound) == 2 and value.dim() == 0:
            return value, {}
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
            return self._missing(bound)
        self.tell(value._text.removesuffix(ITEM), "micro-batches made on the spot")
        batch = self._batch(bound).use()
        return batch if isinstance(bound, str) else batch.parts(bound)

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
        if any(_is_thing(_look_up(frame, name)) for name in mentions):
            return self.entering(bound, later())
        if isinstance(bound, str):
            found = self.value(bound)
            return found if found is not UNKNOWN else self.entering(bound, later())
        return self._missing(bound)

    def missing(self, bound: Pattern, failure: Exception) -> Any:
        """Stand-ins for the names of a statement that failed.

        What is refused before training begins is a failure like any other: it has not happened, and a verdict rests on
        the windows. Once training has begun, or where a module of the project is lost to it with everything in it,
        going on would measure another loop.
        """
        if isinstance(failure, Unbound | StopIteration):
            raise failure
        if isinstance(failure, Forbidden) and (self.data.fetched or self._importing(failure)):
            raise failure
        frame = sys._getframe(1)
        reason = f"{type(failure).__name__}: {failure}".split("\n")[0][:160]
        self.failed.append(f"line {frame.f_lineno}: {reason}")
        if self.lenient:
            return self._made_up(bound, failure)
        # A loss is never made up.
        if any(LOSS_LIKE.search(n.lower()) for n in flat(bound)):
            raise failure
        return self._missing(bound)

    def _made_up(self, bound: Pattern, failure: Exception) -> Any:
        """As `_missing`, where the loss may be another one; what misuses a scaler or an optimizer raises for good."""
        if _is_misuse(failure):
            raise failure
        if isinstance(bound, str) and LOSS_LIKE.search(bound.lower()):
            found = self.own_loss()
            if found is not None:
                return found
        return self._missing(bound)

    def own_loss(self) -> torch.Tensor | None:
        """A loss in the place of the loop's: how far from random numbers is what networks gave since the last backward.

        None where none has given anything.
        """
        given = list((self.data.outputs or {}).values())
        if not given:
            return None
        self.recorder.notes.own_loss = True
        self.tell(
            "the loss",
            "the distance of what the networks give from random numbers, since the loop's own could not be computed",
        )
        return sum(
            (torch.nn.functional.mse_loss(x, self._aims(x)) for x in given),
            torch.zeros((), device=self.data.device, dtype=self.data.dtype),
        )

    def _aims(self, output: torch.Tensor) -> torch.Tensor:
        """Numbers of a micro-batch's own, so that no two have the same gradient, whatever the network was given."""
        seed = self.data.seed * 7919 + self.data.rank * 104729 + self.data.backwards
        made = torch.randn(
            output.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        return made.to(output.device, output.dtype)

    def root(self, value: Any) -> Any:
        """What goes backward; a loss where that came to a plain number or to nothing that is known."""
        if not isinstance(value, int | float | Stub | None):
            return value
        found = self.own_loss()
        if found is None and self.world == 1:
            # Where ranks have nothing to tell each other, it does not matter where the network was called.
            for model in list(self.models.values())[:1]:
                model(self.data.now())
            found = self.own_loss()
        return value if found is None else found

    def truth(self, value: Any) -> bool:
        """What a guard comes to."""
        return bool(value)

    def unknown(self, text: str, failure: Exception) -> bool:
        """What a guard that failed is taken for."""
        self.missing((), failure)
        return self.choice(text)

    def absent(self, bound: tuple[str, ...], failure: Exception) -> Any:
        """Stand-ins for what could not be imported or defined: a class is not the thing that is made of it."""
        self.missing((), failure)
        return tuple(self.stub(n) if _CLASS.search(n) else self._missing(n) for n in bound)

    def either(self, name: str, now: Callable[[], Any], failure: Exception) -> Any:
        """What a name means after the block that binds it has failed: what it got, or else a stand-in."""
        try:
            return now()
        except NameError:
            return self._missing(name)

    def _importing(self, failure: Exception) -> bool:
        """True where a failure ends the import of another file."""
        own = self.recorder.settings.file
        frames = traceback.extract_tb(failure.__traceback__)
        return any(f.name == "<module>" and f.filename != own for f in frames)

    def _missing(self, bound: Pattern) -> Any:
        if isinstance(bound, tuple):
            texts = [n for n in bound if isinstance(n, str)]
            if texts and all(DATA.search(n.lower()) for n in texts if n != "_"):
                self.tell(", ".join(texts), "micro-batches made on the spot")
                return self._batch(bound).use().parts(bound)
            return tuple(self._missing(n) for n in bound)
        if self.lenient and _LOSS.search(bound.rpartition(".")[2].lower()):
            own = self.own_loss()
            if own is not None:
                return own
        found = self.value(bound)
        if found is not UNKNOWN:
            return found
        last = bound.rpartition(".")[2]
        if DATA.search(last.lower()) and not names.is_configuration(bound):
            return self._piece(bound)
        return self.stub(bound)

    def iterate(self, iterable: Any, text: str) -> Iterator[Any]:
        """What a loop goes through."""
        if isinstance(iterable, Stub):
            inner = self.value(iterable._text)
            if isinstance(inner, Loader):
                iterable = inner
            elif isinstance(inner, int):
                iterable = range(min(inner, 1000))
            elif re.search(r"window|group|chunk", text.lower()):
                iterable = self.windows(text)
            elif re.search(r"load|data|batch|iter", text.lower()):
                iterable = self.loader(text)
            else:
                iterable = range(2)
        epoch = False
        for item in iterable:
            self.turn(True)
            if not epoch and _holds_batch(item):
                epoch = True
                self.recorder.epoch += 1
            if isinstance(item, Batch):
                item.use()
            yield item
        if epoch:
            self.recorder.note("epoch")

    def turn(self, value: Any) -> Any:
        """Called when a loop begins a round: ends a pass that has seen enough, or that goes nowhere."""
        self.recorder.turn()
        self.turns += 1
        if self.turns > 20_000:
            raise Unbound("a loop goes on without taking a step")
        return value

    def chosen(self, text: str, value: bool) -> bool:
        """A flag as it was decided on the path of the finding."""
        return value

    def averaged(self) -> None:
        """The running average of the weights is about to move."""
        self.recorder.note("average")

    def made(self, name: str, function: Any) -> None:
        """A function has been defined; the run may have to call it."""
        self.functions[name] = function


def _holds_batch(item: Any) -> bool:
    """True for a micro-batch, also with its number or inside of what `zip` gives."""
    return isinstance(item, Batch) or (isinstance(item, tuple) and any(map(_holds_batch, item)))


def _is_misuse(failure: Exception) -> bool:
    """True where torch refuses what a loop does with its scaler, its optimizer, its graph or its wrapper."""
    frames = traceback.extract_tb(failure.__traceback__)
    return bool(frames) and bool(_MACHINERY.search(frames[-1].filename))


def literal(choice: str) -> Any:
    return choice.strip("'\"")


def _look_up(frame: Any, name: str) -> Any:
    """The value of a dotted name as the user's code sees it, None where there is none."""
    first, *rest = name.split(".")
    if not first.isidentifier():
        return None
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for part in rest:
        if value is None or isinstance(value, Stub):
            return None
        value = getattr(value, part, None) if part.isidentifier() else None
    return value


def _is_thing(value: Any) -> bool:
    if isinstance(value, Absent):
        return False
    return isinstance(value, nn.Module | Loader | Batch | torch.optim.Optimizer) or (
        type(value).__name__ in ("Accelerator", "Fabric", "DataLoaderShard", "DataLoaderDispatcher")
    )
