"""Makes the tables of `docs/accuracy.md` and `docs/samples.md`, and their plot, from the measurements in `docs/data`.

    python benchmarks/samples.py

writes them; with `--check` it writes nothing and fails where a file differs from its data.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from document import filled

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).parents[1] / "docs"
# So many samples fit one screen.
RECENT = 6
_WIDTH, _HEIGHT, _LEFT, _TOP = 560, 180, 40, 34
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}line{stroke:#8a94a6;stroke-opacity:.35}"
    ".r{fill:#2f6fde;stroke:#2f6fde}.p{fill:#c2571a;stroke:#c2571a}polyline{fill:none!important;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}}"
)


# Kinds of missed defects, as the data calls them.
KINDS = {
    "shown": "losses and norms logged through a helper, a meter, a table or a return value; no gradient changes",
    "targets": "a mean over a varying number of targets whose labels are masked, padded or counted out of sight",
    "loss": "the loss passes through a call that cannot be followed, or is multiplied by something unknown",
    "other file": "the deciding fact stands in another file: a caller, a base class, a table, an engine",
    "reduction": "reductions by a wrapper or a helper out of sight: DDP put on elsewhere, `.module`, a buffer",
    "window": "windows whose size or end is decided out of sight, counted in samples, or shortened by a NaN guard",
    "gradients": "clears, clips, `unscale_` and graphs in helpers, under a flag or of one of several optimizers",
    "framework": "contracts that depend on a configuration, an engine or a Trainer's own step",
    "schedule": "schedules of other libraries, or whose length is counted in micro-batches out of sight",
}
REST = {
    "not read": "the loop is not read",
    "opt-in": "only an opt-in rule reports it",
    "no rule": "there is no rule",
    "hidden": "a worse finding hides it",
    "other": "other causes",
}


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
    row: Mapping[str, Any]

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


def _data(name: str) -> dict[str, Any]:
    return tomllib.loads((DOCS / "data" / f"{name}.toml").read_text(encoding="utf-8"))


def samples() -> list[Sample]:
    """The samples, the oldest first."""
    rows = _data("samples")["sample"]
    return [
        Sample(
            row["name"],
            row["files"],
            row["repositories"],
            tuple(row["gradients"]),
            tuple(row["all"]),
            tuple(row["findings"]) if "findings" in row else None,
            tuple(row["silent"]) if "silent" in row else None,
            row,
        )
        for row in rows
    ]


def table(rows: Sequence[Sample]) -> Iterator[str]:
    """The lines of the Markdown table."""
    yield (
        "| sample | files (repositories) | change gradients | in their projects | all defects "
        "| right / debatable / wrong | right files silent |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        found, labelled = row.gradients
        findings = " / ".join(map(str, row.findings)) if row.findings else "-"
        silent = "{} of {}".format(*row.silent) if row.silent else "-"
        whole = row.row.get("projects", {}).get("gradients")
        projects = f"{whole[0]} of {whole[1]} ({whole[0] / whole[1]:.2f})" if whole else "-"
        yield (
            f"| {row.name} | {row.files} ({row.repositories}) | {found} of {labelled} ({row.recall:.2f}) | "
            f"{projects} | {row.all[0]} of {row.all[1]} | {findings} | {silent} |"
        )


def recent(rows: Sequence[Sample]) -> Iterator[str]:
    """The table of the last samples, with the sum over all of them."""
    yield from table(rows[-RECENT:])

    def total(pairs: Iterable[Sequence[int] | None]) -> list[int]:
        return [sum(column) for column in zip(*filter(None, pairs), strict=True)]

    found, labelled = total(row.gradients for row in rows)
    every = "{} of {}".format(*total(row.all for row in rows))
    right, debatable, wrong = total(row.findings for row in rows)
    silent = "{} of {}".format(*total(row.silent for row in rows))
    # A repository may be in several samples, so their numbers are not added up.
    yield (
        f"| *all {len(rows)}* | {sum(row.files for row in rows)} | {found} of {labelled} ({found / labelled:.2f}) | "
        f"- | {every} | {right} / {debatable} / {wrong} | {silent} |"
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


def missed(rows: Sequence[Sample]) -> Iterator[str]:
    """What was missed, by kind, the most frequent first."""
    counts = Counter[str]()
    for row in rows:
        for count, kind, _ in row.row.get("missed", ()):
            counts[kind] += count
    assert set(counts) <= {*KINDS, *REST}, "a kind that has no sentence"
    yield "| missed | cause |"
    yield "| --- | --- |"
    for kind in sorted(KINDS, key=lambda kind: -counts[kind]):
        yield f"| {counts[kind]} | {KINDS[kind]} |"
    rest = "; ".join(f"{sentence} ({counts[kind]})" for kind, sentence in REST.items())
    yield f"| {sum(counts[kind] for kind in REST)} | {rest} |"


def details(rows: Sequence[Sample]) -> Iterator[str]:
    """Each sample alone and in its projects, before and after mechanisms were changed."""
    keys = ("projects", "later", "later_projects")
    yield "| sample | alone | in the projects | later, alone | later, in the projects | labels changed |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in rows:
        told = [_found(row.row.get(key, {})) for key in keys]
        if "latest" in row.row:
            told[1] += "; last {} of {}".format(*row.row["latest"])
        cells = [row.name, _found(row.row), *told, str(row.row.get("labels_changed", "-"))]
        yield f"| {' | '.join(cells)} |"


def _found(figures: Mapping[str, Any]) -> str:
    """`17 of 38, 28 of 61`: the defects that change gradients, and all; `-` where neither was counted."""
    return (
        ", ".join("{} of {}".format(*figures[k]) for k in ("gradients", "all") if k in figures)
        or "-"
    )


def readings() -> Iterator[str]:
    """The findings of whole repositories, as a reader judged them."""
    yield "| repositories | number | files | right / debatable / wrong | after the changes |"
    yield "| --- | --- | --- | --- | --- |"
    for row in _data("readings")["reading"]:
        before, after = (
            " / ".join(map(str, row[key])) if key in row else "-" for key in ("before", "after")
        )
        files = f"{row['files']:,}" if "files" in row else "-"
        yield f"| {row['name']} | {row['repositories']} | {files} | {before} | {after} |"


def verdicts() -> Iterator[str]:
    """The findings that `accumlint confirm` decided."""
    yield "| findings of | decided | after the changes |"
    yield "| --- | --- | --- |"
    for row in _data("verdicts")["verdicts"]:
        before, after = (_share(*row[key]) if key in row else "-" for key in ("before", "after"))
        yield f"| {row['name']} | {before} | {after} |"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.2f})"


def made() -> dict[Path, str]:
    """What each file should hold that is made from the data."""
    rows = samples()
    pages = {
        DOCS / "accuracy.md": {"samples": recent(rows), "missed": missed(rows)},
        DOCS / "samples.md": {
            "samples": table(rows),
            "details": details(rows),
            "readings": readings(),
            "verdicts": verdicts(),
        },
    }
    texts = {DOCS / "samples.svg": plot(rows)}
    for file, tables in pages.items():
        texts[file] = file.read_text(encoding="utf-8")
        for mark, lines in tables.items():
            texts[file] = filled(file, mark, "\n".join([*lines, ""]), texts[file])
    return texts


def main() -> None:
    texts = made()
    if "--check" in sys.argv[1:]:
        other = [file for file, text in texts.items() if file.read_text(encoding="utf-8") != text]
        if other:
            sys.exit("\n".join(f"{file}: differs from docs/data" for file in other))
        return
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
