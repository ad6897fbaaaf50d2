"""The project around the files that are checked: what an imported name stands for, read when it is asked for.

Of another file only those definitions are read that a name leads to, and only where their words tell that they may
touch a gradient or make something that does. All of it is kept for the run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from accumlint.common.frozen import frozen
from accumlint.common.memo import Memory
from accumlint.files import nesting
from accumlint.files.regular import contents
from accumlint.files.source import UndecodableSource, UnreadableSource, decode
from accumlint.reading import frameworks, names, pruning
from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import NOWHERE, Reach, Relevance, key, relevance
from accumlint.reading.imports import Imports
from accumlint.reading.lowering import lowered
from accumlint.reading.outline import Block, Outline, outline
from accumlint.reading.program import Program
from accumlint.reading.statement_facts import GIVEN
from accumlint.reading.syntax import Source

_LONGEST = 1024 * 1024
# What looking at a file of the project costs beside its words and signs, a statement or expression of an excerpt, and
# a name that a definition leads to.
_COST_OF_FILE, _COST_OF_NODE, _COST_OF_NAME = 300, 10, 2
# How many files away from the checked one something is still looked for.
_FARTHEST = 2
# In so many places it is looked for what an import stands for, faces and star imports included.
_MOST_LOOKS = 100
# Calls whose presence says that a definition may change gradients, or how they are reduced.
_STRONG = (
    frameworks.STRONG
    - {"accumulate", "Accelerator", "Fabric"}
    - frozenset(frameworks.WRAPPERS)
    - frameworks.SCALERS
    - frameworks.NATIVE_SCALERS
)
# Calls that make what a loop is built from.
_MAKING = (
    frameworks.LOADERS
    | frameworks.OPTIMIZERS
    | frameworks.CRITERIA
    | frameworks.LOSSES
    | frozenset(frameworks.WRAPPERS)
    | frameworks.SCALERS
    | {"Accelerator", "Fabric", "initialize"}
)
# One of them stands in every file that holds any of the words above.
_HINTS = (
    "oss", "ptim", "backward", "step", "grad", "no_sync", "Loader", "Scaler", "cale", "Accelerator", "Fabric",
    "Parallel", "FSDP", "DDP", "entropy", "LR", "def forward",
)  # fmt: skip
# What a model's base class is called in the end: `nn.Module`, `BertPreTrainedModel`.
_LIKE_A_MODEL = ("Module", "PreTrainedModel", "ModelMixin")
_BOUND = re.compile(r"^(?:(?:(?:async )?def|class) (\w+)|(\w+) *(?::|=(?!=)))", re.MULTILINE)
_NONE: frozenset[tuple[str, str]] = frozenset()
_LOSS = re.compile("loss", re.IGNORECASE)
_IN_FUNCTION = re.compile(r"^[ \t]+from [\w.]+ import [A-Z]", re.MULTILINE)
# Methods that every object has, or torch's own do: another file's class tells nothing by having one.
_EVERYBODY_S = frozenset(
    {"step", "update", "train", "eval", "forward", "to", "apply", "fit", "run"}
)

# Whether a name of a module is worth its outline, by the module's text.
Worth: TypeAlias = "Callable[[Module, str], bool]"


@dataclass(eq=False)
class Module:
    """A file of the project that is not being checked."""

    path: str
    text: str

    @cached_property
    def source(self) -> Source:
        return Source(self.path, self.text)

    @cached_property
    def is_strong(self) -> bool:
        """False when nothing in its text calls, or sets, what may change gradients or how they are reduced."""
        present = (word for word in _STRONG if word in self.text)
        return any(re.search(rf"{word}\s*[(=]", self.text) for word in present)

    @cached_property
    def may_matter(self) -> bool:
        """From the text alone: may anything in this file be worth an outline?"""
        # A package's face imports what matters from elsewhere, and so does a function that makes an object of a class.
        if self.path.endswith("__init__.py") or _IN_FUNCTION.search(self.text):
            return True
        return any(word in self.text for word in _HINTS)

    @cached_property
    def bound(self) -> frozenset[str]:
        """The names that its text defines or assigns where nothing is indented."""
        return frozenset(name or assigned for name, assigned in _BOUND.findall(self.text))

    @cached_property
    def outline(self) -> Outline:
        """What it binds; nothing where Python cannot read it."""
        try:
            return outline(self.source.tree)
        except UnreadableSource:
            return Outline({}, {}, ())

    @cached_property
    def _silent(self) -> frozenset[ast.AST]:
        """What is left out of a long file: it has no say in training."""
        lines = self.source.lines
        if len(lines) <= pruning.LONG:
            return frozenset()
        return pruning.silent(self.source.tree, lines)

    @cached_property
    def _lowered(self) -> dict[ast.stmt, tuple[p.Stmt, ...]]:
        return {}

    def binds(self, name: str) -> bool:
        """True for a name that it defines, assigns or imports."""
        return name in self.outline.blocks or name in self.outline.imports

    def statements(self, tree: ast.stmt) -> tuple[p.Stmt, ...]:
        """A statement of its top level, lowered once for all who ask for it."""
        if tree not in self._lowered:
            self._lowered[tree] = lowered([tree], self.source, self._silent - {tree})
        return self._lowered[tree]

    @property
    def body(self) -> tuple[p.Stmt, ...]:
        """All of its statements."""
        said = (statement for statement in self.source.tree.body if statement not in self._silent)
        return tuple(found for statement in said for found in self.statements(statement))

    def part(self, name: str) -> p.Stmt | None:
        """The statement that binds `name`; None where it is nothing that runs."""
        return next(iter(self.statements(self.outline.blocks[name].tree)), None)


@frozen
class Definition:
    """What an import stands for: a name that `module` binds and the attributes asked of it; "" for the module."""

    module: Module
    name: str
    attributes: tuple[str, ...] = ()

    @property
    def block(self) -> Block:
        return self.module.outline.blocks[self.name]

    @property
    def blocks(self) -> list[Block]:
        """All blocks of its file that it leads to, its own first."""
        outline = self.module.outline
        return [outline.blocks[name] for name in outline.closure(self.name)]

    @property
    def names(self) -> frozenset[str]:
        """The names and attributes in its blocks."""
        return frozenset[str]().union(*(block.names for block in self.blocks))

    @property
    def reduces_gradients(self) -> bool:
        """True for what sums something over ranks, and speaks of gradients."""
        return "all_reduce" in self.calls and "grad" in self.names

    @property
    def calls(self) -> frozenset[str]:
        """What its blocks call."""
        return frozenset[str]().union(*(block.calls for block in self.blocks))


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
        statement = self.statement
        match statement:
            case p.Function() as function if _makes(function):
                pass
            case p.Class(methods=methods) if any(
                "classmethod" in m.decorators and _makes(m) for m in methods.values()
            ):
                pass
            case p.Assign(value=p.Table() | p.Choice() | p.Name() | p.Attr()):
                pass
            case _:
                return ()
        here = (s for s in self.body[1:] if self._changes_gradients(s))
        beyond = (e.statement for e in self.further if e.is_eventful)
        picked = isinstance(statement, p.Assign)
        return tuple(
            s
            for s in (*here, *beyond)
            if isinstance(s, p.Class) or (picked and isinstance(s, p.Function))
        )

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
_Led: TypeAlias = "dict[Excerpt, frozenset[tuple[str, str]]]"


class Project:
    """Everything that was read around the files of one run."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory(refusing=True)
        self.imports = Imports(self.memory)

    def module(self, path: str) -> Module | None:
        """A file of the project, None where it cannot be read."""
        self.memory.read.add(path)
        return self.memory.once(("module", path), lambda: self._module(path), None)

    def _module(self, path: str) -> Module | None:
        if not self.memory.afford(path, "file", _COST_OF_FILE):
            return None
        module = _read(path)
        return module if module is not None and self._affords(module) else None

    def _affords(self, module: Module) -> bool:
        """False for a file that must not be read in addition to those that were."""
        return self.memory.afford(module.path, "text", nesting.tokens(module.text))

    def leads_to(self, definition: Definition) -> tuple[str, ...]:
        """The names of all blocks of its file that a definition leads to; none where there are too many."""
        if not definition.name:
            return ()
        module = definition.module
        names = module.outline.closure(definition.name)
        cost = _COST_OF_NAME * len(names)
        return names if self.memory.afford(module.path, ("names", definition.name), cost) else ()

    def as_read(self, path: str, text: str) -> Module:
        """The module of a file that is about to be checked: the one that others were followed into, if it was read."""
        module = self.module(path) if self.memory.knows(("module", path)) else None
        return module if module is not None and module.text == text else Module(path, text)

    def keep(self, module: Module) -> None:
        """Has others followed into a module that was read for its own sake."""

        def kept() -> Module | None:
            if len(module.text.encode("utf-8", "surrogatepass")) > _LONGEST:
                return None
            self.memory.afford(module.path, "file", _COST_OF_FILE)
            return module if self._affords(module) else None

        self.memory.once(("module", module.path), kept, None)

    def find(self, path: str, importer: str, worth: Worth | None = None) -> Definition | None:
        """What the dotted `path` stands for in the file `importer`, None for anything outside the project.

        None, too, for a name that a module's text tells not to be `worth` an outline: by default, all that cannot
        matter to gradients.
        """
        asked = "find", path, importer, worth
        found = worth or _is_worth_knowing
        return self.memory.once(asked, lambda: self._find(path, importer, found), None)

    def _find(self, path: str, importer: str, worth: Worth) -> Definition | None:
        waiting, seen = [(path, importer)], set[tuple[str, tuple[str, ...]]]()
        for _ in range(_MOST_LOOKS):
            if not waiting:
                break
            path, importer = waiting.pop()
            located = self.imports.located(path, importer)
            # An import that leads back to itself stands for nothing.
            module = self.module(located[0]) if located is not None else None
            if located is None or module is None or module.path == importer or located in seen:
                continue
            seen.add(located)
            if not located[1]:
                return Definition(module, "")
            name, *attributes = located[1]
            if not worth(module, name):
                continue
            found = module.outline
            if name in found.blocks:
                return Definition(module, name, tuple(attributes))
            if name in found.imports:
                waiting.append((".".join([found.imports[name], *attributes]), module.path))
                continue
            # The first that has the name gives it, as its own or as one that it imports.
            giving = (m for m in self._starred_by(module) if worth(m, name) and m.binds(name))
            given = next(giving, None)
            if given is not None and name in given.outline.blocks:
                return Definition(given, name, tuple(attributes))
            if given is not None:
                waiting.append((".".join([given.outline.imports[name], *attributes]), given.path))
        return None

    def _starred_by(self, module: Module) -> tuple[Module, ...]:
        """The modules that one imports whole, each before those that it imports whole itself."""
        if not module.outline.stars:
            return ()
        asked = "starred by", module.path
        return self.memory.once(asked, lambda: tuple(self._stars(module)), ())

    def _stars(self, module: Module) -> Iterator[Module]:
        waiting, seen = [(star, module.path) for star in reversed(module.outline.stars)], {module}
        for _ in range(_MOST_LOOKS):
            if not waiting:
                break
            located = self.imports.located(*waiting.pop())
            found = self.module(located[0]) if located is not None and not located[1] else None
            if found is not None and found not in seen:
                seen.add(found)
                yield found
                waiting += [(star, found.path) for star in reversed(found.outline.stars)]

    def imported(self, program: Program, name: str) -> tuple[p.Stmt, ...]:
        """What another file defines under a name that a program imports, with what it leads to there."""
        path = program.imports.get(name)
        definition = self.find(path, program.path, anything) if path else None
        return tuple(_parts(definition)) if definition is not None and definition.name else ()

    def imports_of(self, module: Module) -> Mapping[str, str]:
        """The imported names of a module, and those that it uses of modules imported whole, with their dotted paths."""
        outline = module.outline
        if not outline.stars:
            return outline.imports

        def all_of_them() -> Mapping[str, str]:
            used = frozenset[str]().union(*(block.names for block in outline.blocks.values()))
            wanted = used - outline.blocks.keys() - outline.imports.keys()
            return {**self.starred(module.path, outline.stars, wanted), **outline.imports}

        return self.memory.once(("imports", module.path), all_of_them, outline.imports)

    def starred(self, importer: str, stars: Sequence[str], wanted: Set[str]) -> dict[str, str]:
        """The names of `wanted` that modules imported whole give a file, with the dotted path of each."""
        found: dict[str, str] = {}
        waiting, looks = [(star, importer, star) for star in reversed(stars)], 0
        while waiting and looks < _MOST_LOOKS:
            path, importer, shown = waiting.pop()
            looks += 1
            definition = self.find(path, importer, anything)
            if definition is None or definition.name:
                continue
            module = definition.module
            dot = "" if shown.endswith(".") else "."
            for name in wanted & (module.outline.blocks.keys() | module.outline.imports.keys()):
                found[name] = f"{shown}{dot}{name}"
                further = module.outline.imports.get(name, "")
                if name not in module.outline.blocks and further[0] != ".":
                    # What another library gives is known by its path there.
                    if self.find(further, module.path, anything) is None:
                        found[name] = further
            waiting += [(star, module.path, shown) for star in module.outline.stars]
        return found

    # What a definition is good for, by what it calls

    def is_harmless(self, path: str, importer: str) -> bool:
        """True for a definition of the project whose text calls nothing that changes gradients, here or further on."""
        definition = self.find(path, importer, anything)
        if definition is None or not definition.name or definition.attributes:
            return False
        return not self.is_strong(definition, _FARTHEST - 1)

    def is_strong(self, definition: Definition, further: int) -> bool:
        """True when a definition's text calls what may change gradients, here or some files further."""
        asked = "strong", definition, further
        return self.memory.once(asked, lambda: self._is_strong(definition, further), False)

    def _is_strong(self, definition: Definition, further: int) -> bool:
        if not self.leads_to(definition):
            return False
        if definition.module.is_strong and definition.calls & _STRONG:
            return True
        if definition.reduces_gradients:
            return True
        worth = _may_be_strong if further == 1 else None
        return further > 0 and any(
            self.is_strong(other, further - 1) for other in self._beyond(definition, worth)
        )

    def _beyond(self, definition: Definition, worth: Worth | None = None) -> Iterator[Definition]:
        """The definitions in other files that one leads to, those that are `worth` it."""
        module = definition.module
        imports = self.imports_of(module)
        for name in sorted(definition.names & imports.keys()):
            other = self.find(imports[name], module.path, worth)
            if other is not None:
                yield other

    def is_telling(self, definition: Definition) -> bool:
        """True when a definition's text tells that it makes a loss, or what a loop is built from.

        A model, a loader or an optimizer of one's own is what its name says; only a model's loss has more to tell.
        """
        asked = "telling", definition
        return self.memory.once(asked, lambda: self._is_telling(definition), False)

    def _is_telling(self, definition: Definition) -> bool:
        block = definition.block
        if block.is_class:
            return self._makes_a_loss(definition) or any(
                # A part of it does.
                other.name and other.block.is_class and self._makes_a_loss(other)
                for other in (*self._beside(definition), *self._beyond(definition))
                if _is_like_a_model(block)
            )
        if _LOSS.search(definition.name) or definition.calls & _MAKING:
            return True
        return any(
            other.name and other.block.is_class and self.is_telling(other)
            for other in self._beyond(definition)
        )

    def _makes_a_loss(self, definition: Definition) -> bool:
        """True when the text of a class tells that it is a loss or a model, and that it works out a loss."""
        block = definition.block
        is_loss = bool(_LOSS.search(definition.name))
        return (is_loss or _is_like_a_model(block)) and _speaks_of_losses(block)

    def _beside(self, definition: Definition) -> Iterator[Definition]:
        """The other definitions of a file that one names."""
        module = definition.module
        for name in sorted(definition.names & module.outline.blocks.keys() - {definition.name}):
            yield Definition(module, name)

    # Excerpts

    def follow(self, definition: Definition, further: int = _FARTHEST - 1) -> Excerpt | None:
        """The excerpt of a function or class that is worth following; None for all others.

        What it leads to is looked for some files `further`.
        """
        asked = "follow", definition, further
        return self.memory.once(asked, lambda: self._follow(definition, further), None)

    def _follow(self, definition: Definition, further: int) -> Excerpt | None:
        if definition.attributes or not definition.name:
            return None
        if not self.is_strong(definition, further) and not self.is_telling(definition):
            return None
        excerpt = self._excerpt(definition, further)
        if excerpt is None or not (excerpt.is_eventful or self.is_telling(definition)):
            return None
        return excerpt

    def of_values(self, definition: Definition) -> Excerpt | None:
        """The excerpt of a function that is given a loss or what becomes one, whatever its text tells."""
        asked = "of values", definition
        return self.memory.once(asked, lambda: self._of_values(definition), None)

    def _of_values(self, definition: Definition) -> Excerpt | None:
        if definition.attributes or not definition.name or definition.block.is_class:
            return None
        return self._excerpt(definition, _FARTHEST - 1)

    def _excerpt(
        self, definition: Definition, further: int, filled: Reach = NOWHERE
    ) -> Excerpt | None:
        """The excerpt of a definition; `filled` is what the methods lead to that a subclass gives it."""
        module = definition.module
        body = tuple(_parts(definition))
        if module.part(definition.name) is None:
            return None
        nodes = sum(1 for _ in p.walk(body))
        excerpt = "excerpt", definition.name, further, filled
        if not self.memory.afford(module.path, excerpt, _COST_OF_NODE * nodes):
            return None
        reach, beyond = NOWHERE, ()
        if further:
            used = definition.names
            imports = {n: path for n, path in self.imports_of(module).items() if n in used}
            reach, beyond = self.reach(imports, module.source, further - 1)
        own = relevance(body, reach.joined(filled), frozenset({definition.name}))
        return Excerpt(definition, body, joined(own, beyond), beyond)

    # What the imports of a file lead to

    def slice_of(
        self, program: Program, driven: Container[p.Function | None] = ()
    ) -> tuple[Relevance, tuple[Excerpt, ...]]:
        """The slice of a program that is worth executing, and the excerpts of other files that it leads to.

        What `driven` functions return goes backward.
        """
        led = self._led(program.imports, program.source, _FARTHEST - 1)
        wanted = frozenset(_overridden(program, led))
        own = relevance(program.body, _reach(led), wanted, driven)
        filled = {self._filled(excerpt, program, own): shown for excerpt, shown in led.items()}
        if filled.keys() == led.keys():
            return own, tuple(led)
        for excerpt, _ in list(filled.items()):
            filled[excerpt] |= _callees("", excerpt.definition.name, excerpt, program.source)
        return relevance(program.body, _reach(filled), wanted, driven), tuple(filled)

    def _filled(self, excerpt: Excerpt, program: Program, own: Relevance) -> Excerpt:
        """A base class with what a program's subclass fills in, where that goes backward and the base does not."""
        name = excerpt.definition.name
        heirs = (c for c in program.classes.values() if any(_last(b) == name for b in c.bases))
        for heir in heirs:
            methods = frozenset(map(key, heir.methods.values()))
            if not methods & own.reaching_backward - excerpt.relevance.reaching_backward:
                continue
            if heir.methods.keys().isdisjoint(excerpt.definition.calls):
                continue
            given = Reach(
                methods & own.reaching, methods & own.reaching_strong,
                methods & own.reaching_backward, methods & own.reaching_step,
            )  # fmt: skip
            return self._excerpt(excerpt.definition, _FARTHEST - 1, given) or excerpt
        return excerpt

    def reach(
        self, imports: Mapping[str, str], source: Source, further: int = _FARTHEST - 1
    ) -> tuple[Reach, tuple[Excerpt, ...]]:
        """The callees in a file that lead, through its imports, to an event elsewhere, and where they lead to.

        Other files are followed through their own imports, some files `further`.
        """
        led = self._led(imports, source, further)
        return _reach(led), tuple(led)

    def _led(self, imports: Mapping[str, str], source: Source, further: int) -> _Led:
        found: _Led = {}
        for bound, path in imports.items():
            for prefix, definition in self._used(bound, path, source):
                strong = self.is_strong(definition, further)
                excerpt = self.follow(definition, further) if strong else None
                if excerpt is not None and excerpt.is_eventful:
                    callees = _callees(prefix, bound, excerpt, source)
                    found[excerpt] = found.get(excerpt, _NONE) | callees
        return found

    def _used(self, bound: str, path: str, source: Source) -> Iterator[tuple[str, Definition]]:
        """What a file uses of an import; of a whole module, the members that are written out."""
        found = self.find(path, source.path)
        if found is None or not found.module.may_matter:
            return
        if found.name:
            yield "", found
            return
        members = source.members.get(bound, frozenset[str]())
        outline = found.module.outline
        for member in sorted(members & (outline.blocks.keys() | outline.imports.keys())):
            definition = self.find(f"{path}.{member}", source.path)
            if definition is not None and definition.name and not definition.attributes:
                yield ".", definition


