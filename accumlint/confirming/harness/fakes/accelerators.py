"""Accelerate's objects with the accumulation steps of the run, and the error for packages that cannot be imported."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from accumlint.confirming.harness.fakes.loaders import Loader
from accumlint.confirming.harness.fakes.steps_number import Steps
from accumlint.confirming.harness.fakes.stub import Stub
from accumlint.confirming.harness.rewriting.source_hints import Source
from accumlint.confirming.harness.source_files import is_library


class Unbound(Exception):
    """The loop cannot be run with fakes; the message says why."""


class AcceleratorFakes:
    """The Accelerators of a pass; subclasses provide the source and the record of fakes."""

    source: Source
    steps_: Steps
    accelerators: list[Any]

    def note_fake(self, name: str, fake: str) -> None:
        """Records the fake of a name."""
        raise NotImplementedError

    def stub(self, text: str) -> Stub:
        """A stub for an unknown value."""
        raise NotImplementedError

    def shared_accelerator(self, text: str) -> Any:
        """The Accelerator that the source gets from another file.

        Raises:
            Unbound: where Accelerate cannot be imported.
        """
        try:
            from accelerate import Accelerator  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as problem:
            raise Unbound(unimportable("accelerate", problem)) from None
        if not self.accelerators:
            # Its creator passes the accumulation steps that the loop mentions.
            steps = self.steps_ if self.source.mentions_steps else 1
            self.note_fake(text, f"an Accelerator with {steps} accumulation steps")
            self.accelerator(Accelerator, gradient_accumulation_steps=steps)
        return self.accelerators[-1]

    def accelerator(self, cls: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """An Accelerator without unknown keywords; for float16 without a GPU, a GradScaler is added."""
        known = inspect.signature(cls).parameters
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            self.note_fake(cls.__name__, f"without {', '.join(unknown)}, unknown to this version")
        keywords = {k: v for k, v in kwargs.items() if k in known and not isinstance(v, Stub)}
        has_plugin = any(name.endswith("_plugin") for name in kwargs)
        if has_plugin or {"deepspeed_plugin", "deepspeed_config"} <= self.source.read:
            # An absent plug-in may have set them; DeepSpeed's engine divides by them as well.
            keywords.setdefault("gradient_accumulation_steps", self.steps_)
        found = cls(*args, **keywords)
        if getattr(found, "mixed_precision", "") == "fp16" and found.scaler is None:
            found.scaler = torch.amp.GradScaler("cuda")
            found.native_amp = True
        if self.source.prepares:
            _endless()
        if "deepspeed_plugin" in self.source.read:
            self._plugin(type(found.state))
        self.accelerators.append(found)
        return found

    def _plugin(self, state: Any) -> None:
        """Adds a `deepspeed_plugin` that user code may configure; Accelerate itself sees none."""
        unknown = self.stub("accelerator.state.deepspeed_plugin")
        state.deepspeed_plugin = property(
            lambda _: None if is_library(sys._getframe(1)) else unknown
        )


def _endless() -> None:
    """Makes prepared loaders iterators that restart at their end, as cycled data does."""
    # Accelerate has no annotations.
    from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard  # pyright: ignore[reportMissingTypeStubs]

    added = {"__next__": Loader.__next__, "endless_": None}
    for cls in (DataLoaderShard, DataLoaderDispatcher):
        for name, value in added.items():
            setattr(cls, name, value)


def unimportable(package: str, problem: Exception) -> str:
    """The error for a package that drives a loop and cannot be imported."""
    lacks = isinstance(problem, ModuleNotFoundError) and problem.name == package
    why = (
        "is not installed here; install it beside accumlint"
        if lacks
        else f"cannot be imported here: {problem}"
    )
    return f"{package} drives this loop and {why}"
