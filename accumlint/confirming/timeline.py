"""A pass as a score: micro-batches from left to right, what became of each, and what was called when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from accumlint.confirming.fates import Fate, fates, holding, ranges, stepped
from accumlint.confirming.markup import Markup, element, picture
from accumlint.confirming.result import Moment, Pass, Update

_LANES = ("backward", "reduce", "unscale", "clip", "step", "update", "clear", "schedule")
_HIDDEN = ("fetch", "epoch")
# A slot holds one call; few calls take more room than many.
_MARGIN, _SLOT, _WIDEST_SLOT, _ROOM = 84, 16, 26, 960
_BRACKET, _TILE, _STAIRS, _LANE, _GAP = 22, 44, 46, 20, 12
# The height of a full window within the stairs.
_STAIR = 32
_LETTER = 6.2
# A longer pass is drawn up to here.
MOST = 48
_CAPTIONS = {Fate.AGAIN: "again", Fate.LOST: "lost", Fate.LEFT: "left", Fate.SKIPPED: "skipped"}
_CLASSES = {
    Fate.APPLIED: "applied",
    Fate.AGAIN: "again",
    Fate.LOST: "lost",
    Fate.LEFT: "lost",
    Fate.SKIPPED: "open",
    Fate.OPEN: "open",
}


@dataclass(frozen=True)
class _Beat:
    """A moment in its place; `wipes` are the micro-batches that it clears before any step."""

    moment: Moment
    x: float
    held: int
    wipes: tuple[int, ...]


@dataclass(frozen=True)
class _Span:
    """A micro-batch in its place."""

    number: int
    left: float
    right: float


@dataclass(frozen=True)
class _Score:
    """A pass laid out from left to right."""

    done: Pass
    beats: tuple[_Beat, ...]
    spans: tuple[_Span, ...]
    fates: dict[int, Fate]
    steps: dict[int, tuple[int, ...]]
    replayed: bool

    @property
    def right(self) -> float:
        return self.spans[-1].right if self.spans else _MARGIN

    @property
    def lanes(self) -> list[str]:
        kinds = {beat.moment.kind for beat in self.beats}
        return sorted(kinds, key=lambda kind: (_LANES.index(kind) if kind in _LANES else 99, kind))

    @property
    def optimizers(self) -> list[str]:
        return list(dict.fromkeys(update.optimizer for update in self.done.updates)) or [""]


def timeline(done: Pass, flagged: int, name: str) -> Markup:
    """The picture of a pass; `flagged` is the finding's line (0 for none), `name` begins its ids."""
    score = _score(done)
    parts: list[Markup] = []
    y = 0.0
    for draw, height in (
        (_brackets, _BRACKET * len(score.optimizers)),
        (_tiles, _TILE),
        (_stairs, _STAIRS + _GAP if score.replayed else 0),
    ):
        parts.extend(draw(score, y))
        y += height
    parts.extend(_lanes(score, y, flagged))
    y += _LANE * len(score.lanes)
    parts.extend(_edges(score, y))
    told = f"{len(score.spans)} micro-batches from left to right, with what was called in each."
    return picture(parts, score.right + _GAP, y + 6, name, "Timeline of the micro-batches", told)


def happenings(done: Pass) -> list[tuple[str, str, str]]:
    """The timeline in words: of each micro-batch its number, its fate, and what was called at which lines."""
    told = fates(done)
    rows: dict[int, list[str]] = {number: [] for number in told}
    for moment in done.moments:
        if moment.kind not in _HIDDEN:
            line = f" ({moment.line})" if moment.line else ""
            rows.setdefault(moment.microbatch, []).append(f"{moment.kind}{line}")
    return [
        (str(number), told[number].value if number in told else "", ", ".join(rows[number]))
        for number in sorted(rows)
    ]


