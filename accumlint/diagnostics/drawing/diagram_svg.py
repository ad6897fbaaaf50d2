"""A timeline as a picture: micro-batches from left to right, what became of each, what was called, what steps apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accumlint.common.frozen import frozen
from accumlint.diagnostics.drawing.markup import Markup, element, picture
from accumlint.diagnostics.results.diagram import (
    Bracket,
    Call,
    Group,
    Share,
    Step,
    Timeline,
    ranges,
)

# A slot holds one call; few calls take more room than many.
_MARGIN, _WIDEST_MARGIN, _SLOT, _WIDEST_SLOT, _ROOM = 84, 190, 16, 26, 960
_BRACKET, _TILE, _STAIRS, _LANE, _GAP = 22, 44, 46, 20, 12
# The height of a full window within the stairs, and of the highest bar of a step.
_STAIR, _BAR = 32, 30
_STAVE = _BAR + 46
_LETTER = 6.2
# Steps that share micro-batches stand in rows of their own, up to here.
_MOST_STEP_ROWS = 4
# A longer timeline is drawn up to here.
MOST = 48


@frozen
class _Span:
    """A group in its place, with its calls in theirs."""

    group: Group
    left: float
    right: float
    calls: tuple[tuple[float, Call], ...]

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


@frozen
class _Stave:
    """A timeline laid out from left to right."""

    timeline: Timeline
    margin: float
    spans: tuple[_Span, ...]

    @property
    def right(self) -> float:
        return self.spans[-1].right if self.spans else self.margin

    @property
    def calls(self) -> Iterator[tuple[float, Call]]:
        return (placed for span in self.spans for placed in span.calls)

    def over(self, microbatches: Sequence[int]) -> list[_Span]:
        return [span for span in self.spans if span.group.first in microbatches]


def timeline_svg(
    timeline: Timeline, name: str, title: str = "Timeline of the micro-batches", room: float = _ROOM
) -> Markup:
    """The picture of a timeline; `name` begins its ids, `room` is the width that it takes if it can."""
    laid = _laid_out(timeline, room)
    parts: list[Markup] = []
    y = 0.0
    rows = max((bracket.row for bracket in timeline.brackets), default=0) + 1
    for draw, height in (
        (_brackets, _BRACKET * rows),
        (_tiles, _TILE if any(m.caption for m in timeline.groups) else _TILE - 12),
        (_stairs, _STAIRS + _GAP if timeline.size else 0),
        (_lanes, _LANE * len(timeline.lanes)),
    ):
        parts.extend(draw(laid, y))
        y += height
    parts.extend(_edges(laid, y))
    step_rows = timeline.step_rows()
    weights = (v for s in timeline.steps for h in s.shares for v in (h.value, h.target) if v)
    most = max(weights, default=1.0)
    several = len({step.optimizer for step in timeline.steps}) > 1
    for row in step_rows[:_MOST_STEP_ROWS]:
        parts.extend(_steps(laid, row, y, most, several))
        y += _STAVE
    if more := sum(map(len, step_rows[_MOST_STEP_ROWS:])):
        parts.append(_name(f"and {more} more steps", _WIDEST_MARGIN, y + 12))
        y += 20
    told = f"{len(timeline.groups)} micro-batches from left to right, with what was called in each."
    if timeline.steps:
        told += " " + " ".join(f"{_sentence(step)}." for step in timeline.steps)
    return picture(parts, laid.right + _GAP, y + 6, name, title, told)


def words(timeline: Timeline) -> list[tuple[str, str, str]]:
    """The timeline in words: of each micro-batch its number, its fate, and what was called at which lines."""
    rows: list[tuple[str, str, str]] = []
    for group in timeline.groups:
        called = (
            f"{call.lane} ({call.where})" if call.where else call.lane
            for call in timeline.of(group)
        )
        rows.append((group.name, group.fate, ", ".join(called)))
    return rows


def _sentence(step: Step) -> str:
    return f"Step {step.number} applies {step.gradient}, the large batch is {step.reference}"


def _laid_out(timeline: Timeline, room: float) -> _Stave:
    names = [*timeline.lanes, *(f"step {s.optimizer}" for s in timeline.steps)]
    longest = max((len(name) for name in names), default=0) * _LETTER + 14
    margin = min(max(longest, _MARGIN), _WIDEST_MARGIN)
    groups = [(group, timeline.of(group)) for group in timeline.groups[:MOST]]
    slots = sum(max(len(calls), 2) for _, calls in groups)
    step = min(max((room - margin) / max(slots, 1), _SLOT), _WIDEST_SLOT)
    narrowest = max(
        (len(t) for s in timeline.steps for h in s.shares for t in (h.applied, h.expected)),
        default=0,
    )
    spans: list[_Span] = []
    x = float(margin)
    for group, calls in groups:
        width = max(
            step * max(len(calls), 2) + 4, narrowest * _LETTER + 8, len(group.name) * 7 + 16
        )
        slot = x + (width - step * (len(calls) - 1)) / 2
        placed = tuple((slot + step * index, call) for index, call in enumerate(calls))
        spans.append(_Span(group, x, x + width, placed))
        x += width
    return _Stave(timeline, margin, tuple(spans))


def _brackets(laid: _Stave, y: float) -> Iterator[Markup]:
    """Each update over its micro-batches, and those over which there is none."""
    for bracket in laid.timeline.brackets:
        inside = laid.over(bracket.microbatches)
        if inside:
            yield from _bracket(inside, bracket, y + _BRACKET * bracket.row)


def _bracket(inside: Sequence[_Span], bracket: Bracket, y: float) -> Iterator[Markup]:
    tone = "bad" if bracket.wrong else "quiet"
    left, right = inside[0].left + 4, inside[-1].right - 4
    fitting = (word for word in bracket.words if len(word) * _LETTER <= right - left)
    text = next(fitting, "")
    yield element("path", class_=f"bracket {tone}", d=f"M{left:g} {y + 20}v-4H{right:g}v4")
    yield element("text", text, class_=f"small middle {tone}", x=(left + right) / 2, y=y + 12)


def _tiles(laid: _Stave, y: float) -> Iterator[Markup]:
    """Each micro-batch with its number, struck through where it never reaches a step."""
    yield element("text", "micro-batch", class_="small quiet", x=0, y=y + 19)
    for span in laid.spans:
        group = span.group
        if not group.fate:
            continue
        kind = group.kind
        left, right, top, bottom = span.left + 4, span.right - 4, y + 4, y + 26
        several = "micro-batches" if group.last > group.first else "micro-batch"
        inside = [
            element("title", f"{several} {group.name}: {group.fate}"),
            element(
                "rect", class_=f"tile {kind}", x=left, y=top, width=right - left, height=22, rx=5
            ),
            element("text", group.name, class_=f"number {kind}", x=span.middle, y=top + 15.5),
        ]
        if kind == "lost":
            stroke = f"M{left + 3:g} {bottom - 3:g}L{right - 3:g} {top + 3:g}"
            inside.insert(2, element("path", class_="strike", d=stroke))
        if group.caption:
            tone = "quiet" if kind == "open" else "bad"
            inside.append(_text(group.caption, tone, span.middle, bottom + 12))
        yield element("g", *inside)


def _stairs(laid: _Stave, y: float) -> Iterator[Markup]:
    """How many micro-batches `.grad` holds: it grows with each backward and falls with each clear."""
    timeline = laid.timeline
    if not timeline.size:
        return
    most = max(timeline.size, 1, *(call.pending for _, call in laid.calls), 0)
    base = y + _STAIRS
    path = f"M{laid.margin:g} {base}"
    for x, call in laid.calls:
        path += f"H{x:g}V{base - call.pending / most * _STAIR:g}"
    path += f"H{laid.right:g}"
    whole = base - timeline.size / most * _STAIR
    yield element("text", ".grad holds", class_="small quiet", x=0, y=base - 4)
    yield element("path", class_="whole-window", d=f"M{laid.margin:g} {whole:g}H{laid.right:g}")
    yield element("path", class_="area", d=f"{path}V{base}Z")
    yield element("path", class_="stairs", d=path)
    for x, call in laid.calls:
        if call.kind == "step":
            top = base - call.pending / most * _STAIR
            yield element("path", class_="applies", d=f"M{x:g} {base}V{top:g}")
            yield element("text", str(call.pending), class_="small middle", x=x, y=top - 4)


def _lanes(laid: _Stave, y: float) -> Iterator[Markup]:
    """What was called, a lane for each kind."""
    for row, lane in enumerate(laid.timeline.lanes):
        middle = y + row * _LANE + _LANE / 2
        yield element("path", class_="lane", d=f"M{laid.margin:g} {middle}H{laid.right:g}")
        yield _name(lane, laid.margin, middle + 3.5)
        for x, call in laid.calls:
            if call.lane == lane:
                yield _mark(x, middle, call)


def _name(text: str, margin: float, y: float, tone: str = "quiet") -> Markup:
    """A row's name, cut where it is too long for the margin."""
    room = int((margin - 10) / _LETTER)
    if len(text) <= room:
        return element("text", text, class_=f"small {tone}".rstrip(), x=0, y=y)
    cut = f"{text[: room - 1]}…"
    return element("text", element("title", text), cut, class_=f"small {tone}".rstrip(), x=0, y=y)


