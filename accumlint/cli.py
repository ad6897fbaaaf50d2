"""The command line."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from accumlint import (
    __version__,
    baseline,
    changes,
    check,
    config,
    fixing,
    ignoring,
    keys,
    packs,
    reporting,
)
from accumlint.discovery import Target, find
from accumlint.fixing import Fixed
from accumlint.problem import Kind, Problem
from accumlint.progress import Progress
from accumlint.report import Checked, Report
from accumlint.reporting import mending, pages
from accumlint.reporting.difference import difference
from accumlint.reporting.look import Look, printable
from accumlint.reporting.paths import repository
from accumlint.reporting.settings import settings as told
from accumlint.reporting.words import count
from accumlint.source import decode

if TYPE_CHECKING:
    from accumlint.confirming import session
    from accumlint.confirming.plan import Plan
    from accumlint.confirming.result import Confirmation

FINDINGS, USAGE, UNDECIDED, INTERRUPTED = 1, 2, 4, 130
# What the user can mend, told in one line.
FAULTS_OF_USE = (
    config.ConfigError,
    packs.PackError,
    packs.UnknownSelector,
    baseline.BaselineError,
    changes.ChangesError,
)


class _Unusable(click.ClickException):
    """Input that nothing can be done with: one line, and exit code 2."""

    exit_code = USAGE


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits."""
    for stream in (sys.stdout, sys.stderr):
        # A path or a source line may hold what the terminal's encoding cannot write.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_exit_code(arguments))


def _exit_code(arguments: Sequence[str] | None) -> int:
    try:
        return accumlint.main(arguments, prog_name="accumlint", standalone_mode=False) or 0
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    except FAULTS_OF_USE as problem:
        print(f"accumlint: {printable(str(problem))}", file=sys.stderr)
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED


def _words(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The words of an option that may be repeated and may hold several, separated by commas."""
    return tuple(word.strip() for value in values for word in value.split(",") if word.strip())


def _outputs(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Formats with the files that they are written to, "" for standard output."""
    pairs = [value.partition("=") for value in values]
    for name, equals, file in pairs:
        if name not in keys.FORMATS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(keys.FORMATS)}.")
        if equals and not file:
            raise click.BadParameter(f"{name}= names no file.")
    return tuple((name, "" if file == "-" else file) for name, _, file in pairs)


def _look(_: click.Context, __: click.Parameter, color: str) -> Look:
    """What standard output can show; NO_COLOR and FORCE_COLOR overrule a guess, not an option."""
    automatic = not os.environ.get("NO_COLOR") and (
        bool(os.environ.get("FORCE_COLOR"))
        or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
    )
    try:
        "╭│╰─┆".encode(sys.stdout.encoding or "ascii")
        boxes = True
    except UnicodeEncodeError:
        boxes = False
    return Look(color == "always" or (color == "auto" and automatic), boxes)


def _configs(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> tuple[Path | None, tuple[str, ...]]:
    """The file of settings that is named, and the settings that are typed."""
    files = [value for value in values if os.path.isfile(value)]
    typed = tuple(value for value in values if value not in files)
    for value in typed:
        if "=" not in value:
            raise click.BadParameter(f"{value!r} is neither a file nor KEY=VALUE.")
    if len(files) > 1:
        raise click.BadParameter("one file of settings is enough; let it extend the other.")
    return Path(os.path.abspath(files[0])) if files else None, typed


_CONFIG = click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="FILE|KEY=VALUE",
    callback=_configs,
    help="Take the settings from this file, or set one; may be repeated.",
)
_ISOLATED = click.option("--isolated", is_flag=True, help="Read no configuration file.")
_BASELINE = click.option(
    "--baseline",
    "known",
    type=click.Path(dir_okay=False, resolve_path=True, path_type=Path),
    help="The file of known findings.",
)
_COLOR = click.option(
    "--color",
    "look",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    callback=_look,
    help="When to use colours; auto obeys NO_COLOR and FORCE_COLOR.",
)


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        rules = len(packs.catalogue())
        click.echo(f"accumlint {__version__} ({rules} rules, {packs.version()})")
        context.exit()


