"""`accumlint rules`."""

from __future__ import annotations

import click

from accumlint import packs
from accumlint.commands import options, output
from accumlint.config import Options
from accumlint.reporting import pages
from accumlint.reporting.look import Look


@click.command()
@options.COLOR
def command(look: Look) -> None:
    """Lists the rules."""
    options.here(Options())
    output.put(pages.catalogue([packs.rule(entry) for entry in packs.catalogue()], look))
