"""`accumlint confirm`."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accumlint.cli import options, output
from accumlint.common.frozen import frozen
from accumlint.common.problem import Kind, Misuse, Problem
from accumlint.config import Options, typed
from accumlint.diagnostics.reporting.phrases import count
from accumlint.diagnostics.reporting.terminal import Look, printable
from accumlint.files.inputs.discovery import find
from accumlint.registry import packs

if TYPE_CHECKING:
    from accumlint.confirming import launch
    from accumlint.confirming.pipeline import Batch, Request
    from accumlint.confirming.plan import Plan
    from accumlint.confirming.result import Confirmation
    from accumlint.confirming.user_script import Script

CONFIRMED, UNDECIDED = 1, 4
_SCRIPT = "accumlint.script"
# As many files are named before a launch.
FEW = 3


@frozen
class _Options:
    """What is typed for `accumlint confirm`; `runs_script` is whether a script of the user's own is run."""

    places: tuple[str, ...]
    runs_script: bool
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    ranks: int | None
    device: str
    dtype: str | None
    windows: int
    steps: int | None
    timeout: float | None
    memory: float | None
    seed: int
    fixed: bool
    fixed_file: Path | None
    setup: Path | None
    output_format: str
    html: Path | None
    configs: options.Configs
    isolated: bool
    look: Look


