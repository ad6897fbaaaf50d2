"""Loops as text: a column for each micro-batch, a row for each call, and under them what the steps apply."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from accumlint.reporting.terminal import Look, printable
from accumlint.results.diagram import Beat, Loop, Measure, Score, folded, story

_NARROWEST, _WIDEST = 40, 120
_LONGEST_NAME = 24
# Rows of steps that share micro-batches, as where gradients are never cleared.
_MOST_STEPS = 6

Cell = Callable[[Measure], str]


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
    yield from _Table(loop.score, look, width).rows()
    wrong = [step for step in loop.score.steps if step.wrong]
    told = story(loop.score)
    if told:
        yield ""
        lost = any(measure.kind in ("lost", "again") for measure in loop.score.measures)
        yield from _wrapped(told, width, look, "bad" if wrong or lost else "good")
    # As sums the first step that differs is told, else the first whole one.
    for step in (wrong or list(loop.score.steps))[:1]:
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
    """The rows of a score, with as few micro-batches drawn as one as the width asks for."""

    def __init__(self, score: Score, look: Look, width: int) -> None:
        self.look = look
        self.lanes = _lanes(score)
        names = ["micro-batch", "step applies", *(name for name, _, _ in self.lanes)]
        self.name_width = min(max(map(len, names)), _LONGEST_NAME)
        self.line_width = max((len(where) for _, where, _ in self.lanes), default=0)
        self.margin = self.line_width + 1 + self.name_width + 2
        self.columns = _Columns(score, look, width - self.margin - 2)
        self.score = self.columns.score

    def rows(self) -> Iterator[str]:
        look, margin = self.look, f"{'':{self.margin}}"
        yield self._row("", "micro-batch", self.columns.row(lambda m: m.name, _tone), "dim")
        if any(measure.caption for measure in self.columns.measures):
            cells = self.columns.row(
                lambda m: m.caption, lambda m: "dim" if m.kind == "open" else "bad"
            )
            yield self._row("", "", cells)
        for name, where, beats in self.lanes:
            of = {beat.microbatch: beat for beat in beats}
            cells = self.columns.row(
                lambda m, of=of: _mark(of[m.first], look) if m.first in of else "",
                lambda m, of=of: _paint(of[m.first]),
            )
            found = f" {look.paint(look.pointer, 'error')}" if any(b.codes for b in beats) else ""
            yield self._row(where, name, cells) + found
        yield from self._steps()
        for symbol, meaning in self.score.symbols:
            yield look.paint(f"{margin}{symbol}: {printable(meaning)}", "dim")
        if self.columns.left_out:
            more = f"and {self.columns.left_out} more micro-batches"
            yield look.paint(f"{margin}{more}", "dim")

    def _steps(self) -> Iterator[str]:
        """What the steps apply, and under each what the large batch would."""
        drawn = self.score.staves()
        named = len({step.optimizer for step in self.score.steps}) > 1
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
    """The micro-batches of a score laid out in columns of a given room."""

    def __init__(self, score: Score, look: Look, room: int) -> None:
        for most in (len(score.measures), len(score.measures) - 1, 1):
            self.score = folded(score, most)
            self.measures = list(self.score.measures)
            self.cell = self._cell()
            if self._width() <= room:
                break
        shown = len(self.measures)
        while shown > 1 and self._width() > room:
            self.measures.pop()
        self.left_out = sum(m.last - m.first + 1 for m in self.score.measures[len(self.measures) :])
        self.look = look

    def _cell(self) -> int:
        texts = [m.name for m in self.measures] + [m.caption for m in self.measures]
        texts += [t for s in self.score.steps for h in s.shares for t in (h.applied, h.expected)]
        return max(map(len, texts), default=1) + 1

    def _width(self) -> int:
        edges = sum(self._edge(i) != "" for i in range(len(self.measures) - 1))
        return len(self.measures) * self.cell + 2 * edges - 1

    def _edge(self, index: int) -> str:
        """What stands behind a column: the end of an epoch, or of a window."""
        if self.measures[index].ends:
            return "epoch"
        here, after = self.measures[index].last, self.measures[index + 1].first
        if all(len(bracket.microbatches) < 2 for bracket in self.score.brackets):
            return ""
        apart = any(
            (here in bracket.microbatches) != (after in bracket.microbatches)
            for bracket in self.score.brackets
        )
        return "window" if apart else ""

    def row(self, text: Cell, paint: Cell) -> str:
        cells: list[str] = []
        for index, measure in enumerate(self.measures):
            words = printable(text(measure))
            cell = f"{words:^{self.cell}}"
            tone = paint(measure) if words else ""
            cells.append(self.look.paint(cell, tone) if tone else cell)
            if index < len(self.measures) - 1:
                edge = self._edge(index)
                side = self.look.gap if edge == "epoch" else self.look.side
                cells.append(f"{self.look.paint(side, 'dim')} " if edge else "")
        return "".join(cells)


def _lanes(score: Score) -> list[tuple[str, str, list[Beat]]]:
    """A row for each call, by its line, in the order in which they run: name, line, calls."""
    rows: dict[tuple[str, str], list[Beat]] = {}
    for beat in score.beats:
        rows.setdefault((beat.lane, beat.where), []).append(beat)
    return [(lane, where, rows[lane, where]) for lane, where in _in_order(score, list(rows))]


def _in_order(score: Score, keys: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Rows so that in as many micro-batches as possible the upper one runs first."""
    after: dict[tuple[str, str], set[tuple[str, str]]] = {key: set() for key in keys}
    for measure in score.measures:
        inside = list(dict.fromkeys((beat.lane, beat.where) for beat in score.of(measure)))
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


def _mark(beat: Beat, look: Look) -> str:
    if beat.loses or beat.kind == "skip":
        return "×" if look.boxes else "x"  # noqa: RUF001
    if beat.kind == "step":
        return "■" if look.boxes else "#"
    if beat.kind == "clear" or beat.off:
        return "○" if look.boxes else "o"
    return "●" if look.boxes else "*"


def _paint(beat: Beat) -> str:
    if beat.loses or beat.wrong or beat.kind == "skip":
        return "bad"
    if beat.kind == "step":
        return "bold"
    return "mark" if beat.kind == "backward" else ""


def _tone(measure: Measure) -> str:
    return {"lost": "bad", "again": "bad", "open": "dim"}.get(measure.kind, "bold")


def _wrapped(text: str, width: int, look: Look, paint: str = "", margin: str = "") -> Iterator[str]:
    for line in textwrap.wrap(
        printable(text), width, initial_indent=margin, subsequent_indent=f"{margin}  ",
        break_on_hyphens=False, break_long_words=False,
    ):  # fmt: skip
        yield look.paint(line, paint) if paint else line
