"""The report of `confirm` as one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from accumlint.confirming.finding_verdicts import (
    ERROR_THRESHOLD,
    Case,
    cases,
    decisive,
    tally,
    worst,
)
from accumlint.confirming.reports import sentences
from accumlint.confirming.reports.figures import MOST, arrows, norms, spreads, weights
from accumlint.confirming.reports.pass_diagram import timeline
from accumlint.confirming.reports.text_columns import Column, columns, compared, figure
from accumlint.confirming.result import Confirmation, Pass, Verdict
from accumlint.confirming.symptoms.microbatch_outcomes import outcome_sentence, replay
from accumlint.diagnostics.drawing.components import code, details, prose, scrolled, source, table
from accumlint.diagnostics.drawing.diagram_svg import MOST as LONGEST
from accumlint.diagnostics.drawing.diagram_svg import timeline_svg, words
from accumlint.diagnostics.drawing.html_document import document
from accumlint.diagnostics.drawing.markup import Markup, element, joined

# Smaller deviations of weights and spreads get no chart.
_VISIBLE = 1e-6
_TONES = {Verdict.CONFIRMED: "bad", Verdict.REFUTED: "good", Verdict.UNDECIDED: "open"}


def page(
    confirmations: Sequence[Confirmation],
    sources: Mapping[str, str] | None = None,
    unprotected: Sequence[str] = (),
    made: str = "",
) -> str:
    """The file as text; `sources` are the texts of the user's files, by displayed name.

    `unprotected` lists missing protections; `made` names the command, versions and device.
    """
    run = cases(confirmations)
    articles = (
        _article(case, f"finding-{number}", sources or {}) for number, case in enumerate(run, 1)
    )
    header = element(
        "header",
        element("h1", "accumlint confirm"),
        element("p", sentences.sentence(tally(run).capitalize()), class_="tally"),
        element("p", made, class_="place") if made else Markup(),
        _contents(run),
        *_unprotected(unprotected),
    )
    return document(f"accumlint confirm: {tally(run)}", header, element("main", *articles))


def _unprotected(lines: Sequence[str]) -> Iterator[Markup]:
    """The protections that the machine of the run lacked."""
    if lines:
        entries = (element("li", line) for line in lines)
        yield details("Not protected on this machine", element("ul", *entries))


def _contents(run: Sequence[Case]) -> Markup:
    """Links to the findings, if there are several."""
    if len(run) < 2:
        return Markup()
    entries = (
        element(
            "li",
            element(
                "a",
                element("span", case.found.verdict.value, class_=f"verdict {_tone(case)}"),
                element("span", f"{case.found.code} {case.found.name}"),
                element("span", _place(case.found), class_="place"),
                href=f"#finding-{number}",
            ),
        )
        for number, case in enumerate(run, 1)
    )
    return element("nav", element("ul", *entries), aria_label="Findings")


def _article(case: Case, name: str, sources: Mapping[str, str]) -> Markup:
    found = case.found
    done = decisive(found)
    return element(
        "article",
        element(
            "header",
            element("p", case.outcome, class_=f"verdict {_tone(case)}"),
            element(
                "h2",
                element("span", found.code, class_="code"),
                f" {found.name}",
                id=f"{name}-head",
            ),
            element("p", _place(found), class_="place"),
        ),
        element("p", prose(sentences.sentence(found.reason)), class_="reason"),
        _source(found, sources.get(found.file, "")),
        *(_arms(case, done, name) if done else ()),
        *_to_decide(found),
        *_controls(case),
        _notes(case, done),
        id=name,
        aria_labelledby=f"{name}-head",
    )


def _source(found: Confirmation, text: str) -> Markup:
    """The flagged line with its neighbours."""
    first = max(found.line - 3, 0)
    near = text.rstrip("\n").split("\n")[first : found.line + 2]
    if first + len(near) < found.line:
        return Markup()
    numbered = enumerate(near, first + 1)
    return source(numbered, (found.line,), f"Source around line {found.line}")


def _arms(case: Case, done: Pass, name: str) -> Iterator[Markup]:
    """Charts of the decisive pass and of the same pass of the fixed text, then their figures."""
    fixed = decisive(case.fixed)
    flagged = case.found.line if case.found.arm == "found" else 0
    arms = [("As found", done, flagged, f"{name}-found")]
    if case.fixed and fixed:
        arms.append(("In the fixed text", fixed, 0, f"{name}-fixed"))
    charts = _charts([arm[1] for arm in arms])
    for title, shown, line, prefix in arms:
        parts = [
            element("h3", title) if len(arms) > 1 else "",
            element("p", prose(sentences.sentence(case.fixed.reason)), class_="reason")
            if case.fixed and shown is fixed
            else "",
            _besides(shown),
            _timeline(shown, line, prefix),
            element("div", *charts(shown, prefix), class_="charts"),
        ]
        yield element("section", *parts)
    yield _figures(done, fixed)


def _besides(done: Pass) -> Markup:
    """Further results of a pass: an exception, running totals, the scale."""
    paragraphs = [
        element("p", prose(sentences.sentence(text)), class_="reason")
        for text in (sentences.exception(done), *sentences.besides(done))
        if text
    ]
    return joined(*paragraphs)


def _timeline(done: Pass, flagged: int, name: str) -> Markup:
    """The outcome of the micro-batches: a sentence, the timeline, and its text."""
    if not done.moments and not done.updates:
        return Markup()
    listed = table(
        "What was called in each micro-batch, with lines, on the first rank",
        ("micro-batch", "fate", "called"),
        words(timeline(done)),
        "words",
    )
    known = replay(done) and not done.raised
    caption = outcome_sentence(done) or (
        "Every micro-batch is applied once." if known else "Timeline."
    )
    cut = {m.microbatch for m in done.moments}
    keys = [
        f" The first {LONGEST} of {len(cut)} are drawn." if len(cut) > LONGEST else "",
        " A ring marks the flagged line." if any(m.line == flagged for m in done.moments) else "",
        " A dotted line marks the end of an epoch."
        if any(m.kind == "epoch" for m in done.moments)
        else "",
    ]
    drawn = timeline_svg(timeline(done, flagged), f"{name}-time")
    scroll = scrolled(drawn, "Timeline, can be scrolled sideways")
    return element(
        "figure",
        element("figcaption", element("strong", caption), *keys),
        scroll,
        details("Timeline in words", listed),
    )


Charts = Callable[[Pass, str], Iterator[Markup]]


def _charts(arms: Sequence[Pass]) -> Charts:
    """A function that draws the charts of an arm: the same charts and scales for all arms."""
    updates = [update for done in arms for update in done.updates]
    tallest = _most(figure for u in updates for figure in (u.applied, u.reference))
    widest = _most(u.spread for u in updates)
    astray = any(not u.error <= ERROR_THRESHOLD for u in updates)
    furthest = [update for done in arms if (update := worst(done))]
    heaviest = _most((1.2, *(weight for u in furthest for weight in u.weights)))
    weighed = any(abs(weight - 1) > _VISIBLE for u in updates for weight in u.weights)

    cut = f" The first {MOST} are drawn." if any(len(d.updates) > MOST for d in arms) else ""

    def charts(done: Pass, name: str) -> Iterator[Markup]:
        update = worst(done)
        if update is None:
            return
        if astray and (drawn := arrows(update, f"{name}-arrows")):
            yield _chart(
                drawn,
                f"Update {update.number}, length and angle",
                f"The tips are {figure(update.error)} of the large batch's gradient apart.",
            )
        yield _chart(
            norms(done, tallest, f"{name}-norms"),
            "Gradient norm of each update",
            f"Outline: the large batch. Bar: what the step applies.{cut}",
        )
        if weighed:
            yield _chart(
                weights(update, heaviest, f"{name}-weights"),
                f"Weight of a target, update {update.number}",
                "By micro-batch, as wide as it has targets. Line: the weight in the large batch.",
            )
        if widest > _VISIBLE:
            yield _chart(
                spreads(done, widest, f"{name}-spread"),
                "Largest difference between ranks",
                f"By update, relative to the large batch's gradient.{cut}",
            )

    return charts


def _chart(drawn: Markup, title: str, key: str) -> Markup:
    return element("figure", element("figcaption", element("strong", title), key), drawn)


def _figures(done: Pass, fixed: Pass | None) -> Markup:
    """Tables of the figures: the informative ones visible, all of them collapsed."""
    if not done.updates and not (fixed and fixed.updates):
        return Markup()
    few, all_of_them = (
        compared(done, fixed, every) if fixed else columns(done, every) for every in (False, True)
    )
    return joined(
        _grid(f"Updates: {sentences.circumstances(done)}", few),
        details("All figures", _grid("All figures of each update", all_of_them), _micro(done)),
    )


def _micro(done: Pass) -> Markup:
    rows = [
        (str(u.number), str(number), str(targets), figure(weight))
        for u in done.updates
        for number, targets, weight in zip(u.microbatches, u.targets, u.weights, strict=False)
    ]
    heads = ("update", "micro-batch", "targets", "weight of a target")
    return table("Targets of each micro-batch and their weight", heads, rows)


def _grid(caption: str, shown: Sequence[Column]) -> Markup:
    heads = [f"{column.name}, {column.arm}" if column.arm else column.name for column in shown]
    return table(caption, heads, list(zip(*(column.cells for column in shown), strict=True)))


def _to_decide(found: Confirmation) -> Iterator[Markup]:
    """How to decide an undecided finding."""
    if found.setup:
        yield element("h3", "Setup file to fill in")
        yield code(found.setup.rstrip("\n"), "Setup file to fill in")
    if found.advice:
        advice = prose(sentences.sentence(found.advice))
        yield element("p", element("strong", "To decide it."), " ", advice)


def _controls(case: Case) -> Iterator[Markup]:
    for title, one in (("Control.", case.found), ("Control of the fixed text.", case.fixed)):
        if one and one.control:
            yield element(
                "p",
                element("strong", title),
                " ",
                prose(sentences.controlled(one)),
                class_="control",
            )


def _notes(case: Case, done: Pass | None) -> Markup:
    """How it was measured: fakes and further observations."""
    found = case.found
    notes: list[tuple[str, Sequence[str]]] = [
        ("Finding", [sentences.sentence(found.message)] if found.message else []),
        ("Claim", [found.claim] if found.claim else []),
        ("Measured", [f"{name}: {_shown(value)}" for name, value in found.measured.items()]),
        ("Fakes", sentences.grouped(found.fakes)),
        ("Also run", [sentences.summed(other) for other in found.passes if other is not done]),
        ("Also seen", [sentences.sentence(note) for note in found.also]),
    ]
    rows = (
        joined(element("dt", term), *(element("dd", prose(text)) for text in texts))
        for term, texts in notes
        if texts
    )
    return details("How it was measured", element("dl", *rows))


def _shown(value: float | int | str) -> str:
    return figure(value) if isinstance(value, float) else str(value)


def _place(one: Confirmation) -> str:
    return f"{one.file}:{one.line}:{one.column}"


def _tone(case: Case) -> str:
    return _TONES[case.found.verdict]


def _most(values: Iterable[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=0.0)
