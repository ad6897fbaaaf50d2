"""Accelerate's own objects, with what a run knows of their accumulation steps, and what keeps a run from a package."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false
# torch's own annotations are partial.

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


class Accelerating:
    """The Accelerators of a pass; who has them tells what they stand for and knows the source."""

    source: Source
    steps_: Steps
    accelerators: list[Any]

    def tell(self, name: str, fake: str) -> None:
        """Notes what stands for a name."""
        raise NotImplementedError

    def stub(self, text: str) -> Stub:
        """A value that stands for anything."""
        raise NotImplementedError

    def own_accelerator(self, text: str) -> Any:
        """Accelerate's object, where the source gets it from elsewhere.

        Raises:
            Unbound: where Accelerate cannot be imported.
        """
        try:
            from accelerate import Accelerator  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as problem:
            raise Unbound(unimportable("accelerate", problem)) from None
        if not self.accelerators:
            # Whoever made it told it of steps that the loop speaks of too.
            steps = self.steps_ if self.source.tells_steps else 1
            self.tell(text, f"an Accelerator with {steps} accumulation steps")
            self.accelerator(Accelerator, gradient_accumulation_steps=steps)
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
        held = any(name.endswith("_plugin") for name in kwargs)
        if held or {"deepspeed_plugin", "deepspeed_config"} <= self.source.read:
            # A plug-in that is not here may have held them; DeepSpeed's engine divides by them, too.
            given.setdefault("gradient_accumulation_steps", self.steps_)
        found = cls(*args, **given)
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
        """Settings of DeepSpeed's that the source puts in its place, where Accelerate itself runs without."""
        unknown = self.stub("accelerator.state.deepspeed_plugin")
        state.deepspeed_plugin = property(
            lambda _: None if is_library(sys._getframe(1)) else unknown
        )


def _endless() -> None:
    """Lets `next` be called on what Accelerate prepares, as on what is cycled: it starts again at its end."""
    # Accelerate comes without annotations.
    from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard  # pyright: ignore[reportMissingTypeStubs]

    added = {"__next__": Loader.__next__, "endless_": None}
    for cls in (DataLoaderShard, DataLoaderDispatcher):
        for name, value in added.items():
            setattr(cls, name, value)


def unimportable(package: str, problem: Exception) -> str:
    """Why a package that drives a loop is not here."""
    lacks = isinstance(problem, ModuleNotFoundError) and problem.name == package
    why = (
        "is not installed here; install it beside accumlint"
        if lacks
        else f"cannot be imported here: {problem}"
    )
    return f"{package} drives this loop and {why}"