def _reach(led: _Led) -> Reach:
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


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def joined(own: Relevance, excerpts: Iterable[Excerpt]) -> Relevance:
    """A file's slice with those of the excerpts that it leads to."""
    for excerpt in excerpts:
        own = own.joined(excerpt.relevance)
    return own


def _callees(
    prefix: str, bound: str, excerpt: Excerpt, source: Source
) -> frozenset[tuple[str, str]]:
    """What calls in `source` that lead into an excerpt look like from outside, and inside it."""
    name = excerpt.definition.name
    shown = name if prefix else bound
    led = {(prefix + shown, name)}
    classes = [c for c in (excerpt.statement, *excerpt.made) if isinstance(c, p.Class)]
    asked = _asked_of_objects(shown, source) if classes else frozenset[str]()
    for function in excerpt.made:
        if isinstance(function, p.Function):
            led.add((prefix + shown, key(function)))
    for cls in (c for made in classes for c in (made, *_bases(made, excerpt))):
        methods = (
            key(m) for m in cls.methods.values() if m.name not in _EVERYBODY_S or m.name in asked
        )
        led.update((method, method) for method in methods)
        if "__call__" in cls.methods:
            led.add((GIVEN, GIVEN))
    return frozenset(led)


def _asked_of_objects(made: str, source: Source) -> frozenset[str]:
    """The methods that a file calls of what it makes of a class, or of a class that derives from it."""
    heirs = source.heirs.get(made, frozenset())
    classes = {made, *heirs, *(("super",) if heirs else ())}
    receivers = {r for cls in classes for r in source.made.get(cls, ())}
    at_once = (source.asked.get(cls, frozenset[str]()) for cls in classes)
    later = (source.members.get(receiver, frozenset[str]()) for receiver in receivers)
    return frozenset[str]().union(*at_once, *later)


