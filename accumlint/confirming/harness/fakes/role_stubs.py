"""Fakes by name and role: models, optimizers, loaders, settings and flags for a user's source."""
# pyright: reportPrivateUsage=false
# Private attributes of a stub stay out of the way of the user's names.

from __future__ import annotations

import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from accumlint.confirming.harness.failures import Failures
from accumlint.confirming.harness.fakes import name_words
from accumlint.confirming.harness.fakes.accelerators import AcceleratorFakes
from accumlint.confirming.harness.fakes.batches import Data
from accumlint.confirming.harness.fakes.loaders import Loader
from accumlint.confirming.harness.fakes.networks import Criterion, Engine, Model
from accumlint.confirming.harness.fakes.optimizers import (
    Optimizer,
    ScalingOptimizer,
    Scheduler,
    scaler,
)
from accumlint.confirming.harness.fakes.steps_number import Steps
from accumlint.confirming.harness.fakes.stub import UNKNOWN, Answers, Stub
from accumlint.confirming.harness.fakes.usual_settings import LENGTH, PADDING, ROWS, setting
from accumlint.confirming.harness.recording.recorder import Recorder
from accumlint.confirming.harness.rewriting.source_hints import Source
from accumlint.confirming.harness.setup_objects import PartialNamespace
from accumlint.reading import frameworks, names

# Larger windows take long, and are replaced by the usual size.
_MOST_STEPS = 16
# What has groups of settings, whatever those are called.
_CONFIGURED = re.compile(r"(cfg|conf).*\.")


@dataclass(frozen=True)
class PassConfig:
    """How a pass runs the source.

    `roles` and `choices` are the roles of names and the flags on the path of the finding, by text; `world` is the
    number of ranks that models are wrapped for, `copies` the number of ranks that share a loader's micro-batches;
    `driven` are the packages that a contract replaces. `unwrapped`:
    models arrive in DDP from other files; `unused`: DDP has to find unused parameters; `scripted`: an engine does not
    accumulate itself; `scaled`: flags that request a GradScaler are on; `ordinary`: other unknown flags are on, unless
    they name rare cases. `lenient`: a substitute loss may replace the loop's, from its name on where the size counts
    (`exact`), or from its return to the framework (`undivided`).
    """

    roles: dict[str, str]
    choices: dict[str, str]
    world: int
    copies: int
    driven: tuple[str, ...]
    unwrapped: bool
    unused: bool
    scripted: bool
    scaled: bool
    ordinary: bool
    lenient: bool
    exact: bool
    undivided: bool


