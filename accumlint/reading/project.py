"""The project around the files that are checked: what an imported name stands for, read when it is asked for.

Of another file only those definitions are read that a name leads to, and only where their words tell that they may
touch a gradient or make something that does. All of it is kept for the run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator, Mapping

from accumlint.reading import frameworks
from accumlint.reading import ir as p
from accumlint.reading.excerpts import Excerpt, Led, callees, joined, overridden, reach_of
from accumlint.reading.gradient_slice import NOWHERE, Reach, Relevance, key, relevance
from accumlint.reading.modules import (
    STRONG,
    Definition,
    Module,
    Modules,
    Worth,
    anything,
    is_worth_knowing,
)
from accumlint.reading.outline import Block
from accumlint.reading.program import Program
from accumlint.reading.syntax import Source

# What a statement or expression of an excerpt costs.
_COST_OF_NODE = 10
# How many files away from the checked one something is still looked for.
_FARTHEST = 2
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
# What a model's base class is called in the end: `nn.Module`, `BertPreTrainedModel`.
_LIKE_A_MODEL = ("Module", "PreTrainedModel", "ModelMixin")
_NONE: frozenset[tuple[str, str]] = frozenset()
_LOSS = re.compile("loss", re.IGNORECASE)


class Project(Modules):
    """Everything that was read around the files of one run."""

    def imported(self, program: Program, name: str) -> tuple[p.Stmt, ...]:
        """What another file defines under a name that a program imports, with what it leads to there."""
        path = program.imports.get(name)
        definition = self.find(path, program.path, anything) if path else None
        return tuple(definition.statements) if definition is not None and definition.name else ()

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
        calls = definition.module.is_strong and definition.calls & STRONG
        if calls or definition.reduces_gradients:
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
        body = tuple(definition.statements)
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
            led = self._led(imports, module.source, further - 1)
            reach, beyond = reach_of(led), tuple(led)
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
        wanted = frozenset(overridden(program, led))
        own = relevance(program.body, reach_of(led), wanted, driven)
        filled = {self._filled(excerpt, program, own): shown for excerpt, shown in led.items()}
        if filled.keys() == led.keys():
            return own, tuple(led)
        for excerpt in filled:
            filled[excerpt] |= callees("", excerpt.definition.name, excerpt, program.source)
        return relevance(program.body, reach_of(filled), wanted, driven), tuple(filled)

    def _filled(self, excerpt: Excerpt, program: Program, own: Relevance) -> Excerpt:
        """A base class with what a program's subclass fills in, where that goes backward and the base does not."""
        name = excerpt.definition.name
        for heir in program.classes.values():
            methods = frozenset(map(key, heir.methods.values()))
            backward = methods & own.reaching_backward - excerpt.relevance.reaching_backward
            inherits = name in (base.rpartition(".")[2] for base in heir.bases)
            called = heir.methods.keys() & excerpt.definition.calls
            if not (inherits and backward and called):
                continue
            given = Reach(
                methods & own.reaching, methods & own.reaching_strong,
                methods & own.reaching_backward, methods & own.reaching_step,
            )  # fmt: skip
            return self._excerpt(excerpt.definition, _FARTHEST - 1, given) or excerpt
        return excerpt

    def _led(self, imports: Mapping[str, str], source: Source, further: int) -> Led:
        """Where the imports of a file lead to that holds an event; other files are followed some files `further`."""
        found: Led = {}
        for bound, path in imports.items():
            for prefix, definition in self._used(bound, path, source):
                strong = self.is_strong(definition, further)
                excerpt = self.follow(definition, further) if strong else None
                if excerpt is not None and excerpt.is_eventful:
                    shown = callees(prefix, bound, excerpt, source)
                    found[excerpt] = found.get(excerpt, _NONE) | shown
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


def _may_be_strong(module: Module, name: str) -> bool:
    """False for a name that a module binds itself without calling anything that may change gradients."""
    return is_worth_knowing(module, name) and (module.is_strong or name not in module.bound)


def _is_like_a_model(block: Block) -> bool:
    if any(name.endswith(_LIKE_A_MODEL) for name in block.names):
        return True
    # Its base class may stand in another file.
    body = block.tree.body if isinstance(block.tree, ast.ClassDef) else ()
    return any(isinstance(s, ast.FunctionDef) and s.name == "forward" for s in body)


def _speaks_of_losses(block: Block) -> bool:
    return any(_LOSS.search(name) or name in frameworks.LOSSES for name in block.names)