class _Command(click.Command):
    """With `--run`, what stands behind `--` is a script and its arguments, whatever they look like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args and "--run" in args[: args.index("--")]:
            at = args.index("--")
            ctx.meta[_SCRIPT] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[--run -- SCRIPT [ARGUMENT]...]"]


@click.command(cls=_Command, short_help="Runs flagged loops and proves findings.")
@click.argument("places", nargs=-1, metavar="PATH[:LINE]...")
@options.flag(
    "--run",
    "runs_script",
    told="Run the script behind -- with its own data, in place of loops on fakes.",
)
@options.rules("--select", "Confirm these rules only.")
@options.rules("--ignore", "Leave these rules out.")
@click.option(
    "--nproc-per-node",
    "ranks",
    type=click.IntRange(1),
    help="Ranks to run on (2 where the loop is distributed, else 1).",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="Where to run (auto: a GPU where torch can use one, else the CPU).",
)
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "bfloat16", "float16"]),
    help="Precision of the fakes (float64).",
)
@click.option("--windows", default=6, type=click.IntRange(2, 100), help="Updates to record (6).")
@click.option("--steps", type=click.IntRange(2, 64), help="Accumulation steps (4).")
@click.option(
    "--timeout", type=click.FloatRange(1), help="Seconds per finding (60), or for a script (300)."
)
@click.option("--memory", type=click.FloatRange(1), help="GiB per rank (16).")
@click.option("--seed", default=0, type=int, help="Seed of the fake model and data (0).")
@options.flag("--fixed", told="Run the loop with its fix as well, to compare before and after.")
@click.option(
    "--fixed-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Like --fixed, with the fixed loop in this file.",
)
@click.option(
    "--setup",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    metavar="FILE",
    help="Python file whose setup(rank, world, device) gives your own objects by name.",
)
@click.option(
    "--output-format", type=click.Choice(["table", "json"]), default="table", help="What to print."
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write an HTML page with pictures to this file.",
)
@options.CONFIG
@options.ISOLATED
@options.COLOR
@click.pass_context
def command(context: click.Context, **given: Any) -> int:
    """Runs the loops that `check` flags on a small fake model and data, under torchrun, and measures each update.

    This executes the code of the named files, and of the project files that they import, in a sandbox. The command
    first lists what the sandbox cannot protect on this machine. Needs torch (`pip install torch`).

    With --run -- train.py --lr 0.1 the script itself runs, without a sandbox, with its own data, model and arguments,
    and stops after a few updates, as under `accumlint run`. It decides the findings in PATH, or those in the script and
    the project files that it imports.

    Exit code: 0 nothing confirmed, 1 something confirmed, 2 wrong usage or input, 4 undecided only.
    """
    asked = _Options(**given)
    return _confirm(asked, _script(context, asked.runs_script))


def _confirm(given: _Options, script: Script | None) -> int:
    from accumlint.confirming import launch, pipeline, sandbox, user_script
    from accumlint.confirming.passes import STEPS, Overrides
    from accumlint.confirming.reports import html_report

    _require(given)
    settled = options.settled(given.configs, given.isolated)
    chosen = replace(settled, select=given.select, ignore=given.ignore)
    # A script can be asked about the findings in itself and in what it imports.
    places = given.places or (user_script.modules(script) if script is not None else ())
    asked = list(_requests(places, chosen, given.fixed_file))
    options.here(chosen)
    packs.require(typed(chosen))
    wish = Overrides(given.ranks, given.steps or STEPS, given.windows)
    plans, problems = pipeline.gathered(asked, wish, given.fixed)
    for problem in problems:
        output.tell(problem)
    how = launch.Options(
        sandbox=sandbox.available(), device=given.device, dtype=given.dtype or "float64",
        limit=given.timeout or 60.0, seed=given.seed, memory=given.memory or 16.0,
        setup=str(given.setup) if given.setup else "",
    )  # fmt: skip
    if script is not None and plans:
        together = given.ranks or max(plan.ranks for plan in plans)
        open_ = (_report_script(script, together, plans),)
        limit = given.timeout or 300.0
        found = pipeline.confirm_script(script, plans, given.windows, together, limit)
    else:
        batches = list(pipeline.batches(plans))
        for batch in batches:
            print(f"accumlint: runs {_batch_title(batch)}", file=sys.stderr)
        open_ = _report_unprotected(how, [batch.ranks for batch in batches])
        found = pipeline.confirm(plans, how, _report_progress)
    _print(found, open_, given)
    worst = max((problem.kind for problem in problems), default=Kind.WARNING)
    if given.html is not None:
        made = _made(how, script is not None)
        page = html_report.page(found, pipeline.sources(asked), open_, made)
        worst = max(worst, output.write([page], str(given.html)))
    return worst or _confirmed(found)


def _print(found: Sequence[Confirmation], open_: tuple[str, ...], given: _Options) -> None:
    """Prints the verdicts in the format that is asked for; `open_` is what nothing kept the runs from."""
    from accumlint.confirming.reports import json_report, terminal_report

    if given.output_format == "json":
        output.put([json_report.record(found, open_)])
    elif found:
        width = shutil.get_terminal_size((100, 24)).columns
        output.put(terminal_report.table(found, given.look, width))
    else:
        print("accumlint: no finding there, so nothing was run", file=sys.stderr)


def _made(how: launch.Options, own: bool) -> str:
    """By which command, versions and device a page was made."""
    from importlib.metadata import PackageNotFoundError, version

    from accumlint import __version__
    from accumlint.confirming import sandbox

    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "of its own"
    gpu = how.device != "cpu" and sandbox.has_gpu()
    device = "the script's own devices" if own else "a GPU" if gpu else "the CPU"
    typed_ = shlex.join(("accumlint", *sys.argv[1:]))
    python = platform.python_version()
    return f"{typed_} (accumlint {__version__}, torch {torch}, Python {python}, on {device})"


def _script(context: click.Context, own: bool) -> Script | None:
    """The script to run, None where loops are run on fakes.

    Raises:
        Misuse: where there is none.
    """
    if not own:
        return None
    words: list[str] = context.meta.get(_SCRIPT, [])
    if not words:
        raise Misuse(
            "--run wants the script behind --: accumlint confirm --run -- train.py --lr 0.1"
        )
    from accumlint.confirming import user_script

    return user_script.found(words, os.getcwd())


def _require(given: _Options) -> None:
    """Refuses what does not go together.

    Raises:
        Misuse: with the reason.
    """
    if not given.runs_script and not given.places:
        raise click.UsageError("Missing argument 'PATH[:LINE]...'.")
    of_fakes = {
        "--setup": given.setup,
        "--steps": given.steps,
        "--dtype": given.dtype,
        "--memory": given.memory,
        "--fixed": given.fixed or given.fixed_file,
    }
    for option, value in of_fakes.items():
        if given.runs_script and value:
            raise Misuse(f"{option} is about fakes, and a script that is run has its own")


def _report_unprotected(how: launch.Options, ranks: Sequence[int]) -> tuple[str, ...]:
    """Prints what nothing keeps the runs from on this machine, and gives it back."""
    from accumlint.confirming import sandbox

    has = how.sandbox or sandbox.available()
    lines = [line for count in ranks for line in sandbox.unprotected(has, how.run(count))]
    for line in (found := tuple(dict.fromkeys(lines))):
        print(f"accumlint: not protected on this machine: {line}", file=sys.stderr)
    return found


def _report_script(script: Script, ranks: int, plans: Sequence[Plan]) -> str:
    """Prints what is run, and gives what that is open to."""
    print(
        f"accumlint: runs `{printable(script.command)}` on {count(ranks, 'rank')} for {count(len(plans), 'finding')},"
        " as it is and without a sandbox",
        file=sys.stderr,
    )
    return "everything: a script of your own runs without a sandbox"


def _batch_title(batch: Batch) -> str:
    """What a launch executes: the loops by number, their files by name as long as they are few."""
    files = list(dict.fromkeys(printable(plan.report.shown) for plan in batch.plans))
    more = [f"{len(files) - FEW} more files"] if len(files) > FEW + 1 else files[FEW:]
    *names, last = files[:FEW] + more
    listed = f"{', '.join(names)} and {last}" if names else last
    return f"{count(len(batch.plans), 'loop')} of {listed} on {count(batch.ranks, 'rank')}"


def _report_progress(plan: Plan) -> None:
    if sys.stderr.isatty():
        place = plan.report.mark.place
        print(
            f"  ran {printable(plan.report.shown)}:{place.line} {plan.report.code}", file=sys.stderr
        )


def _requests(places: Iterable[str], chosen: Options, after: Path | None) -> Iterator[Request]:
    """The files that a command names, with their lines.

    Raises:
        Misuse: for a place that cannot be read.
    """
    from accumlint.confirming.pipeline import Request

    by_file: dict[str, set[int]] = {}
    for place in places:
        path, colon, line = place.rpartition(":")
        if colon and line.isdigit() and not Path(place).exists():
            by_file.setdefault(path, set()).add(int(line))
        else:
            by_file.setdefault(place, set())
    text = after.read_text(encoding="utf-8") if after else None
    for path, lines in by_file.items():
        targets, problems = find((path,), chosen)
        for problem in problems:
            raise Misuse(f"{problem.path}: {problem.message}")
        for target in targets:
            if not target.is_notebook:
                yield Request(target, frozenset(lines), text)
            elif target.shown == path:
                raise Misuse(f"{path}: notebooks are not run; save this one as a script")
            else:
                output.tell(Problem(target.shown, "notebooks are not run", Kind.WARNING))


def _confirmed(found: Sequence[Confirmation]) -> int:
    """The exit code of a confirmation: what stands in the source as it is decides."""
    verdicts = {one.verdict.value for one in found if one.arm == "found"}
    if "confirmed" in verdicts:
        return CONFIRMED
    return UNDECIDED if verdicts == {"undecided"} else 0
