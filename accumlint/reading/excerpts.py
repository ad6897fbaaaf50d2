"""Excerpts of other files: a definition with what it leads to, and the slice of that which can reach a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from accumlint.reading import frameworks
from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import Reach, Relevance, key
from accumlint.reading.modules import Definition
from accumlint.reading.program import Program
from accumlint.reading.statement_facts import CALLED_ITSELF
from accumlint.reading.syntax import Source

# Methods that every object has, or torch's own do: another file's class tells nothing by having one.
_EVERYBODY_S = frozenset(
    {"step", "update", "train", "eval", "forward", "to", "apply", "fit", "run"}
)


@dataclass(eq=False)
class Excerpt:
    """A definition with all of its file that it leads to, the slice of that, and excerpts that it leads on to."""

    definition: Definition
    body: tuple[p.Stmt, ...]
    relevance: Relevance
    further: tuple[Excerpt, ...]

    @property
    def statement(self) -> p.Stmt:
        return self.body[0]

    @cached_property
    def is_eventful(self) -> bool:
        """True for what changes gradients or their reduction, or makes or picks something that does."""
        return self._changes_gradients(self.statement) or bool(self.made)

    @cached_property
    def made(self) -> tuple[p.Class | p.Function, ...]:
        """What a factory makes, and a table or an alias picks from, that goes backward or steps."""
        kinds: tuple[type[p.Class | p.Function], ...] = (p.Class,)
        match self.statement:
            case p.Function() as function if _makes(function):
                pass
            case p.Assign(value=p.Table() | p.Choice() | p.Name() | p.Attr()):
                kinds = p.Class, p.Function
            case _:
                return ()
        here = (s for s in self.body[1:] if self._changes_gradients(s))
        beyond = (e.statement for e in self.further if e.is_eventful)
        return tuple(s for s in (*here, *beyond) if isinstance(s, kinds))

    def _changes_gradients(self, statement: p.Stmt) -> bool:
        match statement:
            case p.Function(name=name) as function:
                if key(function) in self.relevance.reaching_backward:
                    return True
                strong = key(function) in self.relevance.reaching_strong
                # A name may hide it (`update`, `update_parameters_and_lr`).
                steps = key(function) in self.relevance.reaching_step
                reduces = self.definition.reduces_gradients
                return strong and (steps or reduces or not frameworks.is_harmless(name))
            case p.Class(name=name, methods=methods):
                reaching = self.relevance.reaching_backward | self.relevance.reaching_step
                return name in reaching or any(key(m) in reaching for m in methods.values())
            case _:
                return False

    @cached_property
    def functions(self) -> tuple[p.Function, ...]:
        """All functions and methods, here and further on."""
        own = tuple(n for n in p.walk(self.body) if isinstance(n, p.Function))
        return own + tuple(f for excerpt in self.further for f in excerpt.functions)


# Excerpts with the callees that lead to them, as a file shows them and as they are called there.
Led: TypeAlias = "dict[Excerpt, frozenset[tuple[str, str]]]"


def reach_of(led: Led) -> Reach:
    """The callees in a file that lead to an event in some excerpts."""

    def through(reaching: Callable[[Relevance], frozenset[str]]) -> frozenset[str]:
        return frozenset(
            shown
            for excerpt, callees in led.items()
            for shown, inside in callees
            if inside in reaching(excerpt.relevance)
        )

    return Reach(
        through(lambda r: r.reaching),
        through(lambda r: r.reaching_strong),
        through(lambda r: r.reaching_backward),
        through(lambda r: r.reaching_step),
    )


def joined(own: Relevance, excerpts: Iterable[Excerpt]) -> Relevance:
    """A file's slice with those of the excerpts that it leads to."""
    for excerpt in excerpts:
        own = own.joined(excerpt.relevance)
    return own


def callees(
    prefix: str, bound: str, excerpt: Excerpt, source: Source
) -> frozenset[tuple[str, str]]:
    """What calls in `source` that lead into an excerpt look like from outside, and inside it."""
    name = excerpt.definition.name
    shown = name if prefix else bound
    functions = (f for f in excerpt.made if isinstance(f, p.Function))
    led = {(prefix + shown, inside) for inside in (name, *map(key, functions))}
    classes = [c for c in (excerpt.statement, *excerpt.made) if isinstance(c, p.Class)]
    asked = _methods_called_of(shown, source) if classes else frozenset[str]()
    inherited = {base for cls in classes for base in cls.bases}
    bases = (s for s in excerpt.body if isinstance(s, p.Class) and s.name in inherited)
    for cls in (*classes, *bases):
        methods = (
            key(m) for m in cls.methods.values() if m.name not in _EVERYBODY_S or m.name in asked
        )
        led.update((method, method) for method in methods)
        if "__call__" in cls.methods:
            led.add((CALLED_ITSELF, CALLED_ITSELF))
    return frozenset(led)


def _methods_called_of(made: str, source: Source) -> frozenset[str]:
    """The methods that a file calls of what it makes of a class, or of a class that derives from it."""
    heirs = source.heirs.get(made, frozenset())
    classes = {made, *heirs, *(("super",) if heirs else ())}
    receivers = {r for cls in classes for r in source.made.get(cls, ())}
    at_once = (source.called_at_once.get(cls, frozenset[str]()) for cls in classes)
    later = (source.members.get(receiver, frozenset[str]()) for receiver in receivers)
    return frozenset[str]().union(*at_once, *later)


def _makes(function: p.Function) -> bool:
    """True for a function that returns what a call gave, or what goes by a name."""
    made = p.Call | p.Name | p.Choice | p.Item
    returned = (n.value for n in p.walk(function.body) if isinstance(n, p.Return))
    return any(isinstance(value, made) for value in returned)


def overridden(program: Program, excerpts: Iterable[Excerpt]) -> Iterator[str]:
    """The methods of a program's classes that a base class in another file calls."""
    by_name = {e.definition.name: e.definition.calls for e in excerpts}
    for cls in program.classes.values():
        for base in cls.bases:
            yield from cls.methods.keys() & by_name.get(base.rpartition(".")[2], frozenset())
