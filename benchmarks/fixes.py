"""Makes every fix that is offered for the files of some folders, in memory, and says which of them does harm.

    python benchmarks/fixes.py --diffs 60 FOLDER...

Safe and unsafe fixes are made one by one: the text compiles as it did, the finding is gone, and no other one has come
that the fix does not announce. Then all of a file's fixes are made together, and once more: the second time changes
nothing. Nothing is written. `--diffs` prints a sample of the diffs, the same one every time.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from accumlint import config
from accumlint.check import Shared, check_bytes
from accumlint.diagnostics import fixing
from accumlint.diagnostics.results.report import Checked, Report
from accumlint.files.inputs import document as texts
from accumlint.files.inputs.discovery import Target, find
from accumlint.files.inputs.document import edited
from accumlint.files.source import decode, encode, parsed
from accumlint.registry import packs

# A file that takes longer is left, and counted.
SECONDS = 120


class Arguments(argparse.Namespace):
    folders: list[Path]
    diffs: int
    seed: int


class OutOfTime(BaseException):
    """A file takes too long; no handler of the code that is measured may take this for its failure."""


@dataclass
class Tally:
    """What was seen: findings and fixes by kind, what failed, and a diff of each fix."""

    files: int = 0
    findings: Counter[str] = field(default_factory=Counter[str])
    fixes: Counter[str] = field(default_factory=Counter[str])
    announced: int = 0
    late: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])
    diffs: list[str] = field(default_factory=list[str])


def main() -> int:
    arguments = _arguments()
    tally = Tally()
    signal.signal(signal.SIGALRM, _out_of_time)
    for number, folder in enumerate(arguments.folders, 1):
        _try_folder(folder, tally)
        print(f"{number} {folder}: {sum(tally.fixes.values())} fixes so far", file=sys.stderr)
    chosen = random.Random(arguments.seed).sample(
        sorted(tally.diffs), min(arguments.diffs, len(tally.diffs))
    )
    for text in (*chosen, *tally.failed, *(f"out of time: {name}" for name in tally.late)):
        print(text)
    print(_told(tally, len(arguments.folders)))
    return bool(tally.failed)


def _told(tally: Tally, folders: int) -> str:
    fixes = tally.fixes
    made = fixes["safe"] + fixes["unsafe"]
    return (
        f"{folders} folders, {tally.files} files, {sum(tally.findings.values())} findings: {fixes['safe']} safe fixes, "
        f"{fixes['unsafe']} unsafe, {fixes['display']} only shown; {tally.announced} announce what shows next; "
        f"{len(tally.failed)} of {made} fail, {len(tally.late)} files out of time"
    )


def _try_folder(folder: Path, tally: Tally) -> None:
    targets, _ = find((str(folder),), config.Options(isolated=True))
    shared = Shared()
    for target in targets:
        if not _in_time(lambda: _try_file(target, shared, tally)):  # noqa: B023 (called at once)
            tally.late.append(target.file)


def _in_time(work: Callable[[], None]) -> bool:
    """Does some work, and says whether it came to an end."""
    signal.alarm(SECONDS)
    try:
        work()
    except OutOfTime:
        return False
    finally:
        signal.alarm(0)
    return True


def _try_file(target: Target, shared: Shared, tally: Tally) -> None:
    data = Path(target.file).read_bytes()
    checked = check_bytes(data, target, shared)
    tally.files += 1
    tally.findings.update(report.code for report in checked.reports)
    tally.fixes.update(report.fix.applicability for report in checked.reports if report.fix)
    fixable = [report for report in checked.reports if report.applicable_fix]
    tally.announced += sum(bool(report.fix and report.fix.shows) for report in fixable)
    if not fixable:
        return
    for report in fixable:
        fix = report.applicable_fix
        assert fix is not None
        after = encode(edited(decode(data), fix.in_file), data)
        head = f"=== {target.file}:{report.mark.where} {report.code} ({fix.applicability}) {fix.message}"
        tally.diffs.append("\n".join((head, *fix.difference)))
        again = check_bytes(after, target)
        tally.failed += (
            f"{head}: {reason}" for reason in _faults(data, after, checked, again, report)
        )
    once = fixing.fix(data, target, unsafe=True)
    twice = fixing.fix(once.after, target, unsafe=True)
    if not _compiles_as(data, once.after, target):
        tally.failed.append(f"=== {target.file}: together: does not compile")
    if twice.is_changed:
        tally.failed.append(f"=== {target.file}: a second run changes it again")


def _faults(
    data: bytes, after: bytes, before: Checked, again: Checked, report: Report
) -> Iterator[str]:
    """What is wrong with a text that a fix was made in."""
    target = Target(
        report.shown, report.file, config.settings(Path("/"), config.Options(isolated=True))
    )
    if not _compiles_as(data, after, target):
        yield "does not compile"
    then, now = _codes(before.reports), _codes(again.reports)
    if now[report.code] >= then[report.code]:
        yield "the finding is still there"
    shows = report.fix.shows if report.fix else ()
    sure = (r.code for r in again.reports if r.confidence != "possible")
    for code in sorted({code for code in sure if now[code] > then[code] and code not in shows}):
        yield f"brings {code} {packs.find(code).name}"


def _codes(reports: Iterable[Report]) -> Counter[str]:
    return Counter(report.code for report in reports)


def _compiles_as(before: bytes, after: bytes, target: Target) -> bool:
    """False for a text that no longer compiles though it did."""
    return _compiles(after, target) or not _compiles(before, target)


def _compiles(data: bytes, target: Target) -> bool:
    with suppress(SyntaxError, ValueError):
        text = texts.read(data, target.is_notebook)
        if text is not None:
            compile(parsed(text.text), target.file, "exec", dont_inherit=True)
            return True
    return False


def _out_of_time(_: int, __: FrameType | None) -> None:
    raise OutOfTime


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--diffs", type=int, default=0, help="how many diffs to print")
    parser.add_argument("--seed", type=int, default=0, help="what the sample depends on")
    return parser.parse_args(namespace=Arguments())


if __name__ == "__main__":
    sys.exit(main())