def _makes(function: p.Function) -> bool:
    """True for a function that returns what a call gave, or what goes by a name."""
    made = p.Call | p.Name | p.Choice | p.Item
    returned = (n.value for n in p.walk(function.body) if isinstance(n, p.Return))
    return any(isinstance(value, made) for value in returned)


def _overridden(program: Program, excerpts: Iterable[Excerpt]) -> Iterator[str]:
    """The methods of a program's classes that a base class in another file calls."""
    by_name = {e.definition.name: e.definition.calls for e in excerpts}
    for cls in program.classes.values():
        for base in cls.bases:
            yield from cls.methods.keys() & by_name.get(base.rpartition(".")[2], frozenset())


def _bases(cls: p.Class, excerpt: Excerpt) -> Iterator[p.Class]:
    """The base classes that stand in the same excerpt."""
    for statement in excerpt.body:
        if isinstance(statement, p.Class) and statement.name in cls.bases:
            yield statement


def _parts(definition: Definition) -> Iterator[p.Stmt]:
    """The statements of a definition and of what it leads to in its file, its own first."""
    module = definition.module
    for name in module.outline.closure(definition.name):
        part = module.part(name)
        if part is not None:
            yield part


def anything(_module: Module, _name: str) -> bool:
    return True


def _is_worth_knowing(module: Module, name: str) -> bool:
    return module.may_matter or _means_something(name)


def _may_be_strong(module: Module, name: str) -> bool:
    """False for a name that a module binds itself without calling anything that may change gradients."""
    return _is_worth_knowing(module, name) and (module.is_strong or name not in module.bound)


def _means_something(name: str) -> bool:
    """True for names that are worth an outline whatever their file's text says."""
    return names.is_steps(name) or names.is_data(name) or "model" in name.lower()


def _is_like_a_model(block: Block) -> bool:
    if any(name.endswith(_LIKE_A_MODEL) for name in block.names):
        return True
    # Its base class may stand in another file.
    body = block.tree.body if isinstance(block.tree, ast.ClassDef) else ()
    return any(isinstance(s, ast.FunctionDef) and s.name == "forward" for s in body)


def _speaks_of_losses(block: Block) -> bool:
    return any(_LOSS.search(name) or name in frameworks.LOSSES for name in block.names)


def _read(path: str) -> Module | None:
    try:
        return Module(path, decode(contents(path, _LONGEST)))
    except (OSError, UndecodableSource):
        return None