def _mark(x: float, y: float, call: Call) -> Markup:
    where = f", line {call.where}" if call.where else ""
    wipes = f", wipes {ranges(call.loses)} before any step" if call.loses else ""
    codes = f" ({', '.join(call.codes)})" if any(call.codes) else ""
    parts = [element("title", f"{call.description or call.kind}{where}{wipes}{codes}")]
    if call.codes:
        parts.append(element("circle", class_="flagged", cx=x, cy=y, r=7.5))
    if call.loses or call.kind == "skip":
        cross = f"M{x - 3.5:g} {y - 3.5:g}l7 7m0 -7l-7 7"
        parts.append(element("path", class_="cross", d=cross))
    elif call.kind == "step":
        parts.append(
            element("rect", class_="mark step", x=x - 4.5, y=y - 4.5, width=9, height=9, rx=1.5)
        )
    elif call.kind == "clear" or call.off:
        parts.append(element("circle", class_="mark clear", cx=x, cy=y, r=3.5))
    else:
        kind = "wrong" if call.wrong else "backward" if call.kind == "backward" else "other"
        parts.append(element("circle", class_=f"mark {kind}", cx=x, cy=y, r=4))
    return element("g", *parts)


def _edges(laid: _Stave, bottom: float) -> Iterator[Markup]:
    """Where an epoch ends, and where an exception ended the pass."""
    for span in laid.spans:
        if span.group.ends:
            path = f"M{span.right:g} 4V{bottom:g}"
            yield element("path", element("title", "an epoch ends"), class_="epoch", d=path)
    if laid.timeline.raised:
        path = f"M{laid.right + 4:g} {_BRACKET}V{bottom}"
        title = element("title", f"{laid.timeline.raised} ends the pass")
        yield element("path", title, class_="raised", d=path)


