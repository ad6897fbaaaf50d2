"""What a file does with each name: one walk that notes calls, loops, guards and where values go."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading import frameworks, names
from accumlint.reading import ir as p
from accumlint.reading.role_notes import Loop, Notes, Region, UnresolvedCall
from accumlint.reading.role_scopes import NO_KEYS, RETURNED, Key, called_as, last_of, tail

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
ASKED: dict[str, str] = {
    "no_sync": "model", "require_backward_grad_sync": "model",
    "unscale_": "scaler", "sync_gradients": "accelerator", "get_last_lr": "scheduler",
    "setup_dataloaders": "fabric", "no_backward_sync": "fabric",
}  # fmt: skip
# What a parameter's annotation tells; classes of torch's base types are written so.
_ANNOTATED: dict[str, str] = {
    **_MADE, "Optimizer": "optimizer", "LRScheduler": "scheduler", "_LRScheduler": "scheduler",
}  # fmt: skip
_DOING = frozenset({*ASKED, "step", "zero_grad", "param_groups", "update", "train", "eval", "state_dict",
                    "load_state_dict", "accumulate", "prepare"})  # fmt: skip
_OF_OPTIMIZERS = frozenset({"step", "zero_grad", "param_groups", "state_dict", "load_state_dict",
                            "add_param_group", "get_last_lr", "get_lr"})  # fmt: skip
_THROUGH = frozenset(
    {"enumerate", "zip", "iter", "islice", "cycle", "list", "reversed", "chain", "tee"}
)
_CUTTING = frozenset({"chunk", "tensor_split"})
# Of a name that more functions have, a call tells nothing of any of them.
_MOST_NAMESAKES = 100


class Facts(Notes):
    """What one walk over a file notes of its names."""

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
                    self.expr(value, frozenset({key}) if key is not None else NO_KEYS)
                    if key is not None:
                        self.flows.setdefault(key, set()).update(self.reads(value))
                        if op == "/":
                            self.divided(key, value)
                        elif op == "+":
                            self.totals.add(key)
                            self.sums.setdefault(key, []).append(tuple(self.stack))
                case p.Do(value=p.Call(func=p.Name(id="next"))):
                    # What a resumed run skips fills no window.
                    pass
                case p.Do(value=value):
                    self.expr(value, NO_KEYS)
                case p.Return(value=value):
                    self.returned(value)
                case p.For(target=target, iterable=iterable, body=body, orelse=orelse):
                    self.expr(iterable, NO_KEYS)
                    self.loop(target, iterable, body)
                    self.block(orelse)
                case p.While(test=test, body=body, orelse=orelse):
                    self.expr(test, NO_KEYS)
                    self.region(body)
                    self.block(orelse)
                case p.If(test=test, body=body, orelse=orelse):
                    self.expr(test, NO_KEYS)
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
                        self.expr(value, self.targets((target,)) if target else NO_KEYS)
                        if target is not None:
                            self.assigned(target, value)
                            if isinstance(value, p.Call) and last_of(value.func) == "scale_loss":
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

    def region(self, body: tuple[p.Stmt, ...]) -> Region:
        found = Region()
        self.stack.append(found)
        self.block(body)
        self.stack.pop()
        return found

    def function(self, function: p.Function) -> None:
        if function.name == "backward" and any(q.name == "ctx" for q in function.params):
            return
        self.bound.setdefault(function, {q.name for q in function.params})
        for param in function.params:
            if role := _ANNOTATED.get(tail(param.annotation)):
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
        result: Key = RETURNED, f".{function.name}" if function.owner else function.name
        self.expr(value, frozenset({result}))
        self.flows.setdefault(result, set()).update(self.reads(value))
        self.unite(result, self.key(value))
        if isinstance(value, p.Sequence):
            for place, item in enumerate(value.items):
                self.unite((RETURNED, f"{result[1]}[{place}]"), self.key(item))

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
                callee, last = called_as(func), last_of(func)
                role = self.made(func)
                if role:
                    self.tell(key, role)
                elif callee in self.functions and not _is_class(last, self.functions[callee]):
                    self.given.setdefault(key, set()).add((RETURNED, callee))
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
        callee, last = called_as(value.func), last_of(value.func)
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
                    self.given.setdefault(key, set()).add((RETURNED, f"{callee}[{place}]"))

    def made(self, func: p.Expr) -> str:
        """The role of what a constructor makes."""
        last = last_of(func)
        role = _MADE.get(last, "")
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
        self.loops.append(Loop(tuple(sources), items, region, around, count))

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
        fetches = any(
            isinstance(n, p.Call) and last_of(n.func) == "next" for n in p.walk_expr(node)
        )
        match node.clauses:
            case [(_, p.Call(func=p.Name(id="range"), args=[count]), _)] if fetches:
                region, steps = Region(fetches=True), self.key(count.value)
                self.loops.append(Loop((), NO_KEYS, region, tuple(self.stack), steps))
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
            held = node.base if name == "zero_grad" else None
            if isinstance(held, p.Attr) and names.role_of(held.name) == "optimizer":
                # What holds an optimizer that is cleared, and steps itself, steps it.
                holder = self.key(held.base)
                if holder is not None and holder[1] != "self":
                    self.does.setdefault(holder, set()).add(name)

    def call(self, node: p.Call, targets: frozenset[Key]) -> None:
        func, args = node.func, node.args
        callee, last = called_as(func), last_of(func)
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
            if not sampled:
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
                self.unresolved.append(UnresolvedCall(key, shown, keyed, targets))
                wanted = node.positional(1)
                for argument in args:
                    if argument.keyword.endswith(("labels", "target", "targets")):
                        wanted = argument.value
                if wanted is not None and (labels := self.key(wanted)) is not None:
                    self.compared.append((labels, frozenset({key})))

    def hand_over(self, node: p.Call, callee: str) -> None:
        """The arguments of a call as the parameters of what it calls; of nothing where too much has that name."""
        functions = self.functions[callee]
        if len(functions) > _MOST_NAMESAKES:
            return
        reads = [self.reads(argument.value) for argument in node.args]
        given = [self.key(_gone_through(argument.value)) for argument in node.args]
        for function in functions:
            params = [q for q in function.params if q.name not in ("self", "cls")]
            plain = [q for q in params if not q.star and not q.keyword_only]
            by_name = {q.name for q in params}
            place = 0
            for argument, read, source in zip(node.args, reads, given, strict=True):
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
                self.flows.setdefault(param, set()).update(read)
                if source is not None:
                    self.given.setdefault(source, set()).add(param)


def _is_class(name: str, functions: list[p.Function]) -> bool:
    return any(f.owner == name for f in functions)


def _only_jumps(body: tuple[p.Stmt, ...]) -> bool:
    return bool(body) and isinstance(body[-1], p.Jump) and body[-1].kind == "continue"


def _sources(iterable: p.Expr) -> Iterator[p.Expr]:
    """What a loop goes through, without what only numbers, pairs or shows it."""
    if isinstance(iterable, p.Call) and iterable.args:
        last = last_of(iterable.func)
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
