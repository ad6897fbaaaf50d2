"""`accumlint server`."""

from __future__ import annotations

import click

from accumlint.common.problem import Misuse


@click.command()
def command() -> None:
    """Speaks the language server protocol with an editor, on standard input and output."""
    try:
        from accumlint.server.session import session
    except ImportError:
        raise Misuse("the server needs pygls: pip install 'accumlint[lsp]'") from None
    session().start_io()
