"""Reads what a client sends in pieces of bounded size, whatever it announces."""

from __future__ import annotations

from typing import BinaryIO

from accumlint.files.regular import LARGEST

# So much of a header line is looked at.
_HEADER = 256
_PIECE = 64 * 1024
_LENGTH = b"Content-Length:"
# Takes the place of a message that is left out: no method has that name.
_LEFT_OUT = b'{"jsonrpc": "2.0", "method": "$/leftOut", "params": null}'


class Bounded:
    """Standard input as pygls reads it. After a message of a wrong length, reading goes on at the next header."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        """The end of a line, from the header in it on: what is left of a message has no line of its own."""
        line = b""
        while piece := self._stream.readline(_PIECE):
            line = (line + piece)[-_HEADER:]
            if line.endswith(b"\n"):
                break
        return line[max(line.rfind(_LENGTH), 0) :]

    def read(self, size: int) -> bytes:
        """A message; one that is too large is read and thrown away."""
        if size <= LARGEST:
            return self._stream.read(size)
        while size > 0 and (piece := self._stream.read(min(size, _PIECE))):
            size -= len(piece)
        return _LEFT_OUT
