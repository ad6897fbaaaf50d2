"""How often a rule was right, measured on labelled loops; each pack may bring its figures in an `accuracy.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast

from accumlint.common.frozen import frozen
from accumlint.registry import packs

# From here on SARIF's words hold, of the share that `expected` gives.
_WORDS = (("very-high", 0.9), ("high", 0.75), ("medium", 0.5), ("low", 0.0))


@frozen
class Accuracy:
    """Findings that a reader's label bears out, findings in fully labelled loops that none does, labels not found."""

    right: int
    wrong: int
    missed: int

    @property
    def expected(self) -> float:
        """The share of findings to expect right: Laplace's rule of succession, so that a few are no certainty."""
        return (self.right + 1) / (self.right + self.wrong + 2)

    @property
    def precision(self) -> str:
        """The share in SARIF's words, "" where there was no finding."""
        if not self.right + self.wrong:
            return ""
        return next(word for word, least in _WORDS if self.expected >= least)

    @property
    def sentence(self) -> str:
        found = f"{self.right} of {self.right + self.wrong} findings right"
        return f"{found}, {self.missed} of {self.right + self.missed} defects missed"


def of(code: str) -> Accuracy | None:
    """What was measured for a rule, None where nothing was."""
    entry = packs.find(code)
    figures = _figures(entry.module.rpartition(".")[0]).get(entry.code)
    return Accuracy(**figures) if figures else None


@cache
def _figures(package: str) -> Mapping[str, Mapping[str, int]]:
    from importlib.resources import files

    # importlib finds no resources in a package without an __init__.py.
    folder = packs.added_folder(package)
    file = (Path(folder) if folder else files(package)).joinpath("accuracy.json")
    if not file.is_file():
        return {}
    return cast("Mapping[str, Mapping[str, int]]", json.loads(file.read_text(encoding="utf-8")))