def _score(done: Pass) -> _Score:
    told = fates(done)
    replayed = holding(done)
    applied: set[int] = set()
    beats: list[_Beat] = []
    spans: list[_Span] = []
    x = float(_MARGIN)
    before: tuple[int, ...] = ()
    measures = _measures(done, sorted(told))
    slots = sum(max(len(inside), 2) for _, inside in measures)
    step = min(max((_ROOM - _MARGIN) / max(slots, 1), _SLOT), _WIDEST_SLOT)
    for number, inside in measures:
        width = step * max(len(inside), 2) + 4
        slot = x + (width - step * (len(inside) - 1)) / 2
        for index, moment in inside:
            after = replayed.after[index] if replayed else ()
            if moment.kind == "step":
                applied.update(before)
            gone = [m for m in before if m not in applied] if moment.kind == "clear" else []
            wipes = tuple(m for m in gone if told.get(m) is Fate.LOST)
            beats.append(_Beat(moment, slot, len(after), wipes))
            before = after
            slot += step
        spans.append(_Span(number, x, x + width))
        x += width
    return _Score(done, tuple(beats), tuple(spans), told, stepped(done), replayed is not None)


def _measures(done: Pass, numbers: Sequence[int]) -> list[tuple[int, list[tuple[int, Moment]]]]:
    """The micro-batches with the moments to be drawn in each, by their place in the pass."""
    if not done.moments:
        return [(number, []) for number in numbers[:MOST]]
    groups = groupby(enumerate(done.moments), key=lambda pair: pair[1].microbatch)
    drawn = [
        (number, [pair for pair in group if pair[1].kind not in _HIDDEN])
        for number, group in groups
    ]
    return drawn[:MOST]


def _brackets(score: _Score, y: float) -> Iterator[Markup]:
    """Each update over its micro-batches, and those over which there is none."""
    for update in score.done.updates:
        inside = [span for span in score.spans if span.number in update.microbatches]
        if inside:
            row = y + _BRACKET * score.optimizers.index(update.optimizer)
            words = _words(update, score)
            wrong = len(words) > 2
            yield from _bracket(inside, words, row, "bad" if wrong else "quiet")
    covered = {number for update in score.done.updates for number in update.microbatches}
    bare = [span for span in score.spans if span.number not in covered and span.number > 0]
    for fate, group in groupby(bare, key=lambda span: score.fates.get(span.number)):
        if fate is Fate.SKIPPED:
            yield from _bracket(list(group), ["step skipped", "skipped"], y, "quiet")
        elif fate is Fate.OPEN and score.done.raised:
            yield from _bracket(list(group), [score.done.raised.kind, "raised"], y, "bad")
        elif fate is not None:
            yield from _bracket(list(group), ["no update", "none"], y, "bad")


_APPLIED = (Fate.APPLIED, Fate.AGAIN)


def _words(update: Update, score: _Score) -> list[str]:
    """What to write over an update, the longest first."""
    name, number = f"update {update.number}", str(update.number)
    own = update.microbatches
    applied = sum(score.fates.get(m) in _APPLIED for m in own)
    again = len(set(score.steps.get(update.number, ())).difference(own))
    if applied < len(own):
        part = f"{applied} of {len(own)}"
        return [f"{name} applies {part}", f"{name}: {part}", part, number]
    if again:
        part = f"{again} again"
        return [f"{name} applies {applied}, and {part}", f"{name}: {part}", part, number]
    return [name, number]


def _bracket(
    inside: Sequence[_Span], words: Sequence[str], y: float, tone: str
) -> Iterator[Markup]:
    left, right = inside[0].left + 4, inside[-1].right - 4
    fitting = (word for word in words if len(word) * _LETTER <= right - left)
    text = next(fitting, "")
    yield element("path", class_=f"bracket {tone}", d=f"M{left} {y + 20}v-4H{right}v4")
    yield element("text", text, class_=f"small middle {tone}", x=(left + right) / 2, y=y + 12)


