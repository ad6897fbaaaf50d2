"""`accumlint rule`."""

from __future__ import annotations

import click

from accumlint.cli import options, output
from accumlint.diagnostics.reporting import rule_pages
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.registry import packs


@click.command()
@click.argument("rule", metavar="CODE|NAME", shell_complete=options.rules_like)
@options.CONFIG
@options.COLOR
def command(rule: str, configs: options.Configs, look: Look) -> None:
    """Prints the page of a rule."""
    options.here(options.settled(configs, isolated=False))
    output.put(rule_pages.page(packs.rule(packs.find(rule)), look))
