"""What a run assumes, what it changes and what it has decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from accumlint.common.frozen import frozen
from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.gradients.ledger import Ledger
from accumlint.tracing.values import Object, Value

MAX_NODES = 60_000
# Rules compare events with each other.
MAX_EVENTS = 6_000
# A `while` ends after so many rounds, and sooner where its end is farther off than that.
MAX_ROUNDS = 400
# Contributions of which the events of a run may tell.
MAX_TOLD = 60_000
# Contributions that the ledger of a run may go through.
MAX_LOOKED = 1_000_000


@frozen
class Scenario:
    """The accumulation steps and the loader's length that a run assumes."""

    steps: int
    length: int


@dataclass(eq=False)
class Decision:
    """One guard decided on this path. `options` are the choices it could take, the taken one first."""

    key: str
    choice: str
    options: tuple[str, ...]
    matters: bool
    data: bool


@dataclass(eq=False)
class Loop:
    """A loop being executed: its statement, how many times its body was begun, whether it passes over data.

    `rounds` is how often it is taken round, where nobody knows how often the program does.
    """

    node: p.Node
    index: int
    loader: bool
    rounds: int = 0


@dataclass(eq=False)
class State:
    """All that a run changes."""

    events: list[t.Event] = field(default_factory=list[t.Event])
    unread: list[t.Unread] = field(default_factory=list[t.Unread])
    ledger: Ledger = field(default_factory=Ledger)
    loops: list[Loop] = field(default_factory=list[Loop])
    epoch: int = 0
    serial: int = 0
    fetched: dict[object, int] = field(default_factory=dict[object, int])
    ordinals: dict[object, int] = field(default_factory=dict[object, int])
    current: int = 0
    no_grad: int = 0
    autocast: int = 0
    inside: int = 0
    closures: int = 0
    silenced: list[str] = field(default_factory=list[str])
    flags: dict[str, bool | None] = field(default_factory=dict[str, bool | None])
    wrappers: dict[str, str] = field(default_factory=dict[str, str])
    wrapped: set[Object] = field(default_factory=set[Object])
    networks: dict[str, int] = field(default_factory=dict[str, int])
    accumulating: list[Object] = field(default_factory=list[Object])
    last: list[bool] = field(default_factory=list[bool])
    asked: bool = False
    guessed: bool = False
    single: str = ""  # The setting that leaves the accumulation steps at 1.
    literal: int | None = None
    # The numbers that the file has where the scenario's steps are taken.
    written: set[int] = field(default_factory=set[int])
    modulus: int | None = None
    length_asked: bool = False
    depth: int = 0
    nodes: int = 0
    step_guards: dict[p.Node, bool] = field(default_factory=dict[p.Node, bool])
    rounds: dict[object, int] = field(default_factory=dict[object, int])
    cut: bool = False
    # The function that a run starts in makes one pass over the data, and is called for each.
    by_epochs: bool = False
    evaluated: dict[p.Function, list[Value]] = field(default_factory=dict[p.Function, list[Value]])
