"""Fakes by name and role: what a run gives for the things, settings and flags of a user's source."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false
# torch's own annotations are partial; a stub's own attributes must not look like what it stands for.

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from accumlint.confirming.harness.failures import Failures
from accumlint.confirming.harness.fakes import name_words
from accumlint.confirming.harness.fakes.accelerators import Accelerating
from accumlint.confirming.harness.fakes.batches import Data
from accumlint.confirming.harness.fakes.loaders import Loader
from accumlint.confirming.harness.fakes.networks import Criterion, Engine, Model, Modules
from accumlint.confirming.harness.fakes.optimizers import Optimizer, Scheduler, Stepper, scaler
from accumlint.confirming.harness.fakes.steps_number import Steps
from accumlint.confirming.harness.fakes.stub import UNKNOWN, Answers, Stub
from accumlint.confirming.harness.fakes.usual_settings import LENGTH, PADDING, ROWS, setting
from accumlint.confirming.harness.recording.recorder import Recorder
from accumlint.confirming.harness.rewriting.source_hints import Source
from accumlint.confirming.harness.setup_objects import Partly
from accumlint.reading import frameworks, names

# Windows of more micro-batches take long, and have as many as any other instead.
_MOST_STEPS = 16


@dataclass(frozen=True)
class Way:
    """How a pass is played.

    `roles` and `choices`: what names stand for and how flags are set on the path of the finding, by their text;
    `world`: the ranks that models are wrapped for; `copies`: the ranks that share a loader's micro-batches; `driven`:
    the packages whose contracts take their place; `steppers`: schedulers that are handed a number of the step.
    `unwrapped`: models come in DDP from elsewhere, and `unused`: it has to find parameters that take no part in a loss;
    `scripted`: an engine has the accumulation steps of its script; `scaled`: flags that ask for a GradScaler are on,
    since the finding is about one; `ordinary`: so are others that nobody knows, unless they read like something seldom.
    `lenient`: another loss may take the place of the loop's, from its name on where it is to be `exact`, or from where
    it is given to a framework where it is `undivided`.
    """

    roles: dict[str, str]
    choices: dict[str, str]
    world: int
    copies: int
    driven: tuple[str, ...]
    steppers: tuple[str, ...]
    unwrapped: bool
    unused: bool
    scripted: bool
    scaled: bool
    ordinary: bool
    lenient: bool
    exact: bool
    undivided: bool


class Things(Accelerating):
    """The fakes of a pass, made when they are asked for; `steps` are what free counts of steps become."""

    def __init__(
        self, recorder: Recorder, data: Data, steps: int, source: Source, way: Way, given: dict[str, Any]
    ) -> None:  # fmt: skip
        self.recorder = recorder
        self.data = data
        self.source = source
        self.way = way
        data.models = recorder.models
        data.unknown, data.setting, data.told = self.found, self.known, self.told
        self.steps_ = Steps(steps)
        # Numbers of accumulation steps that the source is written with.
        self.own_steps: set[int] = set()
        self.roles = way.roles
        # What is found out on the way is this run's own.
        self.choices = dict(way.choices)
        self.asked: list[str] = []
        self.world = way.world
        # What is asked for as `model` may be read as `self.model`.
        self.given = {f"self.{n}": v for n, v in given.items() if "." not in n} | given
        self.set = {
            name.rpartition(".")[2]: name
            for name in given
            if "." in name and names.is_configuration(name)
        }
        self.kept = [name for name in given if name.startswith("self.")]
        self.accelerators: list[Any] = []
        # What frameworks promise, by the names of their classes.
        self.promised: dict[str, Any] = {}
        if way.lenient:
            data.outputs = {}
            # What goes backward may have been divided; where that counts, a loss is another from its name on.
            recorder.own_loss = None if way.exact else self.own_loss
        recorder.spent = data.spend
        self.wrapped: dict[str, nn.Module] = {}
        # What got a model and is not here.
        self.takers: set[str] = set()
        self.answers = Answers(
            self.value, self.choice, self.touched, self.tell, self.backward, self.trained, self.handed,
            self.takers.add, lambda text: iter(self.loader(text)), self.told,
        )  # fmt: skip
        self.models: dict[str, Model] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.optimizer_of: dict[str, torch.optim.Optimizer] = {}
        self.functions: dict[str, Any] = {}
        self.fakes: dict[str, str] = {}
        self.failures = Failures(recorder.settings.file, self.fakes)
        self.turns = 0
        self.rounds: dict[int, int] = {}
        self.pieces: set[tuple[str, int]] = set()
        self.positive = {
            text.removesuffix(" > 0").rpartition(".")[2]
            for text, choice in way.choices.items()
            if text.endswith(" > 0") and choice == "true"
        }

    # What stubs ask

    def value(self, text: str) -> Any:
        """A value for a dotted name, `UNKNOWN` where its name says nothing."""
        last = text.rpartition(".")[2]
        # Settings go by several names.
        given = text if text in self.given else self.set.get(last, "")
        if given == text or (given and names.is_configuration(text)):
            return self.take(given)
        if text in self.choices:
            return literal(self.choices[text])
        if self.choices.get(f"{text} is None") == "true":
            return None
        if last in ("get_world_size()", "get_rank()"):
            return self.world if "size" in last else self.data.rank
        if last.endswith((")", "]")):
            several = name_words.ONE_OF.fullmatch(last)
            return setting(several[1].lower()) if several else UNKNOWN
        if names.is_steps(last) or self.roles.get(last) == "steps":
            self.tell(text, f"the accumulation steps, {self.steps_}")
            return self.steps_
        sizes = {"length": self.data.length, "window": self.steps_ * ROWS, "piece": ROWS}
        if (known := sizes.get(self.roles.get(last, ""))) is not None:
            self.tell(text, str(known))
            return known
        if (role := self._role(text, last)) and (made := self.thing(role, text)) is not UNKNOWN:
            return made
        return self._setting(last)

    def _role(self, text: str, last: str) -> str:
        """The role of a name: as the run knows it, or else as its last word tells; "" for none."""
        if role := self.roles.get(text, ""):
            return "" if role == "loader" and name_words.NO_LOADER.search(last.lower()) else role
        if name_words.QUESTION.match(last):
            return ""
        if not names.is_configuration(text) and not name_words.MAKERS.search(last):
            role = "criterion" if name_words.CRITERION.search(last) else names.role_of(last)
            if not role and name_words.NETWORK.search(last.lower()):
                role = "model"
        no_thing = {"loader": name_words.NO_LOADER, "model": name_words.NO_MODEL}.get(role)
        if no_thing and no_thing.search(last.lower()):
            return ""
        return "" if role == "optimizer" and self.roles.get(last) == "settings" else role

    def _setting(self, last: str) -> Any:
        """What a name means that is none of a thing with a role, `UNKNOWN` where it says nothing."""
        low = last.lower()
        if found := name_words.WINDOW.search(low):
            return self.steps_ * 2 * (LENGTH if found["tokens"] else 1)
        if name_words.TRAINED.search(low) and self.models:
            return [q for model in self.models.values() for q in model.parameters()]
        if name_words.VERB.match(low) or low in frameworks.WRAPPING_ITERABLES:
            return UNKNOWN
        if low in ("device", "dev"):
            return self.data.device
        if name_words.RANKS.search(low):
            return self.world
        if low in ("rank", "process_index", "global_rank"):
            return self.data.rank
        if low in ("is_main_process", "is_local_main_process"):
            return self.data.rank == 0
        if name_words.IGNORED.search(low):
            return self.data.ignored
        if name_words.NAMES_PADDING.search(low):
            return PADDING if self.data.pads else self.data.ignored
        found = UNKNOWN if last in self.source.called else setting(low)
        # What the finding's path takes for positive, like a warm-up, is a long one.
        return 1000 if found == 0 and last in self.positive else found

    def take(self, text: str) -> Any:
        """An object of the set-up file; the parameters of a module take part in what is measured."""
        self.tell(text, "as the set-up file gives it")
        value = self.given[text]
        if isinstance(value, nn.Module):
            self.own(value)
        if type(value) is SimpleNamespace:
            value = Partly(vars(value), lambda name: self.known(f"{text}.{name}"))
            self.given[text] = value
        return value

    def choice(self, text: str) -> bool:
        if text in self.choices:
            return self.choices[text] == "true"
        self.asked.append(text)
        if self.asks_for_scaler(text) or name_words.ONLY.search(text):
            return True
        if self.world > 1 and name_words.ALONE.search(text.lower()):
            return False
        if " == " in text:
            symbol, _, literal = text.partition(" == ")
            return self.choices.get(symbol) == literal.strip("'\"")
        if " in " in text or any(f" {sign} " in text for sign in ("<", "<=", ">", ">=")):
            return False
        return (
            self.way.ordinary
            and not names.is_off_by_default(text)
            and not name_words.SELDOM.search(text.lower())
        )

    def asks_for_scaler(self, text: str) -> bool:
        """Whether a flag or a comparison asks for a GradScaler where the finding is about one."""
        last = text.rpartition(" == ")[2].strip("'\"").rpartition(".")[2]
        return self.way.scaled and bool(name_words.SCALED.search(last.lower()))

    def touched(self, text: str) -> None:
        if text not in self.recorder.notes.touched:
            self.recorder.notes.touched.append(text)

    def told(self, text: str) -> None:
        """What gives the loss was given the accumulation steps, and may divide by them."""
        self.recorder.notes.told.append(text)
        self.touched(text)

    def counted(self, text: str, steps: Any) -> Any:
        """A number of accumulation steps: as the source has it where it is small, else the run's."""
        if isinstance(steps, Stub) or self.steps_ == 1 or not 2 <= steps <= _MOST_STEPS:
            self.tell(text, f"the accumulation steps, {self.steps_}")
            return self.steps_
        if type(steps) is not int:
            return steps
        if steps != self.steps_:
            self.own_steps.add(steps)
        return Steps(steps)

    def backward(self, text: str) -> None:
        """What goes backward is unknown."""
        found = self.own_loss() if self.way.lenient and not self.way.exact else None
        if found is None:
            self.touched(text)
        else:
            found.backward()

    def trained(self, text: str) -> nn.Module | None:
        """The model that an unknown object holds, where the loop trains no other."""
        held = f"{text}.model"
        known = self.roles.get(held) == "model" or set(self.models) <= {"model"}
        found = self.value(held) if known else None
        return found if isinstance(found, nn.Module) else None

    def handed(self, text: str) -> None:
        """What is not here gets what it takes to change a gradient, while the loop trains."""
        if self.data.fetched and not name_words.HARMLESS.search(text.rpartition(".")[2].lower()):
            self.recorder.notes.handed.append(text)

    def tell(self, name: str, fake: str) -> None:
        self.fakes.setdefault(name, fake)

    def found(self, text: str) -> Any:
        """A part of a thing: a loader or the size of a window, where its name says so; else it may be anything."""
        last = text.rpartition(".")[2].lower()
        asked = (
            name_words.WINDOW.search(last)
            or names.is_steps(last)
            or names.role_of(last) == "loader"
        )
        return self.known(text) if asked else self.stub(text)

    def known(self, text: str) -> Any:
        """What a name means, or a stub where it says nothing."""
        found = self.value(text)
        return self.stub(text) if found is UNKNOWN else found

    def stub(self, text: str) -> Stub:
        return Stub(text, self.answers)

    # Things with roles

    def thing(self, role: str, text: str) -> Any:
        """A fake for a thing with a role."""
        match role:
            case "engine":
                return self.model(text, engine=True)
            case "model":
                made = self.model(text)
                if text.rpartition(".")[2] == "modules" and "modules" not in self.source.called:
                    return Modules(made)
                return self.wrap(text, made) if self.way.unwrapped and self.world > 1 else made
            case "optimizer":
                return self.optimizer(text)
            case "scheduler":
                self.tell(text, "a LambdaLR")
                kind = Stepper if text.rpartition(".")[2] in self.way.steppers else Scheduler
                return kind(self.optimizer(text), self.found)
            case "scaler":
                self.tell(text, "a GradScaler")
                return scaler()
            case "loader":
                return self.loader(text)
            case "accelerator":
                return self.own_accelerator(text)
            case "fabric":
                self.tell(text, "what it promises about the gradient")
                return self.promised["Fabric"]()
            case "criterion":
                self.tell(text, "the usual loss, a mean over the targets that count")
                return Criterion(self.data, text)
            case _:
                return UNKNOWN

    def model(self, text: str, engine: bool = False) -> Model:
        key = text.rpartition(".")[2]
        if key not in self.models:
            seed = 17 + len(self.models)
            steps = 1 if self.way.scripted else int(self.steps_)
            made = Engine(self.data, seed, steps) if engine else Model(self.data, seed)
            self.models[key] = made
            made.name_ = text
            if not name_words.AVERAGE.search(key):
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

    def complete(self, cls: type) -> None:
        """Has names tell what objects of a class of the user's would have been given elsewhere."""

        def unset(made: Any, attribute: str) -> Any:
            return self.attribute(made, attribute)

        if not hasattr(cls, "__getattr__"):
            setattr(cls, "__getattr__", unset)  # noqa: B010 (pyright knows no such attribute of a type)

    def attribute(self, made: Any, name: str) -> Any:
        """An attribute of an object of the user's that nothing has set; it is set for good.

        Raises:
            AttributeError: for what Python and libraries ask of any object.
        """
        if name.startswith("__") or (name.startswith("_") and name not in self.source.read):
            raise AttributeError(name)
        found = self.known(f"self.{name}")
        object.__setattr__(made, name, found)
        return found

    def optimizer(self, text: str) -> torch.optim.Optimizer:
        if self.optimizers and not text.endswith("optimizer"):
            return self.optimizers[-1]
        if text in self.optimizer_of:
            return self.optimizer_of[text]
        self.tell(text, "SGD over the fake's parameters")
        # Those that a set-up file gives come first, since others may be parts of theirs.
        given = [v for v in self.given.values() if isinstance(v, nn.Module)]
        models = [*given, *self.models.values()] or self.recorder.models or [self.model("model")]
        params = dict.fromkeys(p for m in models for p in m.parameters())
        made: torch.optim.Optimizer = Optimizer(list(params), self.found)
        if self.source.accelerated:
            self.own_accelerator("accelerator")
        if self.accelerators and (text.startswith("self.") or not self.source.prepares):
            # What hands it out has prepared it.
            made = self.accelerators[-1].prepare_optimizer(made)
        self.optimizers.append(made)
        self.optimizer_of[text] = made
        return made

    def loader(self, text: str) -> Loader:
        self.tell(text, f"{self.data.length} micro-batches made on the spot")
        return Loader(self.data, self.way.copies)

    def own(self, module: nn.Module) -> None:
        """A module of the user's that holds parameters of its own takes part in what is measured."""
        known = {id(p) for p in self.recorder.parameters()}
        fresh = [p for p in module.parameters() if id(p) not in known]
        if fresh:
            module.to(self.data.dtype)
            self.recorder.models.append(module)

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
        found = torch.zeros((), device=self.data.device, dtype=self.data.dtype)
        for output in given:
            # Numbers of a micro-batch's own, so that no two have the same gradient, whatever the network was given.
            aims = self.data.normal(output.shape, self.data.generator(self.data.backwards))
            found = found + nn.functional.mse_loss(output, aims.to(output.device, output.dtype))
        return found


def literal(choice: str) -> bool | str:
    """What a flag or a word was decided to be."""
    return choice == "true" if choice in ("true", "false") else choice.strip("'\"")
