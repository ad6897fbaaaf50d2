"""Works out the edits of a fix, or finds that it cannot be made with certainty."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import libcst as cst
from libcst import helpers

from accumlint.editing.edits import Edit, collide
from accumlint.editing.layout import Layout, Statement
from accumlint.editing.name_bindings import Names, in_reach, names_of, units
from accumlint.editing.operations import (
    After,
    Append,
    Before,
    Delete,
    DropArgument,
    Enclose,
    Guard,
    Import,
    Insert,
    Move,
    Rename,
    Replace,
    Sink,
    Verb,
)
from accumlint.editing.statement_moves import passage
from accumlint.reading.ir import Node


class _Uncertain(Exception):
    """Something about the place makes it unsure that the edit is right."""


def edits(verbs: Iterable[Verb], layout: Layout) -> tuple[Edit, ...]:
    """The edits that do all that the verbs say, in the order of the text; none where any of it is uncertain."""
    listed = list(verbs)
    made = frozenset(name for verb in listed for name in _made(verb))
    try:
        found = sorted(edit for verb in listed for edit in _edits(verb, made, layout))
    except (_Uncertain, cst.ParserSyntaxError):
        return ()
    return () if collide(found) else tuple(found)


def _made(verb: Verb) -> frozenset[str]:
    """The names that a verb brings into reach of the others."""
    match verb:
        case Insert(text=text):
            return names_of([cst.parse_module(text)]).writes
        case Rename(name=name) | Import(name=name):
            return frozenset([name])
        case _:
            return frozenset()


def _edits(verb: Verb, made: frozenset[str], layout: Layout) -> Iterator[Edit]:
    match verb:
        case Insert(text=text, where=where):
            anchor = _statement(where.node, layout)
            if not in_reach(text, anchor, layout, made) or _is_asked_for(text, anchor, layout):
                raise _Uncertain
            yield _placed([text], anchor, type(where), layout)
        case Move():
            yield from _moved(verb, layout)
        case Sink(node=node, loop=loop):
            yield from _sunk(_statement(node, layout), _statement(loop, layout), layout)
        case DropArgument(call=call, keyword=keyword):
            yield _without_argument(_found(call, layout), keyword, layout)
        case Guard(node=node, test=test):
            yield from _guarded(_statement(node, layout), test, layout)
        case Enclose(first=first, last=last, header=header):
            ends = _statement(first, layout), _statement(last, layout)
            yield from _enclosed(*ends, header, made, layout)
        case Rename(node=node, name=name):
            yield _renamed(_found(node, layout), name, layout)
        case Delete(node=node, bound=bound):
            statement = _statement(node, layout)
            if len(layout.siblings(statement)) == 1 or (names_of([statement]).writes and not bound):
                raise _Uncertain
            # What a comment above says may be about what follows, too.
            start = layout.line_of(layout.span(statement)[0])
            yield _removed(start, layout.lines(statement)[1], layout)
        case Replace(node=node, text=text):
            replaced = _found(node, layout)
            if not in_reach(text, replaced, layout, made):
                raise _Uncertain
            span = layout.parenthesised(replaced)
            if span is None:
                raise _Uncertain
            yield Edit(*span, text)
        case Append(node=node, text=text):
            yield _appended(_found(node, layout), text, layout)
        case Import(module=module, name=name):
            yield from _imported(module, name, layout)


def _found(node: Node, layout: Layout) -> cst.CSTNode:
    found = layout.node(node)
    if found is None:
        raise _Uncertain
    return found


def _statement(node: Node, layout: Layout) -> Statement:
    return _alone(_found(node, layout), layout)


def _alone(node: cst.CSTNode, layout: Layout) -> Statement:
    """The statement that holds a node, on lines of its own."""
    statement = layout.statement(node)
    if statement is None:
        raise _Uncertain
    return statement


def _moved(verb: Move, layout: Layout) -> Iterator[Edit]:
    statement = _statement(verb.node, layout)
    anchor = _statement(verb.where.node, layout)
    after = not isinstance(verb.where, Before)
    if statement is anchor:
        raise _Uncertain
    found = passage(layout, statement, anchor, after, verb.along)
    if found is None:
        raise _Uncertain
    pieces = [_piece(moved, anchor, layout) for moved in found.moved]
    placed = _placed(pieces, anchor, type(verb.where), layout)
    gone = [found.emptied] if found.emptied is not None else found.moved
    for removed in (_removed(*layout.lines(statement), layout) for statement in gone):
        if removed.start == placed.start:
            placed = Edit(removed.start, removed.end, placed.content)
        else:
            yield removed
    yield placed


def _is_asked_for(text: str, anchor: Statement, layout: Layout) -> bool:
    """True when something after a place, on the same pass through the loop, reads what a new statement there binds."""
    bound = Names(writes=names_of([cst.parse_module(text)]).writes)
    if not bound.writes:
        return False
    around = [n for n in layout.above(anchor) if isinstance(n, cst.For | cst.While)]
    within = around[0].body if around else layout.scope(anchor)
    place = layout.span(anchor)[1]
    return any(
        bound.disturbs(Names(reads=names_of(parts).reads))
        for node, parts in units(within)
        if layout.span(node)[0] >= place
    )


def _sunk(statement: Statement, loop: Statement, layout: Layout) -> Iterator[Edit]:
    siblings = list(layout.siblings(statement))
    if not isinstance(loop, cst.For | cst.While) or not isinstance(loop.body, cst.IndentedBlock):
        raise _Uncertain
    if loop not in siblings or siblings.index(loop) < siblings.index(statement):
        raise _Uncertain
    names = names_of([statement])
    inside = {node for node, _ in units(loop.body)}
    for node, parts in _around(statement, layout):
        other = names_of(parts)
        # Its own value may not change with the loop, and nobody outside may ask for what is bound.
        asked = node not in inside and node is not statement and names.disturbs(other)
        if asked or (node in inside and Names(writes=other.writes).disturbs(Names(names.reads))):
            raise _Uncertain
    first = _alone(loop.body.body[0], layout)
    yield _placed([_piece(statement, first, layout)], first, Before, layout)
    yield _removed(*layout.lines(statement), layout)


def _without_argument(node: cst.CSTNode, keyword: str, layout: Layout) -> Edit:
    if not isinstance(node, cst.Call):
        raise _Uncertain
    kept = [arg for arg in node.args if arg.keyword is None or arg.keyword.value != keyword]
    if len(kept) != len(node.args) - 1:
        raise _Uncertain
    if kept:
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    bare = node.with_changes(args=kept, lpar=(), rpar=())
    start, end = layout.span(node)
    return Edit(start, end, layout.module.code_for_node(bare))


def _guarded(statement: Statement, test: str, layout: Layout) -> Iterator[Edit]:
    """A statement under a guard of its own, unless what it binds is asked for elsewhere."""
    others = (
        names_of(parts) for node, parts in _around(statement, layout) if node is not statement
    )
    bound = Names(writes=names_of([statement]).writes)
    if any(map(bound.disturbs, others)):
        raise _Uncertain
    return _enclosed(statement, statement, f"if {test}:", frozenset(), layout)


def _enclosed(
    first: Statement, last: Statement, header: str, made: frozenset[str], layout: Layout
) -> Iterator[Edit]:
    """Statements of one block under a header."""
    siblings = list(layout.siblings(first))
    if last not in siblings or siblings.index(last) < siblings.index(first):
        # What stands deeper is enclosed with what holds it.
        owner = layout.owner(last)
        if owner is None:
            raise _Uncertain
        return _enclosed(first, owner, header, made, layout)
    held = siblings[siblings.index(first) : siblings.index(last) + 1]
    texts = any(_has_text_over_lines(s, layout) for s in held)
    if texts or not in_reach(f"{header} pass", first, layout, made):
        raise _Uncertain
    line, end = layout.line_of(layout.span(first)[0]), layout.lines(last)[1]
    deeper = layout.module.default_indent
    yield Edit(line, line, layout.indentation(first) + header + layout.newline(line) + deeper)
    while (line := layout.line_end(line)) < end:
        if not layout.is_blank(line):
            yield Edit(line, line, deeper)


def _renamed(node: cst.CSTNode, name: str, layout: Layout) -> Edit:
    old = layout.code(node)
    scope = layout.scope(node)
    everything = [names_of(parts) for _, parts in units(scope)]
    used = frozenset[str]().union(*(n.reads | n.writes for n in everything))
    read = sum(old in n.reads for n in everything)
    # A loop's target counts as read where it is bound.
    if name in used or read > 1:
        raise _Uncertain
    return Edit(*layout.span(node), name)


def _around(
    statement: Statement, layout: Layout
) -> Iterator[tuple[cst.CSTNode, tuple[cst.CSTNode, ...]]]:
    """The statements of the function or module that a statement stands in, each with what it evaluates itself."""
    scope = layout.scope(statement)
    return units(scope.body if isinstance(scope, cst.FunctionDef) else scope)


def _piece(statement: Statement, anchor: Statement, layout: Layout) -> str:
    """A statement's lines without its indentation, ready for another one."""
    start, end = layout.lines(statement)
    indentation = layout.indentation(statement)
    if indentation != layout.indentation(anchor) and _has_text_over_lines(statement, layout):
        raise _Uncertain
    lines = layout.text[start:end].splitlines()
    return "\n".join(line.removeprefix(indentation) for line in lines)


