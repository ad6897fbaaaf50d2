"""Reads a Jupyter notebook, and finds where in its JSON each string of source is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from accumlint.diagnostics.results.report import Cell
from accumlint.files.notebook.cells import Code, Notebook, Piece
from accumlint.files.notebook.magic import plain
from accumlint.files.source import UndecodableSource, lines

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def read(data: bytes) -> Notebook | None:
    """The notebook in these bytes, None where it is written in another language than Python.

    Raises:
        UndecodableSource: when they are no notebook.
    """
    try:
        raw = data.decode("utf-8-sig")
        document: object = json.loads(raw)
    except UnicodeDecodeError:
        raise UndecodableSource("is no notebook: it is not UTF-8") from None
    except json.JSONDecodeError as problem:
        raise UndecodableSource(f"is no notebook: {problem.msg}", problem.lineno) from None
    except (RecursionError, ValueError):
        raise UndecodableSource("is no notebook: its JSON cannot be read") from None
    held = _object(document)
    cells = held.get("cells")
    if not isinstance(cells, list):
        old = "worksheets" in held
        why = (
            "its format is older than 4; `jupyter nbconvert` renews it"
            if old
            else "it has no cells"
        )
        raise UndecodableSource(f"is no notebook that can be read: {why}")
    if _language(held) not in ("python", "ipython"):
        return None
    return Notebook(raw, tuple(_codes(raw, cast("list[object]", cells))))


def _codes(raw: str, cells: Sequence[object]) -> Iterator[Code]:
    # Of a key that is written twice, the last one counts.
    start = dict(_members(raw, _skip(raw, 0))).get("cells", 0)
    first = 1
    for number, (cell, at) in enumerate(zip(cells, _items(raw, start), strict=True), 1):
        held = _object(cell)
        if held.get("cell_type") != "code":
            continue
        pieces, joint = _pieces(raw, held, at, number)
        text = "".join(piece.text for piece in pieces)
        try:
            text.encode()
        except UnicodeEncodeError:
            line = raw.count("\n", 0, at) + 1
            message = f"is no notebook: cell {number} holds half of a character"
            raise UndecodableSource(message, line) from None
        rows = lines(text)
        name = held.get("id")
        cell = Cell(number, name if isinstance(name, str) else "")
        python = plain(rows) if _is_python(held) else [""] * len(rows)
        yield Code(cell, pieces, joint, rows, python, first)
        first += len(rows) + 1


def _pieces(
    raw: str, cell: Mapping[str, object], at: int, number: int
) -> tuple[tuple[Piece, ...], str]:
    """The strings of a cell's source, and what stands between two of them."""
    source = cell.get("source")
    start = dict(_members(raw, at)).get("source", at)
    if isinstance(source, str):
        return (Piece(source, start + 1),), ""
    strings = cast("list[object]", source if isinstance(source, list) else [None])
    starts = list(_items(raw, start)) if isinstance(source, list) else [at]
    pieces: list[Piece] = []
    for string, start in zip(strings, starts, strict=True):
        if not isinstance(string, str):
            line = raw.count("\n", 0, start) + 1
            raise UndecodableSource(f"is no notebook: cell {number} has no source", line)
        pieces.append(Piece(string, start + 1))
    return tuple(pieces), _joint(raw, starts)


def _joint(raw: str, starts: Sequence[int]) -> str:
    """What stands in the file between two strings of a list, or would with a second one."""
    if len(starts) > 1:
        _, end = cast("tuple[object, int]", _DECODER.raw_decode(raw, starts[0]))
        return f'"{raw[end : starts[1]]}"'
    between = raw[raw.rindex("[", 0, starts[0]) + 1 : starts[0]] if starts else ""
    return f'",{between}"'


def _is_python(cell: Mapping[str, object]) -> bool:
    """False for a cell that an editor was told to be written in another language."""
    editor = _object(_object(cell.get("metadata")).get("vscode"))
    return editor.get("languageId", "python") == "python"


def _language(document: Mapping[str, object]) -> str:
    metadata = _object(document.get("metadata"))
    kernel, info = _object(metadata.get("kernelspec")), _object(metadata.get("language_info"))
    named = info.get("name") or kernel.get("language") or "python"
    return str(named).lower()


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value if isinstance(value, dict) else {})


def _members(raw: str, at: int) -> Iterator[tuple[str, int]]:
    """The keys of the object that starts at an offset of valid JSON, each with the offset of its value."""
    at = _skip(raw, at + 1)
    while raw[at] != "}":
        key, end = cast("tuple[str, int]", _DECODER.raw_decode(raw, at))
        value = _skip(raw, _skip(raw, end) + 1)
        yield key, value
        at = _next(raw, value)


def _items(raw: str, at: int) -> Iterator[int]:
    """The offsets of the values of the list that starts at an offset of valid JSON."""
    at = _skip(raw, at + 1)
    while raw[at] != "]":
        yield at
        at = _next(raw, at)


def _next(raw: str, at: int) -> int:
    """The offset behind a value and its comma."""
    end = _skip(raw, cast("tuple[object, int]", _DECODER.raw_decode(raw, at))[1])
    return _skip(raw, end + 1) if raw[end] == "," else end


def _skip(raw: str, at: int) -> int:
    match = _SPACE.match(raw, at)
    return match.end() if match else at
