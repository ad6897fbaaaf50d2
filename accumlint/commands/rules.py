"""`accumlint rules`."""

from __future__ import annotations

import click

from accumlint import packs
from accumlint.commands import options, output
from accumlint.reporting import pages
from accumlint.reporting.look import Look


@click.command()
@options.CONFIG
@options.COLOR
def command(configs: options.Configs, look: Look) -> None:
    """Lists the rules."""
    options.here(options.settled(configs, isolated=False))
    output.put(pages.catalogue([packs.rule(entry) for entry in packs.catalogue()], look))
