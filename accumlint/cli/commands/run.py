"""`accumlint run`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumlint.cli import options, output
from accumlint.common.problem import Kind, Misuse, Problem
from accumlint.config import setting_keys as keys
from accumlint.config import typed
from accumlint.registry import packs
from accumlint.reporting import reporter
from accumlint.reporting.paths import repository
from accumlint.reporting.phrases import count
from accumlint.reporting.terminal import Look, printable, printable_path

if TYPE_CHECKING:
    from accumlint.runtime.reports import Joined

FINDINGS = 1


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
@click.option("--keep-going", is_flag=True, help="Let the script run to its end.")
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
@click.option(
    "--select",
    multiple=True,
    metavar="RULES",
    callback=options.words,
    help="Report these rules only.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="RULES",
    callback=options.words,
    help="Leave these rules out.",
)
@click.option(
    "--min-confidence",
    type=click.Choice(keys.CONFIDENCES),
    help="Lowest confidence to report (likely).",
)
@click.option(
    "--no-check",
    is_flag=True,
    help="Do not compare with the findings of `check` in the same files.",
)
@click.option(
    "--output-format", type=click.Choice(keys.FORMATS), help="How to print findings (full)."
)
@click.option(
    "--output", "outputs", multiple=True, metavar="FORMAT[=FILE]", callback=options.outputs,
    help="Print findings in this format, or write them to FILE; may be repeated.",
)  # fmt: skip
@click.option("--exit-zero", is_flag=True, help="Exit with 0 although there are findings.")
@click.option("-q", "--quiet", is_flag=True, help="Print findings only.")
@options.CONFIG
@options.ISOLATED
@options.BASELINE
@options.COLOR
def command(
    words: tuple[str, ...],
    module: str,
    windows: int,
    patience: int,
    keep_going: bool,
    ranks: int,
    sample: int,
    timeout: float | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    min_confidence: str | None,
    no_check: bool,
    output_format: str | None,
    outputs: tuple[tuple[str, str], ...],
    exit_zero: bool,
    quiet: bool,
    configs: options.Configs,
    isolated: bool,
    known: Path | None,
    look: Look,
) -> int:
    """Runs a training script as it is, with its own data and launcher, and says what is wrong with its updates.

    accumlint watches the first updates and the end of an epoch, then stops the script. The script runs without a
    sandbox, with all that it does. SCRIPT is a Python script, or a command such as torchrun, accelerate launch or
    python; what it prints goes to standard error.

    Exit code: 0 nothing found, 1 findings, 2 wrong usage, or a script that fails or makes no update.
    """
    from accumlint.runtime import judging, launching, records, reports

    asked = replace(
        options.settled(configs, isolated, known),
        select=select,
        ignore=ignore,
        min_confidence=min_confidence or "",
    )
    options.here(asked)
    packs.require(typed(asked))
    watch = launching.Watch(windows, patience, sample, keep_going)
    executed = launching.command(words, module, ranks)
    with tempfile.TemporaryDirectory(prefix="accumlint-run-") as folder:
        ended = launching.launch(executed, watch, Path(folder), timeout)
        noted = records.read(Path(folder))
    judged = judging.judge(noted)
    failed = ended.failure(judged.updates, noted=bool(noted))
    if failed and not judged.answers:
        raise Misuse(failed)
    found = reports.joined(judged.answers, asked, read=not no_check)
    # The summary of a check speaks of files and of what was read; a run has updates.
    look = replace(look, root=repository(Path.cwd()), quiet=True)
    printed = tuple(name for name, file in outputs if not file) or (output_format or "full",)
    for name in printed:
        output.put(reporter(name)(found.checked, look))
    plain = replace(look, color=False)
    written = [
        output.write(reporter(name)(found.checked, plain), file) for name, file in outputs if file
    ]
    if not quiet:
        output.put(_told(judged.notes, found, judged.updates), sys.stderr)
    if failed:
        output.tell(Problem(words[0] if words else module, failed, Kind.WARNING))
    findings = any(checked.reports for checked in found.checked) and not exit_zero
    return max(*written, FINDINGS if findings else Kind.UNREADABLE if failed else 0, 0)


def _told(notes: Sequence[str], found: Joined, updates: int) -> Iterator[str]:
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
