"""What a file's training is made of elsewhere in its project: what it imports, and what imports it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from accumlint.files import import_index
from accumlint.reading.modules import Definition, Module, anything
from accumlint.reading.outline import used
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.reading.syntax import Source

# As much text is read of files that may import a file; those that come later, by their paths, are left.
_MOST_TEXT = 2 * 1024 * 1024
# How many definitions of other files are looked at.
_MOST_DEFINITIONS = 300
_MAIN = re.compile(r"^if __name__ == ", re.MULTILINE)


def neighbours(program: Program, project: Project) -> Iterator[tuple[Source, ast.AST]]:
    """The definitions of the project that a file leads to, two files away, then those of the files that import it."""
    seen: set[tuple[str, str]] = set()
    paths = used(program.source.tree, program.imports).union(program.imports.values())
    yield from _led_to(_imported(paths, program.path, project), seen, project, 2)
    if _MAIN.search(program.text):
        # A script is run, and its training is called from nowhere.
        return
    for module in importers(program.path, project):
        yield module.source, module.source.tree
        imports = project.imports_of(module)
        paths = used(module.source.tree, imports).union(imports.values())
        yield from _led_to(_imported(paths, module.path, project), seen, project, 1)


def _imported(paths: Iterable[str], importer: str, project: Project) -> list[Definition]:
    found = (project.find(path, importer, anything) for path in sorted(paths))
    return [d for d in found if d is not None]


def _led_to(
    definitions: list[Definition], seen: set[tuple[str, str]], project: Project, further: int
) -> Iterator[tuple[Source, ast.AST]]:
    beyond: list[Definition] = []
    for definition in definitions:
        module = definition.module
        for name in project.leads_to(definition):
            if (module.path, name) in seen or len(seen) > _MOST_DEFINITIONS:
                continue
            seen.add((module.path, name))
            block = module.outline.blocks[name]
            yield module.source, block.tree
            if further > 1:
                paths = used(block.tree, project.imports_of(module))
                beyond += _imported(paths, module.path, project)
    if beyond:
        yield from _led_to(beyond, seen, project, further - 1)


def importers(path: str, project: Project) -> Iterator[Module]:
    """The files of the project that import the file `path`, in the order of their paths; none in a large project."""
    if not os.path.isabs(path):
        return
    stem = os.path.basename(path).removesuffix(".py")
    if stem == "__init__":
        stem = os.path.basename(os.path.dirname(path))
    read = 0
    for file in _indexed(path, project).get(stem, ()):
        module = project.module(file) if file != path else None
        if module is None:
            continue
        read += len(module.text)
        if read > _MOST_TEXT:
            return
        for imported in (*module.outline.imports.values(), *module.outline.stars):
            located = project.imports.located(imported, file)
            if located is not None and located[0] == path:
                yield module
                break


def accumulating(path: str, project: Project) -> Sequence[str]:
    """The files of the project of `path` that name accumulation steps; none in a large project."""
    return _indexed(path, project).get(import_index.STEPS, ()) if os.path.isabs(path) else ()


def _indexed(path: str, project: Project) -> dict[str, list[str]]:
    top = project.imports.top(os.path.dirname(path))
    project.memory.met.add(import_index.marked(top))

    def made() -> dict[str, list[str]]:
        return import_index.index(top)

    return project.memory.once(("index", top), made, {})
