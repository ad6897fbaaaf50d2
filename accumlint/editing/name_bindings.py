"""Which names a piece of code reads and writes, and which names are in reach at a place."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator

import libcst as cst

from accumlint.common.frozen import frozen
from accumlint.editing.layout import Layout, Statement, below
from accumlint.reading import ir as p

_GROWING = frozenset({"append", "extend", "insert", "add", "appendleft", "pop", "clear", "put"})


@frozen
class Names:
    """The dotted names that code reads and writes: `self.total`, `loss`."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()

    def disturbs(self, other: Names) -> bool:
        """True when it writes what the other one reads or writes."""
        return any(_within(n, w) for w in self.writes for n in other.reads | other.writes)

    def commutes_with(self, other: Names) -> bool:
        """True when nobody's names tell which of the two runs first."""
        return not self.disturbs(other) and not other.disturbs(self)


def names_of(nodes: Iterable[cst.CSTNode]) -> Names:
    """The names of some code, those inside of nested functions included."""
    reads: set[str] = set()
    writes: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        waiting.extend(_parts(node, reads, writes))
    return Names(frozenset(reads), frozenset(writes))


def units(node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, tuple[cst.CSTNode, ...]]]:
    """Each statement in or below a node with what it evaluates itself: all of a simple one, a compound one's head."""
    match node:
        case cst.SimpleStatementLine() | cst.SimpleStatementSuite():
            yield node, (node,)
            return
        case cst.If() | cst.While():
            yield node, (node.test,)
        case cst.For():
            yield node, (node.target, node.iter)
        case cst.With():
            yield node, tuple(node.items)
        case cst.FunctionDef() | cst.ClassDef() | cst.Match():
            yield node, (node,)
            return
        case _:
            pass
    for child in below(node):
        if isinstance(
            child,
            cst.BaseStatement | cst.BaseSuite | cst.Else | cst.ExceptHandler | cst.Finally,
        ):
            yield from units(child)


def bound_by(owner: Statement) -> Names:
    """What changes from one pass through a loop to the next."""
    target = (owner.target,) if isinstance(owner, cst.For) else ()
    inside = owner.body if isinstance(owner.body, cst.BaseSuite) else owner
    written = {name for _, parts in units(inside) for name in names_of(parts).writes}
    return Names(writes=frozenset(written | names_of(target).reads | names_of(target).writes))


def in_reach(
    text: str, at: cst.CSTNode, layout: Layout, made: frozenset[str] = frozenset()
) -> bool:
    """True when each name in a statement or expression is bound where a node stands, or is `made` by the same fix."""
    new = cst.parse_module(text)
    functions = [s for s in new.body if isinstance(s, cst.FunctionDef)]
    own = frozenset[str]().union(*map(_bound_in, functions))
    wanted = names_of([new])
    roots = {name.partition(".")[0] for name in wanted.reads} - wanted.writes - own - made
    for scope in (n for n in layout.above(at) if isinstance(n, cst.FunctionDef | cst.Module)):
        bound = _bound_in(scope)
        if isinstance(scope, cst.FunctionDef) and _is_method(scope, layout):
            own = scope.params.params[0].name.value
            mine = {n for n in wanted.reads if n.startswith(f"{own}.")}
            known = _mentioned(layout.scope(scope), layout)
            # Of `self.scaler.update`, the last name is the scaler's own.
            if not all(n in known or n.rpartition(".")[0] in known - {own} for n in mine):
                return False
        roots -= bound
    return all(hasattr(builtins, root) for root in roots)


def _is_method(function: cst.FunctionDef, layout: Layout) -> bool:
    return isinstance(layout.scope(function), cst.ClassDef) and bool(function.params.params)


def _mentioned(cls: cst.CSTNode, layout: Layout) -> frozenset[str]:
    """All dotted names in a class, with the shorter ones in them."""
    place = layout.ranges[cls].start
    classes = layout.program.of(p.Class)
    body = next((c.body for c in classes if layout.program.place(c).line == place.line), ())
    return frozenset(p.dotted(n) for n in p.walk(body) if isinstance(n, p.Name | p.Attr))


