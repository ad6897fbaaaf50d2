"""`accumlint rule`."""

from __future__ import annotations

import click

from accumlint import packs
from accumlint.commands import options, output
from accumlint.reporting import pages
from accumlint.reporting.look import Look


@click.command()
@click.argument("rule", metavar="CODE|NAME", shell_complete=options.rules_like)
@options.CONFIG
@options.COLOR
def command(rule: str, configs: options.Configs, look: Look) -> None:
    """Prints the page of a rule."""
    options.here(options.settled(configs, isolated=False))
    output.put(pages.page(packs.rule(packs.find(rule)), look))
