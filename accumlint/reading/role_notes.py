"""What is known of each name while a file is walked through: roles, flows, what goes backward, sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from accumlint.common.frozen import frozen
from accumlint.reading import frameworks, names
from accumlint.reading import ir as p
from accumlint.reading.role_scopes import LOSS, NO_KEYS, RETURNED, Key, Scopes, called_as, last_of


@dataclass(eq=False, slots=True)
class Region:
    """Some statements: do they go backward, do they step, whom do they call?"""

    backward: bool = False
    step: bool = False
    loops: bool = False
    fetches: bool = False
    lost: set[Key] = field(default_factory=set[Key])
    callees: set[str] = field(default_factory=set[str])


@frozen(eq=False, slots=True)
class Loop:
    sources: tuple[Key, ...]
    items: frozenset[Key]
    region: Region
    around: tuple[Region, ...]
    count: Key | None


@frozen(eq=False, slots=True)
class UnresolvedCall:
    """A call of something that no definition of the file answers."""

    callee: Key
    args: tuple[frozenset[Key], ...]
    keywords: bool
    targets: frozenset[Key]


class Notes(Scopes):
    """The facts about the names of a file."""

    def __init__(self) -> None:
        super().__init__()
        self.regions: dict[str, list[Region]] = {}
        self.stack: list[Region] = []
        self.facts: dict[Key, set[str]] = {}
        self.same: dict[Key, set[Key]] = {}
        self.given: dict[Key, set[Key]] = {}
        self.flows: dict[Key, set[Key]] = {}
        self.does: dict[Key, set[str]] = {}
        self.loops: list[Loop] = []
        self.unresolved: list[UnresolvedCall] = []
        self.compared: list[tuple[Key, frozenset[Key]]] = []
        self.backwarded: set[Key] = set()
        # What a number was divided, multiplied or taken modulo by; what a loss was divided by.
        self.modulo: set[Key] = set()
        self.divisors: dict[Key, set[Key]] = {}
        self.guards: list[tuple[frozenset[Key], Region, Region]] = []
        self.flags: dict[Key, frozenset[Key]] = {}
        self.tests: dict[str, frozenset[Key]] = {}
        self.aliases: dict[Key, set[Key]] = {}
        self.windows: set[Key] = set()
        self.capped: dict[Key, set[Key]] = {}
        self.sums: dict[Key, list[tuple[Region, ...]]] = {}
        self.shown: set[Key] = set()
        self.methods: list[tuple[Key, frozenset[Key]]] = []
        self.cut: dict[Key, Key] = {}
        self.fetched: dict[Key, set[Key]] = {}
        self.steps_given: list[tuple[Key, Key]] = []
        self.totals: set[Key] = set()
        # What steps with nothing given, by function, in the order of the file.
        self.stepped: dict[Region, dict[Key, None]] = {}
        # What is asked for more than optimizers and schedulers are.
        self.others: set[Key] = set()
        # What is counted up by anything but 1 (tokens, rows), by what, up to which limit; and quotients of names.
        self.rows: set[tuple[Key | None, str]] = set()
        self.quotients: list[tuple[Key, Key | None, str]] = []

    def tell(self, key: Key, role: str) -> None:
        known = self.facts.setdefault(key, set())
        known.add(role)
        if "model" in known:
            # An engine is asked for all that a model is asked for.
            known.discard("engine")

    def unite(self, one: Key | None, other: Key | None) -> None:
        if one is not None and other is not None and one != other:
            self.same.setdefault(one, set()).add(other)
            self.same.setdefault(other, set()).add(one)

    def unite_losses(self, whole: Key, part: p.Expr) -> None:
        key = self.key(part)
        if key is not None and key != whole:
            self.aliases.setdefault((whole[0], f"{whole[1]}/"), set()).add(key)

    # What goes backward

    def backwarded_by_name(self, key: Key) -> None:
        """The result of a loss function of torch is a loss where it has a name."""
        if key[0] != RETURNED:
            self.tell(key, "loss")

    def went_backward(self, node: p.Call, receiver: Key | None) -> None:
        func = node.func
        first = node.positional(0)
        if first is not None and last_of(func) != "train_batch":
            self.lost(first)
            if receiver is not None:
                self.does.setdefault(receiver, set()).add("backward(…)")
            return
        match func:
            case p.Attr(base=p.Call(func=p.Attr(base=by, name="scale"), args=[given, *_])):
                if (scaler := self.key(by)) is not None:
                    self.tell(scaler, "scaler")
                self.lost(given.value)
            case p.Attr(base=base):
                self.lost(base)
            case _:
                pass

    def lost(self, expr: p.Expr) -> None:
        """Notes an expression that goes backward: what is in it, and what it is divided by."""
        while isinstance(expr, p.Call) and isinstance(expr.func, p.Attr):
            if expr.func.name in ("mean", "sum", *frameworks.PASSING):
                expr = expr.func.base
            else:
                break
        match expr:
            case p.Binary(op="/", left=left, right=right):
                self.divided(LOSS, right)
                self.lost(left)
            case p.Binary(op="*"):
                self.backwarded |= self.reads(expr)
            case _:
                key = self.key(expr)
                if key is not None:
                    self.backwarded |= {key, *self.reads(expr)}
                    self.tell(key, "loss")
                    for region in self.stack:
                        region.lost.add(key)
                else:
                    self.backwarded |= self.reads(expr)
                    self.expr_of_loss(expr)

    def expr_of_loss(self, expr: p.Expr) -> None:
        """A loss that goes backward where it is worked out."""
        for node in p.walk_expr(expr):
            if isinstance(node, p.Call) and self.is_open(node.func):
                key = self.key(node.func)
                if key is not None:
                    shown = tuple(self.reads(a.value) for a in node.args if not a.keyword)
                    self.unresolved.append(UnresolvedCall(key, shown, False, frozenset({LOSS})))

    # Sizes

    def named_sizes(self, expr: p.Expr) -> Iterator[Key]:
        key = self.key(expr)
        if key is not None:
            yield key

    def divided(self, key: Key, by: p.Expr) -> None:
        self.divisors.setdefault(key, set()).update(self.named_sizes(by))

    def sizes(self, test: p.Expr) -> frozenset[Key]:
        """What a test holds a count against: `% n`, or a flag that was set by it."""
        found: set[Key] = set()
        for node in p.walk_expr(test):
            if isinstance(node, p.Binary) and node.op == "%":
                found |= {k for k in (self.key(node.right),) if k is not None}
            elif isinstance(node, p.Compare):
                found |= self.limits(node)
            elif isinstance(node, p.Name) and (key := self.key(node)) in self.flags:
                found |= self.flags[key]
            elif isinstance(node, p.Call) and (callee := called_as(node.func)) in self.functions:
                found |= self.sizes_returned(callee)
        return frozenset(found)

    def sizes_returned(self, callee: str) -> frozenset[Key]:
        """What the tests that a function of the file returns hold a count against."""
        if callee not in self.tests:
            self.tests[callee] = NO_KEYS
            scopes, found = self.scopes, set[Key]()
            for function in self.functions[callee]:
                self.scopes = [None, function]
                for node in p.walk(function.body, into_functions=False):
                    if isinstance(node, p.Return) and node.value is not None:
                        found |= self.sizes(node.value)
            self.scopes, self.tests[callee] = scopes, frozenset(found)
        return self.tests[callee]

    def limits(self, node: p.Compare) -> set[Key]:
        match node:
            case p.Compare(
                left=p.Name() | p.Attr() as count,
                rest=[(("==" | ">=" | "<"), (p.Name() | p.Attr()) as limit)],
            ) if not names.is_epoch(last_of(count)):
                key = self.key(limit)
                if (text := p.dotted(count)) in self.strides:
                    self.rows.add((key, self.strides[text]))
                    return set()
                return {key} if key is not None and self.key(count) is not None else set()
            case p.Compare(
                left=p.Binary() as since, rest=[(("==" | ">="), (p.Name() | p.Attr()) as limit)]
            ) if _is_difference(since):
                key = self.key(limit)
                return {key} if key is not None else set()
            case _:
                return set()


def _is_difference(counted: p.Expr) -> bool:
    """True for `i - start` and `i - start + 1`: what was counted since a window began."""
    if isinstance(counted, p.Binary) and counted.op == "+" and isinstance(counted.right, p.Const):
        counted = counted.left
    match counted:
        case p.Binary(op="-", left=p.Name() | p.Attr(), right=p.Name() | p.Attr()):
            return True
        case _:
            return False
