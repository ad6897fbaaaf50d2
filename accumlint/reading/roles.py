"""What the names of a file are, by what is done with them: roles, losses, labels, the accumulation steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from accumlint.common.frozen import frozen
from accumlint.reading import frameworks, names
from accumlint.reading import ir as p

# A name in the function that binds it, or the dotted text of an attribute.
Key: TypeAlias = tuple[object, str]
_NO_KEYS: frozenset[Key] = frozenset()

_ATTRIBUTE = "."
_RETURNED = "()"
# What goes backward where it is worked out, under no name.
_LOSS: Key = (_RETURNED, "backward")
_MADE: dict[str, str] = {
    **dict.fromkeys(frameworks.OPTIMIZERS, "optimizer"),
    **dict.fromkeys(frameworks.SCALERS | frameworks.NATIVE_SCALERS, "scaler"),
    **dict.fromkeys(frameworks.LOADERS, "loader"),
    **dict.fromkeys(frameworks.SCHEDULERS, "scheduler"),
    **dict.fromkeys(frameworks.CRITERIA, "criterion"),
    "Accelerator": "accelerator",
    "Fabric": "fabric",
    **dict.fromkeys(frameworks.AVERAGES, "average"),
}
# What only one role is asked for.
_ASKED: dict[str, str] = {
    "no_sync": "model", "require_backward_grad_sync": "model",
    "unscale_": "scaler", "sync_gradients": "accelerator", "get_last_lr": "scheduler",
    "setup_dataloaders": "fabric", "no_backward_sync": "fabric",
}  # fmt: skip
# What a parameter's annotation tells; classes of torch's base types are written so.
_ANNOTATED: dict[str, str] = {
    **_MADE, "Optimizer": "optimizer", "LRScheduler": "scheduler", "_LRScheduler": "scheduler",
}  # fmt: skip
_DOING = frozenset({*_ASKED, "step", "zero_grad", "param_groups", "update", "train", "eval", "state_dict",
                    "load_state_dict", "accumulate", "prepare"})  # fmt: skip
_OF_OPTIMIZERS = frozenset({"step", "zero_grad", "param_groups", "state_dict", "load_state_dict",
                            "add_param_group", "get_last_lr", "get_lr"})  # fmt: skip
_LIKE_A_MODEL = frozenset({"train", "eval", "state_dict", "load_state_dict", "zero_grad"})
_THROUGH = frozenset(
    {"enumerate", "zip", "iter", "islice", "cycle", "list", "reversed", "chain", "tee"}
)
_CUTTING = frozenset({"chunk", "tensor_split"})
# Roles of tensors and numbers, whose names are often used for something else in another function.
_PASSING_ROLES = frozenset({"loss", "labels"})
# Roles beside that of a value which trains.
_SIDE_ROLES = frozenset({"average", "ranks"})
_WRAPPING = frozenset({*frameworks.WRAPPERS, "compile", "unwrap_model", "deepcopy"})


@frozen
class Roles:
    """`told` are the roles that structure tells, by last name; `windows` the dotted texts of the accumulation steps.

    `totals` are the last names of what losses are added to.
    """

    told: Mapping[str, str]
    windows: frozenset[str]
    totals: frozenset[str] = frozenset()

    def of(self, name: str) -> str:
        """The role of what goes by a name, "" for none."""
        told = self.told.get(name, "")
        if not told or told in _SIDE_ROLES:
            return names.role_of(name)
        return "" if told in _PASSING_ROLES else told

    def is_loss(self, name: str) -> bool:
        """True for what goes backward, or reads like it."""
        told = self.told.get(name)
        return told == "loss" if told else "loss" in name.lower()

    def are_labels(self, name: str) -> bool:
        """True for what a loss compares predictions with."""
        told = self.told.get(name)
        return told == "labels" if told else names.are_labels(name)

    def is_steps(self, name: str) -> bool:
        """True for the accumulation steps."""
        return name in self.windows or names.is_steps(name)

    def is_averaging(self, receiver: str, called: str) -> bool:
        """True for the update of a running average of weights; `receiver` is "" for a function."""
        made = self.told.get(receiver) == "average" and called in names.AVERAGING_METHODS
        return made or names.is_averaging(receiver, called)

    def is_ranks(self, name: str) -> bool:
        """True for the number of ranks that hold a replica of the model."""
        return self.told.get(name) == "ranks" or names.is_ranks(name)

    def shows_loss(self, name: str) -> bool:
        """True for a loss and for a total of losses."""
        return name in self.totals or self.is_loss(name)

    def joined(self, other: Roles) -> Roles:
        """The roles of two parts of the same file."""
        return Roles(
            {**other.told, **self.told},
            self.windows | other.windows,
            self.totals | other.totals,
        )


NO_ROLES = Roles({}, frozenset())


@dataclass(eq=False, slots=True)
class _Region:
    """Some statements: do they go backward, do they step, whom do they call?"""

    backward: bool = False
    step: bool = False
    loops: bool = False
    fetches: bool = False
    lost: set[Key] = field(default_factory=set[Key])
    callees: set[str] = field(default_factory=set[str])


@frozen(eq=False, slots=True)
class _Loop:
    sources: tuple[Key, ...]
    items: frozenset[Key]
    region: _Region
    around: tuple[_Region, ...]
    count: Key | None


@frozen(eq=False, slots=True)
class _Asked:
    """A call of something that no definition of the file answers."""

    callee: Key
    args: tuple[frozenset[Key], ...]
    keywords: bool
    targets: frozenset[Key]


def infer(
    body: tuple[p.Stmt, ...],
    backward: frozenset[str] = frozenset(),
    step: frozenset[str] = frozenset(),
) -> Roles:
    """What the names of a file are; `backward` and `step` are the imported callees that lead to such a call."""
    reading = _Reading(backward, step)
    reading.declare(body, reading.top, "")
    reading.block(body)
    return reading.solved()


class _Reading:
    """One walk over a file, which notes what is done with each name, and what follows from that."""

    def __init__(self, backward: frozenset[str], step: frozenset[str]) -> None:
        self.far_backward, self.far_step = backward, step
        self.top: set[str] = set()
        self.bound: dict[object, set[str]] = {None: self.top}
        self.scopes: list[object] = [None]
        self.functions: dict[str, list[p.Function]] = {}
        self.regions: dict[str, list[_Region]] = {}
        self.defined: set[str] = set()
        self.stack: list[_Region] = []
        self.facts: dict[Key, set[str]] = {}
        self.same: dict[Key, set[Key]] = {}
        self.given: dict[Key, set[Key]] = {}
        self.flows: dict[Key, set[Key]] = {}
        self.does: dict[Key, set[str]] = {}
        self.loops: list[_Loop] = []
        self.asked: list[_Asked] = []
        self.compared: list[tuple[Key, frozenset[Key]]] = []
        self.backwarded: set[Key] = set()
        # What a number was divided, multiplied or taken modulo by; what a loss was divided by.
        self.modulo: set[Key] = set()
        self.divisors: dict[Key, set[Key]] = {}
        self.guards: list[tuple[frozenset[Key], _Region, _Region]] = []
        self.flags: dict[Key, frozenset[Key]] = {}
        self.aliases: dict[Key, set[Key]] = {}
        self.windows: set[Key] = set()
        self.capped: dict[Key, set[Key]] = {}
        self.sums: dict[Key, list[tuple[_Region, ...]]] = {}
        self.shown: set[Key] = set()
        self.methods: list[tuple[Key, frozenset[Key]]] = []
        self.cut: dict[Key, Key] = {}
        self.fetched: dict[Key, set[Key]] = {}
        self.steps_given: list[tuple[Key, Key]] = []
        self.totals: set[Key] = set()
        # What steps with nothing given, by function, in the order of the file.
        self.stepped: dict[_Region, dict[Key, None]] = {}
        # What is asked for more than optimizers and schedulers are.
        self.others: set[Key] = set()
        # What is counted up by anything but 1 (tokens, rows), by what, up to which limit; and quotients of names.
        self.strides: dict[str, str] = {}
        self.rows: set[tuple[Key | None, str]] = set()
        self.quotients: list[tuple[Key, Key | None, str]] = []

    # Names

    def declare(self, block: tuple[p.Stmt, ...], bound: set[str], owner: str) -> None:
        """Notes what each function binds, and what is defined at all."""
        for statement in block:
            match statement:
                case p.Assign(targets=targets):
                    for target in targets:
                        bound |= p.target_names(target)
                case p.Augment(target=target, op=op, value=value):
                    bound |= p.target_names(target)
                    if op == "+" and not (isinstance(value, p.Const) and value.value == 1):
                        self.strides[p.dotted(target)] = p.dotted(value)
                case p.For(target=target, body=body, orelse=orelse):
                    bound |= p.target_names(target)
                    self.declare(body, bound, owner)
                    self.declare(orelse, bound, owner)
                case p.If(body=body, orelse=orelse) | p.While(body=body, orelse=orelse):
                    self.declare(body, bound, owner)
                    self.declare(orelse, bound, owner)
                case p.With(items=items, body=body):
                    for _, target in items:
                        bound |= p.target_names(target) if target is not None else set()
                    self.declare(body, bound, owner)
                case p.Try(body=body, handlers=handlers, orelse=orelse, final=final):
                    for part in (body, *(h for _, _, h in handlers), orelse, final):
                        self.declare(part, bound, owner)
                case p.Function():
                    self.defined.add(statement.name)
                    shown = f".{statement.name}" if statement.owner else statement.name
                    self.functions.setdefault(shown, []).append(statement)
                    self.bound[statement] = {q.name for q in statement.params}
                    self.declare(statement.body, self.bound[statement], owner)
                    if statement.name == "__init__" and owner:
                        self.functions.setdefault(owner, []).append(statement)
                case p.Class():
                    self.defined.add(statement.name)
                    self.declare(statement.body, set(), statement.name)
                case p.Import(names=imported):
                    self.defined.update(name for name, _ in imported)
                case _:
                    pass

    def key(self, expr: p.Expr | None) -> Key | None:
        """What an expression names, through all that leaves it what it is."""
        match expr:
            case p.Name(id=name):
                for scope in reversed(self.scopes):
                    if name in self.bound[scope]:
                        return scope, name
                return None, name
            case p.Attr(base=base, name=name):
                return self.key(base) if name == "module" else (_ATTRIBUTE, p.dotted(expr))
            case p.Item(index=p.Const(value=str())):
                return _ATTRIBUTE, p.dotted(expr)
            case p.Call(func=p.Attr(base=base, name=name)) if name in frameworks.PASSING:
                return self.key(base)
            case p.Call(func=func, args=[first, *_]) if _last(func) in _WRAPPING:
                return self.key(first.value)
            case _:
                return None

    def reads(self, expr: p.Expr) -> frozenset[Key]:
        """Everything that a value is made of."""
        found: set[Key] = set()
        for node in p.walk_expr(expr):
            if isinstance(node, p.Name):
                key = self.key(node)
                if key is not None and node.id != "self":
                    found.add(key)
            elif isinstance(node, p.Attr):
                found.add((_ATTRIBUTE, p.dotted(node)))
            elif isinstance(node, p.Call):
                callee = _called(node.func)
                if callee in self.functions:
                    found.add((_RETURNED, callee))
        return frozenset(found)

    def is_open(self, func: p.Expr) -> bool:
        """True for a callee that the file binds, and does not define: an argument, a local value, an attribute."""
        match func:
            case p.Name(id=name):
                return name not in self.defined and any(name in self.bound[s] for s in self.scopes)
            case p.Attr(base=p.Name(id="self"), name=name):
                return name not in self.defined
            case p.Item(base=base):
                return self.is_open(base)
            case _:
                return False

    # Statements

    def block(self, block: tuple[p.Stmt, ...]) -> None:
        for place, statement in enumerate(block):
            match statement:
                case p.Assign(targets=targets, value=value):
                    self.expr(value, self.targets(targets))
                    for target in targets:
                        self.assigned(target, value)
                case p.Augment(target=target, op=op, value=value):
                    key = self.key(target)
                    self.expr(value, frozenset({key}) if key is not None else _NO_KEYS)
                    if key is not None:
                        self.flows.setdefault(key, set()).update(self.reads(value))
                        if op == "/":
                            self.divided(key, value)
                        elif op == "+":
                            self.totals.add(key)
                            self.sums.setdefault(key, []).append(tuple(self.stack))
                case p.Do(value=value):
                    self.expr(value, _NO_KEYS)
                case p.Return(value=value):
                    self.returned(value)
                case p.For(target=target, iterable=iterable, body=body, orelse=orelse):
                    self.expr(iterable, _NO_KEYS)
                    self.loop(target, iterable, body)
                    self.block(orelse)
                case p.While(test=test, body=body, orelse=orelse):
                    self.expr(test, _NO_KEYS)
                    self.region(body)
                    self.block(orelse)
                case p.If(test=test, body=body, orelse=orelse):
                    self.expr(test, _NO_KEYS)
                    within, beside = self.region(body), self.region(orelse)
                    sizes = self.sizes(test)
                    if sizes and _only_jumps(body):
                        beside = self.region(block[place + 1 :])
                        self.guards.append((sizes, beside, within))
                        return
                    if sizes:
                        self.guards.append((sizes, within, beside))
                        self.guards.append((sizes, beside, within))
                case p.With(items=items, body=body):
                    for value, target in items:
                        self.expr(value, self.targets((target,)) if target else _NO_KEYS)
                        if target is not None:
                            self.assigned(target, value)
                            if isinstance(value, p.Call) and _last(value.func) == "scale_loss":
                                self.unite(self.key(target), self.key(value.positional(0)))
                    self.block(body)
                case p.Try(body=body, handlers=handlers, orelse=orelse, final=final):
                    for part in (body, *(h for _, _, h in handlers), orelse, final):
                        self.block(part)
                case p.Function():
                    self.function(statement)
                case p.Class():
                    self.block(statement.body)
                case _:
                    pass

    def region(self, body: tuple[p.Stmt, ...]) -> _Region:
        found = _Region()
        self.stack.append(found)
        self.block(body)
        self.stack.pop()
        return found

    def function(self, function: p.Function) -> None:
        if function.name == "backward" and any(q.name == "ctx" for q in function.params):
            return
        self.bound.setdefault(function, {q.name for q in function.params})
        for param in function.params:
            if role := _ANNOTATED.get(_tail(param.annotation)):
                self.tell((function, param.name), role)
        self.scopes.append(function)
        outer, self.stack = self.stack, []
        shown = f".{function.name}" if function.owner else function.name
        self.regions.setdefault(shown, []).append(self.region(function.body))
        self.stack = outer
        self.scopes.pop()

    def targets(self, targets: tuple[p.Expr, ...]) -> frozenset[Key]:
        found: set[Key] = set()
        for target in targets:
            parts = target.items if isinstance(target, p.Sequence) else (target,)
            for part in parts:
                key = self.key(part.value if isinstance(part, p.Star) else part)
                if key is None and isinstance(part, p.Sequence):
                    found |= self.targets((part,))
                elif key is not None:
                    found.add(key)
        return frozenset(found)

    def returned(self, value: p.Expr | None) -> None:
        function = self.scopes[-1]
        if value is None or not isinstance(function, p.Function):
            return
        result: Key = _RETURNED, f".{function.name}" if function.owner else function.name
        self.expr(value, frozenset({result}))
        self.flows.setdefault(result, set()).update(self.reads(value))
        self.unite(result, self.key(value))
        if isinstance(value, p.Sequence):
            for place, item in enumerate(value.items):
                self.unite((_RETURNED, f"{result[1]}[{place}]"), self.key(item))

    def assigned(self, target: p.Expr, value: p.Expr) -> None:
        """What a target becomes by a value."""
        for key in self.targets((target,)):
            self.flows.setdefault(key, set()).update(self.reads(value))
        if isinstance(target, p.Sequence):
            self.unpacked(target.items, value)
            return
        key = self.key(target)
        if key is None:
            return
        while isinstance(value, p.Choice):
            self.assigned(target, value.body)
            value = value.orelse
        self.unite(key, self.key(value))
        sizes = self.sizes(value)
        if sizes:
            self.flags[key] = self.flags.get(key, frozenset()) | sizes
        match value:
            case p.Binary(op="//", left=left, right=right):
                self.quotients.append((key, self.key(left), p.dotted(right)))
            case p.Binary(op="/", left=left, right=right):
                self.divided(key, right)
                self.unite_losses(key, left)
            case p.Binary(op="+", left=left, right=right):
                if self.key(left) == key:
                    self.totals.add(key)
                self.unite_losses(key, left)
                self.unite_losses(key, right)
            case p.Call(func=func, args=args):
                callee, last = _called(func), _last(func)
                role = self.made(func)
                if role:
                    self.tell(key, role)
                elif callee in self.functions and not _is_class(last, self.functions[callee]):
                    self.given.setdefault(key, set()).add((_RETURNED, callee))
                if last == "min":
                    found = {self.key(a.value) for a in args}
                    self.capped.setdefault(key, set()).update(k for k in found if k)
                if last in _THROUGH or last in frameworks.WRAPPING_ITERABLES:
                    for a in args[: None if last == "zip" else 1]:
                        self.unite(key, self.key(a.value))
                        if (number := self.number_of_pieces(a.value)) is not None:
                            self.cut[key] = number
                if isinstance(func, p.Attr):
                    if (number := self.number_of_pieces(value)) is not None:
                        self.cut[key] = number
                    elif last == "setup_dataloaders":
                        self.unite(key, self.key(args[0].value) if args else None)
            case p.Sequence(items=[_, *_]):
                self.shown.add(key)
            case p.Name() | p.Attr():
                if (source := self.key(value)) is not None:
                    self.aliases.setdefault(key, set()).add(source)
            case _:
                pass

    def number_of_pieces(self, value: p.Expr) -> Key | None:
        """`n` of `batch.chunk(n)`."""
        match value:
            case p.Call(func=p.Attr(name=name), args=[number, *_]) if name in _CUTTING:
                return self.key(number.value)
            case _:
                return None

    def unpacked(self, targets: tuple[p.Expr, ...], value: p.Expr) -> None:
        if isinstance(value, p.Sequence) and len(value.items) == len(targets):
            for target, item in zip(targets, value.items, strict=True):
                self.assigned(target, item)
            return
        if not isinstance(value, p.Call):
            return
        keys = [self.key(t) for t in targets]
        callee, last = _called(value.func), _last(value.func)
        if last in ("prepare", "setup") and isinstance(value.func, p.Attr):
            for key, given in zip(keys, value.args, strict=False):
                self.unite(key, self.key(given.value))
        elif last == "initialize" and "deepspeed" in p.dotted(value.func):
            for key, role in zip(keys, ("engine", "optimizer", "", "scheduler"), strict=False):
                if key is not None and role:
                    self.tell(key, role)
        elif callee in self.functions:
            for place, key in enumerate(keys):
                if key is not None:
                    self.given.setdefault(key, set()).add((_RETURNED, f"{callee}[{place}]"))

    def made(self, func: p.Expr) -> str:
        """The role of what a constructor makes."""
        last = _last(func)
        role = _MADE.get(last, "")
        if not role and names.is_average_class(last):
            return "average"
        if not role and names.is_ranks(last):
            return "ranks"
        if not role and frameworks.optimizer_kind(p.dotted(func)):
            return "optimizer"
        return role or ("scheduler" if ".lr_scheduler." in p.dotted(func) else "")

    def loop(self, target: p.Expr, iterable: p.Expr, body: tuple[p.Stmt, ...]) -> None:
        around = tuple(self.stack)
        count: Key | None = None
        sources: list[Key] = []
        for part in _sources(iterable):
            match part:
                case p.Call(func=p.Name(id="range" | "trange"), args=args):
                    if len(args) == 1:
                        count = self.key(args[0].value)
                case p.Call() if (number := self.number_of_pieces(part)) is not None:
                    count = count or number
                case _:
                    key = self.key(part)
                    sources += [key] if key is not None else []
                    count = count or (self.cut.get(key) if key is not None else None)
        items = self.targets((target,))
        read = self.reads(iterable)
        for key in items:
            self.flows.setdefault(key, set()).update(read)
        region = self.region(body)
        for outer in around:
            # Pieces of a batch leave the loop around them the one that brings the data.
            outer.loops |= region.backward and not self.cut.keys() >= set(sources)
        self.loops.append(_Loop(tuple(sources), items, region, around, count))

    # Expressions

    def expr(self, expr: p.Expr, targets: frozenset[Key]) -> None:
        for node in p.walk_expr(expr):
            if isinstance(node, p.Call):
                self.call(node, targets)
            elif isinstance(node, p.Attr):
                self.attribute(node)
            elif isinstance(node, p.Binary):
                if node.op in ("%", "//") and (by := self.key(node.right)) is not None:
                    self.modulo.add(by)
            elif isinstance(node, p.Comprehension):
                for target, iterable, _ in node.clauses:
                    for key in self.targets((target,)):
                        self.flows.setdefault(key, set()).update(self.reads(iterable))
                self.gathered(node)
            elif isinstance(node, p.Lambda):
                self.function(node.function)
            elif isinstance(node, p.Walrus):
                self.assigned(node.target, node.value)
            elif isinstance(node, p.Yield) and node.value is not None:
                self.returned(node.value)

    def gathered(self, node: p.Comprehension) -> None:
        """`[next(batches) for _ in range(n)]` gathers the micro-batches of a window."""
        fetches = any(isinstance(n, p.Call) and _last(n.func) == "next" for n in p.walk_expr(node))
        for _, iterable, _ in node.clauses if fetches and len(node.clauses) == 1 else ():
            match iterable:
                case p.Call(func=p.Name(id="range"), args=[count]):
                    region = _Region(fetches=True)
                    self.loops.append(
                        _Loop((), _NO_KEYS, region, tuple(self.stack), self.key(count.value))
                    )
                case _:
                    pass

    def attribute(self, node: p.Attr) -> None:
        key = self.key(node.base)
        if key is None:
            return
        name = "zero_grad" if names.is_clearing(node.name) else node.name
        if name not in _OF_OPTIMIZERS:
            self.others.add(key)
        if name in _DOING:
            self.does.setdefault(key, set()).add(name)
            if (
                name == "zero_grad"
                and isinstance(node.base, p.Attr)
                and names.role_of(node.base.name) == "optimizer"
            ):
                # What holds an optimizer that is cleared, and steps itself, steps it.
                holder = self.key(node.base.base)
                if holder is not None and holder[1] != "self":
                    self.does.setdefault(holder, set()).add(name)

    def call(self, node: p.Call, targets: frozenset[Key]) -> None:
        func, args = node.func, node.args
        callee, last = _called(func), _last(func)
        for region in self.stack:
            region.callees.add(callee)
        receiver = self.key(func.base) if isinstance(func, p.Attr) else None
        if last in ("backward", "manual_backward", "train_batch"):
            for region in self.stack:
                region.backward = True
            self.went_backward(node, receiver)
        if last in ("step", "optimizer_step", "step_and_update_lr", "train_batch"):
            # A sampler of noise steps with what it makes less noisy.
            sampled = last == "step" and node.positional(1) is not None
            if not sampled and not names.is_profiler(_tail(receiver[1]) if receiver else ""):
                for region in self.stack:
                    region.step = True
                if last == "step" and receiver is not None and not args and self.stack:
                    self.stepped.setdefault(self.stack[0], {})[receiver] = None
            if last == "step" and receiver is not None:
                given = node.positional(0) or node.keyword("optimizer")
                if (stepped := self.key(given)) is not None:
                    self.steps_given.append((receiver, stepped))
        elif last == "scale" and receiver is not None and args:
            self.does.setdefault(receiver, set()).add("scale")
        elif last == "next" and args and (source := self.key(args[0].value)) is not None:
            self.fetched.setdefault(source, set()).update(targets)
            for region in self.stack:
                region.fetches = True
        elif last in ("parameters", "named_parameters") and receiver is not None:
            # Settings may hold something called so, and give it without a call.
            self.tell(receiver, "model")
        for argument in args:
            if argument.keyword and names.is_steps(argument.keyword):
                if (told := self.key(argument.value)) is not None:
                    self.windows.add(told)
        if last in frameworks.LOSSES:
            wanted = node.positional(1) or node.keyword("target")
            if (labels := self.key(wanted)) is not None:
                self.compared.append((labels, targets))
            for key in targets:
                self.backwarded_by_name(key)
        if callee in self.functions and last != "__init__":
            self.hand_over(node, callee)
        if receiver is not None and targets:
            self.methods.append((receiver, targets))
        if self.is_open(func):
            key = self.key(func if not isinstance(func, p.Item) else func.base)
            if key is not None:
                shown = tuple(self.reads(a.value) for a in args if not a.keyword)
                keyed = any(a.keyword or a.star for a in args)
                self.asked.append(_Asked(key, shown, keyed, targets))
                wanted = node.positional(1)
                for argument in args:
                    if argument.keyword.endswith(("labels", "target", "targets")):
                        wanted = argument.value
                if wanted is not None and (labels := self.key(wanted)) is not None:
                    self.compared.append((labels, frozenset({key})))

    def backwarded_by_name(self, key: Key) -> None:
        """The result of a loss function of torch is a loss where it has a name."""
        if key[0] != _RETURNED:
            self.tell(key, "loss")

    def went_backward(self, node: p.Call, receiver: Key | None) -> None:
        func = node.func
        first = node.positional(0)
        if first is not None and _last(func) != "train_batch":
            self.lost(first)
            if receiver is not None:
                self.does.setdefault(receiver, set()).add("backward(…)")
            return
        if not isinstance(func, p.Attr):
            return
        base = func.base
        match base:
            case p.Call(func=p.Attr(base=by, name="scale"), args=[given, *_]):
                if (scaler := self.key(by)) is not None:
                    self.tell(scaler, "scaler")
                self.lost(given.value)
            case _:
                self.lost(base)

    def lost(self, expr: p.Expr) -> None:
        """Notes an expression that goes backward: what is in it, and what it is divided by."""
        while isinstance(expr, p.Call) and isinstance(expr.func, p.Attr):
            if expr.func.name in ("mean", "sum", *frameworks.PASSING):
                expr = expr.func.base
            else:
                break
        match expr:
            case p.Binary(op="/", left=left, right=right):
                for size in self.named_sizes(right):
                    self.modulo_of_loss(size)
                self.lost(left)
            case p.Binary(op="+", left=left, right=right):
                self.lost(left)
                self.lost(right)
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
                    self.asked.append(_Asked(key, shown, False, frozenset({_LOSS})))

    def named_sizes(self, expr: p.Expr) -> Iterator[Key]:
        key = self.key(expr)
        if key is not None:
            yield key
        elif isinstance(expr, p.Choice):
            yield from self.named_sizes(expr.body)
            yield from self.named_sizes(expr.orelse)

    def modulo_of_loss(self, size: Key) -> None:
        self.divisors.setdefault(_LOSS, set()).add(size)

    def divided(self, key: Key, by: p.Expr) -> None:
        self.divisors.setdefault(key, set()).update(self.named_sizes(by))

    def hand_over(self, node: p.Call, callee: str) -> None:
        """The arguments of a call as the parameters of what it calls."""
        for function in self.functions[callee]:
            params = [q for q in function.params if q.name not in ("self", "cls")]
            plain = [q for q in params if not q.star and not q.keyword_only]
            by_name = {q.name for q in params}
            place = 0
            for argument in node.args:
                if argument.star:
                    break
                if argument.keyword:
                    name = argument.keyword if argument.keyword in by_name else ""
                else:
                    name = plain[place].name if place < len(plain) else ""
                    place += 1
                if not name:
                    continue
                param: Key = function, name
                self.flows.setdefault(param, set()).update(self.reads(argument.value))
                if (given := self.key(_gone_through(argument.value))) is not None:
                    self.given.setdefault(given, set()).add(param)

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
        return frozenset(found)

    def limits(self, node: p.Compare) -> set[Key]:
        match node:
            case p.Compare(
                left=p.Name() | p.Attr() as count,
                rest=[(("==" | ">=" | "<"), (p.Name() | p.Attr()) as limit)],
            ) if not names.is_epoch(_last(count)):
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

    # What follows

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

    def solved(self) -> Roles:
        self.close_regions()
        self.by_methods()
        self.only_steps()
        self.spread()
        self.losses()
        reach = self.reach()
        self.callees(reach)
        self.loaders(reach)
        windows = self.sizes_of_windows()
        lost = {key for key, told in self.facts.items() if told == {"loss"}}
        totals = {_tail(key[1]) for key in self.totals if self.flows.get(key, _NO_KEYS) & lost}
        return Roles(self.flat(), windows, frozenset(totals))

    def close_regions(self) -> None:
        """Regions do what the functions do that they call."""
        each = [(name, region) for name, regions in self.regions.items() for region in regions]
        callers: dict[str, list[str]] = {}
        for name, region in each:
            for callee in region.callees:
                callers.setdefault(callee, []).append(name)
        backward = _closed(callers, (*self.far_backward, *(n for n, r in each if r.backward)))
        step = _closed(callers, (*self.far_step, *(n for n, r in each if r.step)))
        for region in self.every_region():
            region.backward = region.backward or bool(region.callees & backward)
            region.step = region.step or bool(region.callees & step)

    def every_region(self) -> Iterator[_Region]:
        yield from self.stepped
        for loop in self.loops:
            yield loop.region
            yield from loop.around
        for _, within, beside in self.guards:
            yield within
            yield beside

    def by_methods(self) -> None:
        """The roles that methods tell."""
        for key, asked in self.does.items():
            for name in asked & _ASKED.keys():
                self.tell(key, _ASKED[name])
            cleared = bool(asked & {"zero_grad", "param_groups"})
            driven = any(call.callee == key for call in self.asked)
            if driven and asked >= {"backward(…)", "step"} and "prepare" not in asked:
                self.tell(key, "model")
            elif "backward(…)" in asked and asked & {"prepare", "accumulate"}:
                self.tell(key, "accelerator")
            elif cleared and "step" in asked:
                self.tell(key, "optimizer")
            elif asked >= {"step", "update"} and "scale" in asked:
                self.tell(key, "scaler")
        for scaler, stepped in self.steps_given:
            if "scaler" in self.facts.get(scaler, ()) or self.does.get(scaler, set()) & {
                "scale",
                "unscale_",
            }:
                self.tell(scaler, "scaler")
                self.tell(stepped, "optimizer")

    def only_steps(self) -> None:
        """An optimizer of which nothing is seen but that it steps, before its scheduler does."""
        stepping = {"optimizer", "accelerator", "scaler"}
        if any(roles & stepping for roles in self.facts.values()):
            return
        # A model may clear, too: by the name under which something is called.
        driven = {_tail(call.callee[1]) for call in self.asked}
        cleared = {_tail(key[1]) for key, asked in self.does.items() if "zero_grad" in asked}
        if not cleared <= driven:
            return
        for region, keys in self.stepped.items():
            known = [self.facts.get(k) or {names.role_of(_tail(k[1]))} - {""} for k in keys]
            if not region.backward or any(roles - {"scheduler"} for roles in known):
                continue
            free = [k for k, r in zip(keys, known, strict=True) if not r and k not in self.others]
            for key, role in zip(free, ("optimizer", "scheduler"), strict=False):
                self.tell(key, role)

    def spread(self) -> None:
        """Along assignments and arguments: first from the functions to their callers, then the other way."""
        givers: dict[Key, set[Key]] = {}
        for given, params in self.given.items():
            for param in params:
                givers.setdefault(param, set()).add(given)
        for down in (False, True):
            links = self.given if down else givers
            waiting = [key for key, told in self.facts.items() if told]
            while waiting:
                key = waiting.pop()
                told = self.facts[key]
                if len(told) != 1:
                    continue
                role = next(iter(told))
                for other in (*self.same.get(key, ()), *links.get(key, ())):
                    known = self.facts.get(other, set())
                    if role in known or (role == "engine" and "model" in known):
                        continue
                    # A helper that is given several kinds of values has a role for none of them.
                    several = down and other in links.get(key, ())
                    if several and any(self.facts.get(g) != told for g in givers[other]):
                        continue
                    self.tell(other, role)
                    waiting.append(other)

    def losses(self) -> None:
        """The parts of a loss are losses: what is divided, what is added."""
        waiting = [key for key, told in self.facts.items() if told == {"loss"}]
        while waiting:
            key = waiting.pop()
            for part in (
                *self.aliases.get((key[0], f"{key[1]}/"), ()),
                *self.same.get(key, ()),
            ):
                if not self.facts.get(part):
                    self.facts[part] = {"loss"}
                    waiting.append(part)

    def reach(self) -> frozenset[Key]:
        """Everything that a loss which goes backward is made of."""
        found = {key for key, told in self.facts.items() if told == {"loss"}} | self.backwarded
        waiting = list(found)
        while waiting:
            for source in self.flows.get(waiting.pop(), ()):
                if source not in found:
                    found.add(source)
                    waiting.append(source)
        return frozenset(found)

    def callees(self, reach: frozenset[Key]) -> None:
        """Models and criteria: what is called on the way to a loss."""
        calls = [c for c in self.asked if c.targets & reach or _LOSS in c.targets]
        made = [(c.callee, c.targets) for c in calls]
        made += [m for m in self.methods if "model" in self.facts.get(m[0], ())]
        outer = {c.callee for c in calls if len(c.args) > 1 and _is_predicted(c, made)}
        inner = {c.callee for c in calls} - outer
        trained = {
            k
            for k in inner
            if self.does.get(k, set()) & _LIKE_A_MODEL or "model" in self.facts.get(k, ())
        }
        scopes = [scope for scope, _ in inner]
        alone = trained or {key for key in inner if scopes.count(key[0]) == 1}
        for key in alone:
            if not self.facts.get(key):
                self.tell(key, "model")
        for key in outer:
            if not self.facts.get(key) and not self.does.get(key, set()) & _LIKE_A_MODEL:
                self.tell(key, "criterion")
        for labels, by in self.compared:
            known = not by or by & reach or any("criterion" in self.facts.get(k, ()) for k in by)
            if known and not self.facts.get(labels):
                self.tell(labels, "labels")

    def loaders(self, reach: frozenset[Key]) -> None:
        """What is gone through, item by item, on the way to losses."""
        for loop in self.loops:
            region = loop.region
            if not loop.items & reach or not region.backward or not region.step or region.loops:
                continue
            if any(other.items & reach for other in self.loops if other.region in loop.around):
                # Which of two loops brings the micro-batches is not known: names decide.
                continue
            for source in loop.sources:
                if not self.facts.get(source) and source not in self.cut.keys() | self.shown:
                    self.tell(source, "loader")
        for source, items in self.fetched.items():
            if items & reach and not self.facts.get(source):
                self.tell(source, "loader")

    def sizes_of_windows(self) -> frozenset[str]:
        """The accumulation steps, by all that tells them."""
        found = set(self.windows)
        lost = {key for key, told in self.facts.items() if told == {"loss"}} | {_LOSS}
        divisors = {
            known
            for key in lost & self.divisors.keys()
            for size in self.divisors[key]
            for known in self.known_as(size)
        }
        found |= divisors & self.modulo
        # The rows of a window by those of a micro-batch.
        found |= {key for key, rows, each in self.quotients if (rows, each) in self.rows}
        for sizes, within, beside in self.guards:
            apart = not within.backward or (beside.backward and not beside.step)
            if within.step and (apart or self.applies_a_sum(within)):
                # Of several intervals, what the loss is divided by is that of the window.
                found |= sizes & divisors or sizes
        for loop in self.loops:
            if loop.count is None:
                continue
            if loop.region.backward and loop.count in divisors:
                found.add(loop.count)
            elif loop.region.backward or loop.region.fetches:
                around = any(o.step and (o.backward or loop.region.backward) for o in loop.around)
                if around and not loop.region.step:
                    found.add(loop.count)
        for size in found | {full for key in found for full in self.capped.get(key, ())}:
            if size not in self.capped and not self.facts.get(size):
                self.tell(size, "steps")
        self.spread()
        return frozenset(k[1] for k, told in self.facts.items() if told == {"steps"})

    def applies_a_sum(self, guarded: _Region) -> bool:
        """True where a loss that goes backward under a guard was added up before it."""
        return any(guarded not in stack for key in guarded.lost for stack in self.sums.get(key, ()))

    def known_as(self, size: Key) -> set[Key]:
        found, waiting = {size}, [size]
        while waiting:
            size = waiting.pop()
            for other in (*self.aliases.get(size, ()), *self.capped.get(size, ())):
                if other not in found:
                    found.add(other)
                    waiting.append(other)
        return found

    def flat(self) -> dict[str, str]:
        """The roles by last name, where all that goes by it is the same."""
        found: dict[str, set[str]] = {}
        for (scope, name), told in self.facts.items():
            if scope != _RETURNED and told:
                found.setdefault(_tail(name), set()).update(told)
        roles = {name: told.pop() for name, told in found.items() if len(told) == 1}
        roles = {name: role for name, role in roles.items() if role != "steps"}
        for name in [n for n, role in roles.items() if role in _PASSING_ROLES]:
            scopes = [s for s, bound in self.bound.items() if s is not None and name in bound]
            if any(not self.facts.get((s, name)) for s in scopes):
                del roles[name]
        return {name: role for name, role in roles.items() if name not in ("self", "cls")}


def _closed(callers: Mapping[str, Sequence[str]], names_: Iterable[str]) -> set[str]:
    """Some functions, with those that call them, and so on."""
    found = set(names_)
    waiting = list(found)
    while waiting:
        for caller in callers.get(waiting.pop(), ()):
            if caller not in found:
                found.add(caller)
                waiting.append(caller)
    return found


def _last(func: p.Expr) -> str:
    return func.name if isinstance(func, p.Attr) else p.dotted(func).rpartition(".")[2]


def _called(func: p.Expr) -> str:
    return f".{func.name}" if isinstance(func, p.Attr) else p.dotted(func)


def _tail(text: str) -> str:
    """The last name of a dotted text."""
    return text.rpartition(".")[2]


def _is_class(name: str, functions: list[p.Function]) -> bool:
    return any(f.owner == name for f in functions)


def _only_jumps(body: tuple[p.Stmt, ...]) -> bool:
    return bool(body) and isinstance(body[-1], p.Jump) and body[-1].kind == "continue"


def _sources(iterable: p.Expr) -> Iterator[p.Expr]:
    """What a loop goes through, without what only numbers, pairs or shows it."""
    if isinstance(iterable, p.Call) and iterable.args:
        last = _last(iterable.func)
        if last in _THROUGH or last in frameworks.WRAPPING_ITERABLES or "tqdm" in last:
            for argument in iterable.args if last in ("zip", "chain") else iterable.args[:1]:
                yield from _sources(argument.value)
            return
    yield iterable


def _gone_through(value: p.Expr) -> p.Expr:
    """What a comprehension goes through, which is handed over as it is made."""
    if isinstance(value, p.Comprehension) and len(value.clauses) == 1:
        return next(_sources(value.clauses[0][1]))
    return value


def _is_difference(counted: p.Expr) -> bool:
    """True for `i - start` and `i - start + 1`: what was counted since a window began."""
    if isinstance(counted, p.Binary) and counted.op == "+" and isinstance(counted.right, p.Const):
        counted = counted.left
    match counted:
        case p.Binary(op="-", left=p.Name() | p.Attr(), right=p.Name() | p.Attr()):
            return True
        case _:
            return False


def _is_predicted(call: _Asked, made: list[tuple[Key, frozenset[Key]]]) -> bool:
    """True for a call whose first argument another callee gave."""
    others = [(by, targets) for by, targets in made if by != call.callee]
    results = {key for _, targets in others for key in targets - call.targets}
    return not call.args[0].isdisjoint(results | {by for by, _ in others})