def _bound_in(scope: cst.FunctionDef | cst.Module) -> frozenset[str]:
    """The plain names that a function or module binds."""
    found: set[str] = set()
    if isinstance(scope, cst.FunctionDef):
        params = scope.params
        listed = (*params.posonly_params, *params.params, *params.kwonly_params)
        found |= {param.name.value for param in listed}
        starred = (params.star_arg, params.star_kwarg)
        found |= {param.name.value for param in starred if isinstance(param, cst.Param)}
    for node, parts in units(scope.body if isinstance(scope, cst.FunctionDef) else scope):
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            found.add(node.name.value)
        else:
            found |= {name for name in names_of(parts).writes if "." not in name}
            if isinstance(node, cst.For):
                found |= names_of([node.target]).reads
    return frozenset(found)


def _within(name: str, changed: str) -> bool:
    return name == changed or name.startswith(f"{changed}.")


def _parts(node: cst.CSTNode, reads: set[str], writes: set[str]) -> Iterable[cst.CSTNode]:
    """Notes the names of one node, and gives the nodes below that are still to be looked at."""
    match node:
        case cst.Name() | cst.Attribute():
            name = _dotted(node)
            if name:
                reads.add(name)
                return ()
            return (node.value,) if isinstance(node, cst.Attribute) else ()
        case cst.Assign(targets=targets, value=value):
            return (value, *_stored([t.target for t in targets], writes))
        case cst.AnnAssign(target=target, value=value):
            rest = _stored([target], writes)
            return (value, *rest) if value is not None else rest
        case cst.AugAssign(target=target, value=value):
            return (target, value, *_stored([target], writes))
        case cst.For(target=target, iter=iterable, body=body, orelse=orelse):
            rest = (iterable, body, *_stored([target], writes))
            return (*rest, orelse) if orelse is not None else rest
        case cst.NamedExpr(target=target, value=value):
            return (value, *_stored([target], writes))
        case cst.AsName(name=name):
            return _stored([name], writes)
        case cst.Del(target=target):
            return _stored([target], writes)
        case cst.ImportAlias(name=name, asname=asname):
            bound = asname.name if asname is not None else name
            writes.add(_dotted(bound).partition(".")[0])
            return ()
        case cst.FunctionDef(name=name) | cst.ClassDef(name=name):
            writes.add(name.value)
            return (node.body,)
        case cst.Call(func=cst.Attribute(value=value, attr=attr)):
            if attr.value in _GROWING:
                writes.add(_dotted(value))
            return (node.func, *node.args)
        case cst.Arg(value=value) | cst.Param(default=value):
            return (value,) if value is not None else ()
        case cst.Annotation():
            return ()
        case _:
            return below(node)


def _stored(targets: Iterable[cst.CSTNode], writes: set[str]) -> tuple[cst.CSTNode, ...]:
    """Notes what an assignment binds; gives what it reads on the way, as in `a[i] = x`."""
    rest: list[cst.CSTNode] = []
    for target in targets:
        match target:
            case cst.Name() | cst.Attribute():
                writes.add(_dotted(target))
            case cst.Tuple(elements=elements) | cst.List(elements=elements):
                rest.extend(_stored([e.value for e in elements], writes))
            case cst.Subscript(value=value, slice=elements):
                writes.add(_dotted(value))
                rest.extend(elements)
            case _:
                rest.append(target)
    writes.discard("")
    return tuple(rest)


def _dotted(node: cst.CSTNode) -> str:
    """A name path, "" for what is none."""
    match node:
        case cst.Name(value=value):
            return value
        case cst.Attribute(value=value, attr=attr):
            base = _dotted(value)
            return f"{base}.{attr.value}" if base else ""
        case _:
            return ""
