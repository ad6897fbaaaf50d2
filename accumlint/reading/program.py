"""A source file as a small program: built from Python's own tree by `lowering`, executed by `accumlint.tracing`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field
from functools import cached_property
from typing import TypeVar, cast

from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.reading import names, usage
from accumlint.reading.enclosing import Surroundings, surroundings
from accumlint.reading.frameworks import LABELLING_ROWS
from accumlint.reading.ir import (
    Assign,
    Attr,
    Call,
    Class,
    Expr,
    For,
    Function,
    If,
    Import,
    Name,
    Node,
    Stmt,
    While,
    dotted,
    render,
    walk,
    walk_expr,
)
from accumlint.reading.lone_files import of_text
from accumlint.reading.roles import Roles, infer
from accumlint.reading.syntax import Source
from accumlint.reading.targets import Evidence, gathered, joined
from accumlint.reading.trainer_methods import StockTrainer

N = TypeVar("N", bound=Node)


@frozen
class Spot:
    """A place in one of the project's files."""

    source: Source
    place: Place


@frozen(eq=False)
class Program:
    """A source file, lowered.

    `others` are the project's files that were read along with it, as they are met, and `callers` those whose runs go
    through it. After `keep`, those that lead into it meet its own nodes.
    """

    source: Source
    body: tuple[Stmt, ...]
    others: list[Source] = field(default_factory=list[Source], repr=False)
    callers: list[Program] = field(default_factory=list["Program"], repr=False)
    read_import: Callable[[Program, str], tuple[Stmt, ...]] = field(
        default=lambda _, __: (), repr=False
    )
    read_stars: Callable[[str, Sequence[str], Set[str]], Mapping[str, str]] = field(
        default=lambda _, __, ___: {}, repr=False
    )
    read_neighbours: Callable[[Program], Iterable[tuple[Source, ast.AST]]] = field(
        default=lambda _: (), repr=False
    )
    read_evidence: Callable[[Program], tuple[Evidence, ...]] = field(
        default=lambda caller: caller.evidence, repr=False
    )
    read_trainers: Callable[[Program], Iterable[StockTrainer]] = field(
        default=lambda _: (), repr=False
    )
    keep: Callable[[], None] = field(default=lambda: None, repr=False)

    @cached_property
    def evidence(self) -> tuple[Evidence, ...]:
        """What tells whether the losses of micro-batches are means over as many targets, here and in the project."""
        found = gathered([(self.source, self.source.tree), *self.neighbours])
        if not self.neighbours and not self.callers:
            found = (*found, *of_text(self.source, found))
        self._met(e.source for e in found)
        return joined(found, *map(self.read_evidence, self.callers))

    def _met(self, sources: Iterable[Source]) -> None:
        """Notes other files in which something was seen that is shown."""
        known = {self.source.path, *(source.path for source in self.others)}
        for path, source in {source.path: source for source in sources}.items():
            if path not in known:
                self.others.append(source)

    @cached_property
    def neighbours(self) -> tuple[tuple[Source, ast.AST], ...]:
        """The definitions of other files that this one leads to, and the files that import it."""
        return tuple(self.read_neighbours(self))

    @cached_property
    def stock_trainers(self) -> tuple[StockTrainer, ...]:
        """The trainers of a framework that take the loss from the model, where it is known whether they divide it."""
        found = tuple(self.read_trainers(self))
        self._met(trainer.model.source for trainer in found if trainer.model is not None)
        return found

    @cached_property
    def roles(self) -> Roles:
        """What the names of this file are, by what is done with them."""
        return infer(self.body)

    def imported(self, name: str) -> tuple[Stmt, ...]:
        """What another file of the project defines under an imported name, with all of its file that this leads to."""
        return self.read_import(self, name)

    @cached_property
    def data(self) -> tuple[Stmt, ...]:
        """What other files define of the datasets and collators that this one imports."""
        return tuple(s for name in self.imports if names.is_data(name) for s in self.imported(name))

    @cached_property
    def data_ignores(self) -> bool:
        """True where those mark labels with -100, which losses leave out."""
        _, ignores = usage.receivers(walk(self.data))
        return ignores

    @cached_property
    def data_marks(self) -> bool:
        """True where those mark labels with -1, which a loss may be told to leave out."""
        return usage.marks(walk(self.data), self.roles)

    @property
    def path(self) -> str:
        """The file's path as it was given."""
        return self.source.path

    @property
    def lines(self) -> list[str]:
        """The source lines without their ends."""
        return self.source.lines

    @property
    def text(self) -> str:
        """What the file holds."""
        return self.source.text

    def place(self, node: Node) -> Place:
        """Where a node of this very file stands."""
        return self.source.place(node.at)

    def _sources(self) -> Iterator[Source]:
        yield self.source
        yield from self.others
        for caller in self.callers:
            yield caller.source
            yield from caller.others

    def spot(self, node: Node) -> Spot:
        """Where a node stands, in this file or in one that was read along with it."""
        for source in self._sources():
            if source.holds(node.at):
                return Spot(source, source.place(node.at))
        raise LookupError("a node of no file that was read")

    def code(self, node: Node) -> str:
        """The text of a node on one line as it stands in its file."""
        spot = self.spot(node)
        place = spot.place
        held = spot.source.lines[place.line - 1 : place.end_line]
        held[-1] = held[-1][: place.end_column - 1]
        held[0] = held[0][place.column - 1 :]
        return " ".join(line.strip() for line in held)

    def surroundings(self, node: Node) -> Surroundings:
        """The function or class and the statement that a node stands in."""
        return surroundings(self.source, node.at)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of the file, parents first."""
        return tuple(walk(self.body))

    @cached_property
    def _by_kind(self) -> Mapping[type[Node], tuple[Node, ...]]:
        found: dict[type[Node], list[Node]] = {}
        for node in self.nodes:
            found.setdefault(type(node), []).append(node)
        return {kind: tuple(nodes) for kind, nodes in found.items()}

    def of(self, kind: type[N]) -> tuple[N, ...]:
        """The nodes of one kind, in the order of `nodes`."""
        return cast("tuple[N, ...]", self._by_kind.get(kind, ()))

    @cached_property
    def parents(self) -> Mapping[Node, Node]:
        """The node that each node stands directly below."""
        return {child: node for node in self.nodes for child in node.below}

    def above(self, node: Node) -> Iterator[Node]:
        """The nodes that hold a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function_around(self, node: Node) -> Function | None:
        """The innermost function in which a node stands; None at the top of the file."""
        return next((n for n in self.above(node) if isinstance(n, Function)), None)

    def body_around(self, node: Node) -> tuple[Stmt, ...]:
        """The statements of the function, or of the file, that a node stands in."""
        around = self.function_around(node)
        return around.body if around is not None else self.body

    def loop_around(self, node: Node) -> For | While | None:
        """The innermost loop around a node."""
        return next((n for n in self.above(node) if isinstance(n, For | While)), None)

    def guard_around(self, node: Node) -> If | None:
        """The innermost `if` under whose test a node stands, within its loop."""
        below = node
        for outer in self.above(node):
            if isinstance(outer, For | While):
                return None
            if isinstance(outer, If) and below in outer.body:
                return outer
            below = outer
        return None

    def first_values(self, name: str) -> Iterator[Assign]:
        """The plain assignments of a name that do not ask for its value before."""
        for node in self.of(Assign):
            if len(node.targets) == 1 and dotted(node.targets[0]) == name:
                read = (n for n in walk_expr(node.value) if isinstance(n, Attr | Name))
                if all(dotted(n) != name for n in read):
                    yield node

    @cached_property
    def words(self) -> frozenset[str]:
        """Every name and attribute in the file."""
        return frozenset((*(n.id for n in self.of(Name)), *(n.name for n in self.of(Attr))))

    @cached_property
    def calls(self) -> Mapping[str, tuple[Call, ...]]:
        """All calls by the last name of what is called, in source order."""
        found: dict[str, list[Call]] = {}
        for node in self.of(Call):
            found.setdefault(dotted(node.func).rpartition(".")[2], []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def assigned(self) -> Mapping[str, tuple[Expr, ...]]:
        """All that is ever assigned to a target, by the target's text."""
        found: dict[str, list[Expr]] = {}
        for node in self.of(Assign):
            for target in map(render, node.targets):
                found.setdefault(target, []).append(node.value)
        return {target: tuple(values) for target, values in found.items()}

    def labels_rows(self, model: str) -> bool:
        """True for a model that is made by names of transformers for one label in each row, and by no others."""
        made = (dotted(m.func) for m in self.assigned.get(model, ()) if isinstance(m, Call))
        tasks = [name for name in made if re.search("For[A-Z]", name)]
        return bool(tasks) and all(map(LABELLING_ROWS.search, tasks))

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """All functions and methods, nested ones included, in source order."""
        return tuple(n for n in self.of(Function) if n.name != "<lambda>")

    def methods_of(self, line: str, name: str) -> Iterator[Function]:
        """The methods of a name in classes that inherit from what is called so, or ends so (`Trainer`)."""
        for function in self.functions:
            if function.name == name and any(base.endswith(line) for base in function.bases):
                yield function

    def class_around(self, node: Node) -> Class | None:
        """The innermost class in which a node stands."""
        return next((n for n in self.above(node) if isinstance(n, Class)), None)

    @cached_property
    def classes(self) -> Mapping[str, Class]:
        return {n.name: n for n in self.of(Class)}

    @cached_property
    def definitions(self) -> Mapping[str, Function | Class]:
        """The functions and classes by name, the last of a name."""
        return {n.name: n for n in self.nodes if isinstance(n, Function | Class)}

    @cached_property
    def imports(self) -> Mapping[str, str]:
        """Every imported name of the file and the dotted path it stands for; `*path` for a module imported whole.

        Names that such a module of the project has, and that the file uses and does not define, are among them.
        """
        found = {name: path for node in self.of(Import) for name, path in node.names}
        stars = [path for name, path in found.items() if name[0] == "*"]
        if not stars:
            return found
        wanted = self.words - found.keys() - self.definitions.keys()
        return {**self.read_stars(self.path, stars, wanted), **found}
