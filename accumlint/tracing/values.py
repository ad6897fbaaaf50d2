"""The values of an abstract run.

Numbers, strings, tuples, lists and dicts are Python's own. Everything else is one of the classes here; what cannot be
known is an `Unknown`, and a tensor is an `Unknown` that carries micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from accumlint.common.frozen import frozen
from accumlint.reading.gradient_slice import Relevance
from accumlint.reading.ir import Class, Function, Node
from accumlint.reading.modules import Module
from accumlint.reading.syntax import Source
from accumlint.tracing.events import Divisor, Forward, TrainingObject

_ONE = Fraction(1)


def _no_values() -> list[Value]:
    return []


def _no_names() -> dict[str, Value]:
    return {}


@frozen(slots=True)
class Batch:
    """The identity of a piece of data: `serial` orders fetches, `parent` is the batch it was cut from.

    `when` tells micro-batches apart: it is the same for all that is fetched together.
    """

    serial: int
    parent: Batch | None
    when: object = field(compare=False, hash=False)


@frozen(slots=True)
class Ranks:
    """`factor` times the number of ranks, which goes by `name`, to some power: `4 * world_size`, `1 / world_size`."""

    name: str
    factor: Fraction = Fraction(1)
    power: int = 1

    @property
    def symbol(self) -> str:
        """The power as an unknown factor of a term."""
        return f"{'*' if self.power > 0 else '/'} {self.name}" if self.power else ""


@frozen(slots=True)
class Counted:
    """What a number counts: "elements" (all of a tensor's), "rows" (the length of one of its sides), "some" (those
    that a mask leaves in) or "each" (those of every row); `of` are the tensors that were asked."""

    kind: str
    of: tuple[Unknown, ...]


@frozen(slots=True)
class Term:
    """`factor` times an unknown, times further unknown factors as written, among them powers of the number of ranks.

    `of_steps`: the accumulation steps are in the factor, as a number that the code does not write.
    """

    atom: Unknown
    factor: Fraction | None
    symbols: tuple[str, ...]
    ranks: int = 0
    of_steps: bool = False


# Longer lists, texts and sums are none that a loop is built from.
MOST = 4096


@dataclass(eq=False, slots=True)
class Unknown:
    """A value that cannot be known, or a tensor.

    `text` names it for decisions and messages. `batches` are the data it depends on, `networks` those that its
    gradient reaches, `forwards` the model calls behind it. As a loss it is a linear combination of `terms` (itself,
    when None). `lost`: an operation that is not modelled stands between it and the loss, so factors may be hidden.
    `reduction`: "none", "mean", "sum", "window" or "unknown". `total` names the running total it came from; `count`
    tells that it is a number of elements. `rows`: one value for each row of the batch. `objects` are those given to
    the call that made it, which it may hand back. `hint` is the value it has unless somebody chooses otherwise.
    `ranks`: the number of ranks, or a multiple. `over` tells how other ranks' values came in: "sum", "mean" (of the
    value alone), "sum with gradient", "mean with gradient", "gathered". `counted`: what it counts, or, for a mask, what
    it was made from; `divisor`: the count that divided it. `whole`: what it is without the first of each row. `scale`:
    the scaler that was asked for its scale, and when. `per`: the running total that divides it, no loss itself.
    `weighs`: the sum by which a mask among its factors was divided before. `left_out`: which labels a model leaves out
    that was given them, whose loss this is where it is called one.
    """

    text: str
    batches: frozenset[Batch] = frozenset()
    networks: frozenset[str] = frozenset()
    forwards: tuple[Forward, ...] = ()
    terms: tuple[Term, ...] | None = None
    loss: bool = False
    lost: bool = False
    reduction: str = "unknown"
    varies: str = ""
    scaler: Object | None = None
    total: str = ""
    count: bool = False
    hint: object = None
    origin: Node | None = None
    parameters: bool = False
    rows: bool = False
    objects: tuple[Object, ...] = ()
    attributes: dict[str, Value] = field(default_factory=_no_names)
    ranks: Ranks | None = None
    over: str = ""
    counted: Counted | None = None
    divisor: Divisor | None = None
    whole: Unknown | None = None
    scale: tuple[Object, int] | None = None
    per: Unknown | None = None
    weighs: Unknown | None = None
    left_out: str = ""

    def __post_init__(self) -> None:
        # Texts are made of texts, and may double with each statement.
        if len(self.text) > MOST:
            self.text = f"{self.text[:MOST]}…"

    @property
    def linear(self) -> tuple[Term, ...]:
        return self.terms if self.terms is not None else (Term(self, _ONE, ()),)

    @property
    def tensor(self) -> bool:
        return bool(self.batches or self.networks)


@dataclass(eq=False, slots=True)
class Object:
    """Something with identity and attributes: with a role (`traced`), an instance of a class of this file, or both."""

    text: str
    traced: TrainingObject | None = None
    cls: Class | None = None
    attributes: dict[str, Value] = field(default_factory=_no_names)
    networks: frozenset[str] = frozenset()
    wrapper: str = ""
    inner: Object | None = None
    reduction: str = "unknown"
    varies: str = ""
    steps: int | None = None
    enabled: Value = True
    prepared: bool = False
    counter: int = 0
    sync: bool = True
    used: bool = False
    handed: bool = False
    free_schedulers: bool = False

    @property
    def role(self) -> str:
        return self.traced.role if self.traced is not None else ""


@dataclass(eq=False, slots=True)
class Closure:
    """A function of the project with the scope it was made in."""

    function: Function
    scope: Frame | None
    owner: Class | None = None


@dataclass(eq=False, slots=True)
class Bound:
    """A method of the project's, bound to its receiver."""

    receiver: Value
    closure: Closure


