"""The files of the project around those that are checked, and what an imported name stands for in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
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
from accumlint.reading.imports import Imports
from accumlint.reading.lowering import lowered
from accumlint.reading.outline import Block, Outline, outline
from accumlint.reading.syntax import Source

_LONGEST = 1024 * 1024
# What looking at a file of the project costs beside its words and signs, and a name that a definition leads to.
_COST_OF_FILE, _COST_OF_NAME = 300, 2
# In so many places it is looked for what an import stands for, faces and star imports included.
_MOST_LOOKS = 100
# Calls whose presence says that a definition may change gradients, or how they are reduced.
STRONG = (
    frameworks.STRONG
    - {"accumulate", "Accelerator", "Fabric"}
    - frozenset(frameworks.WRAPPERS)
    - frameworks.SCALERS
    - frameworks.NATIVE_SCALERS
)
# One of them stands in every file that holds any of the words above.
_HINTS = (
    "oss", "ptim", "backward", "step", "grad", "no_sync", "Loader", "Scaler", "cale", "Accelerator", "Fabric",
    "Parallel", "FSDP", "DDP", "entropy", "LR", "def forward",
)  # fmt: skip
_BOUND = re.compile(r"^(?:(?:(?:async )?def|class) (\w+)|(\w+) *(?::|=(?!=)))", re.MULTILINE)
_IN_FUNCTION = re.compile(r"^[ \t]+from [\w.]+ import [A-Z]", re.MULTILINE)

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
        present = (word for word in STRONG if word in self.text)
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
    def statements(self) -> Iterator[p.Stmt]:
        """The statements of it and of what it leads to in its file, its own first."""
        parts = map(self.module.part, self.module.outline.closure(self.name))
        return (part for part in parts if part is not None)

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


class Modules:
    """What was read of a project's files in one run."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory(refusing=True)
        self.imports = Imports(self.memory)

    def module(self, path: str) -> Module | None:
        """A file of the project, None where it cannot be read."""
        self.memory.read.add(path)
        return self.memory.once(("module", path), lambda: self._read(path), None)

    def _read(self, path: str) -> Module | None:
        if not self.memory.afford(path, "file", _COST_OF_FILE):
            return None
        try:
            module = Module(path, decode(contents(path, _LONGEST)))
        except (OSError, UndecodableSource):
            return None
        return module if self._affords(module) else None

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
        found = worth or is_worth_knowing
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
            if not module.binds(name):
                # The first that has the name gives it, as its own or as one that it imports.
                giving = (m for m in self._starred_by(module) if worth(m, name) and m.binds(name))
                module = next(giving, None)
            if module is not None and name in module.outline.blocks:
                return Definition(module, name, tuple(attributes))
            if module is not None:
                waiting.append((".".join([module.outline.imports[name], *attributes]), module.path))
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


def anything(_module: Module, _name: str) -> bool:
    return True


def is_worth_knowing(module: Module, name: str) -> bool:
    """True for names that are worth an outline whatever their file's text says, and for all where that may matter."""
    telling = names.is_steps(name) or names.is_data(name) or "model" in name.lower()
    return telling or module.may_matter
