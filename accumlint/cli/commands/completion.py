"""`accumlint completion`."""

from __future__ import annotations

import click

from accumlint.cli import output


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Prints the script that completes commands: `eval "$(accumlint completion bash)"`."""
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    whole = context.find_root().command
    output.put([completion(whole, {}, "accumlint", "_ACCUMLINT_COMPLETE").source()])