@dataclass(eq=False, slots=True)
class Method:
    """An attribute of a modelled or unknown value, about to be called; `path` is its text."""

    receiver: Value
    name: str
    path: str


@dataclass(eq=False, slots=True)
class Library:
    """Something imported, by its dotted path; `importer` is the file that imports it ("" for what is built in)."""

    path: str
    importer: str = ""


@dataclass(eq=False, slots=True)
class Partial:
    """`functools.partial`, or a callable with arguments already given."""

    callee: Value
    args: list[Value]
    kwargs: dict[str, Value]


@dataclass(eq=False, slots=True)
class Native:
    """A callable that the machine provides itself."""

    name: str
    call: Callable[[list[Value], dict[str, Value]], Value]


@dataclass(eq=False, slots=True)
class ClassValue:
    cls: Class
    scope: Frame | None


@dataclass(eq=False, slots=True)
class Context:
    """A context manager: `kind` is "no_sync", "accumulate", "no_grad", "autocast", "stack" or "plain".

    `enter` is run on entry and gives the `as` value, `leave` on exit.
    """

    kind: str
    enter: Callable[[Node], Value] | None = None
    leave: Callable[[Node], Value] | None = None
    generator: Bound | Closure | None = None
    args: list[Value] = field(default_factory=_no_values)
    kwargs: dict[str, Value] = field(default_factory=_no_names)


@dataclass(eq=False, slots=True)
class Stream:
    """Something to go through, item by item: `drive` calls its argument once per item.

    `loader` marks a pass over data that ends: an epoch. `rounds` is how often it calls, where nobody knows how often
    the program does.
    """

    drive: Callable[[Callable[[Value], None]], None]
    loader: bool = False
    rounds: int = 0


@dataclass(eq=False, slots=True)
class Lazy:
    """An iterable made from others (`enumerate`, `zip`, `iter`, `range`, a generator), gone through when asked.

    `position` is how many items `next` has taken; `made` is what a generator expression makes of each.
    """

    kind: str
    args: list[Value]
    position: int = 0
    closure: Closure | Bound | None = None
    kwargs: dict[str, Value] = field(default_factory=_no_names)
    made: Callable[[Value], Value] | None = None


@dataclass(eq=False, slots=True)
class Frame:
    """The names of one call. `globals_` are the names declared global, `outer` the enclosing function's frame.

    A generator's frame gives what it yields to `on_yield`, for the loop `driver`.
    """

    names: dict[str, Value]
    outer: Frame | None = None
    globals_: set[str] = field(default_factory=set[str])
    nonlocals: set[str] = field(default_factory=set[str])
    on_yield: Callable[[Value], None] | None = None
    driver: Node | None = None
    owner: Class | None = None
    receiver: Value = None
    home: Home | None = None
    function: Function | None = None


@dataclass(eq=False, slots=True)
class Home:
    """A file whose code is executed: its global names, and what its names are used as.

    `module` is None for the file that is being checked.
    """

    source: Source
    frame: Frame
    relevance: Relevance
    module: Module | None


Value: TypeAlias = (
    bool | int | float | str | bytes | complex | Fraction | tuple["Value", ...] | list["Value"]
    | dict["Key", "Value"] | set["Key"] | Unknown | Object | Closure | Bound | Method | Library | Partial
    | Native | ClassValue | Context | Lazy | slice | None
)  # fmt: skip
Key: TypeAlias = bool | int | float | str | bytes | tuple["Key", ...] | Unknown | None
Number = int | float | Fraction
