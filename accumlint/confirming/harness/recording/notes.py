"""How a pass is run, and what one rank notes in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


class Feed(Protocol):
    """Where micro-batches come from: how many did, which is worked on, and the rank that does."""

    @property
    def fetched(self) -> int: ...
    @property
    def current(self) -> int: ...
    @property
    def rank(self) -> int: ...


@dataclass
class Settings:
    """How a pass is run: clipping threshold in the user's place (None: none at all), number of updates wanted.

    `as_is`: the loop runs on the user's own things, so devices, precision, shapes and clipping stay as they are.
    """

    file: str
    line: int
    device: torch.device
    dtype: torch.dtype
    pressure: float | None = None
    steps: int = 1
    updates: int = 6
    totals: tuple[str, ...] = ()
    sabotage: str = ""
    inject: int = 0
    large: bool = False
    undefined: bool = False
    graphs: bool = False
    as_is: bool = False
    # Whether the end of an epoch is to be seen.
    whole: bool = False


@dataclass
class Notes:
    """What one rank noted in one pass, as plain values."""

    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    losses: int = 0
    scales: list[float] = field(default_factory=list[float])
    initial_scale: float = 0.0
    touched: list[str] = field(default_factory=list[str])
    # Those of them that were given the accumulation steps.
    told: list[str] = field(default_factory=list[str])
    refused: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    own_loss: bool = False
    # Another loss went backward, without what the loop's own had been divided by.
    replaced: bool = False
    tampered: bool = False
    summed: bool = False
    handed: list[str] = field(default_factory=list[str])
    wrapped: list[str] = field(default_factory=list[str])