def _tiles(score: _Score, y: float) -> Iterator[Markup]:
    """Each micro-batch with its number, struck through where it never reaches a step."""
    yield element("text", "micro-batch", class_="small quiet", x=0, y=y + 19)
    for span in score.spans:
        fate = score.fates.get(span.number)
        if fate is None:
            continue
        kind = _CLASSES[fate]
        left, right, top, bottom = span.left + 4, span.right - 4, y + 4, y + 26
        inside = [
            element("title", f"micro-batch {span.number}: {fate.value}"),
            element(
                "rect", class_=f"tile {kind}", x=left, y=top, width=right - left, height=22, rx=5
            ),
            element(
                "text",
                str(span.number),
                class_=f"number {kind}",
                x=(left + right) / 2,
                y=top + 15.5,
            ),
        ]
        if kind == "lost":
            stroke = f"M{left + 3:g} {bottom - 3:g}L{right - 3:g} {top + 3:g}"
            inside.insert(2, element("path", class_="strike", d=stroke))
        if fate in _CAPTIONS:
            caption = element(
                "text",
                _CAPTIONS[fate],
                class_=f"small middle {'quiet' if kind == 'open' else 'bad'}",
                x=(left + right) / 2,
                y=bottom + 12,
            )
            inside.append(caption)
        yield element("g", *inside)


def _stairs(score: _Score, y: float) -> Iterator[Markup]:
    """How many micro-batches `.grad` holds: it grows with each backward and falls with each clear."""
    if not score.replayed:
        return
    most = max(score.done.steps, 1, *(beat.held for beat in score.beats))
    base = y + _STAIRS
    path = f"M{_MARGIN} {base}"
    for beat in score.beats:
        path += f"H{beat.x:g}V{base - beat.held / most * _STAIR:g}"
    path += f"H{score.right:g}"
    whole = base - score.done.steps / most * _STAIR
    yield element("text", ".grad holds", class_="small quiet", x=0, y=base - 4)
    yield element("path", class_="whole-window", d=f"M{_MARGIN} {whole:g}H{score.right:g}")
    yield element("path", class_="area", d=f"{path}V{base}Z")
    yield element("path", class_="stairs", d=path)
    for beat in score.beats:
        if beat.moment.kind == "step":
            top = base - beat.held / most * _STAIR
            yield element("path", class_="applies", d=f"M{beat.x:g} {base}V{top:g}")
            yield element("text", str(beat.held), class_="small middle", x=beat.x, y=top - 4)


def _lanes(score: _Score, y: float, flagged: int) -> Iterator[Markup]:
    """What was called, a lane for each kind."""
    for row, lane in enumerate(score.lanes):
        middle = y + row * _LANE + _LANE / 2
        yield element("path", class_="lane", d=f"M{_MARGIN} {middle}H{score.right:g}")
        yield element("text", lane, class_="small quiet", x=0, y=middle + 3.5)
        for beat in score.beats:
            if beat.moment.kind == lane:
                yield _mark(beat, middle, flagged)


def _mark(beat: _Beat, y: float, flagged: int) -> Markup:
    x, moment = beat.x, beat.moment
    line = f", line {moment.line}" if moment.line else ""
    wipes = f", wipes {ranges(beat.wipes)} before any step" if beat.wipes else ""
    parts = [element("title", f"{moment.kind}{line}{wipes}")]
    if flagged and moment.line == flagged:
        parts.append(element("circle", class_="flagged", cx=x, cy=y, r=7.5))
    if beat.wipes:
        cross = f"M{x - 3.5:g} {y - 3.5:g}l7 7m0 -7l-7 7"
        parts.append(element("path", class_="cross", d=cross))
    elif moment.kind == "step":
        parts.append(
            element("rect", class_="mark step", x=x - 4.5, y=y - 4.5, width=9, height=9, rx=1.5)
        )
    elif moment.kind == "clear":
        parts.append(element("circle", class_="mark clear", cx=x, cy=y, r=3.5))
    else:
        kind = "backward" if moment.kind == "backward" else "other"
        parts.append(element("circle", class_=f"mark {kind}", cx=x, cy=y, r=4))
    return element("g", *parts)


def _edges(score: _Score, bottom: float) -> Iterator[Markup]:
    """Where an epoch ends, and where an exception ended the pass."""
    ends = {moment.microbatch for moment in score.done.moments if moment.kind == "epoch"}
    for span in score.spans:
        if span.number in ends:
            path = f"M{span.right:g} 4V{bottom:g}"
            yield element("path", element("title", "an epoch ends"), class_="epoch", d=path)
    if score.done.raised:
        path = f"M{score.right + 4:g} {_BRACKET}V{bottom}"
        title = element("title", f"{score.done.raised.kind} ends the pass")
        yield element("path", title, class_="raised", d=path)
