"""What a file tells of the rows of its data where nothing else of its project is here."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from accumlint.files.source import nodes
from accumlint.reading.frameworks import TRAINER_SWITCHES
from accumlint.reading.targets import Evidence, Kind

if TYPE_CHECKING:
    from accumlint.reading.syntax import Source

# Libraries of models whose rows are texts.
_OF_TEXT = frozenset({"transformers", "pytorch_transformers", "pytorch_pretrained_bert"})
# Evidence that the code of the data is here.
_OF_DATA = {"padded labels", "collator", "truncated", "chat", "padded"}


def of_text(source: Source, found: Iterable[Evidence]) -> Iterator[Evidence]:
    """What a file that stands alone tells by the libraries that it imports, where nothing in it tells otherwise.

    Whoever says that a loss takes no count has thought of it.
    """
    if any(e.row.kind is Kind.EQUAL or e.key in _OF_DATA for e in found):
        return
    imports: list[Evidence] = []
    for node in nodes(source.tree):
        match node:
            case (
                ast.ImportFrom(module=str(name), level=0)
                | ast.Import(names=[ast.alias(name=name), *_])
            ) if name.partition(".")[0] in _OF_TEXT:
                imports.append(Evidence("text", node, source, is_local=True))
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in TRAINER_SWITCHES:
                return
            case _:
                pass
    yield from imports[:1]