def _has_text_over_lines(statement: cst.CSTNode, layout: Layout) -> bool:
    waiting: list[cst.CSTNode] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, cst.SimpleString | cst.FormattedString):
            if "\n" in layout.code(node) or "\r" in layout.code(node):
                return True
        waiting.extend(node.children)
    return False


def _placed(
    pieces: list[str], anchor: Statement, where: type[Before] | type[After], layout: Layout
) -> Edit:
    """Statements as lines of their own before or after another one."""
    start, end = layout.lines(anchor)
    indentation = layout.indentation(anchor)
    newline = layout.newline(layout.span(anchor)[0])
    lines = [
        indentation + line if line.strip() else line
        for piece in pieces
        for line in piece.split("\n")
    ]
    if where is Before:
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
    found = [s for s in layout.module.body if _origin(s) not in ("", "__future__")]
    if name in layout.program.imports or not found:
        raise _Uncertain
    text = f"from {module} import {name}"
    own = [s for s in found if _origin(s).partition(".")[0] in sys.stdlib_module_names]
    if not own:
        start, _ = layout.lines(_alone(found[0], layout))
        newline = layout.newline(start)
        yield Edit(start, start, text + 2 * newline)
        return
    later = [s for s in own if not _is_plain(s) and _origin(s) > module]
    anchor = _alone(later[0] if later else own[-1], layout)
    yield _placed([text], anchor, Before if later else After, layout)


def _origin(statement: cst.CSTNode) -> str:
    """The module that a statement imports, or imports from; "" for any other statement."""
    match statement:
        case cst.SimpleStatementLine(body=[cst.ImportFrom(module=module, relative=())]) if module:
            return helpers.get_full_name_for_node(module) or ""
        case cst.SimpleStatementLine(body=[cst.Import(names=[alias, *_])]):
            return alias.evaluated_name
        case _:
            return ""


def _is_plain(statement: cst.CSTNode) -> bool:
    """True for `import module`."""
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], cst.Import
    )
