"""The part of a file that its edits may depend on: libcst takes a hundred times as long for a line as Python does."""

from __future__ import annotations

from collections.abc import Iterable

from accumlint.files.source import line_ends, line_starts
from accumlint.reading.ir import Node
from accumlint.reading.pruning import first_line, functions
from accumlint.reading.syntax import Source


def excerpt(source: Source, nodes: Iterable[Node]) -> str:
    """The text with empty bodies for the functions in which none of the nodes stands, each line in its place.

    It is the whole text when a node stands outside of functions: what any of them names may matter there.
    """
    wanted = {source.place(node.at).line for node in nodes if source.holds(node.at)}
    listed = {
        f: range(first_line(f), (f.end_lineno or f.lineno) + 1) for f in functions(source.tree.body)
    }
    held = {line for lines in listed.values() for line in wanted if line in lines}
    if held != wanted:
        return source.text
    starts = [*line_starts(source.text), len(source.text)]
    parts: list[str] = []
    done = 0
    for function, lines in listed.items():
        first = first_line(function.body[0])
        indentation = source.lines[first - 1][: function.body[0].col_offset]
        # A body may begin on the line on which the function's head ends.
        if indentation.strip() or any(line in lines for line in wanted):
            continue
        start, end = starts[first - 1], starts[lines[-1]]
        parts += (source.text[done:start], indentation, "...", line_ends(source.text[start:end]))
        done = end
    return "".join([*parts, source.text[done:]])
