"""`accumlint rules`."""

from __future__ import annotations

import click

from accumlint.cli import options, output
from accumlint.diagnostics.reporting import rule_pages
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.registry import packs


@click.command()
@options.CONFIG
@options.COLOR
def command(configs: options.Configs, look: Look) -> None:
    """Lists the rules."""
    options.here(options.settled(configs, isolated=False))
    output.put(rule_pages.catalogue([packs.rule(entry) for entry in packs.catalogue()], look))