class Fakes(AcceleratorFakes):
    """The fakes of a pass, built on demand; unknown numbers of accumulation steps become `steps`."""

    def __init__(
        self, recorder: Recorder, data: Data, steps: int, source: Source, config: PassConfig, provided: dict[str, Any]
    ) -> None:  # fmt: skip
        self.recorder = recorder
        self.data = data
        self.source = source
        self.config = config
        data.models = recorder.models
        data.note_own_loss = recorder.notes.own_losses.append
        data.unknown, data.setting, data.note_window_aware = (
            self.found,
            self.known,
            self.note_window_aware,
        )
        self.steps_ = Steps(steps)
        # Literal numbers of accumulation steps in the source.
        self.source_steps: set[int] = set()
        self.roles = config.roles
        # Decisions during the run belong to this pass.
        self.choices = dict(config.choices)
        self.queried: list[str] = []
        self.world = config.world
        # An object for `model` is also used for `self.model`.
        self.provided = {f"self.{n}": v for n, v in provided.items() if "." not in n} | provided
        self.provided_settings = {
            name.rpartition(".")[2]: name
            for name in provided
            if "." in name and names.is_configuration(name)
        }
        self.provided_attributes = [name for name in provided if name.startswith("self.")]
        self.accelerators: list[Any] = []
        # Contract classes of frameworks, by name.
        self.contracts: dict[str, Any] = {}
        if config.lenient:
            data.outputs = {}
            # A backward may receive a divided loss; where the size counts, the substitute takes the loss's name
            # instead.
            recorder.substitute_loss = None if config.exact else self.substitute_loss
        recorder.spent = data.spend
        self.wrapped: dict[str, nn.Module] = {}
        # Absent code that received a model.
        self.model_receivers: set[str] = set()
        self.answers = Answers(
            self.value, self.choice, self.touched, self.note_fake, self.backward, self.trained, self.note_opaque_call,
            self.model_receivers.add, lambda text: iter(self.loader(text)), self.note_window_aware,
        )  # fmt: skip
        self.models: dict[str, Model] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.optimizer_of: dict[str, torch.optim.Optimizer] = {}
        self.functions: dict[str, Any] = {}
        self.fakes: dict[str, str] = {}
        self.failures = Failures(recorder.settings.file, self.fakes)
        self.turns = 0
        # Micro-batches and steps at the latest turn.
        self.done = (0, 0)
        self.rounds: dict[int, int] = {}
        self.pieces: set[tuple[str, int]] = set()
        self.positive = {
            text.removesuffix(" > 0").rpartition(".")[2]
            for text, choice in config.choices.items()
            if text.endswith(" > 0") and choice == "true"
        }

    # Called by stubs

    def value(self, text: str) -> Any:
        """The value of a dotted name, `UNKNOWN` where the name has no meaning."""
        last = text.rpartition(".")[2]
        # Settings objects have several names.
        provided = text if text in self.provided else self.provided_settings.get(last, "")
        if provided == text or (provided and names.is_configuration(text)):
            return self.take(provided)
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
            self.note_fake(text, f"the accumulation steps, {self.steps_}")
            return self.steps_
        sizes = {"length": self.data.length, "window": self.steps_ * ROWS, "piece": ROWS}
        if (known := sizes.get(self.roles.get(last, ""))) is not None:
            self.note_fake(text, str(known))
            return known
        if (role := self._role(text, last)) and (made := self.fake_for(role, text)) is not UNKNOWN:
            return made
        return self._setting(last, text)

    def _role(self, text: str, last: str) -> str:
        """The role of a name: known to the run, or given by its last word; "" for none."""
        if role := self.roles.get(text, ""):
            return "" if role == "loader" and name_words.NO_LOADER.search(last.lower()) else role
        if name_words.QUESTION.match(last) or name_words.CLASS.search(last):
            return ""
        if not names.is_configuration(text) and not name_words.MAKERS.search(last):
            role = "criterion" if name_words.CRITERION.search(last) else names.role_of(last)
            if not role and name_words.NETWORK.search(last.lower()):
                role = "model"
        excluded = {
            "loader": name_words.NO_LOADER,
            "model": name_words.NO_MODEL,
            "scheduler": name_words.NO_SCHEDULER,
        }.get(role)
        if excluded and excluded.search(last.lower()):
            return ""
        return "" if role == "optimizer" and self.roles.get(last) == "settings" else role

    def _setting(self, last: str, text: str) -> Any:
        """The value of a name without a role, `UNKNOWN` where it has no meaning."""
        low = last.lower()
        if found := name_words.WINDOW.search(low):
            return self.steps_ * 2 * (LENGTH if found["tokens"] else 1)
        if name_words.EPOCH.search(low):
            return self.data.length
        is_group = _CONFIGURED.search(text.lower())
        if name_words.TRAINED.search(low) and self.models and not is_group:
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
        # A setting that is positive on the finding's path, such as a warm-up, is large.
        return 1000 if found == 0 and last in self.positive else found

    def take(self, text: str) -> Any:
        """A provided object; modules are registered for measurement."""
        self.note_fake(text, "as the set-up file gives it")
        value = self.provided[text]
        if isinstance(value, nn.Module):
            self.register_module(value)
        if type(value) is SimpleNamespace:
            value = PartialNamespace(vars(value), lambda name: self.known(f"{text}.{name}"))
            self.provided[text] = value
        return value

    def choice(self, text: str) -> bool:
        if text in self.choices:
            return self.choices[text] == "true"
        self.queried.append(text)
        if self.requests_scaler(text) or name_words.ONLY.search(text):
            return True
        if " == " in text:
            symbol, _, literal = text.partition(" == ")
            return self.choices.get(symbol) == literal.strip("'\"")
        if " in " in text or any(f" {sign} " in text for sign in ("<", "<=", ">", ">=")):
            return False
        return (
            self.config.ordinary
            and not names.is_off_by_default(text)
            and not name_words.SELDOM.search(text.lower())
        )

    def requests_scaler(self, text: str) -> bool:
        """Whether a flag or a comparison requests a GradScaler, where the finding is about one."""
        last = text.rpartition(" == ")[2].strip("'\"").rpartition(".")[2]
        return self.config.scaled and bool(name_words.SCALED.search(last.lower()))

    def touched(self, text: str, is_factor: bool = False) -> None:
        """Records a stub that reached the loss; `is_factor` for a setting that multiplies it."""
        notes = self.recorder.notes
        found = notes.factors if is_factor else notes.touched
        if text not in found:
            found.append(text)

    def note_window_aware(self, text: str) -> None:
        """Records code that computes the loss and receives the accumulation steps, by which it may divide."""
        self.recorder.notes.window_aware.append(text)
        self.touched(text)

    def counted(self, text: str, steps: Any) -> Any:
        """A number of accumulation steps: the literal where it is small, else that of the run."""
        if isinstance(steps, Stub) or self.steps_ == 1 or not 2 <= steps <= _MOST_STEPS:
            self.note_fake(text, f"the accumulation steps, {self.steps_}")
            return self.steps_
        if type(steps) is not int:
            return steps
        if steps != self.steps_:
            self.source_steps.add(steps)
        return Steps(steps)

    def backward(self, text: str) -> None:
        """A backward from an unknown value."""
        found = self.substitute_loss() if self.config.lenient and not self.config.exact else None
        if found is None:
            self.touched(text)
        else:
            found.backward()

    def trained(self, text: str) -> nn.Module | None:
        """The model that an unknown object holds, where the loop trains no other."""
        attribute = f"{text}.model"
        known = self.roles.get(attribute) == "model" or set(self.models) <= {"model"}
        found = self.value(attribute) if known else None
        return found if isinstance(found, nn.Module) else None

    def note_opaque_call(self, text: str) -> None:
        """Records a call into absent code that may change gradients, during training."""
        if self.data.fetched and not name_words.HARMLESS.search(text.rpartition(".")[2].lower()):
            self.recorder.notes.opaque_calls.append(text)

    def note_fake(self, name: str, fake: str) -> None:
        self.fakes.setdefault(name, fake)

    def found(self, text: str) -> Any:
        """A loader or a window size where the name is one, else a stub."""
        last = text.rpartition(".")[2].lower()
        is_known = (
            name_words.WINDOW.search(last)
            or names.is_steps(last)
            or names.role_of(last) == "loader"
        )
        return self.known(text) if is_known else self.stub(text)

    def known(self, text: str) -> Any:
        """The value of a name, or a stub."""
        found = self.value(text)
        return self.stub(text) if found is UNKNOWN else found

    def stub(self, text: str) -> Stub:
        return Stub(text, self.answers)

    # Fakes by role

    def fake_for(self, role: str, text: str) -> Any:
        """The fake for a role, `UNKNOWN` for none."""
        match role:
            case "engine":
                return self.model(text, engine=True)
            case "model":
                made = self.model(text)
                return self.wrap(text, made) if self.config.unwrapped and self.world > 1 else made
            case "optimizer":
                return self.optimizer(text)
            case "scheduler":
                self.note_fake(text, "a LambdaLR")
                return Scheduler(self.optimizer(text), self.found)
            case "scaler":
                self.note_fake(text, "a GradScaler")
                return scaler()
            case "loader":
                return self.loader(text)
            case "accelerator":
                return self.shared_accelerator(text)
            case "fabric":
                self.note_fake(text, "what it promises about the gradient")
                return self.contracts["Fabric"]()
            case "criterion":
                self.note_fake(text, "the usual loss, a mean over the targets that count")
                return Criterion(self.data, text)
            case _:
                return UNKNOWN

    def model(self, text: str, engine: bool = False) -> Model:
        key = text.rpartition(".")[2]
        if key not in self.models:
            seed = 17 + len(self.models)
            steps = 1 if self.config.scripted else int(self.steps_)
            made = Engine(self.data, seed, steps) if engine else Model(self.data, seed)
            self.models[key] = made
            made.name_ = text
            if not name_words.AVERAGE.search(key):
                self.recorder.models.append(made)
            what = "DeepSpeed's contract around a" if engine else "a"
            self.note_fake(text, f"{what} network of about a hundred parameters")
        return self.models[key]

    def wrap(self, text: str, model: Model) -> nn.Module:
        """A model in DDP, where another file wraps it."""
        if text not in self.wrapped:
            self.note_fake(text, "a network of about a hundred parameters, in DDP")
            self.wrapped[text] = nn.parallel.DistributedDataParallel(model)
        return self.wrapped[text]

    def complete(self, cls: type) -> None:
        """Lets instances of a class resolve attributes that another file would set."""

        def unset(made: Any, attribute: str) -> Any:
            return self.attribute(made, attribute)

        if not hasattr(cls, "__getattr__"):
            setattr(cls, "__getattr__", unset)  # noqa: B010 (pyright knows no such attribute of a type)

    def attribute(self, made: Any, name: str) -> Any:
        """An unset attribute of an instance, chosen by its name and stored.

        Raises:
            AttributeError: for attributes that Python and libraries probe on any object.
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
        self.note_fake(text, "SGD over the fake's parameters")
        # Provided modules come first, since the fakes may be parts of them.
        provided = [v for v in self.provided.values() if isinstance(v, nn.Module)]
        models = [*provided, *self.models.values()] or self.recorder.models or [self.model("model")]
        params = dict.fromkeys(p for m in models for p in m.parameters())
        kind = ScalingOptimizer if self.source.scales else Optimizer
        made: torch.optim.Optimizer = kind(list(params), self.found)
        if self.source.accelerated:
            self.shared_accelerator("accelerator")
        if self.accelerators and (text.startswith("self.") or not self.source.prepares):
            # Another file prepares it.
            made = self.accelerators[-1].prepare_optimizer(made)
        self.optimizers.append(made)
        self.optimizer_of[text] = made
        return made

    def loader(self, text: str) -> Loader:
        self.note_fake(text, f"{self.data.length} micro-batches made on the spot")
        return Loader(self.data, self.config.copies)

    def register_module(self, module: nn.Module) -> None:
        """Registers a module of the project, whose parameters are measured."""
        known = {id(p) for p in self.recorder.parameters()}
        fresh = [p for p in module.parameters() if id(p) not in known]
        if fresh:
            module.to(self.data.dtype)
            self.recorder.models.append(module)

    def substitute_loss(self) -> torch.Tensor | None:
        """The distance of the network outputs since the last backward from random numbers, None without outputs."""
        outputs = list((self.data.outputs or {}).values())
        if not outputs:
            return None
        self.recorder.notes.substitute_loss = True
        self.note_fake(
            "the loss",
            "the distance of what the networks give from random numbers, since the loop's own could not be computed",
        )
        found = torch.zeros((), device=self.data.device, dtype=self.data.dtype)
        for output in outputs:
            # Different for each micro-batch, so that no two have the same gradient.
            aims = self.data.normal(output.shape, self.data.generator(self.data.backwards))
            found = found + nn.functional.mse_loss(output, aims.to(output.device, output.dtype))
        return found


def literal(choice: str) -> bool | str:
    """The value of a decided flag or word."""
    return choice == "true" if choice in ("true", "false") else choice.strip("'\"")
