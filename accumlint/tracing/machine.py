"""What the parts of the interpreter share: the state of a run, and the questions by which execution recurses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import Relevance
from accumlint.tracing import trace as t
from accumlint.tracing.budget import LOOKS_OF_STEP, Budget
from accumlint.tracing.calls.borders import Borders
from accumlint.tracing.calls.call import Call
from accumlint.tracing.control.exits import Stopped
from accumlint.tracing.control.streams import text_of
from accumlint.tracing.state import MAX_EVENTS, MAX_LOOKED, MAX_NODES, MAX_TOLD, Scenario, State
from accumlint.tracing.values import Batch, Closure, Frame, Home, Unknown, Value


@dataclass(eq=False, repr=False)
class Machine(ABC):
    """One run of one program on one path, as its parts see it.

    A part is given the parts below it. What it asks of those above it are the abstract methods: an attribute may be a
    property, whose body is a block, which calls what an unknown value has under a name. The interpreter answers them.
    """

    relevance: Relevance
    scenario: Scenario
    chosen: dict[str, str]
    budget: Budget
    borders: Borders

    def __post_init__(self) -> None:
        self.program = self.borders.program
        self.state = State()
        self.main = Home(self.program.source, Frame({}), self.relevance, None)
        self.frame = self.main.frame
        self.ceiling = MAX_NODES
        self.symbols: dict[str, Value] = {}
        self.entered: set[p.Function] = set()
        self.captured: dict[p.Function, Closure] = {}
        self.returned: Value = None
        # The last `return` that was executed.
        self.returned_at: p.Node | None = None
        # The node of the checked file that led to where the run is now.
        self.led_by: p.Node | None = None
        # How many calls deep the run is in code of other files that only makes a value.
        self.making = 0
        # The parts of the data that were asked for, each by what asked.
        self.cut: dict[object, Batch] = {}

    # Recursion

    @abstractmethod
    def eval(self, node: p.Expr) -> Value:
        """The value of an expression."""

    @abstractmethod
    def block(self, statements: tuple[p.Stmt, ...]) -> str | None:
        """Executes statements; gives what ends them early: "break", "continue" or "return"."""

    @abstractmethod
    def bind(self, target: p.Expr, value: Value, node: p.Node) -> None:
        """Assigns a value to a name, an attribute, an item or several of them."""

    @abstractmethod
    def apply(
        self, callee: Value, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        """Calls a value."""

    @abstractmethod
    def opaque_call(self, callee: Value, call: Call) -> Value:
        """Calls what cannot be followed."""

    # Names and files

    @property
    def home(self) -> Home:
        """The file whose code is being executed."""
        return self.frame.home or self.main

    @property
    def ignores(self) -> bool:
        """True where some labels are -100, which losses leave out: in this file, or where its data comes from."""
        return self.relevance.ignores or self.program.data_ignores

    def store(self, name: str, value: Value) -> None:
        """Gives a name of the current frame another value."""
        frame = self.frame
        if name in frame.globals_:
            self.home.frame.names[name] = value
        elif name in frame.nonlocals:
            outer = frame.outer
            while outer is not None and name not in outer.names:
                outer = outer.outer
            (outer or frame).names[name] = value
        else:
            frame.names[name] = value

    def lead(self, node: p.Node) -> None:
        """Remembers what led to a node of another file, the first time."""
        if self.home is not self.main and self.led_by is not None:
            self.borders.leads.setdefault(node, self.led_by)

    def steps(self) -> int:
        """The accumulation steps, where the program asks for them."""
        self.state.asked = True
        return self.scenario.steps

    # Events and data

    def emit(self, event: t.Event) -> None:
        """Adds an event, unless it is an affair of code that only makes a value, which calls models."""
        if self.making and not isinstance(event, t.Forward | t.NoSync | t.SyncFlag):
            return
        self.lead(event.node)
        self.state.events.append(event)
        ledger = self.state.ledger
        many = len(self.state.events) > MAX_EVENTS or ledger.told > MAX_TOLD
        if many or ledger.looked > MAX_LOOKED:
            raise Stopped("too many events")

    def stamp(self, node: p.Node, subject: str) -> tuple[p.Node, int, int, int, str]:
        """The fields that every event begins with."""
        return (node, len(self.state.events), self.state.current, self.state.epoch, subject)

    def loop_position(self) -> tuple[object, ...]:
        """What tells this pass through the innermost loops from any other."""
        self.state.nodes += len(self.state.loops) // LOOKS_OF_STEP
        return (*((loop.node, loop.index) for loop in self.state.loops), self.state.epoch)

    def fetch(self, parent: Batch | None = None, source: object = "") -> Batch:
        """New data. What several sources give in one iteration is one micro-batch, what one gives twice are two.

        What a model takes of its input is a part of that, and no micro-batch of its own.
        """
        state = self.state
        if state.inside and parent is not None:
            return parent
        state.serial += 1
        here = (self.loop_position(), source)
        state.fetched[here] = number = state.fetched.get(here, 0) + 1
        return Batch(state.serial, parent, (here[0], number))

    def fetched(self, source: Value, parent: Batch | None) -> Unknown:
        """One new item of data."""
        batch = self.fetch(parent, text_of(source))
        return Unknown(f"{text_of(source)}[…]", frozenset({batch}))

    def piece_of_iteration(self) -> Batch:
        """The data of this iteration where nothing names it."""
        key = ("iteration", self.loop_position())
        if key not in self.cut:
            self.cut[key] = self.fetch()
        return self.cut[key]

    def passed(self) -> int:
        """How many passes over the data are over."""
        return self.state.epoch - any(loop.loader for loop in self.state.loops)

    def ordinal(self, key: object) -> int:
        """The number of a micro-batch, given when it is first met."""
        return self.state.ordinals.setdefault(key, len(self.state.ordinals) + 1)

    def newest(self, batches: frozenset[Batch]) -> int:
        """The number of the micro-batch that some data belongs to, 0 where it has none yet."""
        latest = max(batches, key=lambda b: b.serial, default=None)
        return self.state.ordinals.get(latest.when, 0) if latest is not None else 0
