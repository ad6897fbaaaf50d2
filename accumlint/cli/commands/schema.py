"""`accumlint schema`."""

from __future__ import annotations

import click

from accumlint.cli import output
from accumlint.diagnostics import reporting


@click.command()
def command() -> None:
    """Prints the JSON schema of the findings in JSON."""
    output.put([reporting.schema()])
