"""Loops as one HTML file, or as one SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accumlint.diagnostics.drawing.components import (
    details,
    placed,
    prose,
    scrolled,
    source,
    standalone,
    table,
)
from accumlint.diagnostics.drawing.diagram_svg import timeline_svg, words
from accumlint.diagnostics.drawing.html_document import document
from accumlint.diagnostics.drawing.markup import Markup, element
from accumlint.diagnostics.results.diagram import Loop, Step, Timeline, folded, story

# More micro-batches than these are drawn with those alike as one.
MOST = 24


def page(loops: Sequence[Loop]) -> str:
    """The file as text."""
    files = ", ".join(dict.fromkeys(loop.shown for loop in loops))
    count = "1 loop" if len(loops) == 1 else f"{len(loops)} loops"
    header = element(
        "header",
        element("h1", "accumlint trace"),
        element("p", files, class_="tally"),
        _contents(loops),
    )
    articles = (article(loop, f"loop-{number}") for number, loop in enumerate(loops, 1))
    return document(f"accumlint trace: {count} in {files}", header, element("main", *articles))


def _contents(loops: Sequence[Loop]) -> Markup:
    """Links to the loops, where there are several."""
    if len(loops) < 2:
        return Markup()
    entries = (
        element(
            "li",
            element(
                "a",
                element("span", *_verdict(loop)),
                element("span", loop.title),
                element("span", f"{loop.shown}:{loop.where}", class_="place"),
                href=f"#loop-{number}",
            ),
        )
        for number, loop in enumerate(loops, 1)
    )
    return element("nav", element("ul", *entries), aria_label="Loops")


def _verdict(loop: Loop) -> Iterator[Markup]:
    codes = list(dict.fromkeys(found.code for found in loop.found))
    if codes:
        shown = " ".join(codes[:2]) + (" …" if len(codes) > 2 else "")
        yield element("span", shown, class_="verdict bad")
    else:
        yield element("span", "nothing found", class_="verdict good")


def article(loop: Loop, name: str) -> Markup:
    """One loop; `name` begins the ids of what it holds."""
    flagged = [found.line for found in loop.found if found.line]
    notes = [
        element("p", prose(f"Read only in part: {reason}."), class_="partly")
        for reason in loop.partly
    ]
    path = f" (condition {loop.path} of {loop.paths})" if loop.paths > 1 else ""
    return element(
        "article",
        element(
            "header",
            *(element("p", v) for v in _verdict(loop)),
            element("h2", loop.title, id=f"{name}-head"),
            element("p", f"{loop.shown}:{loop.where}", class_="place"),
            element("p", f"Run with {loop.setting}{path}.", class_="setting"),
            element("p", f"This holds {loop.condition}.", class_="setting")
            if loop.condition
            else "",
        ),
        *notes,
        *(_found(loop)),
        picture(loop.timeline, f"{name}-time"),
        _source(loop, flagged),
        id=name,
        aria_labelledby=f"{name}-head",
    )


def _found(loop: Loop) -> Iterator[Markup]:
    if not loop.found:
        return
    entries = (
        element(
            "li",
            element("span", f"{found.code} {found.name}", class_="rule"),
            element("span", f"line {found.where}", class_="place"),
            element("span", prose(found.message), class_="said"),
        )
        for found in loop.found
    )
    yield element("ul", *entries, class_="found")


def picture(
    timeline: Timeline,
    name: str,
    title: str = "Timeline of the micro-batches",
    room: float = 960,
    compared: Markup | None = None,
) -> Markup:
    """A timeline with a sentence above it, what steps apply (`compared`) below, and all of it in words."""
    drawn = folded(timeline, MOST)
    keys = [
        element("span", mark, " ", text)
        for mark, text in (
            (_ring(), "what was found") if any(b.codes for b in timeline.calls) else (None, ""),
            (_hollow(), "no reduction: each rank keeps its own gradients")
            if any(b.off for b in timeline.calls)
            else (None, ""),
            (_dashes("epoch"), "an epoch ends")
            if any(m.ends for m in timeline.groups)
            else (None, ""),
            (_dashes("reference"), "the large batch’s part") if timeline.steps else (None, ""),  # noqa: RUF001
        )
        if mark is not None
    ]
    keys += [
        element("span", element("b", symbol), f" {meaning}") for symbol, meaning in timeline.symbols
    ]
    return element(
        "figure",
        element(
            "figcaption",
            element("strong", story(timeline) or "What is called, and what the steps apply."),
            element("span", *keys, class_="keys") if keys else "",
        ),
        scrolled(timeline_svg(drawn, name, title, room), "Timeline, can be scrolled sideways"),
        compared if compared is not None else _sums(timeline),
        details("Timeline in words", *_words(timeline)),
    )


def _ring() -> Markup:
    circle = element("circle", class_="flagged", cx=8, cy=8, r=6)
    return element("svg", circle, width=16, height=16, aria_hidden="true", class_="key")


def _hollow() -> Markup:
    circle = element("circle", class_="mark clear", cx=8, cy=8, r=3.5)
    return element("svg", circle, width=16, height=16, aria_hidden="true", class_="key")


def _dashes(kind: str) -> Markup:
    path = element("path", class_=kind, d="M2 8H18")
    return element("svg", path, width=20, height=16, aria_hidden="true", class_="key")


def _sums(timeline: Timeline) -> Markup:
    """The first step that differs, or the first, as sums."""
    wrong = [step for step in timeline.steps if step.wrong]
    for step in (wrong or list(timeline.steps))[:1]:
        where = f" at line {step.where}" if step.where else ""
        applies = f"step {step.number}{where} applies"
        return sums(applies, step.gradient, step.reference, step.wrong)
    return Markup()


def sums(applies: str, gradient: str, reference: str, wrong: bool) -> Markup:
    """What a step applies above what the large batch is."""
    return element(
        "dl",
        element("dt", applies),
        element("dd", element("code", gradient), class_="bad" if wrong else None),
        element("dt", "the large batch is"),
        element("dd", element("code", reference)),
        class_="sums",
    )


def _words(timeline: Timeline) -> Iterator[Markup]:
    yield table(
        "What was called in each micro-batch, with lines",
        ("micro-batch", "fate", "called"),
        words(timeline),
        "words",
    )
    if timeline.steps:
        yield table(
            "What each step applies, and what the large batch is",
            ("step", "optimizer", "applies", "large batch"),
            [_row(step) for step in timeline.steps],
            "words",
        )


def _row(step: Step) -> tuple[str, str, str, str]:
    return str(step.number), step.optimizer, step.gradient, step.reference


def _source(loop: Loop, flagged: Sequence[int]) -> Markup:
    if not loop.rows:
        return Markup()
    label = f"Source of {loop.title}"
    return source(loop.rows, flagged, label, loop.lines)


# One picture


def svg(loops: Sequence[Loop], *, heads: bool = True) -> str:
    """The loops one below the other as an SVG that stands alone; `heads` tell what each is."""
    parts: list[Markup] = []
    y, width = 0.0, 320.0
    for number, loop in enumerate(loops, 1):
        told = _heads(loop) if heads else []
        for text, kind in told:
            y += 18
            parts.append(element("text", text, class_=kind, x=16, y=y + 8))
        drawn = timeline_svg(folded(loop.timeline, MOST), f"loop-{number}")
        nested, wide, high = placed(drawn, 16, y + 20)
        parts.append(nested)
        longest = max((len(text) * _LETTERS.get(kind, 6.3) for text, kind in told), default=0)
        width = max(width, wide, longest)
        y += high + 36
    return str(standalone(parts, width + 32, y))


_LETTERS = {"head": 8.2, "told": 7}


def _heads(loop: Loop) -> list[tuple[str, str]]:
    lines = [
        (f"{loop.title}  {loop.shown}:{loop.where}", "head"),
        (f"Run with {loop.setting}.", "quiet"),
    ]
    if loop.condition:
        lines.append((f"This holds {loop.condition}.", "quiet"))
    lines += [(f"Read only in part: {reason}.", "open") for reason in loop.partly]
    lines += [(f"{f.code} line {f.where}: {f.message}", "bad") for f in loop.found]
    if told := story(loop.timeline):
        lines.append((told, "told"))
    return lines