def _steps(
    laid: _Stave, row: Sequence[Step], y: float, most: float, named: bool
) -> Iterator[Markup]:
    """What steps apply of each micro-batch, a bar in the outline of the large batch's part, and both as figures."""
    base = y + 22 + _BAR
    yield element("path", class_="base", d=f"M{laid.margin:g} {base:g}H{laid.right:g}")
    yield _name(f"step {row[0].optimizer}" if named else "step applies", laid.margin, base - 4, "")
    yield element("text", "large batch", class_="small quiet", x=0, y=base + 15)
    for step in row:
        for share in step.shares:
            for span in laid.over((share.microbatch,)):
                yield _share(step, share, span, base, most)


def _share(step: Step, share: Share, span: _Span, base: float, most: float) -> Markup:
    width = min(span.right - span.left - 8, 28.0)
    tone = "bad" if share.wrong else "good" if share.target is not None else "open"
    title = (
        f"step {step.number} applies {share.applied} of micro-batch {span.group.name}, "
        f"the large batch {share.expected}"
    )
    parts = [element("title", title)]
    top = base
    if share.value is not None:
        height = share.value / most * _BAR
        top = base - height
        parts.append(_bar(f"bar {tone}", span.middle, width - 8, base, height))
    if share.target is not None:
        outline = share.target / most * _BAR
        top = min(top, base - outline)
        parts.append(_bar("reference", span.middle, width, base, outline))
    parts.append(_text(share.applied, "bad" if share.wrong else "", span.middle, top - 5))
    parts.append(_text(share.expected, "quiet", span.middle, base + 15))
    return element("g", *parts)


def _bar(kind: str, middle: float, width: float, base: float, height: float) -> Markup:
    high = max(height, 0.5)
    return element(
        "rect", class_=kind, x=middle - width / 2, y=base - high, width=width, height=high
    )


def _text(text: str, tone: str, x: float, y: float) -> Markup:
    return element("text", text, class_=f"small middle {tone}".rstrip(), x=x, y=y)
