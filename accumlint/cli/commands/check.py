"""`accumlint check`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accumlint import config
from accumlint.cli import check_run, options, output
from accumlint.cli.check_run import CheckOptions, Delivery
from accumlint.common.problem import Kind
from accumlint.config import Settings, setting_keys
from accumlint.diagnostics.reporting.paths import repository
from accumlint.diagnostics.reporting.terminal import printable_path
from accumlint.files.inputs.discovery import find
from accumlint.registry import packs

if TYPE_CHECKING:
    from accumlint.files.inputs.cache import Cache


class _Check(click.Command):
    """The command `check`, whose option `--add-ignore` takes a reason behind `=` only: what follows it is a path."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = tuple(word for word in args if word != "--watch")
        return super().parse_args(
            ctx, ["--add-ignore=" if word == "--add-ignore" else word for word in args]
        )


@click.command(cls=_Check, short_help="Checks files and folders.")
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@options.rules("--select", "Run these rules only.")
@options.rules("--ignore", "Leave these rules out.")
@options.rules("--extend-select", "Run these rules too.")
@options.MIN_CONFIDENCE
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
@options.OUTPUT
@click.option(
    "--sarif-category",
    default="",
    metavar="NAME",
    help="Name that tells several runs on one commit apart (sarif).",
)
@options.flag("--sarif-silenced", told="List silenced findings as suppressed (sarif).")
@options.settings
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
@options.flag("--fix", told="Apply the safe fixes and write the files.")
@options.flag("--unsafe-fixes", told="With --fix or --diff: apply the unsafe fixes as well.")
@options.flag("--diff", told="Print what --fix would change, and write nothing.")
@options.flag("--show-fixes", told="With --fix or --diff: list the applied fixes.")
@options.flag("--exit-non-zero-on-fix", told="Exit with 1 if a fix was applied.")
@options.EXIT_ZERO
@click.option(
    "--fail-on",
    type=click.Choice(setting_keys.SEVERITIES),
    default="info",
    help="Exit with 1 only for findings of at least this severity (info).",
)
@options.flag("--watch", told="Check again whenever files change, until Ctrl+C.")
@options.flag("-q", "--quiet", told="Print findings only: nothing about the run, no progress.")
@options.flag("--coverage", told="List every backward call with how much of its loop was read.")
@options.flag("--statistics", told="Count findings by rule instead of printing them.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Number of processes (0: chosen by the amount of work).",
)
@options.flag("--include-tests", told="Report findings in tests, which are otherwise only counted.")
@options.flag("--show-files", told="List the files that would be checked.")
@options.flag("--force-exclude", told="Leave out excluded files even if they are named.")
@options.CACHE_DIR
@options.flag("--no-cache", told="Neither read nor write the cache.")
@options.STDIN_FILENAME
@options.COLOR
@click.pass_obj
def command(arguments: tuple[str, ...], **given: Any) -> int:
    """Checks Python files, and folders for the Python files in them (default: the current folder).

    `-` reads from stdin; with --fix, the fixed text goes to stdout. RULES are codes, names, beginnings of codes, or
    ALL, separated by commas.

    Exit code: 0 nothing found (--fix: nothing left, --diff: nothing to change), 1 findings, 2 wrong usage, settings or
    input, 3 a fault of accumlint.
    """
    return _checked(CheckOptions(**given), arguments)


def _checked(given: CheckOptions, arguments: tuple[str, ...]) -> int:
    _refuse_together(given)
    asked = replace(
        options.settled(given.configs, given.isolated, given.known),
        select=given.select,
        extend_select=given.extend_select,
        ignore=given.ignore,
        min_confidence=given.min_confidence or "",
        min_severity=given.min_severity or "",
        include_tests=given.include_tests,
    )
    here = options.here(asked)
    paths, name = given.paths or (".",), given.stdin_filename
    targets, problems = find(paths, asked, force_exclude=given.force_exclude, stdin_filename=name)
    packs.require(config.typed(asked))
    if given.watch:
        from accumlint.cli import watch_mode

        return watch_mode.watch(arguments, paths, targets)
    if not targets:
        # Nothing was checked, which must not pass for nothing found.
        problems = [
            replace(problem, kind=max(problem.kind, Kind.UNREADABLE)) for problem in problems
        ]
    for problem in problems:
        output.tell(problem)
    worst = max((problem.kind for problem in problems), default=Kind.WARNING)
    if given.show_files:
        output.put(printable_path(target.shown) for target in targets)
        return worst
    delivery = _delivery(given, here)
    if problems and not targets and not delivery.files:
        return worst
    cache = None if given.no_cache else _cache(given.cache_dir or config.cache_dir(here))
    return max(worst, check_run.run(here, targets, given, delivery, cache))


def _refuse_together(given: CheckOptions) -> None:
    """Refuses options that exclude each other."""
    if given.output_format and not all(file for _, file in given.outputs):
        raise click.UsageError("--output-format and --output without a file exclude each other.")
    if given.diff and (given.outputs or given.output_format):
        raise click.UsageError("--diff prints a diff: it takes no output format.")
    modes, stdin = {"fix": given.fix, "diff": given.diff}, "-" in given.paths
    ignores = given.add_ignore is not None
    if given.add_ignore is not None:
        options.exclude_each_other("--add-ignore", **modes, diff_base=given.diff_base, stdin=stdin)
        if len(given.add_ignore.splitlines()) > 1:
            raise click.BadParameter("a reason is one line.", param_hint="--add-ignore")
    if given.watch:
        options.exclude_each_other("--watch", **modes, add_ignore=ignores, stdin=stdin)
    if given.diff_base:
        options.exclude_each_other("--diff-base", **modes)


def _delivery(given: CheckOptions, here: Settings) -> Delivery:
    """Where the results go, and how they look there."""
    usual = given.output_format or here.output_format
    printed = tuple(name for name, file in given.outputs if not file)
    return Delivery(
        printed or (usual or ("full" if sys.stdout.isatty() else "concise"),),
        tuple((name, file) for name, file in given.outputs if file),
        replace(
            given.look,
            root=repository(Path.cwd()),
            category=f"accumlint/{given.sarif_category}/" if given.sarif_category else "accumlint/",
            silenced=given.sarif_silenced,
            quiet=given.quiet,
            coverage=given.coverage,
        ),
        given.statistics,
    )


def _cache(folder: Path | None) -> Cache | None:
    # Most of what it imports is asked for by nobody else.
    from accumlint.files.inputs.cache import Cache

    return Cache(os.path.abspath(folder)) if folder else None
