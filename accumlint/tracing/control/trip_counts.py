"""Says how often a loop of unknown length is taken round, by what it is a loop over."""

from __future__ import annotations

from collections.abc import Iterator, Set

from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import Relevance
from accumlint.reading.statement_facts import callee_of
from accumlint.reading.usage import clears
from accumlint.tracing import trace as t
from accumlint.tracing.budget import STEPS_OF_WALK
from accumlint.tracing.calls.cross_file import CrossFile
from accumlint.tracing.machine import Machine
from accumlint.tracing.name_roles import NameRoles


class TripCounts:
    """Takes loops round until they have shown their windows, and no more often."""

    def __init__(self, machine: Machine, roles: NameRoles, cross_file: CrossFile) -> None:
        self.machine = machine
        self.roles = roles
        self.cross_file = cross_file
        self._inner: dict[p.Node, bool] = {}

    @property
    def _relevance(self) -> Relevance:
        return self.machine.relevance

    def taken(self, node: p.Node | None) -> int:
        """How often a loop of unknown length is taken round."""
        relevance, scenario, state = self._relevance, self.machine.scenario, self.machine.state
        if node is None or node not in relevance.backwards:
            return 1
        around = [
            loop.node
            for loop in state.loops
            if loop.node is not node and loop.node in relevance.backwards
        ]
        if self.holds_loop(node) and not _clears_by_a_modulus(node, inside=False):
            # Several loaders within an epoch: an odd number of them, or no partial window would be left over.
            return 2 if self._over_data(node) and not around else 3
        if node in relevance.stepping or not around or _clears_by_a_modulus(node):
            return scenario.length
        counted = any(_clears_by_a_modulus(outer, inside=False) for outer in around)
        if counted or (state.asked and any(outer not in relevance.stepping for outer in around)):
            # The pieces of one micro-batch, in a loop over as many micro-batches as a window has.
            return 2
        # A loop inside another one, with the step after it, is a window.
        state.guessed = state.guessed or not _cuts(node)
        return self.machine.steps()

    def unfinished(self, node: p.Node | None, begun: int) -> bool:
        """True when a loop around another one has seen too few micro-batches to show its windows."""
        if node is None or node not in self._relevance.backwards or not self.holds_loop(node):
            return False
        seen = self._seen(begun)
        # Micro-batches may be collected first, until there are enough for a window.
        return (seen > 0 or self.machine.state.asked) and seen < self.machine.scenario.length

    def nearly_done(self, node: p.Node | None, begun: int) -> bool:
        """True when the round that begins is the last one, as far as `unfinished` will tell after it."""
        if node is None or not self.holds_loop(node):
            return True
        return self._seen(begun) + 1 >= self.machine.scenario.length

    def _seen(self, begun: int) -> int:
        return len(
            {e.microbatch for e in self.machine.state.events[begun:] if isinstance(e, t.Backward)}
        )

    def holds_loop(self, node: p.Node) -> bool:
        """True when another training loop runs inside this one, here or in a function it calls."""
        if node not in self._inner:
            body = node.body if isinstance(node, p.For | p.While) else ()
            self._inner[node] = any(True for _ in self._training_loops(body, set()))
        return self._inner[node]

    def holds_windows(self, node: p.For | p.While) -> bool:
        """True when a loop inside this one, here or in a function it calls, steps by itself."""
        return any(x in self._relevance.stepping for x in self._training_loops(node.body, set()))

    def has_training_loop(
        self, body: tuple[p.Stmt, ...], around: Set[p.Function] = frozenset()
    ) -> bool:
        """True when some statements lead to a loop that holds a backward, by other functions than those `around`."""
        return any(True for _ in self._training_loops(body, set(), around))

    def has_epochs(self, body: tuple[p.Stmt, ...], around: Set[p.Function] = frozenset()) -> bool:
        """True when some statements lead to a training loop inside another one."""
        return any(self.holds_loop(loop) for loop in self._training_loops(body, set(), around))

    def _training_loops(
        self, body: tuple[p.Stmt, ...], seen: set[str], around: Set[p.Function] = frozenset()
    ) -> Iterator[p.For | p.While]:
        graph = self.machine.borders.graph
        for inner in graph.loops_and_calls(body):
            if isinstance(inner, p.For | p.While) and inner in self._relevance.backwards:
                yield inner
            if isinstance(inner, p.Call):
                callee = callee_of(inner.func)
                if callee in self._relevance.reaching_backward and callee not in seen:
                    seen.add(callee)
                    others = self.cross_file.named(callee)
                    for function in (*graph.functions(callee), *others):
                        if function not in around:
                            self.machine.budget.spend(STEPS_OF_WALK)
                            yield from self._training_loops(function.body, seen, around)

    def _over_data(self, node: p.Node) -> bool:
        """True when the next loop inside goes over a loader: then this one counts epochs."""
        body = node.body if isinstance(node, p.For | p.While) else ()
        for inner in self._training_loops(body, set()):
            if isinstance(inner, p.While):
                return True
            read = {n.id for n in p.walk_expr(inner.iterable) if isinstance(n, p.Name)}
            read |= {n.name for n in p.walk_expr(inner.iterable) if isinstance(n, p.Attr)}
            return any(self.roles.of(n) == "loader" for n in read)
        return False


def _clears_by_a_modulus(node: p.Node, inside: bool = True) -> bool:
    """True for a loop that ends windows by itself, though nobody steps there; `inside`: or a loop in it does."""
    if not isinstance(node, p.For | p.While):
        return False
    nodes = p.walk(node.body, into_functions=False) if inside else _of_its_level(node.body)
    return any(
        isinstance(n, p.If)
        and " % " in p.render(n.test)
        # What skips the rest of the body between two boundaries says the same.
        and (clears(n.body) or (not inside and isinstance(n.body[0], p.Jump)))
        for n in nodes
    )


def _of_its_level(body: tuple[p.Stmt, ...]) -> Iterator[p.Node]:
    """The statements of a loop's body and of the guards in it, without those of inner loops."""
    for statement in body:
        yield statement
        if isinstance(statement, p.If):
            yield from _of_its_level((*statement.body, *statement.orelse))
        elif isinstance(statement, p.With):
            yield from _of_its_level(statement.body)


def _cuts(node: p.Node) -> bool:
    """True for a loop over pieces of a batch: `for i in range(0, rows, size)` with `batch[i : i + size]` inside."""
    match node:
        case p.For(
            target=p.Name(id=start), iterable=p.Call(func=p.Name(id="range"), args=[_, _, size])
        ):
            end = f"{start} + {p.render(size.value)}"
            return any(
                isinstance(n, p.Slice) and n.lower and n.upper
                and (p.render(n.lower), p.render(n.upper)) == (start, end)
                for n in p.walk(node.body)
            )  # fmt: skip
        case _:
            return False
