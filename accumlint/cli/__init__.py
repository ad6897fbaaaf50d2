"""The command line: finds a command, runs it, and turns what went wrong into a line and an exit code."""

from __future__ import annotations

import gc
import io
import itertools
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from accumlint.common.problem import Misuse
from accumlint.common.stack import with_room
from accumlint.diagnostics.reporting.terminal import printable

USAGE, INTERRUPTED = 2, 130
# In the order in which people meet them; each stands in the file of its name.
COMMANDS = (
    "check",
    "trace",
    "confirm",
    "run",
    "baseline",
    "rule",
    "rules",
    "config",
    "init",
    "server",
    "doctor",
    "schema",
    "completion",
    "clean",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits."""
    for stream in (sys.stdout, sys.stderr):
        # A path or a source line may hold what the terminal's encoding cannot write.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = with_room(_exit_code, arguments)
    # Python looks for garbage once more as it ends, in trees that the end of the process frees anyway.
    gc.freeze()
    sys.exit(code)


def _exit_code(arguments: Sequence[str] | None) -> int:
    try:
        _refuse_files_like_options(sys.argv[1:] if arguments is None else arguments)
        return accumlint.main(arguments, prog_name="accumlint", standalone_mode=False) or 0
    except click.UsageError as problem:
        command = problem.ctx.command_path if problem.ctx else "accumlint"
        print(f"{command}: {printable(problem.format_message())}", file=sys.stderr)
        return USAGE
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    except Misuse as problem:
        print(f"accumlint: {printable(str(problem))}", file=sys.stderr)
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED


def _refuse_files_like_options(arguments: Sequence[str]) -> None:
    """A hook is called with the names of files, and a file may be called `--config=settings.py`.

    Raises:
        Misuse: for such a name.
    """
    for argument in itertools.takewhile(lambda word: word != "--", arguments):
        if argument.startswith("-") and argument != "-" and os.path.lexists(argument):
            raise Misuse(f"{argument}: is an option and the name of a file; write ./{argument}")


class _Commands(click.Group):
    """Commands that are imported when they are called, each from the file of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module(f"accumlint.cli.commands.{cmd_name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as problem:
            from difflib import get_close_matches

            for near in get_close_matches(args[0], COMMANDS, 1):
                message = f"{problem.message} Did you mean {near!r}?"
                raise click.UsageError(message, ctx) from None
            raise


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from accumlint import __version__
        from accumlint.registry import packs

        rules = len(packs.catalogue())
        click.echo(f"accumlint {__version__} ({rules} rules, {packs.version()})")
        context.exit()


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
