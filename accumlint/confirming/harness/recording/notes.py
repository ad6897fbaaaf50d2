"""Settings of a pass, and the notes that one rank records in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


class Feed(Protocol):
    """A source of micro-batches: their number so far, the current one, and the rank."""

    @property
    def fetched(self) -> int: ...
    @property
    def current(self) -> int: ...
    @property
    def rank(self) -> int: ...


@dataclass
class Settings:
    """How a pass runs: the clipping threshold that replaces the user's (None: no clipping) and the number of updates.

    `as_is`: the loop runs on real objects, so devices, precision, shapes and clipping stay unchanged.
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
    # Whether the pass has to see the end of an epoch.
    whole: bool = False


@dataclass
class Notes:
    """The notes of one rank in one pass, as plain values."""

    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    losses: int = 0
    scales: list[float] = field(default_factory=list[float])
    initial_scale: float = 0.0
    touched: list[str] = field(default_factory=list[str])
    # Networks that computed a loss without being given labels.
    own_losses: list[str] = field(default_factory=list[str])
    # Settings that multiply the loss.
    factors: list[str] = field(default_factory=list[str])
    # Those of `touched` that received the accumulation steps.
    window_aware: list[str] = field(default_factory=list[str])
    refused: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    substitute_loss: bool = False
    # A substitute loss went backward, without the loop's divisor.
    replaced: bool = False
    tampered: bool = False
    summed: bool = False
    opaque_calls: list[str] = field(default_factory=list[str])
    wrapped: list[str] = field(default_factory=list[str])
