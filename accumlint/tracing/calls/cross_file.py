"""Follows calls into the project's other files, and remembers which line of the checked file led there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from accumlint.reading import frameworks, names
from accumlint.reading import ir as p
from accumlint.reading.excerpts import Excerpt
from accumlint.reading.gradient_slice import Relevance, key, relevance
from accumlint.reading.modules import Definition, Module, anything
from accumlint.reading.statement_facts import GIVEN
from accumlint.reading.syntax import Source
from accumlint.tracing import trace as t
from accumlint.tracing.calls.borders import Borders
from accumlint.tracing.calls.call import Answer, Call
from accumlint.tracing.control.exits import PythonError, Stopped, TooFar
from accumlint.tracing.gradients.tensors import flat
from accumlint.tracing.objects import skips_steps
from accumlint.tracing.values import (
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

if TYPE_CHECKING:
    from accumlint.tracing.interpreter import Machine

# What a table holds of which a setting picks one.
DEFINITIONS = (Closure, ClassValue, Context, Library, Partial)
# A call that only makes a value may take so many expressions; past that it is not worth following.
MAX_NODES_OF_VALUE = 1_500
# All such calls of a run together.
MAX_NODES_OF_VALUES = 60_000
_NOTHING = relevance(())
_CLIPPING = (t.Clip, t.Rescale, t.Unscale, t.Step)
_TABLED = frozenset({"Accelerator", "Fabric"}).union(
    frameworks.WRAPPERS, frameworks.SCALERS, frameworks.NATIVE_SCALERS, frameworks.LOADERS, frameworks.OPTIMIZERS,
    frameworks.OPTIMIZER_FACTORIES, frameworks.SCHEDULERS, frameworks.CLIPS, frameworks.HELPER_CLIPS,
    frameworks.WRAPPING_ITERABLES,
)  # fmt: skip


class CrossFile:
    """The project's other files, as one machine sees them."""

    def __init__(self, machine: Machine, borders: Borders) -> None:
        self.machine = machine
        self.borders = borders
        self.homes: dict[Source, Home] = {machine.program.source: machine.main}
        # Each once, in the order in which they were met.
        self.functions: dict[p.Function, None] = {}
        self._by_key: dict[str, list[p.Function]] = {}
        # Those some parameter of which guards something by itself.
        self.guarding: list[p.Function] = []
        self.loaded: set[Excerpt] = set()
        # The node of the checked file that led to where the run is now.
        self.led_by: p.Node | None = None
        # How many calls deep the run is in code that only makes a value.
        self.making = 0
        self.spent = 0
        for excerpt in borders.excerpts:
            self._loaded(excerpt)

    # Files

    def named(self, callee: str) -> Sequence[p.Function]:
        """The functions that a call may mean, by what `key` tells of them."""
        return self._by_key.get(callee, ())

    def home_of(self, source: Source) -> Home:
        """The file that a function or class stands in."""
        return self.homes[source]

    def trains(self, function: p.Function) -> bool:
        """True for a function that goes backward, wherever it stands."""
        return self._reaches(function, lambda relevance: relevance.reaching_backward)

    def _reaches(
        self,
        function: p.Function,
        reaching: Callable[[Relevance], frozenset[str]],
        node: p.Node | None = None,
    ) -> bool:
        """Asked of a function's own file: a trainer of another one may have methods of the same names."""
        by_name = isinstance(node, p.Call) and isinstance(node.func, p.Name)
        shown = GIVEN if function.name == "__call__" and by_name else key(function)
        if shown not in reaching(self.machine.relevance):
            return False
        home = self.home_of(function.source)
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

    def _loaded(self, excerpt: Excerpt | None) -> Excerpt | None:
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
            self._loaded(further)
        return excerpt

    def hears(self, event: t.Event) -> bool:
        """True for an event that counts: what only makes a value calls models, and the rest is its own affair."""
        return not self.making or isinstance(event, t.Forward | t.NoSync | t.SyncFlag)

    def lead(self, node: p.Node) -> None:
        """Remembers what led to a node of another file, the first time."""
        if self.machine.home is not self.machine.main and self.led_by is not None:
            self.borders.leads.setdefault(node, self.led_by)

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
        self._followed(Definition(home.module, name))
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

    def picked(self, library: Library) -> tuple[Value] | None:
        """A table of functions and classes, or another name for one, that another file binds, in a tuple."""
        definition = self.find(library)
        if definition is None or definition.attributes or not definition.name:
            return None
        match definition.module.part(definition.name):
            case p.Assign(value=p.Table() | p.Choice() | p.Name() | p.Attr()):
                self._followed(definition)
                value = self._top_level(self._home(definition.module), definition.name)
                held = list(value.values()) if isinstance(value, dict) else [value]
                return (value,) if held and all(isinstance(v, DEFINITIONS) for v in held) else None
            case _:
                return None

    def classes(self, library: Library | None = None) -> dict[Key, Value]:
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
            excerpts = (self._followed(Definition(module, n)) for n in module.outline.blocks)
            statements = tuple(e.statement for e in excerpts if e is not None)
        found = [ClassValue(s, None) for s in statements if isinstance(s, p.Class)]
        makes_a_loss = self.machine.function_calls.works_out_a_loss
        changing = [value for value in found if self.makes_events(value)]
        kept = changing or [value for value in found if makes_a_loss(value.cls)]
        return {value.cls.name: value for value in kept}

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
                excerpt = self._followed(self.find(value))
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
        home = self.home_of(source)
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
        excerpt = self._followed(self.find(Library(path, home.source.path)))
        found = excerpt.statement if excerpt is not None else None
        return found if isinstance(found, p.Class) else None

    # Calls

    def _followed(self, definition: Definition | None) -> Excerpt | None:
        """An excerpt that can be executed, for a definition that is worth following."""
        project = self.borders.project
        return self._loaded(project.follow(definition) if definition is not None else None)

    def call(self, callee: Library, call: Call) -> Answer:
        """What a call of something imported gives; NotImplemented where it is not followed."""
        last, function_calls = call.last, self.machine.function_calls
        if last == "from_pretrained":
            return self._from_pretrained(callee, call)
        definition = self.find(callee)
        # A class that the project defines under a framework's name is the project's, but for the framework's source.
        defined = definition is not None and not callee.path.startswith(
            ("accelerate.", "lightning")
        )
        tabled = last in _TABLED and not (defined and last in ("Accelerator", "Fabric"))
        if tabled or (definition is not None and _clips_by_own_means(definition)):
            return NotImplemented
        if definition is not None and _is_scheduler(definition):
            return self.machine.objects.made("scheduler", "", last, frozenset(), call.node)
        if definition is not None and len(definition.attributes) == 1:
            excerpt = self._followed(Definition(definition.module, definition.name))
            cls = excerpt.statement if excerpt is not None else None
            found = function_calls.find_method(cls, last) if isinstance(cls, p.Class) else None
            if isinstance(cls, p.Class) and found is not None:
                dispatch = self.machine.dispatch
                return dispatch.method(
                    ClassValue(cls, None), last, call.args, call.kwargs, call.node
                )
        excerpt = self._followed(definition) or self._given_a_gradient(callee, call)
        match excerpt.statement if excerpt is not None else None:
            case p.Function() as function if function not in self.borders.refused:
                before = len(self.machine.state.events)
                closure = Closure(function, None)
                value = function_calls.invoke(closure, call.args, call.kwargs, None, call.node)
                done = self.machine.state.events[before:]
                clips = not names.is_clip(last) or any(isinstance(e, _CLIPPING) for e in done)
                clears = not names.is_clearing(last) or any(isinstance(e, t.Clear) for e in done)
                tells = (excerpt is not None and excerpt.is_eventful) or _tells(value)
                # Where nothing is seen of how it clips, by means of its own, its name stands for it.
                return value if clips and clears and tells else NotImplemented
            case p.Class() as cls:
                return function_calls.construct(
                    ClassValue(cls, None), call.args, call.kwargs, call.node
                )
            case _:
                return NotImplemented

    def _given_a_gradient(self, callee: Library, call: Call) -> Excerpt | None:
        """The excerpt of a function that a loss, or what a network gave, passes through."""
        passed = flat(call.given)
        if not callee.importer or not any(isinstance(v, Unknown) and v.networks for v in passed):
            return None
        project = self.borders.project
        definition = project.find(callee.path, callee.importer, anything)
        return self._loaded(project.of_values(definition) if definition is not None else None)

    def _from_pretrained(self, callee: Library, call: Call) -> Answer:
        """What a class of another file makes of a checkpoint, where its forward tells of a loss."""
        function_calls = self.machine.function_calls
        holder = Library(callee.path.rpartition(".")[0], callee.importer)
        excerpt = self._followed(self.find(holder))
        match excerpt.statement if excerpt is not None else None:
            case p.Class() as cls if function_calls.works_out_a_loss(cls):
                if function_calls.find_method(cls, "from_pretrained") is not None:
                    return NotImplemented
                return function_calls.from_pretrained(ClassValue(cls, None), call)
            case _:
                return NotImplemented

    def crosses(self, function: p.Function) -> bool:
        """True for a function of another file, called by the one that is being checked."""
        at_home = self.machine.home is self.machine.main
        return at_home and function.source is not self.machine.program.source

    def entered(self, closure: Closure, receiver: Value, call: Call) -> Value:
        """A call into another file. One that only makes a value is given up when it takes too long or raises."""
        machine = self.machine
        function, node = closure.function, call.node
        led_by, self.led_by = self.led_by, node
        try:
            if not self.making and self._reaches(function, lambda r: r.reaching_strong, node):
                value = machine.function_calls.executed(closure, receiver, call)
                return self._given(value, node)
            if function not in self.borders.refused:
                return self._given(self._tried(closure, receiver, call), node)
        finally:
            self.led_by = led_by
        return machine.opaque_calls.call(receiver, call)

    def _given(self, value: Value, node: p.Node) -> Value:
        """A result on its way into the checked file, where objects take the names that they are given there."""
        for given in flat([value]):
            traced = given.traced if isinstance(given, Object) else None
            if (
                isinstance(given, Object)
                and traced is not None
                and traced.node in self.borders.leads
            ):
                given.traced = replace(traced, text=traced.role, node=node)
                given.text = traced.role
                given.used = False
        return value

    def refuses(self, function: p.Function) -> bool:
        """True for a function that turned out not to be worth following."""
        return function in self.borders.refused

    def refuse(self, function: p.Function, *, always: bool = False) -> None:
        """Notes a function of another file as one that is not worth following, `always` if it told of a loss once."""
        other = function.source is not self.machine.program.source
        if other and (always or function not in self.borders.telling):
            self.borders.refused.add(function)

    def _tried(self, closure: Closure, receiver: Value, call: Call) -> Value:
        machine, state = self.machine, self.machine.state
        ceiling, begun = machine.ceiling, state.nodes
        machine.ceiling = min(ceiling, begun + MAX_NODES_OF_VALUE)
        self.making += 1
        value: Value = None
        try:
            value = machine.function_calls.executed(closure, receiver, call)
        except (PythonError, TooFar):
            self.borders.refused.add(closure.function)
            machine.guards.goal = machine.guards.deciding = None
        finally:
            machine.ceiling = ceiling
            self.making -= 1
            # The budget of a run is for its loops; what they are made of has one of its own.
            self.spent += state.nodes - begun
            state.nodes = begun
        if self.spent > MAX_NODES_OF_VALUES:
            raise Stopped("too many steps in other files")
        if closure.function in self.borders.refused:
            return machine.opaque_calls.call(receiver, call)
        return value


def _clips_by_own_means(definition: Definition) -> bool:
    """True for a function that its name says to clip gradients, with nothing in it that a table knows."""
    if not names.is_clip(definition.name) or definition.block.is_class:
        return False
    return not definition.calls & (frameworks.CLIPS | {"unscale_", "step", "backward"})


def _is_scheduler(definition: Definition) -> bool:
    """True for a class that derives from one of torch's schedulers, and moves whenever it is told to."""
    plain = definition.name and not definition.attributes
    derived = plain and frameworks.is_scheduler(definition.block.bases)
    cls = definition.module.part(definition.name) if derived else None
    return isinstance(cls, p.Class) and not skips_steps(cls)


def _tells(value: Value) -> bool:
    """True for a result that says more than its name does."""
    match value:
        case Unknown():
            return value.tensor or value.loss
        case Object():
            return bool(value.role) or value.cls is not None
        case tuple() | list():
            return any(_tells(part) for part in flat([value]) if not isinstance(part, tuple | list))
        case _:
            return value is not None and not isinstance(value, Library)
