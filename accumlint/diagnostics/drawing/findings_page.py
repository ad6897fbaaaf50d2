"""What a whole run found as one HTML file: a list to go by, and of each finding the source beside its picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from accumlint.diagnostics.drawing.components import details, prose, source
from accumlint.diagnostics.drawing.html_document import document
from accumlint.diagnostics.drawing.loops_page import picture, sums
from accumlint.diagnostics.drawing.markup import Markup, element, lines
from accumlint.diagnostics.drawing.updates_charts import section
from accumlint.diagnostics.reporting.paths import relative
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.report import Checked, Fix, Report
from accumlint.registry import packs

_SEVERITIES = ("error", "warning", "info")
# A picture stands beside its source and has less room than one that stands alone.
_ROOM = 760


def page(results: Sequence[Checked], told: Sequence[str], look: Look) -> str:
    """The file as text; `told` are the lines that sum the run up."""
    root = look.root
    reports = [report for result in results for report in result.reports]
    names = {id(report): f"finding-{number}" for number, report in enumerate(reports, 1)}
    measured = [one for result in results for one in result.measured]
    title = "accumlint run" if measured else "accumlint check"
    header = element(
        "header",
        element("h1", title),
        element("p", told[0], class_="tally"),
        *(element("p", line.removeprefix("[*] "), class_="setting") for line in told[1:]),
        _filter(reports),
        _contents(reports, names, root),
    )
    main = element(
        "main",
        *(article(report, names[id(report)], root) for report in reports),
        *(section(one, f"updates-{number}") for number, one in enumerate(measured, 1)),
        left_over(results, everything=look.coverage),
        class_="wide",
    )
    return document(f"{title}: {told[0]}", header, main)


def _filter(reports: Sequence[Report]) -> Markup:
    """Switches for the severities, where there are several; the style does the rest."""
    held = [s for s in _SEVERITIES if any(report.severity == s for report in reports)]
    if len(held) < 2:
        return Markup()
    switches = [
        element(
            "label",
            element(
                "input",
                type="radio",
                name="severity",
                id=f"only-{word}",
                checked="checked" if word == "all" else None,
            ),
            f" {words}",
        )
        for word, words in (
            ("all", f"all {len(reports)}"),
            *((s, f"{s} {sum(r.severity == s for r in reports)}") for s in held),
        )
    ]
    return element("fieldset", element("legend", "Show"), *switches, class_="filter")


def _contents(reports: Sequence[Report], names: dict[int, str], root: Path) -> Markup:
    """Links to the findings, file by file."""
    if not reports:
        return Markup()
    files = [
        element(
            "li",
            element("span", relative(file, root), class_="place"),
            element("ul", *(_entry(report, names[id(report)]) for report in held)),
        )
        for file, held in groupby(reports, key=lambda report: report.file)
    ]
    return element("nav", element("ul", *files), aria_label="Findings", class_="files")


def _entry(report: Report, name: str) -> Markup:
    return element(
        "li",
        element(
            "a",
            element("span", report.severity, class_=f"verdict {report.severity}"),
            element("span", f"{report.code} {report.name}"),
            element("span", f"line {report.mark.row}", class_="place"),
            href=f"#{name}",
        ),
        class_=f"finding {report.severity}",
    )


def article(report: Report, name: str, root: Path) -> Markup:
    """One finding; `name` begins the ids of what it holds."""
    place = f"{relative(report.file, root)}:{report.mark.where}"
    return element(
        "article",
        element(
            "header",
            element(
                "p",
                f"{report.severity}, {report.confidence}",
                class_=f"verdict {report.severity}",
            ),
            element(
                "h2",
                element("span", report.code, class_="code"),
                f" {report.name}",
                id=f"{name}-head",
            ),
            element("p", place, class_="place"),
        ),
        element("p", prose(f"{report.message[:1].upper()}{report.message[1:]}."), class_="reason"),
        element("p", prose(f"This happens {report.condition}."), class_="setting")
        if report.condition
        else "",
        element("div", _source(report), _picture(report, name), class_="beside"),
        fixing(report.fix) if report.fix else "",
        _rule(report),
        class_=f"finding {report.severity}",
        id=name,
        aria_labelledby=f"{name}-head",
    )


def _source(report: Report) -> Markup:
    """The lines around the finding, and what belongs to it elsewhere."""
    mark = report.mark
    shown = report.picture
    rows = shown.rows if shown and shown.rows else ((mark.place.line, mark.text),)
    if all(number != mark.place.line for number, _ in rows):
        rows = tuple(sorted({*rows, (mark.place.line, mark.text)}))
    marked = shown.lines if shown else frozenset[int]()
    related = [
        element(
            "li",
            element("span", f"line {other.row}", class_="place"),
            " ",
            prose(other.message),
        )
        for other in report.related
    ]
    return element(
        "div",
        source(rows, (mark.place.line,), f"Source around line {mark.place.line}", marked),
        element("ul", *related, class_="related") if related else "",
    )


def _picture(report: Report, name: str) -> Markup:
    compared = _compared(report)
    if report.picture is None or not report.picture.timeline.groups:
        return element("div", compared)
    notes = [
        element("p", prose(f"Read only in part: {reason}."), class_="partly")
        for reason in report.picture.partly
    ]
    return element(
        "div",
        picture(report.picture.timeline, f"{name}-time", room=_ROOM, compared=compared or None),
        *notes,
    )


def _compared(report: Report) -> Markup:
    if not report.applied or not report.expected:
        return Markup()
    applies, _, gradient = report.applied.partition(" applies ")
    reference = report.expected.removeprefix("the large batch is ")
    return sums(f"{applies} applies", gradient, reference, gradient != reference)


def fixing(fix: Fix) -> Markup:
    """What a fix changes, as a diff."""
    heads = {"safe": "Fix", "unsafe": "Fix (unsafe)", "display": "Suggestion"}
    kinds = {"+": "added", "-": "removed", "@": "gap"}
    rows = (
        element("span", lines(line), class_=kinds.get(line[:1], "near"))
        for line in fix.difference
        if not line.startswith("@@")
    )
    body = element(
        "pre",
        element("code", Markup("\n".join(rows))),
        class_="diff",
        tabindex="0",
        role="group",
        aria_label="What the fix changes",
    )
    return details(f"{heads[fix.applicability]}: {fix.message}", body)


def _rule(report: Report) -> Markup:
    """What the rule's page says before its examples."""
    try:
        text = packs.rule(packs.find(report.code)).page()
    except packs.UnknownSelector:
        return Markup()
    paragraphs = text.partition("\n\nBad:")[0].split("\n\n")
    return details(
        "Why it matters",
        *(element("p", prose(" ".join(p.split())), class_="why") for p in paragraphs),
        element("p", "More: ", element("code", f"accumlint rule {report.code}"), class_="why"),
    )


def left_over(results: Sequence[Checked], *, everything: bool) -> Markup:
    """What could not be checked, and the backward calls that were not read whole, or all of them."""
    told = list(_untold(results, everything=everything))
    if not told:
        return Markup()
    entries = (
        element("li", element("span", place, class_="place"), " ", prose(text))
        for place, text in told
    )
    return element(
        "section",
        element("h2", "What was read" if everything else "Not read"),
        element("ul", *entries, class_="related"),
        class_="left-over",
    )


def _untold(results: Sequence[Checked], *, everything: bool) -> Iterator[tuple[str, str]]:
    for result in results:
        for problem in result.problems:
            line = f":{problem.line}" if problem.line else ""
            yield f"{problem.path}{line}", problem.message
        for backward in result.backwards:
            if everything or backward.state != "whole":
                yield f"{backward.shown}:{backward.mark.row}", backward.description
