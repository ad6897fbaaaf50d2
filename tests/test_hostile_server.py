"""No message of a client ends a session: what is malformed, unknown or cancelled is passed over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from helpers import LOOP

COMMAND = [sys.executable, "-c", "from accumlint.cli import main; main(['server'])"]
FAR = {"line": 2**31 - 1, "character": 2**31 - 1}
BEFORE = {"line": -1, "character": -1}
WIDE = LOOP.replace("# error", "# \ud800\udfff")
NOWHERE = ("untitled:1", "file:///a%00b.py", "", "file:///dev/zero", "file:///" + "x/" * 3_000)


def note(method: str, **parameters: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": parameters}).encode()


def asked(number: object, method: str, **parameters: object) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}
    return json.dumps(message).encode()


def opened(uri: str, text: str) -> bytes:
    document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
    return note("textDocument/didOpen", textDocument=document)


def changed(uri: str) -> bytes:
    changes = [{"range": {"start": FAR, "end": BEFORE}, "text": "\ud800\0loss.backward()\n"}] * 20
    document = {"uri": uri, "version": 2}
    return note("textDocument/didChange", textDocument=document, contentChanges=changes)


def actions(number: object, uri: str) -> bytes:
    where: dict[str, Any] = {"textDocument": {"uri": uri}, "range": {"start": BEFORE, "end": FAR}}
    return asked(number, "textDocument/codeAction", **where, context={"diagnostics": []})


METHODS = (
    "textDocument/didOpen",
    "textDocument/hover",
    "notebookDocument/didOpen",
    "initialize",
    "none",
)
MESSAGES = [
    b'{"jsonrpc":', b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000 + b"]" * 100_000,
    *(note(method, textDocument=None) for method in METHODS),
    *(asked(10**30, method) for method in METHODS),
    *(opened(uri, LOOP) for uri in NOWHERE),
    changed("file:///never_opened.py"), opened("file:///x.py", WIDE), changed("file:///x.py"),
    *(actions(f"a{i}", "file:///x.py") for i in range(20)),
    *(note("$/cancelRequest", id=f"a{i}") for i in range(20)),
    asked(7, "workspace/executeCommand", command="accumlint.page", arguments=[None, "x"]),
    asked(8, "workspace/executeCommand", command="accumlint.page", arguments=["file:///x.py", 10**30]),
]  # fmt: skip


def sent(stream: IO[bytes], message: bytes) -> None:
    stream.write(b"Content-Length: %d\r\n\r\n" % len(message) + message)
    stream.flush()


def test_a_session_outlives_every_message(tmp_path: Path) -> None:
    server = subprocess.Popen(
        COMMAND, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    watchdog = threading.Timer(60, server.kill)
    watchdog.start()
    try:
        sent(server.stdin, asked(1, "initialize", processId=None, rootUri=None, capabilities={}))
        sent(server.stdin, note("initialized"))
        server.stdin.write(b"Content-Length: x\r\n\r\nFoo: bar\r\n\r\n\n\n")
        for message in MESSAGES:
            sent(server.stdin, message)
        last = (tmp_path / "last.py").as_uri()
        sent(server.stdin, opened(last, LOOP))
        told = b""
        # A message does not end its line.
        while last.encode() not in told or b"ACC102" not in told.rpartition(last.encode())[2]:
            part = os.read(server.stdout.fileno(), 65_536)
            assert part, "the session ended"
            told += part
    finally:
        watchdog.cancel()
        server.kill()
        server.communicate()
