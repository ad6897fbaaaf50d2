"""Lists the rules that ignore comments and settings name, for the rules about that."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from accumlint.common.place import Place
from accumlint.diagnostics.suppression import Ignore, Match, Suppressions, Word
from accumlint.registry import packs
from accumlint.rule import Mention

# Each is told with its row: so many more on one row, or in one file of settings, would be told on pages over pages.
_MOST = 100


def in_comments(
    suppressions: Suppressions,
    silenced: Mapping[Match, int] | None,
    unmeasured: Collection[str],
    rows: Sequence[str],
) -> Iterator[Mention]:
    """A mention for each rule of each list, and for each ignore without one; `rows` are the lines of the program.

    `silenced` counts the findings that each silences; it is None where not everything was found that there is. Rules
    that are `unmeasured`, by code or name in lower case, are never counted. Of a row that holds very many, the first
    are mentioned.
    """

    def removal(ignore: Ignore, word: Word | None) -> Place:
        line = ignore.place.line
        return ignore.removal(word, rows[line - 1], is_last=line == len(rows))

    def mention(ignore: Ignore, text: str, at: Match) -> Mention:
        counted = silenced is not None and text.lower() not in unmeasured
        place = at.word.place if at.word else ignore.place
        silences = silenced.get(at, 0) if silenced is not None and counted else None
        return Mention(text, place, silences=silences, removal=removal(ignore, at.word))

    on_row: Counter[int] = Counter()
    for ignore in suppressions.ignores:
        row = ignore.place.line
        words = (ignore.words or ())[: max(0, _MOST - on_row[row])]
        on_row[row] += max(1, len(words))
        if on_row[row] > _MOST:
            continue
        if ignore.misplaced:
            out = removal(ignore, None)
            yield Mention(ignore.text, ignore.place, silences=0, misplaced=True, removal=out)
        elif ignore.words:
            for word in words:
                if packs.knows(word.text):
                    yield mention(ignore, word.text, Match(ignore, word))
                elif not ignore.noqa or packs.may_be_ours(word.text):
                    yield _unknown(word, removal(ignore, word))
        elif not ignore.noqa:
            yield mention(ignore, ignore.text, Match(ignore, None))


def _unknown(word: Word, removal: Place) -> Mention:
    if packs.is_selector(word.text):
        hint, meant = "an ignore takes whole codes and names", ""
    else:
        hint, meant = packs.suggestion(word.text), packs.meant(word.text)
    return Mention(word.text, word.place, known=False, hint=hint, meant=meant, removal=removal)


def in_settings(rows: Sequence[str], selectors: Iterable[str]) -> Iterator[Mention]:
    """A mention for each selector that names no rule, where the lines of a settings file first hold it.

    Of very many, the first are mentioned.
    """
    unknown = (word for word in dict.fromkeys(selectors) if not packs.is_selector(word))
    for selector in islice(unknown, _MOST):
        if place := _place(rows, selector):
            yield Mention(selector, place, known=False, hint=packs.suggestion(selector))


def _place(rows: Sequence[str], selector: str) -> Place | None:
    """Where settings hold a selector: in quotes, or as a key."""
    word = re.compile(
        rf"""(?<![\w-])(?:(["']){re.escape(selector)}\1|{re.escape(selector)}(?=\s*=))"""
    )
    for row, line in enumerate(rows, 1):
        if not line.lstrip().startswith("#") and (match := word.search(line)):
            start = match.start() + (1 if match[1] else 0)
            return Place(row, start + 1, row, start + len(selector) + 1)
    return None