def _rules_like(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """The codes and names that continue what a user has begun to type, behind the last comma."""
    before, comma, word = begun.rpartition(",")
    known = [known for entry in packs.catalogue() for known in (entry.code, entry.name)]
    matching = [known for known in known if known.lower().startswith(word.lower())]
    return [f"{before}{comma}{known}" for known in matching]


def _formats_like(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    return [name for name in keys.FORMATS if name.startswith(begun)]


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version, the number of rules and a hash of them, and exit.",
)
@click.pass_context
def accumlint(context: click.Context) -> None:
    """Finds gradient-accumulation defects in PyTorch training code."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


class _CheckCommand(click.Command):
    """The command `check`, whose option `--add-ignore` takes a reason behind `=` only: what follows it is a path."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(
            ctx, ["--add-ignore=" if word == "--add-ignore" else word for word in args]
        )


@accumlint.command("check", cls=_CheckCommand, short_help="Checks files and folders.")
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@click.option(
    "--select",
    multiple=True,
    metavar="RULES",
    callback=_words,
    shell_complete=_rules_like,
    help="Run these rules only.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="RULES",
    callback=_words,
    shell_complete=_rules_like,
    help="Leave these rules out.",
)
@click.option(
    "--extend-select",
    multiple=True,
    metavar="RULES",
    callback=_words,
    shell_complete=_rules_like,
    help="Run these rules too.",
)
@click.option(
    "--min-confidence",
    type=click.Choice(keys.CONFIDENCES),
    help="The least sure findings to show (likely).",
)
@click.option(
    "--output-format",
    type=click.Choice(keys.FORMATS),
    help="How to print findings (full on a terminal, else concise).",
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT[=FILE]",
    callback=_outputs,
    shell_complete=_formats_like,
    help="Print findings in this format, or write them to FILE; may be repeated.",
)
@click.option(
    "--sarif-category",
    default="",
    metavar="NAME",
    help="Tells several runs on one commit apart (sarif).",
)
@click.option(
    "--sarif-silenced", is_flag=True, help="List silenced findings as suppressed (sarif)."
)
@_CONFIG
@_ISOLATED
@_BASELINE
@click.option(
    "--diff-base",
    default="",
    metavar="REV",
    help="Report on lines only that changed since REV (git).",
)
@click.option(
    "--add-ignore",
    metavar="[=REASON]",
    help="Write ignore comments for all findings, with the reason behind.",
)
@click.option("--fix", is_flag=True, help="Mend what can be mended safely, and write the files.")
@click.option("--unsafe-fixes", is_flag=True, help="With --fix or --diff: the unsafe fixes, too.")
@click.option("--diff", is_flag=True, help="Print what --fix would change, and write nothing.")
@click.option("--show-fixes", is_flag=True, help="With --fix or --diff: list what was mended.")
@click.option("--exit-non-zero-on-fix", is_flag=True, help="Exit with 1 if anything was mended.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 although there are findings.")
@click.option("--statistics", is_flag=True, help="Count findings by rule instead of printing them.")
@click.option("--show-files", is_flag=True, help="List the files that would be checked.")
@click.option("--force-exclude", is_flag=True, help="Leave out excluded files even if named.")
@click.option("--no-cache", is_flag=True, help="Accepted for scripts; there is no cache yet.")
@click.option(
    "--stdin-filename", default="", metavar="FILE", help="The name of what `-` reads from stdin."
)
@_COLOR
def check_command(
    paths: tuple[str, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    extend_select: tuple[str, ...],
    min_confidence: str | None,
    output_format: str | None,
    outputs: tuple[tuple[str, str], ...],
    sarif_category: str,
    sarif_silenced: bool,
    configs: tuple[Path | None, tuple[str, ...]],
    isolated: bool,
    known: Path | None,
    diff_base: str,
    add_ignore: str | None,
    fix: bool,
    unsafe_fixes: bool,
    diff: bool,
    show_fixes: bool,
    exit_non_zero_on_fix: bool,
    exit_zero: bool,
    statistics: bool,
    show_files: bool,
    force_exclude: bool,
    no_cache: bool,
    stdin_filename: str,
    look: Look,
) -> int:
    """Checks Python files, and folders for the Python files in them (default: the current folder).

    `-` reads from stdin; with --fix, the fixed text goes to stdout. RULES are codes, names, beginnings of codes, or
    ALL, separated by commas.

    Exit code: 0 nothing found (--fix: nothing left, --diff: nothing to change), 1 findings, 2 wrong usage, settings or
    input, 3 a fault of accumlint.
    """
    file, inline = configs
    if isolated and file:
        raise click.UsageError("--isolated and --config FILE exclude each other.")
    printed = [name for name, destination in outputs if not destination]
    if printed and output_format:
        raise click.UsageError("--output-format and --output without a file exclude each other.")
    if diff and (outputs or output_format):
        raise click.UsageError("--diff prints a diff: it takes no output format.")
    options = config.Options(
        select, extend_select, ignore, min_confidence or "", file, isolated, inline, known
    )
    if add_ignore is not None:
        _refuse_together(
            "--add-ignore", fix=fix, diff=diff, diff_base=diff_base, stdin="-" in paths
        )
        if len(add_ignore.splitlines()) > 1:
            raise click.BadParameter("a reason is one line.", param_hint="--add-ignore")
    if diff_base:
        _refuse_together("--diff-base", fix=fix, diff=diff)
    here = config.settings(Path.cwd(), options)
    targets, problems = find(
        paths or (".",), options, force_exclude=force_exclude, stdin_filename=stdin_filename
    )
    packs.require(config.typed(options))
    for problem in problems:
        _tell(problem)
    worst = max((problem.kind for problem in problems), default=Kind.WARNING)
    if show_files:
        _print(printable(target.shown) for target in targets)
        return worst
    usual = output_format or here.output_format or ("full" if sys.stdout.isatty() else "concise")
    look = replace(
        look,
        root=repository(Path.cwd()),
        category=f"accumlint/{sarif_category}/" if sarif_category else "accumlint/",
        silenced=sarif_silenced,
    )
    results: list[Checked] = []
    progress = Progress(sys.stderr, sys.stderr.isatty() and os.environ.get("TERM") != "dumb")
    asked = dict.fromkeys((here, *(target.settings for target in targets)))
    for settings in asked:
        if settings.baseline:
            baseline.load(settings.baseline)
    of_settings = chain.from_iterable(map(check.check_settings, asked))
    coming_targets = progress.through(targets)
    if diff:
        fixes = fixing.fix_files(coming_targets, unsafe=unsafe_fixes)
        _print(_differences(fixes, results, progress, look))
        _print(mending.outlook(results, names=show_fixes), sys.stderr)
        changed = any(result.mended for result in results) and not exit_zero
        return max(_verdict(results, worst, True), FINDINGS if changed else 0)
    if fix:
        found = _fixed(coming_targets, unsafe_fixes)
    elif add_ignore is not None:
        found = _ignored(coming_targets, add_ignore.strip())
    else:
        found = check.check(coming_targets)
    if diff_base:
        found = _changed(found, changes.since(diff_base, str(Path.cwd())))
    coming = _kept(chain(of_settings, found), results, progress)
    fixed_stdin = fix and any(target.stdin for target in targets)
    first, *others = printed or [usual]
    reporters = reporting.STATISTICS if statistics else reporting.REPORTERS
    _print(reporters[first](coming, look), sys.stderr if fixed_stdin else sys.stdout)
    # A reader of standard output that stops early (`| head`) must not cut the other outputs short.
    deque(coming if outputs else (), maxlen=0)
    for name in others:
        _print(reporters[name](results, look))
    plain = replace(look, color=False)
    for name, destination in outputs:
        if destination:
            worst = max(worst, _write(reporting.REPORTERS[name](results, plain), destination))
    page = os.environ.get("GITHUB_STEP_SUMMARY") if "github" in (first, *others) else None
    if page:
        worst = max(worst, _write(reporting.REPORTERS["markdown"](results, plain), page, "a"))
    if show_fixes:
        _print(mending.mended(results), sys.stderr)
    was_fixed = exit_non_zero_on_fix and any(result.mended for result in results)
    return max(_verdict(results, worst, exit_zero), FINDINGS if was_fixed else 0)


@accumlint.command("confirm", short_help="Runs flagged loops and proves findings.")
@click.argument("places", nargs=-1, required=True, metavar="PATH[:LINE]...")
@click.option(
    "--select", multiple=True, metavar="RULES", callback=_words, help="Confirm these rules only."
)
@click.option(
    "--ignore", multiple=True, metavar="RULES", callback=_words, help="Leave these rules out."
)
@click.option(
    "--nproc-per-node",
    "ranks",
    type=click.IntRange(1),
    help="Ranks to run on (2 where the loop is distributed, else 1).",
)
@click.option("--nnodes", default="1", metavar="N", help="Machines, as torchrun takes them.")
@click.option("--rdzv-endpoint", default="", metavar="HOST:PORT", help="Where machines meet.")
@click.option("--node-rank", default=0, type=click.IntRange(0), help="This machine among them.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "bfloat16", "float16"]),
    default="float64",
    help="Precision of the stand-ins (float64).",
)
@click.option("--windows", default=6, type=click.IntRange(2, 100), help="Updates to see (6).")
@click.option("--steps", default=4, type=click.IntRange(2, 64), help="Accumulation steps (4).")
@click.option("--timeout", default=60.0, type=click.FloatRange(1), help="Seconds per finding (60).")
@click.option("--memory", default=16.0, type=click.FloatRange(1), help="GiB per rank (16).")
@click.option("--seed", default=0, type=int)
@click.option("--fixed", is_flag=True, help="Run the fixed text as well: before and after.")
@click.option(
    "--fixed-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="As --fixed, with the mended file given.",
)
@click.option(
    "--output-format", type=click.Choice(["table", "json"]), default="table", help="What to print."
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with pictures."
)
@_CONFIG
@_ISOLATED
@_COLOR
def confirm_command(
    places: tuple[str, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    ranks: int | None,
    nnodes: str,
    rdzv_endpoint: str,
    node_rank: int,
    device: str,
    dtype: str,
    windows: int,
    steps: int,
    timeout: float,
    memory: float,
    seed: int,
    fixed: bool,
    fixed_file: Path | None,
    output_format: str,
    html: Path | None,
    configs: tuple[Path | None, tuple[str, ...]],
    isolated: bool,
    look: Look,
) -> int:
    """Runs the loops that `check` flags, on small stand-ins under torchrun, and says what the optimizer really applies.

    This executes the code of the files named, and of what they import from their project. Needs torch
    (`pip install accumlint[confirm]`).

    Exit code: 0 nothing confirmed, 1 something confirmed, 2 wrong usage or input, 4 undecided only.
    """
    from accumlint.confirming import launch, page, record, session, table
    from accumlint.confirming.plan import Wish

    file, inline = configs
    options = config.Options(select, (), ignore, "", file, isolated, inline)
    asked = list(_asked(places, options, fixed_file))
    packs.require(config.typed(options))
    plans = session.gathered(asked, Wish(ranks, steps, windows), fixed)
    how = launch.Options(
        device=device, dtype=dtype, limit=timeout, seed=seed, memory=memory, nnodes=nnodes,
        endpoint=rdzv_endpoint, node_rank=node_rank,
    )  # fmt: skip
    for batch in session.batches(plans):
        names = ", ".join(dict.fromkeys(printable(plan.report.shown) for plan in batch.plans))
        rank = "rank" if batch.ranks == 1 else "ranks"
        count = len(batch.plans)
        runs = "1 loop" if count == 1 else f"{count} loops"
        print(f"accumlint: runs {runs} of {names} on {batch.ranks} {rank}", file=sys.stderr)
    try:
        found = session.confirm(plans, how, _told_of)
    except launch.LaunchError as problem:
        raise _Unusable(str(problem)) from None
    if output_format == "json":
        _print([record.record(found)])
    elif found:
        width = shutil.get_terminal_size((100, 24)).columns
        _print(table.table(found, look, width))
    else:
        print("accumlint: no finding there, so nothing was run", file=sys.stderr)
    if html is not None:
        html.write_text(page.page(found, session.sources(asked)), encoding="utf-8")
    return _confirmed(found)


def _told_of(plan: Plan) -> None:
    if sys.stderr.isatty():
        place = plan.report.mark.place
        print(
            f"  ran {printable(plan.report.shown)}:{place.line} {plan.report.code}", file=sys.stderr
        )


def _asked(
    places: Iterable[str], options: config.Options, after: Path | None
) -> Iterator[session.Asked]:
    """The files that a command names, with their lines.

    Raises:
        click.ClickException: for a place that cannot be read.
    """
    from accumlint.confirming.session import Asked

    by_file: dict[str, set[int]] = {}
    for place in places:
        path, colon, line = place.rpartition(":")
        if colon and line.isdigit() and not Path(place).exists():
            by_file.setdefault(path, set()).add(int(line))
        else:
            by_file.setdefault(place, set())
    text = after.read_text(encoding="utf-8") if after else None
    for path, lines in by_file.items():
        targets, problems = find((path,), options)
        for problem in problems:
            raise _Unusable(f"{printable(problem.path)}: {problem.message}")
        for target in targets:
            yield Asked(target, frozenset(lines), text)


def _confirmed(found: Sequence[Confirmation]) -> int:
    """The exit code of a confirmation: what stands in the source as it is decides."""
    verdicts = {one.verdict.value for one in found if one.arm == "found"}
    if "confirmed" in verdicts:
        return FINDINGS
    return UNDECIDED if verdicts == {"undecided"} else 0


@accumlint.command("rule")
@click.argument("rule", metavar="CODE|NAME", shell_complete=_rules_like)
@_COLOR
def rule_command(rule: str, look: Look) -> None:
    """Prints the page of a rule."""
    _print(pages.page(packs.rule(packs.find(rule)), look))


@accumlint.command("rules")
@_COLOR
def rules_command(look: Look) -> None:
    """Lists the rules."""
    _print(pages.catalogue([packs.rule(entry) for entry in packs.catalogue()], look))


@accumlint.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Prints the script that completes commands: `eval "$(accumlint completion bash)"`."""
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    _print([completion(accumlint, {}, "accumlint", "_ACCUMLINT_COMPLETE").source()])


@accumlint.command("schema")
def schema_command() -> None:
    """Prints the JSON schema of the findings in JSON."""
    _print([reporting.schema()])


@accumlint.command("config")
@click.argument(
    "path", default=".", type=click.Path(exists=True, resolve_path=True, path_type=Path)
)
@_CONFIG
@_ISOLATED
@click.option("--schema", is_flag=True, help="Print the JSON schema of the settings instead.")
@_COLOR
def config_command(
    path: Path,
    configs: tuple[Path | None, tuple[str, ...]],
    isolated: bool,
    schema: bool,
    look: Look,
) -> None:
    """Prints the settings for a file or folder, and where each comes from."""
    if schema:
        _print([json.dumps(keys.schema(), indent=2)])
        return
    options = config.Options(config=configs[0], inline=configs[1], isolated=isolated)
    held = config.settings(path if path.is_dir() else path.parent, options)
    _print(told(held.all, look))


@accumlint.group("baseline")
def baseline_group() -> None:
    """Keeps known findings in a file, so that only new ones are reported.

    The file is named by the setting `baseline` or by --baseline, else it is accumlint-baseline.json.
    """


@baseline_group.command("write")
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@_CONFIG
@_ISOLATED
@_BASELINE
def baseline_write(
    paths: tuple[str, ...],
    configs: tuple[Path | None, tuple[str, ...]],
    isolated: bool,
    known: Path | None,
) -> int:
    """Makes what is found now in PATHS (default: the current folder) the known findings.

    What is known of other files stays.
    """
    return _renew(paths, _options(configs, isolated, known), baseline.rewritten)


@baseline_group.command("prune")
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@_CONFIG
@_ISOLATED
@_BASELINE
def baseline_prune(
    paths: tuple[str, ...],
    configs: tuple[Path | None, tuple[str, ...]],
    isolated: bool,
    known: Path | None,
) -> int:
    """Forgets known findings that are no longer found in PATHS (default: the current folder), and gone files."""
    return _renew(paths, _options(configs, isolated, known), baseline.pruned)


@baseline_group.command("show")
@_CONFIG
@_ISOLATED
@_BASELINE
def baseline_show(
    configs: tuple[Path | None, tuple[str, ...]], isolated: bool, known: Path | None
) -> None:
    """Lists the known findings."""
    settings = config.settings(Path.cwd(), _options(configs, isolated, known))
    file = settings.baseline or Path.cwd() / baseline.USUAL
    items = baseline.load(file)
    for item, number in sorted(items.items()):
        where = f"{item.file}: {item.code}{f' in {item.scope}' if item.scope else ''}"
        times = f" ({number} times)" if number > 1 else ""
        click.echo(printable(f"{where}: {item.statement}{times}"))
    click.echo(f"{count(sum(items.values()), 'finding')} known in {config.shown(file)}")


def _options(
    configs: tuple[Path | None, tuple[str, ...]], isolated: bool, known: Path | None
) -> config.Options:
    if isolated and configs[0]:
        raise click.UsageError("--isolated and --config FILE exclude each other.")
    return config.Options(config=configs[0], inline=configs[1], isolated=isolated, baseline=known)


def _renew(
    paths: Sequence[str],
    options: config.Options,
    renewed: Callable[
        [Mapping[baseline.Known, int], Iterable[Report], Collection[str], Path],
        Mapping[baseline.Known, int],
    ],
) -> int:
    """Checks files without their baselines, and writes each baseline anew."""
    packs.require(config.typed(options))
    here = config.settings(Path.cwd(), options)
    targets, problems = find(paths or (".",), options, force_exclude=True)
    by_file: dict[Path, list[Target]] = {here.baseline or Path.cwd() / baseline.USUAL: []}
    for target in targets:
        if target.stdin:
            raise click.UsageError("a baseline knows files, and `-` is none.")
        file = target.settings.baseline or Path.cwd() / baseline.USUAL
        bare = replace(target, settings=replace(target.settings, baseline=None))
        by_file.setdefault(file, []).append(bare)
    # A baseline that cannot be read is not written over.
    old: dict[Path, Mapping[baseline.Known, int]] = {
        file: baseline.load(file) if file.exists() else {} for file in by_file
    }
    results: list[Checked] = []
    for file, held in by_file.items():
        done = [(target, result) for target, result in zip(held, check.check(held), strict=True)]
        results += (result for _, result in done)
        read = {t.file for t, r in done if all(p.kind is Kind.WARNING for p in r.problems)}
        reports = [report for _, result in done for report in result.reports]
        new = renewed(old[file], reports, read, file)
        if new != old[file] or not file.exists():
            baseline.save(file, new)
        click.echo(f"{count(sum(new.values()), 'finding')} known in {config.shown(file)}")
    if here.baseline is None:
        click.echo(f'To use it, name it in the settings: baseline = "{baseline.USUAL}"', err=True)
    for problem in (*problems, *(problem for result in results for problem in result.problems)):
        _tell(problem)
    return _verdict(results, max((p.kind for p in problems), default=Kind.WARNING), True)


def _refuse_together(option: str, **others: object) -> None:
    for name, given in others.items():
        if given:
            other = "-" if name == "stdin" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} and {other} exclude each other.")


def _changed(results: Iterable[Checked], since: changes.Changes) -> Iterator[Checked]:
    """The results with those findings only that stand on what changed."""
    for result in results:
        yield replace(result, reports=tuple(filter(since.touch, result.reports)))


def _ignored(targets: Iterable[Target], reason: str) -> Iterator[Checked]:
    """What is left to report once ignores were written."""
    files = comments = 0
    for done in ignoring.ignore(targets, reason):
        files += bool(done.added)
        comments += done.added
        yield done.checked
    print(f"Ignored {count(comments, 'finding')} in {count(files, 'file')}", file=sys.stderr)


def _kept(results: Iterable[Checked], kept: list[Checked], progress: Progress) -> Iterator[Checked]:
    """The results as they come, kept for the verdict, their problems told."""
    for result in results:
        if result.reports or result.problems:
            progress.clear()
        kept.append(result)
        for problem in result.problems:
            _tell(problem)
        yield result


def _differences(
    results: Iterable[Fixed], kept: list[Checked], progress: Progress, look: Look
) -> Iterator[str]:
    """The diff of each file that would change."""
    for result in results:
        if result.is_changed:
            progress.clear()
            texts = decode(result.before), decode(result.after)
            yield "".join(difference(*texts, result.target.shown, look)).removesuffix("\n")
        kept.extend(_kept([result.checked], [], progress))


def _fixed(targets: Iterable[Target], unsafe: bool) -> Iterator[Checked]:
    """The results of fixing; what came from stdin goes to stdout, whether it changed or not."""
    for result in fixing.fix_files(targets, unsafe=unsafe):
        if result.target.stdin:
            sys.stdout.flush()
            sys.stdout.buffer.write(result.after)
            sys.stdout.buffer.flush()
            yield result.checked
        else:
            yield from fixing.written([result])


def _verdict(results: Sequence[Checked], worst: Kind, exit_zero: bool) -> int:
    """The exit code of a run: the gravest problem, else whether anything was found."""
    problems = [problem.kind for result in results for problem in result.problems]
    found = any(result.reports for result in results) and not exit_zero
    return max(worst, *problems, FINDINGS if found else 0)


def _tell(problem: Problem) -> None:
    line = f":{problem.line}" if problem.line else ""
    kind = "warning: " if problem.kind is Kind.WARNING else ""
    text = f"{printable(problem.path)}{line}: {kind}{printable(problem.message)}"
    print(text, problem.traceback, sep="\n" if problem.traceback else "", file=sys.stderr)


def _write(lines: Iterable[str], file: str, mode: str = "w") -> Kind:
    """Writes lines to a file, and says how that went."""
    try:
        with open(file, mode, encoding="utf-8", errors="backslashreplace") as stream:
            stream.writelines(f"{line}\n" for line in lines)
    except OSError as problem:
        _tell(Problem(file, f"cannot be written: {problem.strerror or problem}"))
        return Kind.UNREADABLE
    return Kind.WARNING


def _print(lines: Iterable[str], stream: TextIO | None = None) -> None:
    out = stream or sys.stdout
    try:
        for line in lines:
            out.write(line + "\n")
        out.flush()
    except BrokenPipeError:
        # The reader has seen enough (`| head`). Python flushes once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
