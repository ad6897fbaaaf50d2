"""A linter for gradient-accumulation defects in PyTorch training code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def watch(
    *objects: Any,
    updates: int = 6,
    every: int | None = None,
    strict: bool = False,
    log: Callable[[str], object] | Any | None = None,
) -> AbstractContextManager[Any]:
    """A context in which the first updates of this process are watched: `with accumlint.watch(model, optimizer):`.

    `objects` are models and optimizers that exist already; those that are made inside are seen anyway. Needs torch.
    With `every`, the window of each so many updates is watched after that, and nothing in between.
    What is found goes to standard error, or to the function `log`, a line at a time. A `SummaryWriter` or a run of W&B
    as `log` take it besides standard error. With `strict`, leaving the context raises it.
    """
    return import_module("accumlint.runtime.inprocess").Watching(
        objects, updates, every, strict, log
    )
