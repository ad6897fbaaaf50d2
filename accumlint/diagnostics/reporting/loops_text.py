"""Loops as text: a column for each micro-batch, a row for each call, and under them what the steps apply."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from accumlint.diagnostics.reporting.terminal import Look, printable
from accumlint.diagnostics.results.diagram import Call, Group, Loop, Timeline, folded, story

_NARROWEST, _WIDEST = 40, 120
_LONGEST_NAME = 24
# Rows of steps that share micro-batches, as where gradients are never cleared.
_MOST_STEPS = 6

Cell = Callable[[Group], str]


def loops(shown: Iterable[Loop], look: Look, width: int) -> Iterator[str]:
    """A block of lines for each loop, in at most `width` columns."""
    room = min(max(width, _NARROWEST), _WIDEST)
    for index, loop in enumerate(shown):
        if index:
            yield ""
        yield from _block(loop, look, room)


def _block(loop: Loop, look: Look, width: int) -> Iterator[str]:
    place = f"{loop.shown}:{loop.where}" if loop.where else loop.shown
    yield f"{look.paint(printable(loop.title), 'bold')}  {look.paint(printable(place), 'dim')}"
    yield from _wrapped(loop.setting, width, look, "dim")
    if loop.condition:
        yield from _wrapped(loop.condition, width, look)
    for reason in loop.partly:
        yield from _wrapped(f"Read only in part: {reason}.", width, look, "warning")
    yield ""
    yield from _Table(loop.timeline, look, width).rows()
    wrong = [step for step in loop.timeline.steps if step.wrong]
    told = story(loop.timeline)
    if told:
        yield ""
        lost = any(group.kind in ("lost", "again") for group in loop.timeline.groups)
        yield from _wrapped(told, width, look, "bad" if wrong or lost else "good")
    # As sums the first step that differs is told, else the first whole one.
    for step in (wrong or list(loop.timeline.steps))[:1]:
        where = f" at line {step.where}" if step.where else ""
        yield from _wrapped(f"step {step.number}{where} applies {step.gradient}", width, look)
        yield from _wrapped(f"the large batch is {step.reference}", width, look)
    if loop.found:
        yield ""
    for found in loop.found:
        head = look.paint(f"{found.code} {found.name}", found.severity)
        yield f"{head}{look.paint(f'  line {found.where}', 'dim')}"
        yield from _wrapped(found.message, width, look, margin="  ")


class _Table:
    """The rows of a timeline, with as few micro-batches drawn as one as the width asks for."""

    def __init__(self, timeline: Timeline, look: Look, width: int) -> None:
        self.look = look
        self.lanes = _lanes(timeline)
        names = ["micro-batch", "step applies", *(name for name, _, _ in self.lanes)]
        self.name_width = min(max(map(len, names)), _LONGEST_NAME)
        self.line_width = max((len(where) for _, where, _ in self.lanes), default=0)
        self.margin = self.line_width + 1 + self.name_width + 2
        self.columns = _Columns(timeline, look, width - self.margin - 2)
        self.timeline = self.columns.timeline

    def rows(self) -> Iterator[str]:
        look, margin = self.look, f"{'':{self.margin}}"
        yield self._row("", "micro-batch", self.columns.row(lambda m: m.name, _tone), "dim")
        if any(group.caption for group in self.columns.groups):
            cells = self.columns.row(
                lambda m: m.caption, lambda m: "dim" if m.kind == "open" else "bad"
            )
            yield self._row("", "", cells)
        for name, where, calls in self.lanes:
            of = {call.microbatch: call for call in calls}
            cells = self.columns.row(
                lambda m, of=of: _mark(of[m.first], look) if m.first in of else "",
                lambda m, of=of: _paint(of[m.first]),
            )
            found = f" {look.paint(look.pointer, 'error')}" if any(b.codes for b in calls) else ""
            yield self._row(where, name, cells) + found
        yield from self._steps()
        for symbol, meaning in self.timeline.symbols:
            yield look.paint(f"{margin}{symbol}: {printable(meaning)}", "dim")
        if self.columns.left_out:
            more = f"and {self.columns.left_out} more micro-batches"
            yield look.paint(f"{margin}{more}", "dim")

    def _steps(self) -> Iterator[str]:
        """What the steps apply, and under each what the large batch would."""
        drawn = self.timeline.step_rows()
        named = len({step.optimizer for step in self.timeline.steps}) > 1
        if drawn:
            yield ""
        for held in drawn[:_MOST_STEPS]:
            of = {share.microbatch: share for step in held for share in step.shares}
            name = f"step {held[0].optimizer}" if named else "step applies"
            parts = self.columns.row(
                lambda m, of=of: of[m.first].applied if m.first in of else "",
                lambda m, of=of: "bad" if of[m.first].wrong else "",
            )
            lines = {step.where for step in held}
            yield self._row(lines.pop() if len(lines) == 1 else "", name, parts)
            parts = self.columns.row(
                lambda m, of=of: of[m.first].expected if m.first in of else "", lambda m: "good"
            )
            yield self._row("", "large batch", parts, "dim")
        if len(drawn) > _MOST_STEPS:
            yield self.look.paint(f"and {len(drawn) - _MOST_STEPS} more steps", "dim")

    def _row(self, line: str, name: str, cells: str, paint: str = "") -> str:
        width = self.name_width
        cut = name if len(name) <= width else f"{name[: width - 1]}…"
        label = f"{printable(cut):<{width}}"
        text = f"{self.look.paint(f'{line:>{self.line_width}}', 'dim')} "
        return f"{text}{self.look.paint(label, paint) if paint else label}  {cells}".rstrip()


class _Columns:
    """The micro-batches of a timeline laid out in columns of a given room."""

    def __init__(self, timeline: Timeline, look: Look, room: int) -> None:
        for most in (len(timeline.groups), len(timeline.groups) - 1, 1):
            self.timeline = folded(timeline, most)
            self.groups = list(self.timeline.groups)
            self.cell = self._cell()
            if self._width() <= room:
                break
        shown = len(self.groups)
        while shown > 1 and self._width() > room:
            self.groups.pop()
        self.left_out = sum(m.last - m.first + 1 for m in self.timeline.groups[len(self.groups) :])
        self.look = look

    def _cell(self) -> int:
        texts = [m.name for m in self.groups] + [m.caption for m in self.groups]
        texts += [t for s in self.timeline.steps for h in s.shares for t in (h.applied, h.expected)]
        return max(map(len, texts), default=1) + 1

    def _width(self) -> int:
        edges = sum(self._edge(i) != "" for i in range(len(self.groups) - 1))
        return len(self.groups) * self.cell + 2 * edges - 1

    def _edge(self, index: int) -> str:
        """What stands behind a column: the end of an epoch, or of a window."""
        if self.groups[index].ends:
            return "epoch"
        here, after = self.groups[index].last, self.groups[index + 1].first
        if all(len(bracket.microbatches) < 2 for bracket in self.timeline.brackets):
            return ""
        apart = any(
            (here in bracket.microbatches) != (after in bracket.microbatches)
            for bracket in self.timeline.brackets
        )
        return "window" if apart else ""

    def row(self, text: Cell, paint: Cell) -> str:
        cells: list[str] = []
        for index, group in enumerate(self.groups):
            words = printable(text(group))
            cell = f"{words:^{self.cell}}"
            tone = paint(group) if words else ""
            cells.append(self.look.paint(cell, tone) if tone else cell)
            if index < len(self.groups) - 1:
                edge = self._edge(index)
                side = self.look.gap if edge == "epoch" else self.look.side
                cells.append(f"{self.look.paint(side, 'dim')} " if edge else "")
        return "".join(cells)


def _lanes(timeline: Timeline) -> list[tuple[str, str, list[Call]]]:
    """A row for each call, by its line, in the order in which they run: name, line, calls."""
    rows: dict[tuple[str, str], list[Call]] = {}
    for call in timeline.calls:
        rows.setdefault((call.lane, call.where), []).append(call)
    return [(lane, where, rows[lane, where]) for lane, where in _in_order(timeline, list(rows))]


def _in_order(timeline: Timeline, keys: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Rows so that in as many micro-batches as possible the upper one runs first."""
    after: dict[tuple[str, str], set[tuple[str, str]]] = {key: set() for key in keys}
    for group in timeline.groups:
        inside = list(dict.fromkeys((call.lane, call.where) for call in timeline.of(group)))
        for index, key in enumerate(inside):
            for later in inside[index + 1 :]:
                if key not in after[later]:
                    after[key].add(later)
    done: list[tuple[str, str]] = []
    waiting = list(keys)
    while waiting:
        free = [k for k in waiting if not any(k in after[o] for o in waiting if o != k)]
        done.append((free or waiting)[0])
        waiting.remove(done[-1])
    return done


def _mark(call: Call, look: Look) -> str:
    if call.loses or call.kind == "skip":
        return "×" if look.boxes else "x"  # noqa: RUF001
    if call.kind == "step":
        return "■" if look.boxes else "#"
    if call.kind == "clear" or call.off:
        return "○" if look.boxes else "o"
    return "●" if look.boxes else "*"


def _paint(call: Call) -> str:
    if call.loses or call.wrong or call.kind == "skip":
        return "bad"
    if call.kind == "step":
        return "bold"
    return "mark" if call.kind == "backward" else ""


def _tone(group: Group) -> str:
    return {"lost": "bad", "again": "bad", "open": "dim"}.get(group.kind, "bold")


def _wrapped(text: str, width: int, look: Look, paint: str = "", margin: str = "") -> Iterator[str]:
    for line in textwrap.wrap(
        printable(text), width, initial_indent=margin, subsequent_indent=f"{margin}  ",
        break_on_hyphens=False, break_long_words=False,
    ):  # fmt: skip
        yield look.paint(line, paint) if paint else line
