"""Integrity of results: detects a modified recorder and authenticates the result of a worker process.

Code in the same interpreter can reach everything in it, so neither stops a deliberate forgery; both detect accidental
or naive changes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, cast

import torch

# The size limit of a result.
_LONGEST = 2**29
_PACKAGE = "accumlint.confirming"
_DIGEST = hashlib.sha256().digest_size


class Original:
    """The functions of accumlint's modules before user code is executed."""

    def __init__(self) -> None:
        self._functions = dict(_functions())

    def changed(self) -> str:
        """The name of a function that has changed since, "" for none."""
        now = dict(_functions())
        return next(
            (name for name, was in self._functions.items() if not _same(was, now.get(name))), ""
        )


def _same(was: tuple[Any, ...], now: tuple[Any, ...] | None) -> bool:
    return now is not None and all(a is b for a, b in zip(was, now, strict=True))


def _functions() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The functions by name, each with its components."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGE) or name in ("json", "hmac"):
            yield from _of(module, name)


def _of(owner: ModuleType | type, path: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for name, value in list(vars(owner).items()):
        if isinstance(value, FunctionType):
            yield f"{path}.{name}", (value, value.__code__, value.__defaults__)
        elif (
            isinstance(owner, ModuleType)
            and isinstance(value, type)
            and value.__module__ == owner.__name__
            # torch wraps the steps of these itself.
            and not issubclass(value, torch.optim.Optimizer)
        ):
            yield from _of(cast("type[object]", value), f"{path}.{name}")


class Channel:
    """Transfers one result from a forked process to its parent, authenticated by a shared key."""

    def __init__(self) -> None:
        self._out, self._into = os.pipe()
        self._key = os.urandom(32)
        self._found = bytearray()
        self._open = True

    def send(self, value: Any) -> None:
        """Sends the result and closes the channel."""
        text = json.dumps(value).encode()
        rest = memoryview(hmac.digest(self._key, text, "sha256") + text)
        while rest:
            rest = rest[os.write(self._into, rest) :]
        os.close(self._into)

    def sending_end(self) -> int:
        """The file descriptor that the sender keeps."""
        return self._into

    def keep_receiving(self) -> None:
        """Closes the sending end in the receiver."""
        os.close(self._into)
        os.set_blocking(self._out, False)

    def wait(self, seconds: float) -> bool:
        """Reads what arrives within some time; False at the end of the stream."""
        if self._open and select.select([self._out], [], [], seconds)[0]:
            part = os.read(self._out, 2**20)
            self._found += part
            self._open = bool(part) and len(self._found) <= _LONGEST
        return self._open

    def result(self) -> bytes | None:
        """The result after the sender has ended, None for none.

        Raises:
            Forged: where the signature is wrong.
        """
        while select.select([self._out], [], [], 0)[0] and self.wait(0):
            pass
        os.close(self._out)
        if not self._found:
            return None
        digest, text = bytes(self._found[:_DIGEST]), bytes(self._found[_DIGEST:])
        if not hmac.compare_digest(digest, hmac.digest(self._key, text, "sha256")):
            raise Forged
        return text


class Forged(Exception):
    """A result was not written by accumlint."""
