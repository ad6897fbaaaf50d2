"""Makes the table and the plot of `docs/accuracy.md` from the samples in `docs/data/samples.toml`.

    python benchmarks/samples.py

prints the table and writes `docs/samples.svg`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).parents[1] / "docs"
_WIDTH, _HEIGHT, _LEFT, _TOP = 560, 180, 40, 34
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}line{stroke:#8a94a6;stroke-opacity:.35}"
    ".r{fill:#2f6fde;stroke:#2f6fde}.p{fill:#c2571a;stroke:#c2571a}polyline{fill:none!important;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}}"
)


@dataclass(frozen=True)
class Sample:
    """Files of repositories that the linter had not seen; pairs and triples as the data file says."""

    name: str
    files: int
    repositories: int
    gradients: tuple[int, int]
    all: tuple[int, int]
    findings: tuple[int, int, int] | None
    silent: tuple[int, int] | None

    @property
    def recall(self) -> float:
        """The share of the defects that change gradients that is found."""
        return self.gradients[0] / self.gradients[1]

    @property
    def precision(self) -> float | None:
        """The share of right findings among those that are right or wrong; None where nobody counted."""
        if self.findings is None:
            return None
        right, _, wrong = self.findings
        return right / (right + wrong)


def samples() -> list[Sample]:
    """The samples, the oldest first."""
    rows = tomllib.loads((DOCS / "data" / "samples.toml").read_text(encoding="utf-8"))["sample"]
    return [
        Sample(
            row["name"],
            row["files"],
            row["repositories"],
            tuple(row["gradients"]),
            tuple(row["all"]),
            tuple(row["findings"]) if "findings" in row else None,
            tuple(row["silent"]) if "silent" in row else None,
        )
        for row in rows
    ]


def table(rows: Sequence[Sample]) -> Iterator[str]:
    """The lines of the Markdown table."""
    yield (
        "| sample | files (repositories) | change gradients | all defects "
        "| right / debatable / wrong | right files silent |"
    )
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in rows:
        found, labelled = row.gradients
        findings = " / ".join(map(str, row.findings)) if row.findings else "-"
        silent = "{} of {}".format(*row.silent) if row.silent else "-"
        yield (
            f"| {row.name} | {row.files} ({row.repositories}) | {found} of {labelled} ({row.recall:.2f}) | "
            f"{row.all[0]} of {row.all[1]} | {findings} | {silent} |"
        )


def plot(rows: Sequence[Sample]) -> str:
    """Recall and precision by sample, as an SVG picture that reads on light and dark pages."""
    step = _WIDTH / max(1, len(rows) - 1)

    def place(number: int, share: float) -> tuple[float, float]:
        return _LEFT + number * step, _TOP + _HEIGHT * (1 - share)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {_TOP + _HEIGHT + 30}" '
        f'role="img" aria-label="Recall and precision by sample"><style>{_STYLE}</style>',
        f'<text class="r" x="{_LEFT}" y="16" stroke="none">defects that change gradients, found</text>',
        f'<text class="p" x="{_LEFT + 260}" y="16" stroke="none">findings that are right</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        x, y = place(0, share)
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x + _WIDTH}" y2="{y}"/>')
        parts.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{share:g}</text>')
    lines = (
        ("r", [(i, row.recall) for i, row in enumerate(rows)]),
        ("p", [(i, row.precision) for i, row in enumerate(rows) if row.precision is not None]),
    )
    for kind, points in lines:
        found = [place(number, share) for number, share in points]
        shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in found)
        parts.append(f'<polyline class="{kind}" points="{shown}"/>')
        parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in found]
    for number in range(len(rows)):
        x, y = place(number, 0)
        parts.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{number + 1}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    rows = samples()
    (DOCS / "samples.svg").write_text(plot(rows), encoding="utf-8")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
