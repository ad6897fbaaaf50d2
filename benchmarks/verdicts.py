"""Measures what `accumlint confirm` says of labelled loops, with nothing set up for them.

    python benchmarks/verdicts.py LABELS.toml REPOSITORIES --show

The labels are those of `benchmarks/accuracy.py`, whose help tells their format. Two things are counted. Every finding
that a run can measure is confirmed, refuted or undecided; it is *against the labels* when a right finding is refuted
or a wrong one confirmed. And to every loop that is complete and has no defect, the rules of `ASKED` put their questions
though they have found nothing there: none may be confirmed. Each file runs alone, without the project that it is from.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy import Loop, judged, loops, sources
from scoring import scopes_of

from accumlint import check
from accumlint.check import Examined, Shared
from accumlint.config import Settings
from accumlint.confirming.launch import Options
from accumlint.confirming.passes import Overrides
from accumlint.confirming.pipeline import confirm
from accumlint.confirming.plan import Plan, planned, question
from accumlint.confirming.result import Confirmation, Verdict
from accumlint.files.inputs.discovery import Target
from accumlint.registry import packs
from accumlint.tracing import trace as t

# A rule for each question about the gradient that is applied and about who applies it: is it a multiple of the large
# batch's, is it that at all, is it clipped as that, is it the same on all ranks, does it survive the GradScaler, does
# it come when it should. Whether targets weigh the same is left out: that is for a loop's own data, which is not here.
ASKED = ("ACC102", "ACC402", "ACC202", "ACC302", "ACC203", "ACC505")


@dataclass(frozen=True)
class Question:
    """What is put to a loop; `label` is what its finding counts as, "clean" where there is none."""

    label: str
    place: str
    plan: Plan


def questions(held: Sequence[Loop], source: bytes, folder: Path) -> Iterator[Question]:
    """What is put to the loops of one file: by its findings, and by the rules that find nothing in its right loops."""
    file = folder / Path(held[0].path).name
    file.write_bytes(source)
    target = Target(str(file), str(file), Settings(folder, select=("ALL",)))
    examined = check.examine(source, target, Shared())
    if not isinstance(examined, Examined):
        return
    where = f"{held[0].repository} {held[0].commit[:8]} {held[0].path}"
    scopes = scopes_of(source)
    for plan in planned(examined, frozenset(), Overrides()):
        if not plan.rule.unmeasured:
            place = f"{where}:{plan.report.mark.place.line} {plan.report.code}"
            yield Question(judged(held, scopes, plan.report), place, plan)
    for loop in held:
        if loop.complete and not loop.defects:
            for code in ASKED:
                for trace in _paths(examined, loop):
                    plan = question(
                        packs.rule(packs.find(code)), trace, examined, target, Overrides()
                    )
                    yield Question("clean", f"{where}:{loop.line} {code}", plan)


def _paths(examined: Examined, loop: Loop) -> Iterator[t.Trace]:
    """The plainest path through the labelled loop."""
    for traces in examined.exploration.traces:
        for trace in traces:
            lines = [examined.program.place(e.node).line for e in trace.main.of(t.Backward)]
            if not trace.exceptional and any(abs(line - loop.line) <= 3 for line in lines):
                yield trace
                return


def counted(answers: Iterable[tuple[Question, Confirmation]], show: bool) -> Iterator[str]:
    """The figures, and what lies behind them where it is to be shown."""
    figures: Counter[tuple[str, Verdict]] = Counter()
    against: list[str] = []
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    helped = 0
    for asked, answer in answers:
        figures[asked.label, answer.verdict] += 1
        wrong = Verdict.REFUTED if asked.label == "right" else Verdict.CONFIRMED
        if asked.label in ("right", "wrong", "clean") and answer.verdict is wrong:
            against.append(f"{asked.place}: {answer.verdict.value}: {answer.reason}")
        if answer.verdict is Verdict.UNDECIDED and asked.label != "clean":
            helped += bool(answer.setup)
            reasons[answer.reason].append(asked.place)
    verdicts = tuple(Verdict)
    yield "| | " + " | ".join(verdict.value for verdict in verdicts) + " |"
    yield "| --- |" + " --- |" * len(verdicts)
    for label in ("right", "wrong", "", "clean"):
        row = " | ".join(str(figures[label, verdict]) for verdict in verdicts)
        yield f"| {label or 'not judged'} | {row} |"
    found = [(label, v) for (label, v), n in figures.items() for _ in range(n) if label != "clean"]
    decided = sum(verdict is not Verdict.UNDECIDED for _, verdict in found)
    yield ""
    yield f"findings with a verdict: {decided} of {len(found)}"
    yield f"undecided with a set-up file to fill in: {helped} of {len(found) - decided}"
    yield f"against the labels: {len(against)}"
    yield from (f"  {one}" for one in against)
    if show:
        for reason, places in sorted(reasons.items(), key=lambda item: -len(item[1])):
            yield f"{len(places)} undecided: {reason}"
            yield from (f"  {place}" for place in places)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("labels", type=Path)
    parser.add_argument("repositories", type=Path)
    parser.add_argument("--show", action="store_true", help="list what is undecided, by reason")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asked: list[Question] = []
        for number, (held, source) in enumerate(sources(loops(given.labels), given.repositories)):
            own = Path(folder, str(number))
            own.mkdir()
            asked += questions(held, source, own)
        answers = confirm([one.plan for one in asked], Options(), lambda _: None)
    print(*counted(zip(asked, answers, strict=True), given.show), sep="\n")


if __name__ == "__main__":
    main()
