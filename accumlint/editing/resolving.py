"""Works out the edits of a fix, or finds that it cannot be made with certainty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from accumlint.editing.edits import Edit, collide
from accumlint.editing.layout import Layout, Statement
from accumlint.editing.moving import passage
from accumlint.editing.naming import Names, in_reach, names_of, units
from accumlint.editing.verbs import (
    Append,
    Before,
    Delete,
    Guard,
    Import,
    Insert,
    Move,
    Replace,
    Verb,
    Where,
)


class _Uncertain(Exception):
    """Something about the place makes it unsure that the edit is right."""


def edits(verbs: Iterable[Verb], layout: Layout) -> tuple[Edit, ...]:
    """The edits that do all that the verbs say, in the order of the text; none where any of it is uncertain."""
    try:
        found = sorted(edit for verb in verbs for edit in _edits(verb, layout))
    except _Uncertain:
        return ()
    return () if collide(found) else tuple(found)


def _edits(verb: Verb, layout: Layout) -> Iterator[Edit]:
    match verb:
        case Insert(text=text, where=where):
            anchor = _statement(where.node.at, layout)
            if not in_reach(text, anchor, layout):
                raise _Uncertain
            yield _placed([text], anchor, where, layout)
        case Move():
            yield from _moved(verb, layout)
        case Guard(node=node, test=test):
            yield _guarded(_statement(node.at, layout), test, layout)
        case Delete(node=node):
            statement = _statement(node.at, layout)
            if len(layout.siblings(statement)) == 1 or names_of([statement]).writes:
                raise _Uncertain
            # What a comment above says may be about what follows, too.
            start = layout.line_of(layout.span(statement)[0])
            yield _removed(start, layout.lines(statement)[1], layout)
        case Replace(node=node, text=text):
            if not in_reach(text, node.at, layout):
                raise _Uncertain
            span = layout.parenthesised(node.at)
            if span is None:
                raise _Uncertain
            yield Edit(*span, text)
        case Append(node=node, text=text):
            yield _appended(node.at, text, layout)
        case Import(module=module, name=name):
            yield from _imported(module, name, layout)


def _statement(node: cst.CSTNode, layout: Layout) -> Statement:
    statement = layout.statement(node)
    if statement is None:
        raise _Uncertain
    return statement


def _moved(verb: Move, layout: Layout) -> Iterator[Edit]:
    statement = _statement(verb.node.at, layout)
    anchor = _statement(verb.where.node.at, layout)
    after = not isinstance(verb.where, Before)
    if statement is anchor:
        raise _Uncertain
    found = passage(layout, statement, anchor, after, verb.needs)
    if found is None:
        raise _Uncertain
    pieces = [_piece(moved, anchor, layout) for moved in found.moved]
    yield _placed(pieces, anchor, verb.where, layout)
    if found.emptied is not None:
        yield _removed(*layout.lines(found.emptied), layout)
        return
    for moved in found.moved:
        yield _removed(*layout.lines(moved), layout)


def _guarded(statement: Statement, test: str, layout: Layout) -> Edit:
    """A statement under a guard of its own, unless what it binds is asked for elsewhere."""
    scope = layout.scope(statement)
    others = (
        names_of(parts)
        for node, parts in units(scope.body if isinstance(scope, cst.FunctionDef) else scope)
        if node is not statement
    )
    bound = Names(writes=names_of([statement]).writes)
    several_lines = "\n" in layout.code(statement) and _has_text_over_lines(statement, layout)
    if several_lines or not in_reach(test, statement, layout) or any(map(bound.disturbs, others)):
        raise _Uncertain
    start, end = layout.line_of(layout.span(statement)[0]), layout.lines(statement)[1]
    indentation, newline = layout.indentation(statement), layout.newline(start)
    deeper = layout.program.module.default_indent
    lines = layout.text[start:end].splitlines(keepends=True)
    body = "".join(deeper + line if line.strip() else line for line in lines)
    return Edit(start, end, f"{indentation}if {test}:{newline}{body}")


def _piece(statement: Statement, anchor: Statement, layout: Layout) -> str:
    """A statement's lines without its indentation, ready for another one."""
    start, end = layout.lines(statement)
    indentation = layout.indentation(statement)
    if indentation != layout.indentation(anchor) and _has_text_over_lines(statement, layout):
        raise _Uncertain
    lines = layout.text[start:end].splitlines()
    return "\n".join(line.removeprefix(indentation) for line in lines)


def _has_text_over_lines(statement: Statement, layout: Layout) -> bool:
    waiting: list[cst.CSTNode] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, cst.SimpleString | cst.FormattedString):
            if "\n" in layout.code(node) or "\r" in layout.code(node):
                return True
        waiting.extend(node.children)
    return False


def _placed(pieces: list[str], anchor: Statement, where: Where, layout: Layout) -> Edit:
    """Statements as lines of their own before or after another one."""
    start, end = layout.lines(anchor)
    indentation = layout.indentation(anchor)
    newline = layout.newline(layout.span(anchor)[0])
    lines = [
        indentation + line if line.strip() else line
        for piece in pieces
        for line in piece.split("\n")
    ]
    if isinstance(where, Before):
        return Edit(start, start, "".join(line + newline for line in lines))
    if end == len(layout.text) and not layout.text.endswith(("\n", "\r")):
        return Edit(end, end, "".join(newline + line for line in lines))
    return Edit(end, end, "".join(line + newline for line in lines))


def _removed(start: int, end: int, layout: Layout) -> Edit:
    """Lines taken away, with the empty line after them where one in front of them stays or a block begins."""
    opens = start == 0 or layout.is_blank(start - 1) or layout.text[:start].rstrip().endswith(":")
    if opens and layout.is_blank(end):
        end = layout.line_end(end)
    return Edit(start, end, "")


def _appended(node: cst.CSTNode, text: str, layout: Layout) -> Edit:
    span = layout.parenthesised(node)
    if span is None:
        raise _Uncertain
    code = layout.text[slice(*span)]
    if not isinstance(node, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
        code = code if code.startswith("(") else f"({code})"
    return Edit(*span, code + text)


def _imported(module: str, name: str, layout: Layout) -> Iterator[Edit]:
    if layout.program.imports.get(name) == f"{module}.{name}":
        return
    if name in layout.program.imports:
        raise _Uncertain
    text = f"from {module} import {name}"
    body = layout.program.module.body
    imports = [
        s
        for s in body
        if isinstance(s, cst.SimpleStatementLine)
        and isinstance(s.body[0], cst.Import | cst.ImportFrom)
    ]
    plain = [s for s in imports if not _is_future(s)]
    if plain:
        start, _ = layout.lines(plain[0])
        newline = layout.newline(start)
        yield Edit(start, start, text + newline)
    elif imports:
        _, end = layout.lines(imports[-1])
        newline = layout.newline(end - 1)
        yield Edit(end, end, newline + text + newline)
    else:
        raise _Uncertain


def _is_future(statement: cst.SimpleStatementLine) -> bool:
    first = statement.body[0]
    return (
        isinstance(first, cst.ImportFrom)
        and isinstance(first.module, cst.Name)
        and first.module.value == "__future__"
    )
