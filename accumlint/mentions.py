"""Lists the rules that ignore comments name, for the rules about them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from accumlint import packs
from accumlint.rule import Mention
from accumlint.suppress import Ignore, Match, Suppressions


def in_comments(
    suppressions: Suppressions, silenced: Mapping[Match, int] | None, unmeasured: Collection[str]
) -> Iterator[Mention]:
    """A mention for each rule of each list, and for each ignore without one.

    `silenced` counts the findings that each silences; it is None where not everything was found that there is. Rules
    that are `unmeasured`, by code or name in lower case, are never counted.
    """

    def mention(ignore: Ignore, text: str, at: Match) -> Mention:
        counted = silenced is not None and text.lower() not in unmeasured
        place = at.word.place if at.word else ignore.place
        silences = silenced.get(at, 0) if silenced is not None and counted else None
        return Mention(text, place, silences=silences)

    for ignore in suppressions.ignores:
        if ignore.misplaced:
            yield Mention(ignore.text, ignore.place, silences=0, misplaced=True)
        elif ignore.words:
            for word in ignore.words:
                if packs.knows(word.text):
                    yield mention(ignore, word.text, Match(ignore, word))
                elif not ignore.noqa or packs.may_be_ours(word.text):
                    yield Mention(word.text, word.place, known=False, hint=_hint(word.text))
        elif not ignore.noqa:
            yield mention(ignore, ignore.text, Match(ignore, None))


def _hint(word: str) -> str:
    return (
        "an ignore takes whole codes and names"
        if packs.is_selector(word)
        else packs.suggestion(word)
    )
