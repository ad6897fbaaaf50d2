"""The project's functions and classes across its files: where names lead, base classes, methods."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from accumlint.reading import frameworks
from accumlint.reading import ir as p
from accumlint.reading.excerpts import Excerpt
from accumlint.reading.gradient_slice import Relevance, key, relevance
from accumlint.reading.modules import Definition, Module
from accumlint.reading.statement_facts import CALLED_ITSELF
from accumlint.reading.syntax import Source
from accumlint.tracing.budget import LOOKS_OF_STEP, STEPS_OF_WALK
from accumlint.tracing.control.guards import Guards
from accumlint.tracing.machine import Machine
from accumlint.tracing.values import (
    Bound,
    ClassValue,
    Closure,
    Context,
    Frame,
    Home,
    Key,
    Library,
    Object,
    Partial,
    Unknown,
    Value,
)

# What a table holds of which a setting picks one.
DEFINITIONS = (Closure, ClassValue, Context, Library, Partial)
_NOTHING = relevance(())


class CrossFile:
    """The functions and classes of the project in one run, wherever they stand."""

    def __init__(self, machine: Machine, guards: Guards) -> None:
        self.machine = machine
        self.guards = guards
        self.lineages: dict[p.Class, list[p.Class]] = {}
        self.borders = borders = machine.borders
        # The files that functions and classes stand in.
        self.homes: dict[Source, Home] = {machine.program.source: machine.main}
        # Each once, in the order in which they were met.
        self.functions: dict[p.Function, None] = {}
        self._by_key: dict[str, list[p.Function]] = {}
        # Those some parameter of which guards something by itself.
        self.guarding: list[p.Function] = []
        self.loaded: set[Excerpt] = set()
        for excerpt in borders.excerpts:
            self.executable(excerpt)

    # Files

    def named(self, callee: str) -> Sequence[p.Function]:
        """The functions that a call may mean, by what `key` tells of them."""
        return self._by_key.get(callee, ())

    def trains(self, function: p.Function) -> bool:
        """True for a function that goes backward, wherever it stands."""
        return self.reaches(function, lambda relevance: relevance.reaching_backward)

    def reaches(
        self,
        function: p.Function,
        reaching: Callable[[Relevance], frozenset[str]],
        node: p.Node | None = None,
    ) -> bool:
        """Asked of a function's own file: a trainer of another one may have methods of the same names."""
        by_name = isinstance(node, p.Call) and isinstance(node.func, p.Name)
        shown = CALLED_ITSELF if function.name == "__call__" and by_name else key(function)
        if shown not in reaching(self.machine.relevance):
            return False
        home = self.homes[function.source]
        return home is self.machine.main or any(
            excerpt.is_eventful
            and excerpt.definition.module is home.module
            and shown in reaching(excerpt.relevance)
            for excerpt in self.loaded
        )

    def _home(self, module: Module) -> Home:
        if module.source not in self.homes:
            home = Home(module.source, Frame({}), _NOTHING, module)
            home.frame.home = home
            self.homes[module.source] = home
        return self.homes[module.source]

    def executable(self, excerpt: Excerpt | None) -> Excerpt | None:
        """The excerpt, made executable."""
        if excerpt is None or excerpt in self.loaded:
            return excerpt
        self.loaded.add(excerpt)
        machine = self.machine
        home = self._home(excerpt.definition.module)
        home.relevance = excerpt.relevance.used_like(home.relevance)
        known = machine.relevance
        used = known.joined if excerpt.is_eventful else known.executing
        machine.relevance = used(excerpt.relevance)
        if home.source not in machine.program.others:
            machine.program.others.append(home.source)
        for function in excerpt.functions:
            if function not in self.functions:
                self.functions[function] = None
                self._by_key.setdefault(key(function), []).append(function)
                self.guarding += [function] if function.guarded else []
        for further in excerpt.further:
            self.executable(further)
        return excerpt

    # Names

    def find(self, library: Library) -> Definition | None:
        """The definition in the project that an imported name stands for."""
        if not library.importer:
            return None
        return self.borders.project.find(library.path, library.importer)

    def is_harmless(self, path: str) -> bool:
        """True for a function that no gradient can change in: of the standard library, or as its source tells."""
        if path.partition(".")[0] in sys.stdlib_module_names:
            return True
        return self.borders.project.is_harmless(path, self.machine.home.source.path)

    def bound(self, home: Home, name: str) -> tuple[Value] | None:
        """A name that another file binds at its top level, in a tuple; None where it binds no such name."""
        assert home.module is not None
        outline = home.module.outline
        if name in outline.blocks:
            return (self._top_level(home, name),)
        imports = self.borders.project.imports_of(home.module)
        if name in imports:
            return (Library(imports[name], home.source.path),)
        return None

    def _top_level(self, home: Home, name: str) -> Value:
        assert home.module is not None
        self.followed(Definition(home.module, name))
        match home.module.part(name):
            case p.Function() as function:
                return Closure(function, None)
            case p.Class() as cls:
                return ClassValue(cls, None)
            case p.Assign(value=value):
                # While it is worked out it is unknown, should it need itself.
                home.frame.names[name] = Unknown(name)
                found = self.default(value, home)
                home.frame.names[name] = found
                return found
            case _:
                return Unknown(name)

    def default(self, expression: p.Expr, home: Home) -> Value:
        """The value of an expression at the top level of a file."""
        machine = self.machine
        if home is machine.home:
            return machine.eval(expression)
        saved, machine.frame = machine.frame, home.frame
        try:
            return machine.eval(expression)
        finally:
            machine.frame = saved

    def constant(self, library: Library) -> tuple[Value] | None:
        """A number or flag that another file binds at its top level, in a tuple; None for all else."""
        definition = self.find(library)
        if definition is None or definition.attributes or not definition.name:
            return None
        match definition.module.part(definition.name):
            case p.Assign(value=p.Const(value=value)):
                return (value,)
            case _:
                return None

    def definitions(self, library: Library) -> tuple[Value] | None:
        """A table of functions and classes, or another name for one, that another file binds, in a tuple."""
        definition = self.find(library)
        if definition is None or definition.attributes or not definition.name:
            return None
        match definition.module.part(definition.name):
            case p.Assign(value=p.Table() | p.Choice() | p.Name() | p.Attr()):
                self.followed(definition)
                value = self._top_level(self._home(definition.module), definition.name)
                held = list(value.values()) if isinstance(value, dict) else [value]
                return (value,) if held and all(isinstance(v, DEFINITIONS) for v in held) else None
            case _:
                return None

    def makes_events(self, value: Value) -> bool:
        """True for a function, a class or an object of one that goes backward or steps."""
        relevance = self.machine.relevance
        reaching = relevance.reaching_backward | relevance.reaching_step
        match value:
            case Closure(function=function):
                return key(function) in reaching
            case ClassValue(cls=cls) | Object(cls=p.Class() as cls):
                return any(key(m) in reaching for m in cls.methods.values())
            case Library():
                excerpt = self.followed(self.find(value))
                return excerpt is not None and excerpt.is_eventful
            case _:
                return False

    def starred(self, name: str) -> tuple[Value] | None:
        """A name that the checked file got by importing everything of another one, in a tuple."""
        program = self.machine.program
        for bound, path in program.imports.items():
            if bound[0] == "*":
                dotted = path if path.endswith(".") else f"{path}."
                library = Library(f"{dotted}{name}", program.source.path)
                if self.find(library) is not None:
                    return (library,)
        return None

    def cls(self, name: str, source: Source) -> p.Class | None:
        """A class by the name that a file gives it, where it stands in the project."""
        home = self.homes[source]
        last = name.rpartition(".")[2].partition("[")[0]
        if home.module is None:
            found = self.machine.program.classes.get(last)
            if found is not None:
                return found
            imports = self.machine.program.imports
        else:
            outline = home.module.outline
            if last in outline.blocks:
                part = home.module.part(last)
                return part if isinstance(part, p.Class) else None
            imports = self.borders.project.imports_of(home.module)
        top, _, rest = name.partition(".")
        if top not in imports:
            return None
        path = f"{imports[top]}.{rest}" if rest else imports[top]
        excerpt = self.followed(self.find(Library(path, home.source.path)))
        found = excerpt.statement if excerpt is not None else None
        return found if isinstance(found, p.Class) else None

    def followed(self, definition: Definition | None) -> Excerpt | None:
        """An excerpt that can be executed, for a definition that is worth following."""
        project = self.borders.project
        return self.executable(project.follow(definition) if definition is not None else None)

    def refuse(self, function: p.Function) -> None:
        """Notes a function of another file as one that is not worth following."""
        other = function.source is not self.machine.program.source
        if other and function not in self.borders.telling:
            self.borders.refused.add(function)

    # Classes

    def lineage(self, cls: p.Class) -> list[p.Class]:
        """The class and its bases as far as they can be read, nearest first."""
        found = self.lineages.get(cls)
        if found is None:
            self.lineages[cls] = found = [cls]
            seen = {cls}
            for current in found:
                for base in current.bases:
                    other = self.cls(base, current.source)
                    if other is not None and other not in seen:
                        seen.add(other)
                        found.append(other)
            self.machine.budget.spend(len(found) // LOOKS_OF_STEP * STEPS_OF_WALK)
        return found

    def all_bases(self, cls: p.Class) -> set[str]:
        return {
            base.rpartition(".")[2].split("[")[0] for c in self.lineage(cls) for base in c.bases
        }

    def picked(self, table: dict[Key, Value], index: Value, written: str) -> Value | None:
        """What an unknown key picks out of a table of functions, classes, contexts or objects; None for another table.

        Of objects of one class that goes backward or steps, each stands for all.
        """
        named = {k: v for k, v in table.items() if isinstance(k, str)}
        if not named or len(named) != len(table):
            return None
        classes = {v.cls for v in named.values() if isinstance(v, Object)}
        if len(classes) == 1 and all(isinstance(v, Object) for v in named.values()):
            first = next(iter(named.values()))
            return first if self.makes_events(first) else None
        if not all(isinstance(v, DEFINITIONS) for v in named.values()):
            return None
        trains = [k for k, v in named.items() if self.makes_events(v)]
        asked = index.text if isinstance(index, Unknown) else written
        chosen = self.guards.picked(
            asked, tuple(named), (trains or list(named))[0], matters=bool(trains)
        )
        return named[chosen]

    def find_method(self, cls: p.Class, name: str) -> Closure | None:
        for owner in self.lineage(cls):
            if name in owner.methods:
                return Closure(owner.methods[name], None, owner)
        return None

    def method_of(self, value: Object, name: str) -> Bound | None:
        if value.cls is None:
            return None
        closure = self.find_method(value.cls, name)
        if closure is None:
            return None
        if "staticmethod" in closure.function.decorators:
            return Bound(None, closure)
        return Bound(value, closure)

    def of_module(self, library: Library | None = None) -> dict[Key, Value]:
        """The classes of a module that change gradients, else those that work out losses, by name.

        Without a module they are those of the file that is executed.
        """
        module = self.machine.home.module
        if library is not None:
            definition = self.find(library)
            if definition is None or definition.name:
                return {}
            module = definition.module
        if module is None:
            statements = self.machine.program.body
        else:
            excerpts = (self.followed(Definition(module, n)) for n in module.outline.blocks)
            statements = tuple(e.statement for e in excerpts if e is not None)
        found = [ClassValue(s, None) for s in statements if isinstance(s, p.Class)]
        changing = [value for value in found if self.makes_events(value)]
        kept = changing or [value for value in found if works_out_a_loss(value.cls)]
        return {value.cls.name: value for value in kept}


def works_out_a_loss(cls: p.Class) -> bool:
    """True for a class with a method that calls a loss function."""
    called = (n for m in cls.methods.values() for n in p.walk(m.body) if isinstance(n, p.Call))
    lasts = (p.dotted(call.func).rpartition(".")[2] for call in called)
    known = frameworks.LOSSES | frameworks.CRITERIA
    return not known.isdisjoint(lasts)


def passed_through(cls: p.Class, args: list[Value]) -> Value:
    """What the `apply` of an autograd function gives back as it was given, gradient and all; None for others."""
    if not {"forward", "backward"} <= cls.methods.keys():
        return None
    forward, backward = cls.methods["forward"], cls.methods["backward"]
    given = [param.name for param in forward.params[1:]]
    gradients = {param.name for param in backward.params[1:2]}
    for value, name in zip(args, given, strict=False):
        place = given.index(name)
        passes = all(_named(returned, 0) == name for returned in _returned(forward))
        if passes and all(_named(r, place) in gradients for r in _returned(backward)):
            return value
    return None


def _returned(function: p.Function) -> list[p.Expr | None]:
    """What a function returns, in its order."""
    body = p.walk(function.body, into_functions=False)
    return [n.value for n in body if isinstance(n, p.Return)] or [None]


def _named(value: p.Expr | None, place: int) -> str:
    """The name that is returned at a place, by itself or among others; "" for anything else."""
    items = value.items if isinstance(value, p.Sequence) else (value,)
    item = items[place] if place < len(items) else None
    return item.id if isinstance(item, p.Name) else ""
