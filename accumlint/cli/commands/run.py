"""`accumlint run`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accumlint.cli import options, output
from accumlint.common.frozen import frozen
from accumlint.common.problem import Kind, Misuse, Problem
from accumlint.config import setting_keys as keys
from accumlint.config import typed
from accumlint.diagnostics.reporting import reporter
from accumlint.diagnostics.reporting.paths import repository
from accumlint.diagnostics.reporting.phrases import count
from accumlint.diagnostics.reporting.terminal import Look, printable, printable_path
from accumlint.diagnostics.results.report import Checked
from accumlint.registry import packs

if TYPE_CHECKING:
    from accumlint.runtime.reports import Joined

FINDINGS = 1


@frozen
class _Options:
    """What is typed for `accumlint run`; `words` are the script and its arguments."""

    words: tuple[str, ...]
    module: str
    windows: int
    patience: int
    keep_going: bool
    ranks: int
    sample: int
    timeout: float | None
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    min_confidence: str | None
    no_check: bool
    figures: bool
    output_format: str | None
    outputs: tuple[tuple[str, str], ...]
    exit_zero: bool
    quiet: bool
    configs: options.Configs
    isolated: bool
    known: Path | None
    look: Look


class _Command(click.Command):
    """What stands behind `--`, or behind the first word that is no option, is a command and its arguments."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS] -- SCRIPT [ARGUMENT]..."]


@click.command(
    cls=_Command,
    short_help="Runs a training script and watches its updates.",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-m", "--module", default="", metavar="NAME", help="Run a module instead of a script."
)
@click.option("--windows", default=6, type=click.IntRange(2, 1000), help="Updates to watch (6).")
@click.option(
    "--patience",
    default=256,
    type=click.IntRange(0),
    metavar="N",
    help="Keep watching until the epoch ends, if that is at most N micro-batches away (256).",
)
@options.flag("--keep-going", told="Let the script run to its end.")
@click.option(
    "--nproc-per-node",
    "ranks",
    default=1,
    type=click.IntRange(1),
    help="Number of ranks (1); several are started with torchrun.",
)
@click.option(
    "--sample",
    default=8,
    type=click.IntRange(1),
    metavar="N",
    help="Parameters of each optimizer whose gradients are recorded (8).",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Stop the script after this time.",
)
@options.rules("--select", "Report these rules only.")
@options.rules("--ignore", "Leave these rules out.")
@options.MIN_CONFIDENCE
@options.flag("--no-check", told="Do not compare with the findings of `check` in the same files.")
@options.flag("--figures", told="Add what was measured of each update to json and json-lines.")
@click.option(
    "--output-format", type=click.Choice(keys.FORMATS), help="How to print findings (full)."
)
@options.OUTPUT
@options.EXIT_ZERO
@options.flag("-q", "--quiet", told="Print findings only.")
@options.settings
@options.COLOR
def command(**given: Any) -> int:
    """Runs a training script as it is, with its own data and launcher, and says what is wrong with its updates.

    accumlint watches the first updates and the end of an epoch, then stops the script. The script runs without a
    sandbox, with all that it does. SCRIPT is a Python script, or a command such as torchrun, accelerate launch or
    python; what it prints goes to standard error.

    Exit code: 0 nothing found, 1 findings, 2 wrong usage, or a script that fails or makes no update.
    """
    return _ran(_Options(**given))


def _ran(given: _Options) -> int:
    from accumlint.runtime import judging, launching, measurements, records, reports

    asked = replace(
        options.settled(given.configs, given.isolated, given.known),
        select=given.select,
        ignore=given.ignore,
        min_confidence=given.min_confidence or "",
    )
    options.here(asked)
    packs.require(typed(asked))
    watch = launching.Watch(given.windows, given.patience, given.sample, given.keep_going)
    executed = launching.command(given.words, given.module, given.ranks)
    with tempfile.TemporaryDirectory(prefix="accumlint-run-") as folder:
        ended = launching.launch(executed, watch, Path(folder), given.timeout)
        noted = records.read(Path(folder))
    judged = judging.judge(noted)
    failed = ended.failure(judged.updates, noted=bool(noted))
    if failed and not judged.answers:
        raise Misuse(failed)
    measured = [measurements.measured(windows) for windows in judged.windows if windows.windows]
    found = reports.joined(judged.answers, measured, asked, read=not given.no_check)
    written = _delivered(found.checked, given)
    if not given.quiet:
        output.put(_summary(judged.notes, found, judged.updates), sys.stderr)
    if failed:
        output.tell(Problem(given.words[0] if given.words else given.module, failed, Kind.WARNING))
    findings = any(checked.reports for checked in found.checked) and not given.exit_zero
    return max(written, FINDINGS if findings else Kind.UNREADABLE if failed else 0)


def _delivered(results: Sequence[Checked], given: _Options) -> int:
    """Prints and writes the results, and returns the gravest exit code of what failed."""
    # The summary of a check speaks of files and of what was read; a run has updates.
    look = replace(given.look, root=repository(Path.cwd()), quiet=True, figures=given.figures)
    printed = tuple(name for name, file in given.outputs if not file)
    for name in printed or (given.output_format or "full",):
        output.put(reporter(name)(results, look))
    plain = replace(look, color=False)
    files = [(name, file) for name, file in given.outputs if file]
    return max(
        (output.write(reporter(name)(results, plain), file) for name, file in files), default=0
    )


def _summary(notes: Sequence[str], found: Joined, updates: int) -> Iterator[str]:
    number = sum(len(checked.reports) for checked in found.checked)
    yield f"accumlint: {count(number, 'finding') if number else 'no finding'} in {count(updates, 'update')}"
    for note in notes:
        yield f"accumlint: {printable(note)}"
    for report, figures in found.refuted:
        where = f"{printable_path(report.shown)}:{report.mark.row}"
        yield f"accumlint: refuted: {where}: {report.code} of `check`: {printable(figures)}"
    if found.unasked:
        codes = ", ".join(sorted({report.code for report in found.unasked}))
        yield f"accumlint: not measured: {count(len(found.unasked), 'finding')} of `check` ({codes})"
