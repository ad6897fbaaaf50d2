"""Fits the weights of the evidence that token counts vary (`accumlint/reading/targets.py`) to the labelled loops.

    python benchmarks/evidence.py --files FOLDER

`benchmarks/labels.py --files FOLDER --clone DIR` writes the folder. Of each labelled file that decides whether
micro-batches count as many targets, the evidence is gathered in its project: of files with a defect of such counts, and
of files without one that were read completely. Left out is what a label calls debatable, and what is right whether
counts vary or not, since its sums are divided by a count. The fit is a logistic
regression in which each repository weighs 1, with the signs of the kinds of evidence and a penalty on the distance from
the weights of the table. A row that fewer than three repositories show keeps its weight. Cross-validation leaves
repositories out and compares the table with the fit, both calibrated on the same other ones. Needs accumlint and scipy.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev

from checkouts import PROJECT
from fitting import FEWEST, Case, Weights, calibrated, fitted, losses, score, shown_by
from labelled import LABELS, InputError, Loop, Source, samples
from scoring import key

from accumlint import reading, tracing
from accumlint.check import Shared
from accumlint.common.big_trees import room_to_recurse
from accumlint.files.source import UndecodableSource, decode
from accumlint.reading.targets import STRONG, TABLE, Kind
from accumlint.tracing.trace import Contribution

# Defects of losses that are means over counts that vary.
COUNTS = frozenset({"ACC101", "ACC105", "ACC106", "ACC108", "ACC601"})
PRIOR: Weights = {row: float(TABLE[row].weight) for row in TABLE}
_POSITIONS = frozenset(row for row in TABLE if TABLE[row].kind is Kind.POSITION)


def decided(loops: Sequence[Loop]) -> bool | None:
    """Whether the labels of a file say that counts vary; None where they say nothing, or not for sure."""
    if any(COUNTS & {*loop.holds, *map(key, loop.defects)} for loop in loops):
        return True
    if any(COUNTS & loop.debatable for loop in loops):
        return None
    return False if any(loop.complete for loop in loops) else None


def labelled(folder: Path) -> Iterator[tuple[Source, bool]]:
    """The labelled files that decide."""
    held: defaultdict[Source, list[Loop]] = defaultdict(list)
    for sample in samples(folder):
        for loop in sample.loops:
            held[loop.source].append(loop)
    for source in sorted(held):
        varies = decided(held[source])
        if varies is not None:
            yield source, varies


@dataclass(frozen=True)
class Seen:
    """The keys of the evidence around a file, and whether it divides sums over targets by a count of them."""

    keys: Sequence[str]
    counts: bool


def seen(file: Path, shared: Shared) -> Seen:
    """What a file and its project show, the files that call it included."""
    with room_to_recurse():
        program = reading.read(decode(file.read_bytes()), str(file.absolute()), shared.project)
        found = tracing.explore(program, shared.project)
        counts = any(
            is_by_count(contribution)
            for traces in found.traces
            for trace in traces
            for window in trace.main.windows
            for contribution in window.contributions
        )
        return Seen(sorted(e.key for e in program.evidence), counts)


def is_by_count(c: Contribution) -> bool:
    """True of a sum, and of one that a count of targets has divided."""
    by_some = c.divisor is not None and c.divisor.kind not in ("elements", "rows")
    return c.reduction in ("sum", "window") or by_some


def gathered(labels: Path, files: Path, record: Path | None) -> Iterator[Case]:
    """What is seen around each file that is here and decides; `record` keeps it."""
    known: dict[str, Seen] = {}
    if record and record.is_file():
        known = {name: Seen(**row) for name, row in json.loads(record.read_text()).items()}
    project, shared = "", Shared()
    for source, varies in labelled(labels):
        name = f"{source.folder}/{source.path}"
        if name not in known:
            file = files / PROJECT / name
            if not file.is_file():
                print(f"not here: {name}", file=sys.stderr)
                continue
            if source.folder != project:
                project, shared = source.folder, Shared()
            try:
                known[name] = seen(file, shared)
            except (UndecodableSource, reading.UnreadableSource) as problem:
                print(f"cannot be read: {name}: {problem.message}", file=sys.stderr)
                continue
            if record:
                record.write_text(json.dumps({each: asdict(known[each]) for each in known}))
        if varies or not known[name].counts:
            yield Case(source.repository, varies, frozenset(known[name].keys))


def of_positions(cases: Sequence[Case]) -> list[Case]:
    """The cases in which something shows a target for every position: of the others the weights decide nothing."""
    return [case for case in cases if case.keys & _POSITIONS]


def table(cases: Sequence[Case], found: Weights) -> Iterator[str]:
    """Each row of evidence with the repositories that show it, as a table in Markdown."""
    varying = shown_by([case for case in cases if case.positive])
    equal = shown_by([case for case in cases if not case.positive])
    yield "| evidence | counts vary | counts equal | by hand | fitted |"
    yield "| --- | --- | --- | --- | --- |"
    shown = shown_by(cases)
    for row, by_hand in PRIOR.items():
        if row not in _POSITIONS:
            told = f"{found[row]:g}" if shown[row] >= FEWEST else "-"
            yield f"| {row} | {varying[row]} | {equal[row]} | {by_hand:g} | {told} |"


def compared(cases: Sequence[Case], repeats: int) -> Iterator[str]:
    """The cross-validated log-loss and accuracy of the table and of the fit, as a table in Markdown."""
    by_hand = losses(cases, lambda _: PRIOR, repeats)
    by_fit = losses(cases, lambda known: fitted(known, PRIOR), repeats)
    yield "| weights | log-loss | told right |"
    yield "| --- | --- | --- |"
    nothing = losses(cases, lambda _: dict.fromkeys(PRIOR, 0.0), repeats)
    for name, told in (("none", nothing), ("by hand", by_hand), ("fitted", by_fit)):
        loss, right = (fmean(each[n] for each in told.values()) for n in (0, 1))
        yield f"| {name} | {loss:.3f} | {right:.3f} |"
    losing = [by_fit[group][0] - by_hand[group][0] for group in by_hand]
    error = stdev(losing) / math.sqrt(len(losing))
    yield f"\nThe fit's log-loss less the table's: {fmean(losing):+.3f} (standard error {error:.3f})."


def thresholds(cases: Sequence[Case], found: Weights) -> Iterator[str]:
    """What each threshold tells right and wrong of the repositories that the weights were made for."""
    yield "| weights | least sum | counts vary: found | counts equal: wrong | chance at it |"
    yield "| --- | --- | --- | --- | --- |"
    for name, weights in (("by hand", PRIOR), ("fitted", found)):
        curve = calibrated(cases, weights)
        for half in range(2, 9):
            least = half / 2
            told = [case for case in cases if score(weights, case.keys) >= least]
            right = sum(case.positive for case in told)
            mark = " (STRONG)" if weights is PRIOR and least == STRONG else ""
            yield (
                f"| {name} | {least:g}{mark} | {right} of {sum(c.positive for c in cases)} "
                f"| {len(told) - right} of {sum(not c.positive for c in cases)} | {curve.chance(least):.2f} |"
            )


def report(everything: Sequence[Case], cases: Sequence[Case], repeats: int) -> Iterator[str]:
    """All that is printed."""
    groups, varying = len({case.group for case in cases}), sum(case.positive for case in cases)
    yield (
        f"{len(everything)} files decide; {len(cases)} of them, from {groups} repositories, have a target per position."
        f" In {varying} of these counts vary."
    )
    found = fitted(cases, PRIOR)
    yield from ("", *table(cases, found), "", *compared(cases, repeats))
    yield from ("", *thresholds(cases, found))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--files", type=Path, required=True, metavar="FOLDER", help="the labelled files"
    )
    parser.add_argument(
        "--labels", type=Path, default=LABELS, metavar="DIR", help="other labels (%(default)s)"
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="keep the evidence here for the next run on the same code",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="how often the repositories are divided (%(default)s)",
    )
    asked = parser.parse_args()
    if find_spec("scipy") is None:
        print("evidence.py: scipy is not installed", file=sys.stderr)
        return 2
    try:
        everything = list(gathered(asked.labels, asked.files, asked.record))
    except (InputError, OSError) as error:
        print(f"evidence.py: {error}", file=sys.stderr)
        return 2
    cases = of_positions(everything)
    if len({case.group for case in cases}) < 10:
        print(f"evidence.py: {asked.files}: too few labelled files are here", file=sys.stderr)
        return 2
    print(*report(everything, cases, asked.repeats), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
