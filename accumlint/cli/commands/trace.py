"""`accumlint trace`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import click

from accumlint.cli import options, output
from accumlint.common.frozen import frozen
from accumlint.common.problem import Misuse, Problem
from accumlint.config import Options, typed
from accumlint.diagnostics.drawing import traced_loops
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.diagram import Loop
from accumlint.files.inputs.discovery import Target, find
from accumlint.files.regular import contents
from accumlint.registry import packs

FORMATS = ("text", "svg", "html", "json")


@frozen
class _Options:
    """What is typed for `accumlint trace`."""

    place: str
    all_paths: bool
    output_format: str | None
    outputs: tuple[tuple[str, str], ...]
    select: tuple[str, ...]
    anonymous: bool
    stdin_filename: str
    configs: options.Configs
    isolated: bool
    look: Look


@click.command(short_help="Shows a loop's window as a timeline.")
@click.argument("place", metavar="PATH[:LINE]")
@options.flag("--all", "all_paths", told="Show each loop under all of its conditions.")
@click.option("--output-format", type=click.Choice(FORMATS), help="How to show it (text).")
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT[=FILE]",
    callback=options.outputs(FORMATS),
    help="Show it in this format, or write it to FILE; may be repeated.",
)
@options.rules("--select", "Use these rules only.")
@options.flag(
    "--report",
    "anonymous",
    told="Print Markdown to share: findings, loops and text, with anonymised names.",
)
@options.STDIN_FILENAME
@options.CONFIG
@options.ISOLATED
@options.COLOR
def command(**given: Any) -> int:
    """Shows the training loops of a file, right or wrong, as they run: micro-batches from left to right.

    Each loop is shown under one condition, one with a finding where there is any; --all shows the others, too. LINE
    chooses the loop around it. Nothing is executed.

    Exit code: 0 shown, 2 wrong usage or input.
    """
    return _trace(_Options(**given))


def _trace(given: _Options) -> int:
    printed = [name for name, file in given.outputs if not file]
    if printed and given.output_format:
        raise click.UsageError("--output-format and --output without a file exclude each other.")
    chosen = replace(options.settled(given.configs, given.isolated), select=given.select)
    options.here(chosen)
    packs.require(typed(chosen))
    target, line = _target(given.place, chosen, given.stdin_filename)
    if given.anonymous:
        options.exclude_each_other(
            "--report", all=given.all_paths, output_format=given.output_format, output=given.outputs
        )
        from accumlint.diagnostics.drawing.anonymous_report import report

        output.put(report(_bytes(target), target, line))
        return 0
    shown = traced_loops.show(_bytes(target), target)
    groups = traced_loops.selected(shown, target, line)
    loops = list(chain.from_iterable(paths if given.all_paths else paths[:1] for paths in groups))
    wanted = [*((name, "") for name in printed), *((n, f) for n, f in given.outputs if f)]
    if not printed and not (wanted and not given.output_format):
        wanted.insert(0, (given.output_format or "text", ""))
    written = [
        output.write([_rendered(name, loops, replace(given.look, color=False))], file)
        if file
        else output.put([_rendered(name, loops, given.look)]) or 0
        for name, file in wanted
    ]
    if not given.all_paths and (more := sum(len(paths) - 1 for paths in groups)):
        conditions = "condition" if more == 1 else "conditions"
        print(f"accumlint: {more} more {conditions}: --all shows them", file=sys.stderr)
    for untraced, reason in shown.untraced if not line else ():
        output.tell(Problem(target.shown, f"not traced: {reason}", line=untraced))
    return max(written, default=0)


def _rendered(name: str, loops: Sequence[Loop], look: Look) -> str:
    from accumlint.diagnostics.drawing import loops_page as drawn
    from accumlint.diagnostics.reporting.loops_text import loops as text

    if name == "json":
        from accumlint.diagnostics.reporting.loops_json import timelines

        return timelines(loops)
    if name == "svg":
        return drawn.svg(loops)
    if name == "html":
        return drawn.page(loops).rstrip("\n")
    width = shutil.get_terminal_size((80, 24)).columns
    return "\n".join(text(loops, look, width))


def _target(place: str, chosen: Options, stdin_filename: str) -> tuple[Target, int]:
    path, colon, line = place.rpartition(":")
    number = 0
    if colon and line.isdigit() and not Path(place).exists():
        place, number = path, int(line)
    if Path(place).is_dir():
        raise Misuse(f"{place}: is a folder; name one of its files")
    targets, problems = find((place,), chosen, stdin_filename=stdin_filename)
    for problem in problems:
        raise Misuse(f"{problem.path}: {problem.message}")
    return targets[0], number


def _bytes(target: Target) -> bytes:
    try:
        return sys.stdin.buffer.read() if target.stdin else contents(target.file)
    except OSError as problem:
        raise Misuse(f"{target.shown}: cannot be read: {problem.strerror or problem}") from None
