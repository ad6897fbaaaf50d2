"""The report of `confirm` for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from accumlint.confirming.finding_verdicts import Case, cases, decisive, tally
from accumlint.confirming.reports import sentences
from accumlint.confirming.reports.text_columns import Column, columns, compared
from accumlint.confirming.result import Confirmation, Pass, Update, Verdict
from accumlint.confirming.symptoms.microbatch_outcomes import outcome_sentence
from accumlint.diagnostics.reporting.terminal import Look, printable, printable_path

_PAINTS = {Verdict.CONFIRMED: "error", Verdict.REFUTED: "good", Verdict.UNDECIDED: "warning"}
_TALLEST = 12
_NARROWEST = 40


def table(confirmations: Sequence[Confirmation], look: Look, width: int = 80) -> Iterator[str]:
    """Lines for each finding, and one for the run; `width` is that of the terminal, in characters."""
    run = cases(confirmations)
    before: tuple[str, ...] = ()
    shown_setups: set[str] = set()
    # All findings of a script share its updates.
    shown_updates: list[tuple[Update, ...]] = []
    for case in run:
        same = case.found.fakes == before
        yield from _block(case, same, shown_updates, look, max(width, _NARROWEST))
        yield from _setup_file(case.found, shown_setups, look, max(width, _NARROWEST))
        yield ""
        before = case.found.fakes
    for line in _wrapped(tally(run), max(width, _NARROWEST)):
        yield look.paint(line, "bold")


def _block(
    case: Case, same_fakes: bool, shown_updates: list[tuple[Update, ...]], look: Look, width: int
) -> Iterator[str]:
    found = case.found
    where = f"{printable_path(found.file)}:{found.line}:{found.column}"
    what = look.paint(f"{printable(found.code)} {printable(found.name)}", "bold")
    yield f"{where} {what}  {look.paint(case.outcome, _PAINTS[found.verdict])}"
    yield from _wrapped(sentences.sentence(found.reason), width)
    if case.fixed and case.fixed.reason != found.reason:
        yield from _wrapped(f"Fixed: {sentences.sentence(case.fixed.reason)}", width)

    done = decisive(found)
    again = (
        found.verdict is Verdict.UNDECIDED and done is not None and done.updates in shown_updates
    )
    if done is not None:
        yield ""
        if again:
            yield from _wrapped(f"{sentences.circumstances(done)}: as above.", width, "  ")
        else:
            shown_updates.append(done.updates)
            yield from _measured(done, decisive(case.fixed), look, width)
    notes = [note for note in _notes(case, done, again, same_fakes) if note[1]]
    if notes:
        yield ""
        yield from _labelled(notes, look, width)


def _setup_file(
    found: Confirmation, shown_setups: set[str], look: Look, width: int
) -> Iterator[str]:
    """The set-up file of a finding, unless the same one has been shown."""
    body = found.file + found.setup.partition("def setup")[2]
    if found.setup and body in shown_setups:
        yield ""
        yield "The set-up file above is for this one too."
    elif found.setup:
        shown_setups.add(body)
        yield ""
        yield from _setup(found.setup, look, width)


def _measured(done: Pass, fixed: Pass | None, look: Look, width: int) -> Iterator[str]:
    """The updates of the decisive pass, beside those of the fixed text."""
    for line in _wrapped(f"{sentences.circumstances(done)}:", width, "  "):
        yield look.paint(line, "dim")
    if done.updates or (fixed and fixed.updates):
        shown = compared(done, fixed) if fixed else columns(done)
        yield from _grid(shown, look, width)
    for line in (sentences.exception(done), *sentences.besides(done)):
        yield from _wrapped(sentences.sentence(line), width, "  ")


def _grid(shown: Sequence[Column], look: Look, width: int) -> Iterator[str]:
    """A table of the columns where it fits, else a paragraph for each row."""
    widths = [max(map(len, (_head(c), c.arm, *c.cells))) for c in shown]
    height = len(shown[0].cells)
    rows = range(min(height, _TALLEST))
    if sum(widths) + 2 * len(widths) > width:
        for row in rows:
            yield from _wrapped(_row_in_words(shown, row), width, "  ")
    else:
        line = "─" if look.boxes else "-"
        yield _row([_head(c) for c in shown], shown, widths)
        if any(c.arm for c in shown):
            yield _row([c.arm for c in shown], shown, widths)
        yield look.paint("".join(f"  {line * cells}" for cells in widths), "dim")
        for row in rows:
            yield _row([c.cells[row] for c in shown], shown, widths)
    if height > _TALLEST:
        yield look.paint(f"  and {height - _TALLEST} more", "dim")


def _row(cells: Sequence[str], shown: Sequence[Column], widths: Sequence[int]) -> str:
    aligned = (
        f"{printable(cell):<{width}}" if column.words else f"{printable(cell):>{width}}"
        for cell, column, width in zip(cells, shown, widths, strict=True)
    )
    return f"  {'  '.join(aligned)}".rstrip()


def _head(column: Column) -> str:
    return "" if column.arm == "fixed" else column.name


def _row_in_words(shown: Sequence[Column], row: int) -> str:
    """A row in words: "update 1, applied 0.0312 (fixed 0.117), reference 0.117"; equal values appear once."""
    found = {c.name: c.cells[row] for c in shown if c.arm != "fixed"}
    fixed = {c.name: c.cells[row] for c in shown if c.arm == "fixed"}
    cells: list[str] = []
    for name in dict.fromkeys(c.name for c in shown):
        before, after = found.get(name, ""), fixed.get(name, "")
        also = f" (fixed {after})" if after not in ("", before) else ""
        if before:
            cells.append(f"{name} {before}{also}")
    if not cells:
        cells = ["fixed only", *(f"{name} {cell}" for name, cell in fixed.items() if cell)]
    return ", ".join(cells)


def _notes(
    case: Case, done: Pass | None, again: bool, same_fakes: bool
) -> Iterator[tuple[str, str]]:
    found = case.found
    yield "window", outcome_sentence(done) if done and not again else ""
    yield "control", sentences.controlled(found)
    yield "control, fixed", sentences.controlled(case.fixed) if case.fixed else ""
    fakes = ["as above"] if same_fakes and found.fakes else sentences.grouped(found.fakes)
    yield from (("fake", fake) for fake in fakes)
    yield from (
        ("also run", sentences.sentence(sentences.summed(other)))
        for other in found.passes
        if other is not done
    )
    yield from (("also seen", sentences.sentence(note)) for note in found.also)
    yield "to decide", sentences.sentence(found.advice)


def _labelled(notes: Sequence[tuple[str, str]], look: Look, width: int) -> Iterator[str]:
    """Notes with labels in a column; repeated labels are omitted."""
    margin = max(len(label) for label, _ in notes) + 4
    before = ""
    for label, note in notes:
        shown = "" if label == before else label
        before = label
        for line in _wrapped(note, width - margin):
            yield f"  {look.paint(shown, 'dim')}{' ' * (margin - 2 - len(shown))}{line}"
            shown = ""


def _setup(setup: str, look: Look, width: int) -> Iterator[str]:
    """The set-up file with its lines unchanged."""
    line = ("─" if look.boxes else "-") * min(width, 80)
    yield "A set-up file can give what is missing. Fill this one in, and name it with --setup:"
    yield look.paint(line, "dim")
    for text in setup.rstrip("\n").split("\n"):
        yield "\t".join(map(printable, text.split("\t")))
    yield look.paint(line, "dim")


def _wrapped(text: str, width: int, margin: str = "") -> Iterator[str]:
    """Text wrapped to the width, without its own line breaks."""
    yield from textwrap.wrap(
        printable(" ".join(text.split())),
        width,
        initial_indent=margin,
        subsequent_indent=margin,
        break_on_hyphens=False,
        break_long_words=False,
    )
