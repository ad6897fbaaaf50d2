"""Loops as text: a column for each micro-batch, a row for each call, and under them what the steps apply."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from accumlint.reporting.terminal import Look, printable
from accumlint.results.diagram import Beat, Loop, Measure, Score, Step, folded, story

_NARROWEST, _WIDEST = 40, 120
_LONGEST_NAME = 24
# Rows of steps that share micro-batches, as where gradients are never cleared.
_MOST_STAVES = 6

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
    yield from _stave(loop.score, look, width)
    told = story(loop.score)
    if told:
        yield ""
        good = not any(step.wrong for step in loop.score.steps)
        lost = any(measure.kind in ("lost", "again") for measure in loop.score.measures)
        yield from _wrapped(told, width, look, "good" if good and not lost else "bad")
    for step in _telling(loop.score):
        yield from _wrapped(
            f"step {step.number}{_line(step.where)} applies {step.gradient}", width, look
        )
        yield from _wrapped(f"the large batch is {step.reference}", width, look)
    if loop.found:
        yield ""
    for found in loop.found:
        head = look.paint(f"{found.code} {found.name}", found.severity)
        yield f"{head}{look.paint(f'  line {found.where}', 'dim')}"
        yield from _wrapped(found.message, width, look, margin="  ")


def _telling(score: Score) -> list[Step]:
    """The steps that are told as sums: the first that differs, else the first whole one."""
    wrong = [step for step in score.steps if step.wrong]
    return (wrong or list(score.steps))[:1]


def _line(where: str) -> str:
    return f" at line {where}" if where else ""


def _stave(score: Score, look: Look, width: int) -> Iterator[str]:
    """The rows of a score, with as few micro-batches drawn as one as the width asks for."""
    lanes = _lanes(score)
    names = [name for name, _, _ in lanes] + ["micro-batch", "step applies"]
    lines = [where for _, where, _ in lanes]
    name_width = min(max(map(len, names)), _LONGEST_NAME)
    line_width = max((len(line) for line in lines), default=0)
    margin = line_width + 1 + name_width + 2
    columns = _Columns(score, look, width - margin - 2)

    def row(line: str, name: str, cells: str, paint: str = "") -> str:
        cut = name if len(name) <= name_width else f"{name[: name_width - 1]}…"
        label = f"{printable(cut):<{name_width}}"
        text = f"{look.paint(f'{line:>{line_width}}', 'dim')} "
        return f"{text}{look.paint(label, paint) if paint else label}  {cells}".rstrip()

    yield row("", "micro-batch", columns.row(lambda m: m.name, _tone), "dim")
    captions = {m: m.caption for m in columns.measures if m.caption}
    if captions:
        cells = columns.row(
            lambda m: captions.get(m, ""), lambda m: "dim" if m.kind == "open" else "bad"
        )
        yield row("", "", cells)
    for name, where, beats in lanes:
        by_number = {beat.microbatch: beat for beat in beats}

        def mark(measure: Measure, by_number: dict[int, Beat] = by_number) -> str:
            beat = by_number.get(measure.first)
            return _mark(beat, look) if beat else ""

        def paint(measure: Measure, by_number: dict[int, Beat] = by_number) -> str:
            beat = by_number.get(measure.first)
            return _paint(beat) if beat else ""

        found = f" {look.paint(look.pointer, 'error')}" if any(b.codes for b in beats) else ""
        yield row(where, name, columns.row(mark, paint)) + found
    staves = columns.score.staves()
    named = len({step.optimizer for step in score.steps}) > 1
    if staves:
        yield ""
    for held in staves[:_MOST_STAVES]:
        applied = {share.microbatch: share for step in held for share in step.shares}
        name = f"step {held[0].optimizer}" if named else "step applies"
        parts = columns.row(
            lambda m, of=applied: of[m.first].applied if m.first in of else "",
            lambda m, of=applied: "bad" if m.first in of and of[m.first].wrong else "",
        )
        lines = dict.fromkeys(step.where for step in held)
        yield row(next(iter(lines)) if len(lines) == 1 else "", name, parts)
        yield row(
            "",
            "large batch",
            columns.row(
                lambda m, of=applied: of[m.first].expected if m.first in of else "",
                lambda m: "good",
            ),
            "dim",
        )
    if len(staves) > _MOST_STAVES:
        yield look.paint(f"and {len(staves) - _MOST_STAVES} more steps", "dim")
    for symbol, meaning in columns.score.symbols:
        yield look.paint(f"{'':{margin}}{symbol}: {printable(meaning)}", "dim")
    if columns.left_out:
        more = f"and {columns.left_out} more micro-batches"
        yield look.paint(f"{'':{margin}}{more}", "dim")


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
