"""A rule's page, and the catalogue of all rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from accumlint.diagnostics.reporting.terminal import Look
from accumlint.registry import accuracy

if TYPE_CHECKING:
    from accumlint.rule import Rule


def page(rule: Rule, look: Look) -> Iterator[str]:
    """The page of a rule in Markdown."""
    yield look.paint(f"# {rule.code} {rule.name}", rule.severity.value)
    yield ""
    yield look.paint(_kind(rule), "dim")
    if measured := accuracy.of(rule.code):
        yield look.paint(f"On labelled loops: {measured.sentence}", "dim")
    yield ""
    yield rule.page() or "The page is the rule's docstring, which `python -OO` leaves out."


def catalogue(rules: Sequence[Rule], look: Look) -> Iterator[str]:
    """A line for each rule."""
    width = max(len(rule.name) for rule in rules)
    for rule in rules:
        severity = rule.severity.value
        code = look.paint(rule.code, severity)
        told = f"{sentence(rule)} (opt-in)" if rule.opt_in else sentence(rule)
        yield f"{code}  {severity:<7}  {rule.name:<{width}}  {told}".rstrip()


def _kind(rule: Rule) -> str:
    fix = f". Fix: {rule.fix.value}" if rule.fix else ""
    opt_in = ", only when selected" if rule.opt_in else ""
    return f"Severity: {rule.severity.value}{opt_in}{fix}"


def sentence(rule: Rule) -> str:
    """The first sentence of the page in one line, "" without a page."""
    paragraph = " ".join(rule.page().split("\n\n")[0].split())
    first = paragraph.split(". ")[0].rstrip(".")
    return f"{first}." if first else ""
