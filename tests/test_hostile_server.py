"""What a client sends ends no session but by its end: what is malformed, unknown or cancelled is passed over."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from helpers import LOOP

from accumlint.files.regular import LARGEST

COMMAND = [sys.executable, "-c", "from accumlint.cli import main; main(['server'])"]
FAR = {"line": 2**31 - 1, "character": 2**31 - 1}
BEFORE = {"line": -1, "character": -1}
WIDE = LOOP.replace("# error", "# \ud800\udfff")
NOWHERE = (
    "untitled:1", "file:///a%00b.py", "", "file:///dev/zero", "file:///" + "x/" * 3_000,
    "file://host/share/x.py", "https://example.com/x.py", "file:///a/../../../b/x.py", "file:///proc/self/environ",
)  # fmt: skip


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
    changed("file:///never_opened.py"), changed("file:///dev/zero"), opened("file:///x.py", WIDE), changed("file:///x.py"),
    opened("file:///large.py", LOOP + "#" * 20_000_000), opened("file:///long.py", LOOP + "x = 1\n" * 1_000_000),
    *(actions(f"a{i}", "file:///x.py") for i in range(20)),
    *(note("$/cancelRequest", id=f"a{i}") for i in range(20)),
    asked(7, "workspace/executeCommand", command="accumlint.page", arguments=[None, "x"]),
    asked(8, "workspace/executeCommand", command="accumlint.page", arguments=["file:///x.py", 10**30]),
]  # fmt: skip


def framed(message: bytes, length: int | None = None) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % (len(message) if length is None else length) + message


BEGIN = (
    framed(asked(1, "initialize", processId=None, rootUri=None, capabilities={}))
    + framed(note("initialized"))
)  # fmt: skip
WHOLE = asked(2, "none")
# Bytes that are no message, or one of another length than they say.
BROKEN = {
    "a length that is no number": b"Content-Length: x\r\n\r\nFoo: bar\r\n\r\n\n\n",
    "no length": WHOLE + b"\r\n\r\n",
    "a length below zero": b"Content-Length: -5\r\n\r\n",
    "a length of zero": framed(b""),
    "a length of many digits": b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n",
    "a length that is too small": framed(WHOLE, 10),
    "a length that is too large": framed(WHOLE, len(WHOLE) + 5),
    "a line that does not end": b"x" * 2 * LARGEST + b"\r\n",
    "a message that is too large": framed(b" " * (LARGEST + 1)),
    "no UTF-8": framed(b'{"jsonrpc": "2.0", "id": 2, "method": "\xff"}'),
    "objects within each other": framed(
        b'{"jsonrpc": "2.0", "id": 2, "method": "none", "params":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    ),
    "an id that is a list": framed(b'{"jsonrpc": "2.0", "id": [1], "result": {}}'),
    "a method that is an object": framed(b'{"jsonrpc": "2.0", "id": 2, "method": {}, "params": {}}'),
    "a second beginning": BEGIN,
}  # fmt: skip
# What ends a session in another way than the protocol asks for.
ENDS = {
    "exit at once": framed(note("exit")),
    "exit without shutdown": BEGIN + framed(note("exit")),
    "a document before the beginning": framed(opened("file:///x.py", LOOP)) + framed(note("exit")),
    "an end": b"",
    "an end in a header": BEGIN + b"Content-Len",
    "an end in a message": BEGIN + framed(WHOLE, 1_000),
    "an end in a message that is too large": BEGIN + framed(WHOLE, 10**30),
}


@contextmanager
def session(folder: Path) -> Generator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]]:
    """A server with its input and output, ended after a minute."""
    with subprocess.Popen(
        COMMAND, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        watchdog = threading.Timer(60, server.kill)
        watchdog.start()
        try:
            yield server, server.stdin, server.stdout
        finally:
            watchdog.cancel()
            server.kill()


def until(told: IO[bytes], *words: bytes) -> bool:
    """Reads until the words were told, in their order; False where the session ended before."""
    read = b""
    while not re.search(b".*".join(map(re.escape, words)), read, re.DOTALL):
        part = os.read(told.fileno(), 65_536)
        if not part:
            return False
        read += part
    return True


def test_a_session_outlives_every_message(tmp_path: Path) -> None:
    last = (tmp_path / "last.py").as_uri()
    with session(tmp_path) as (_, said, told):
        said.write(BEGIN)
        said.write(b"".join(map(framed, MESSAGES)))
        said.write(framed(opened(last, LOOP)))
        said.flush()
        assert until(told, last.encode(), b"ACC102")


def a_pipe_for_settings(folder: Path) -> None:
    os.mkfifo(folder / "accumlint.toml")


def settings_that_lead_elsewhere(folder: Path) -> None:
    (folder / "accumlint.toml").write_text('baseline = "/dev/zero"\nexclude = ["../**"]\n')


def links_to_an_endless_device(folder: Path) -> None:
    for name in (".gitignore", "helpers.py", "train.py"):
        (folder / name).symlink_to("/dev/zero")


AROUND = (a_pipe_for_settings, settings_that_lead_elsewhere, links_to_an_endless_device)


@pytest.mark.skipif(sys.platform == "win32", reason="makes links and pipes as Unix does")
@pytest.mark.parametrize("make", AROUND, ids=lambda make: make.__name__)
def test_what_stands_around_a_document_keeps_no_session_waiting(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / "tree").mkdir()
    make(tmp_path / "tree")
    here, other = (tmp_path / name / "train.py" for name in ("tree", "other"))
    with session(tmp_path) as (_, said, told):
        said.write(BEGIN)
        for file in (here, other):
            said.write(framed(opened(file.as_uri(), f"from helpers import go\n{LOOP}")))
        said.flush()
        assert until(told, other.as_uri().encode(), b"ACC102")


def test_what_follows_broken_messages_is_answered_without_more_memory(tmp_path: Path) -> None:
    with session(tmp_path) as (server, said, told):
        said.write(BEGIN)
        for name, broken in BROKEN.items():
            # A length that is too large takes some of what follows.
            said.write(broken + framed(asked(name, "none")) * 3)
            said.flush()
            assert until(told, json.dumps(name).encode()), name
        status = Path(f"/proc/{server.pid}/status")
        if status.exists():
            peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
            assert peak is not None
            assert int(peak[1]) * 1024 < 2 * LARGEST


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_session_ends_as_it_is_told(tmp_path: Path, end: bytes) -> None:
    with session(tmp_path) as (server, said, _):
        said.write(end)
        said.flush()
        if b'"exit"' not in end:
            said.close()
        assert server.wait(60) == 0
