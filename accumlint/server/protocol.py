"""Findings as the language server protocol has them: diagnostics, hovers and actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from lsprotocol import types

from accumlint.common.place import Place
from accumlint.common.problem import Problem
from accumlint.diagnostics.reporting.markdown import text
from accumlint.diagnostics.reporting.rule_pages import page
from accumlint.diagnostics.reporting.terminal import Look, printable
from accumlint.diagnostics.results.report import Edit, Mark, Report
from accumlint.registry import packs
from accumlint.server.open_file import Opened

_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Information,
}
# A place in a document, by its URI, in the units of the client.
Ranges = Callable[[str, Place], types.Range]


def diagnostics(opened: Opened, uri: str, ranges: Ranges) -> list[types.Diagnostic]:
    """The findings in one document."""
    return [_diagnostic(opened, report, ranges) for report in opened.reports(uri)]


def unread(problem: Problem, range_: types.Range) -> types.Diagnostic:
    """What kept a text from being read, so that the findings beside it are of an earlier text."""
    message = f"not checked: {problem.message}"
    return types.Diagnostic(range_, message, types.DiagnosticSeverity.Error, source="accumlint")


def hover(reports: Iterable[Report], range_: types.Range) -> types.Hover:
    """What findings at one place are, what is applied there, and the pages of their rules."""
    text = "\n\n---\n\n".join(map(_told, reports))
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), range_)


def actions(
    opened: Opened, reports: Iterable[Report], ranges: Ranges
) -> Iterator[types.CodeAction]:
    """The fix of each finding, and the ignore that silences it."""
    for report in reports:
        diagnostic = _diagnostic(opened, report, ranges)
        if fix := report.applicable_fix:
            is_safe = fix.applicability == "safe"
            title = fix.message if is_safe else f"{fix.message} (unsafe)"
            edit = _edit(opened, fix.edits, ranges)
            yield _action(title, diagnostic, edit, is_preferred=is_safe)
        rule = packs.rule(packs.find(report.code))
        if not rule.meta and (edits := opened.ignored(report)):
            yield _action(f"Ignore {report.code} here", diagnostic, _edit(opened, edits, ranges))


def _diagnostic(opened: Opened, report: Report, ranges: Ranges) -> types.Diagnostic:
    related = [
        types.DiagnosticRelatedInformation(_location(opened, mark, ranges), mark.message)
        for mark in report.related
        if not mark.elsewhere
    ]
    return types.Diagnostic(
        range=ranges(opened.uri_of(report.mark.cell), report.mark.place),
        severity=_SEVERITIES[report.severity],
        code=report.code,
        source="accumlint",
        message="\n".join((report.headline, *report.gradients)),
        related_information=related or None,
    )


def _location(opened: Opened, mark: Mark, ranges: Ranges) -> types.Location:
    uri = opened.uri_of(mark.cell)
    return types.Location(uri, ranges(uri, mark.place))


def _action(
    title: str, diagnostic: types.Diagnostic, edit: types.WorkspaceEdit, is_preferred: bool = False
) -> types.CodeAction:
    kind = types.CodeActionKind.QuickFix
    return types.CodeAction(title, kind, [diagnostic], is_preferred=is_preferred, edit=edit)


def _edit(opened: Opened, edits: Iterable[Edit], ranges: Ranges) -> types.WorkspaceEdit:
    changes: dict[str, list[types.TextEdit]] = {}
    for edit in edits:
        uri = opened.uri_of(edit.cell)
        changes.setdefault(uri, []).append(types.TextEdit(ranges(uri, edit.place), edit.content))
    return types.WorkspaceEdit(changes=dict(changes))


def _told(report: Report) -> str:
    lines = [f"**{report.code} {report.name}** ({report.severity}, {report.confidence})", ""]
    lines += [text(report.headline, tags=False), ""]
    story = [*(f"{mark.place.line}  {mark.message}" for mark in report.timeline)]
    if shown := [*story, *([""] if story and report.gradients else []), *report.gradients]:
        lines += ["```text", *map(printable, shown), "```", ""]
    return "\n".join((*lines, *page(packs.rule(packs.find(report.code)), Look())))
