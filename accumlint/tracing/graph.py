"""What the functions of a program say of each other: who calls whom, what is left to subclasses, what is counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.gradient_slice import key
from accumlint.reading.program import Program
from accumlint.reading.statement_facts import callee_of


class CallGraph:
    """Asked many times about one program, each function of which is gone through once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._asked: dict[p.Function, frozenset[str]] = {}
        self._raised: dict[p.Function, Sequence[str]] = {}
        self._left: dict[p.Class, frozenset[str]] = {}
        self._leading: dict[tuple[p.Stmt, ...], Sequence[p.Node]] = {}

    def functions(self, callee: str) -> Sequence[p.Function]:
        """The functions of the program that a call may mean, by what `key` tells of them."""
        return self._functions.get(callee, ())

    def named(self, callee: str) -> bool:
        """True where some call of the program may mean such a function."""
        return callee in self._calls

    def callers(self, functions: Sequence[p.Function], function: p.Function) -> set[p.Function]:
        """Those of some functions that call another one, or call one that does."""
        asking = self._callers if functions is self.program.functions else self._index(functions)
        found: set[p.Function] = set()
        wanted = [key(function)]
        seen = set(wanted)
        while wanted:
            for caller in asking.get(wanted.pop(), ()):
                found.add(caller)
                # Functions of one name have the same callers.
                if (name := key(caller)) not in seen:
                    seen.add(name)
                    wanted.append(name)
        return found

    def loops_and_calls(self, body: tuple[p.Stmt, ...]) -> Sequence[p.Node]:
        """The loops and calls among some statements; what stands in functions of their own is left out."""
        if body not in self._leading:
            nodes = p.walk(body, into_functions=False)
            self._leading[body] = [n for n in nodes if isinstance(n, p.For | p.While | p.Call)]
        return self._leading[body]

    def raised(self, method: p.Function) -> Sequence[str]:
        """The attributes that a method adds something to."""
        if method not in self._raised:
            targets = [n.target for n in p.walk(method.body) if isinstance(n, p.Augment)]
            added = [t.name for t in targets if isinstance(t, p.Attr)]
            self._raised[method] = [name for name in added if not names.is_epoch(name)]
        return self._raised[method]

    def left_to_heirs(self, lineage: Sequence[p.Class]) -> frozenset[str]:
        """The methods that a class calls, and that neither it nor what it inherits from has: subclasses give them."""
        if lineage[0] not in self._left:
            methods = [m for cls in lineage for m in cls.methods.values()]
            nodes = [n for m in methods for n in p.walk(m.body)]
            asked = {
                n.func.name
                for n in nodes
                if isinstance(n, p.Call)
                and isinstance(n.func, p.Attr)
                and p.dotted(n.func.base) == "self"
            }
            kept = {p.dotted(t) for n in nodes if isinstance(n, p.Assign) for t in n.targets}
            self._left[lineage[0]] = frozenset(
                asked - {m.name for m in methods} - {k.removeprefix("self.") for k in kept}
            )
        return self._left[lineage[0]]

    @cached_property
    def guarding(self) -> Sequence[p.Function]:
        """The functions of the program some parameter of which guards something by itself."""
        return [function for function in self.program.functions if function.guarded]

    @cached_property
    def iterations(self) -> tuple[str, ...]:
        """The texts under which a framework counts its calls (`engine.state.iteration`)."""
        return tuple({p.dotted(n) for n in self.program.of(p.Attr) if n.name == "iteration"})

    @cached_property
    def _functions(self) -> Mapping[str, Sequence[p.Function]]:
        found: dict[str, list[p.Function]] = {}
        for function in self.program.functions:
            found.setdefault(key(function), []).append(function)
        return found

    @cached_property
    def _calls(self) -> frozenset[str]:
        return frozenset(callee_of(node.func) for node in self.program.of(p.Call))

    @cached_property
    def _callers(self) -> Mapping[str, Sequence[p.Function]]:
        return self._index(self.program.functions)

    def _index(self, functions: Iterable[p.Function]) -> Mapping[str, Sequence[p.Function]]:
        found: dict[str, list[p.Function]] = {}
        for function in functions:
            if function not in self._asked:
                nodes = p.walk(function.body)
                self._asked[function] = frozenset(
                    callee_of(n.func) for n in nodes if isinstance(n, p.Call)
                )
            for callee in self._asked[function]:
                found.setdefault(callee, []).append(function)
        return found
