"""A file as an editor has it, and what checking it gave."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path

from accumlint import check, config
from accumlint.common.frozen import frozen
from accumlint.common.problem import Misuse
from accumlint.config import Options
from accumlint.diagnostics.drawing import loops_page, traced_loops
from accumlint.diagnostics.fixing import ignore_comments
from accumlint.diagnostics.results.report import Cell, Checked, Edit, Fix, Report
from accumlint.files.inputs import document as texts
from accumlint.files.inputs.discovery import Target, find
from accumlint.files.source import encode


@frozen
class Opened:
    """A file or a notebook that is open. `cells` are the URIs of a notebook's code cells, in their order.

    `is_stale`: `checked` is of an earlier text.
    """

    uri: str
    path: str
    data: bytes
    cells: tuple[str, ...] = ()
    checked: Checked = field(default_factory=lambda: Checked(""))
    is_stale: bool = False

    @property
    def uris(self) -> tuple[str, ...]:
        """The documents in which findings may stand."""
        return self.cells or (self.uri,)

    def uri_of(self, cell: Cell | None) -> str:
        return self.cells[cell.number - 1] if cell else self.uri

    def reports(self, uri: str) -> list[Report]:
        """The findings in one document."""
        return [r for r in self.checked.reports if self.uri_of(r.mark.cell) == uri]

    def ignored(self, report: Report) -> tuple[Edit, ...]:
        """The edits that put an ignore behind the statement of a finding."""
        text = texts.read(self.data, self._is_notebook)
        if text is None:
            return ()
        fix = text.fix(Fix("safe", "", tuple(ignore_comments.comments(text, [report], ""))))
        return fix.edits if fix else ()

    def check(self, asked: Options = Options()) -> Checked:  # noqa: B008
        """What checking it gives, as the settings of its folder say; nothing where it is excluded.

        Raises:
            Misuse: when the settings cannot be used.
        """
        target = self._target(asked)
        return check.check_bytes(self.data, target) if target else Checked(self.path)

    def page(self, line: int, asked: Options) -> str:
        """The loops that a line belongs to as an HTML page; all loops of a notebook, whose cells begin at line 1 each.

        Raises:
            Misuse: when there are none, or the settings cannot be used.
        """
        target = self._target(asked)
        name = os.path.basename(self.path)
        if target is None:
            raise Misuse(f"{name}: is excluded by the settings")
        target = replace(target, shown=name)
        shown = traced_loops.show(self.data, target)
        groups = traced_loops.selected(shown, target, 0 if self._is_notebook else line)
        return loops_page.page([paths[0] for paths in groups])

    def _target(self, asked: Options) -> Target | None:
        # Who opens a test wants to know what is in it.
        asked = replace(asked, include_tests=True)
        if os.path.exists(self.path):
            targets, _ = find((self.path,), asked, force_exclude=True)
            return targets[0] if targets else None
        folder = Path(self.path).parent
        return Target(self.path, self.path, config.settings(folder, asked))

    @property
    def _is_notebook(self) -> bool:
        return bool(self.cells)


def script(uri: str, path: str, text: str) -> Opened:
    """A Python file with a text."""
    data = text.encode("utf-8", "replace")
    # What it says of its encoding may not be so; then the check tells.
    with suppress(UnicodeError, LookupError, SyntaxError):
        data = encode(text, data)
    return Opened(uri, path, data)


def notebook(uri: str, path: str, cells: Sequence[tuple[str, str]]) -> Opened:
    """A notebook with code cells, each a URI and a text."""
    held = [{"cell_type": "code", "source": text} for _, text in cells]
    path = path if path.endswith(".ipynb") else f"{path}.ipynb"
    return Opened(uri, path, json.dumps({"cells": held}).encode(), tuple(uri for uri, _ in cells))
