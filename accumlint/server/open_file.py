"""A file as an editor has it, and what checking it gave."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from accumlint import check, config
from accumlint.common.frozen import frozen
from accumlint.config import Options
from accumlint.files.source import encode
from accumlint.fixing import ignore_comments
from accumlint.inputs import document as texts
from accumlint.inputs.discovery import Target, find
from accumlint.results.report import Cell, Checked, Edit, Fix, Report

# Who opens a test wants to know what is in it.
_ASKED = Options(include_tests=True)


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

    def check(self) -> Checked:
        """What checking it gives, as the settings of its folder say; nothing where it is excluded.

        Raises:
            Misuse: when the settings cannot be used.
        """
        target = self._target()
        return check.check_bytes(self.data, target) if target else Checked(self.path)

    def _target(self) -> Target | None:
        if os.path.exists(self.path):
            targets, _ = find((self.path,), _ASKED, force_exclude=True)
            return targets[0] if targets else None
        folder = Path(self.path).parent
        return Target(self.path, self.path, config.settings(folder, _ASKED))

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
