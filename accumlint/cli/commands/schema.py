"""`accumlint schema`."""

from __future__ import annotations

import click

from accumlint import reporting
from accumlint.cli import output


@click.command()
def command() -> None:
    """Prints the JSON schema of the findings in JSON."""
    output.put([reporting.schema()])
