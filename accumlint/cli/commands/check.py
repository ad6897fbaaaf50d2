"""`accumlint check`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumlint import config
from accumlint.cli import check_run, options, output
from accumlint.cli.check_run import Delivery, Work
from accumlint.common.problem import Kind
from accumlint.config import setting_keys
from accumlint.inputs.discovery import find
from accumlint.registry import packs
from accumlint.reporting.paths import repository
from accumlint.reporting.terminal import Look, printable_path

if TYPE_CHECKING:
    from accumlint.inputs.cache import Cache


class _Check(click.Command):
    """The command `check`, whose option `--add-ignore` takes a reason behind `=` only: what follows it is a path."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = tuple(word for word in args if word != "--watch")
        return super().parse_args(
            ctx, ["--add-ignore=" if word == "--add-ignore" else word for word in args]
        )


@click.command(cls=_Check, short_help="Checks files and folders.")
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@click.option(
    "--select",
    multiple=True,
    metavar="RULES",
    callback=options.words,
    shell_complete=options.rules_like,
    help="Run these rules only.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="RULES",
    callback=options.words,
    shell_complete=options.rules_like,
    help="Leave these rules out.",
)
@click.option(
    "--extend-select",
    multiple=True,
    metavar="RULES",
    callback=options.words,
    shell_complete=options.rules_like,
    help="Run these rules too.",
)
@click.option(
    "--min-confidence",
    type=click.Choice(setting_keys.CONFIDENCES),
    help="Lowest confidence to report (likely).",
)
@click.option(
    "--min-severity",
    type=click.Choice(setting_keys.SEVERITIES),
    help="Lowest severity to report (info).",
)
@click.option(
    "--output-format",
    type=click.Choice(setting_keys.FORMATS),
    help="How to print findings (full on a terminal, else concise).",
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT[=FILE]",
    callback=options.outputs,
    shell_complete=options.formats_like,
    help="Print findings in this format, or write them to FILE; may be repeated.",
)
@click.option(
    "--sarif-category",
    default="",
    metavar="NAME",
    help="Name that tells several runs on one commit apart (sarif).",
)
@click.option(
    "--sarif-silenced", is_flag=True, help="List silenced findings as suppressed (sarif)."
)
@options.CONFIG
@options.ISOLATED
@options.BASELINE
@click.option(
    "--diff-base",
    default="",
    metavar="REV",
    help="Report only findings on lines that changed since this git revision.",
)
@click.option(
    "--add-ignore",
    metavar="[=REASON]",
    help="Write an ignore comment with the reason for each finding.",
)
@click.option("--fix", is_flag=True, help="Apply the safe fixes and write the files.")
@click.option(
    "--unsafe-fixes", is_flag=True, help="With --fix or --diff: apply the unsafe fixes as well."
)
@click.option("--diff", is_flag=True, help="Print what --fix would change, and write nothing.")
@click.option("--show-fixes", is_flag=True, help="With --fix or --diff: list the applied fixes.")
@click.option("--exit-non-zero-on-fix", is_flag=True, help="Exit with 1 if a fix was applied.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 although there are findings.")
@click.option(
    "--fail-on",
    type=click.Choice(setting_keys.SEVERITIES),
    default="info",
    help="Exit with 1 only for findings of at least this severity (info).",
)
@click.option("--watch", is_flag=True, help="Check again whenever files change, until Ctrl+C.")
@click.option(
    "-q", "--quiet", is_flag=True, help="Print findings only: nothing about the run, no progress."
)
@click.option(
    "--coverage", is_flag=True, help="List every backward call with how much of its loop was read."
)
@click.option("--statistics", is_flag=True, help="Count findings by rule instead of printing them.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Number of processes (0: chosen by the amount of work).",
)
@click.option(
    "--include-tests",
    is_flag=True,
    help="Report findings in tests, which are otherwise only counted.",
)
@click.option("--show-files", is_flag=True, help="List the files that would be checked.")
@click.option(
    "--force-exclude", is_flag=True, help="Leave out excluded files even if they are named."
)
@options.CACHE_DIR
@click.option("--no-cache", is_flag=True, help="Neither read nor write the cache.")
@click.option(
    "--stdin-filename", default="", metavar="FILE", help="The name of what `-` reads from stdin."
)
@options.COLOR
@click.pass_obj
def command(
    arguments: tuple[str, ...],
    paths: tuple[str, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    extend_select: tuple[str, ...],
    min_confidence: str | None,
    min_severity: str | None,
    output_format: str | None,
    outputs: tuple[tuple[str, str], ...],
    sarif_category: str,
    sarif_silenced: bool,
    configs: options.Configs,
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
    fail_on: str,
    watch: bool,
    quiet: bool,
    coverage: bool,
    statistics: bool,
    jobs: int,
    include_tests: bool,
    show_files: bool,
    force_exclude: bool,
    cache_dir: Path | None,
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
    printed = tuple(name for name, destination in outputs if not destination)
    if printed and output_format:
        raise click.UsageError("--output-format and --output without a file exclude each other.")
    if diff and (outputs or output_format):
        raise click.UsageError("--diff prints a diff: it takes no output format.")
    if add_ignore is not None:
        options.exclude_each_other(
            "--add-ignore", fix=fix, diff=diff, diff_base=diff_base, stdin="-" in paths
        )
        if len(add_ignore.splitlines()) > 1:
            raise click.BadParameter("a reason is one line.", param_hint="--add-ignore")
    if watch:
        options.exclude_each_other(
            "--watch", fix=fix, diff=diff, add_ignore=add_ignore is not None, stdin="-" in paths
        )
    if diff_base:
        options.exclude_each_other("--diff-base", fix=fix, diff=diff)
    asked = replace(
        options.settled(configs, isolated, known),
        select=select,
        extend_select=extend_select,
        ignore=ignore,
        min_confidence=min_confidence or "",
        min_severity=min_severity or "",
        include_tests=include_tests,
    )
    here = options.here(asked)
    targets, problems = find(
        paths or (".",), asked, force_exclude=force_exclude, stdin_filename=stdin_filename
    )
    packs.require(config.typed(asked))
    if watch:
        from accumlint.cli import watch_mode

        return watch_mode.watch(arguments, paths or (".",), targets)
    if not targets:
        # Nothing was checked, which must not pass for nothing found.
        problems = [
            replace(problem, kind=max(problem.kind, Kind.UNREADABLE)) for problem in problems
        ]
    for problem in problems:
        output.tell(problem)
    worst = max((problem.kind for problem in problems), default=Kind.WARNING)
    if show_files:
        output.put(printable_path(target.shown) for target in targets)
        return worst
    usual = output_format or here.output_format or ("full" if sys.stdout.isatty() else "concise")
    look = replace(
        look,
        root=repository(Path.cwd()),
        category=f"accumlint/{sarif_category}/" if sarif_category else "accumlint/",
        silenced=sarif_silenced,
        quiet=quiet,
        coverage=coverage,
    )
    files = tuple((name, file) for name, file in outputs if file)
    if problems and not targets and not files:
        return worst
    delivery = Delivery(printed or (usual,), files, look, statistics, exit_zero, fail_on)
    work = Work(
        fix, unsafe_fixes, diff, show_fixes, exit_non_zero_on_fix, add_ignore, diff_base, jobs
    )
    cache = None if no_cache else _cache(cache_dir or config.cache_dir(here))
    return max(worst, check_run.run(here, targets, work, delivery, cache))


def _cache(folder: Path | None) -> Cache | None:
    # Most of what it imports is asked for by nobody else.
    from accumlint.inputs.cache import Cache

    return Cache(os.path.abspath(folder)) if folder else None
