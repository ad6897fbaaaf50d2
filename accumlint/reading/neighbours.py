"""What a file's training is made of elsewhere in its project: what it imports, and what imports it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from accumlint.files.regular import contents
from accumlint.reading.outline import used
from accumlint.reading.program import Program
from accumlint.reading.project import Definition, Module, Project, anything
from accumlint.reading.syntax import Source

# Larger projects are not searched for the files that import one: so many files, folders, bytes and words of imports.
_MOST_FILES, _MOST_FOLDERS, _MOST_BYTES, _MOST_WORDS = 2000, 500, 64 * 1024 * 1024, 300_000
# As much text is read of files that may import a file; those that come later, by their paths, are left.
_MOST_TEXT = 2 * 1024 * 1024
# Longer files are no callers of a loop.
_LARGEST = 256 * 1024
# How many definitions of other files are looked at.
_MOST_DEFINITIONS = 300
_IMPORTS = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+([^\n#]+)|import[ \t]+([^\n#]+))", re.MULTILINE
)
_MAIN = re.compile(r"^if __name__ == ", re.MULTILINE)
_WORD = re.compile(r"\w+")
# How settings of accumulation steps are called, and the key of the files that name them.
ACCUMULATING = re.compile(rb"accum\w*_(?:grad|step|iter|batch)|grad\w*_accum")
_STEPS = "accumulation steps"
_SKIPPED = (
    "node_modules",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "build",
    "venv",
    "tests",
    "test",
)


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
    return _indexed(path, project).get(_STEPS, ()) if os.path.isabs(path) else ()


def _indexed(path: str, project: Project) -> dict[str, list[str]]:
    top = project.imports.top(os.path.dirname(path))
    return project.memory.once(("index", top), lambda: _index(top), dict[str, list[str]]())


def _index(top: str) -> dict[str, list[str]]:
    """The files below a folder by the words of their imports, and those that name accumulation steps."""
    found: dict[str, list[str]] = {}
    size = count = 0
    for file in _files(top):
        if not file:
            return {}
        try:
            data = contents(file, _LARGEST, follow=False)
        except OSError:
            continue
        words = {
            word
            for match in _IMPORTS.finditer(data.decode("utf-8", "replace"))
            for part in match.groups()
            if part
            for word in _WORD.findall(part)
        }
        if ACCUMULATING.search(data):
            words.add(_STEPS)
        size += len(data)
        count += len(words)
        if size > _MOST_BYTES or count > _MOST_WORDS:
            return {}
        for word in words:
            found.setdefault(word, []).append(file)
    return found


def _files(top: str) -> Iterator[str]:
    """The files below a folder that may import others, "" where there are too many."""
    count = 0
    for number, (folder, folders, files) in enumerate(os.walk(top)):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
        names = [f for f in files if f.endswith(".py") and not f.startswith(("test_", "conftest"))]
        count += len(names)
        if number > _MOST_FOLDERS or count > _MOST_FILES:
            yield ""
            return
        yield from (os.path.join(folder, name) for name in sorted(names))
