"""`accumlint server`."""

from __future__ import annotations

import sys
from typing import BinaryIO, cast

import click

from accumlint.cli import options
from accumlint.common.problem import Misuse
from accumlint.config import typed
from accumlint.registry import packs


@click.command()
@options.CONFIG
@options.ISOLATED
def command(configs: options.Configs, isolated: bool) -> None:
    """Speaks the language server protocol with an editor, on standard input and output."""
    asked = options.settled(configs, isolated)
    packs.require(typed(asked))
    try:
        from accumlint.server.messages import Bounded
        from accumlint.server.session import session
    except ImportError:
        raise Misuse("the server needs pygls: pip install 'pygls>=2,<3'") from None
    # pygls asks for no more of a stream than these two methods.
    session(asked).start_io(cast("BinaryIO", Bounded(sys.stdin.buffer)))
