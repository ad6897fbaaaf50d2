"""Where the runs of a program start: its module, the outermost functions that train, inherited training loops."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.gradient_slice import Relevance, key
from accumlint.reading.hooks import lineage
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.reading.statement_facts import called
from accumlint.tracing import trace as t
from accumlint.tracing.framework_driver import loops


def backward_calls(program: Program) -> list[p.Node]:
    """The calls of a file that are written as a backward pass."""
    own = any(f.name == "backward" and f.owner for f in program.functions)
    return [
        node
        for node in program.of(p.Call)
        if isinstance(node.func, p.Attr)
        and node.func.name == "backward"
        # A method of one's own is no backward pass; the one inside it is.
        and not (own and (bool(node.args) or p.dotted(node.func.base) == "self"))
    ]


def entries(program: Program, slice_: Relevance, covered: set[p.Function]) -> Iterator[t.Entry]:
    """The module if it trains by itself, then the outermost functions that do and were not run yet."""
    if any(s in slice_.backwards for s in program.body if not isinstance(s, p.Function | p.Class)):
        yield t.Entry(None)
    training = [
        f
        for f in program.functions
        if key(f) in slice_.reaching_backward and any(s in slice_.backwards for s in f.body)
    ]
    # A function that no training function calls stands outermost.
    inside = {
        called(node.func)
        for f in training
        for node in p.walk(f.body)
        if isinstance(node, p.Call) and called(node.func) != key(f)
    }
    made = [(n, f) for f in program.functions for n in p.walk(f.body) if isinstance(n, p.Function)]
    nested = {inner for inner, _ in made}
    plain = [f for f in training if f not in nested]

    def due(functions: list[p.Function]) -> Iterator[t.Entry]:
        for function in functions:
            if function not in covered and not _only_leads_to(covered, function, slice_, training):
                yield t.Entry(function)

    yield from due([f for f in plain if key(f) not in inside])
    # A function made inside another one and handed out is called by a framework.
    for inner, outer in made:
        if inner in training and inner not in covered and outer not in nested:
            yield t.Entry(inner, outer)
    # What is called only by code that could not be followed still deserves a look.
    yield from due(sorted(plain, key=lambda f: not loops(f, slice_)))


def inherited(
    program: Program, project: Project, slice_: Relevance, covered: set[p.Function]
) -> Iterator[t.Entry]:
    """The training loops of other files that the classes of a file inherit, and fill in."""
    for cls in program.classes.values():
        classes, _ = lineage(cls, program, project) if cls.bases else ((), ())
        for base in classes:
            for name, method in base.methods.items():
                if (
                    name not in cls.methods
                    and program.classes.get(base.name) is not base
                    and key(method) in slice_.reaching_backward
                    and loops(method, slice_)
                    and method not in covered
                ):
                    yield t.Entry(method, owner=cls.name)


def _only_leads_to(
    covered: set[p.Function], function: p.Function, slice_: Relevance, training: list[p.Function]
) -> bool:
    """True for a function that does nothing to gradients but call those that ran already."""
    written = [n.func for n in p.walk(function.body) if isinstance(n, p.Call)]
    leading = {called(func) for func in written} & slice_.reaching_backward
    clears = {p.dotted(func).rpartition(".")[2] for func in written} & names.CLEARS
    # Another class's method of the same name did not run for this one.
    beside = (f for f in training if f.owner and f.owner == function.owner and key(f) in leading)
    if clears or "backward" in leading or not covered.issuperset(beside):
        return False
    return bool(leading) and leading <= {key(f) for f in covered}
