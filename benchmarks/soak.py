"""Many runs at once on one cache, killed at random, and a long session with an editor: is anything lost, does it grow?

    python benchmarks/soak.py [--rounds 10] [--runs 20] [--edits 500]

In each round so many runs begin at once, each on a part of the fixtures, and half of them are killed after a random
while. Then the cache has to be whole, and a run with it has to tell what a run without it tells. The editor edits three
files, one after the other, and waits for the findings of each edit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

FIXTURES = Path(__file__).parents[1] / "fixtures"
COMMAND = (sys.executable, "-m", "accumlint")
FILES = 60
SEED = 26


class Arguments(argparse.Namespace):
    rounds: int
    runs: int
    edits: int


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as home:
        failures = _runs(Path(home), arguments) + _edits(Path(home), arguments.edits)
    for failure in failures:
        print(failure)
    sys.exit(bool(failures))


def _runs(home: Path, arguments: Arguments) -> list[str]:
    """What went wrong with runs at once."""
    chance = random.Random(SEED)
    tree = home / "tree"
    files = sorted(FIXTURES.glob("acc*/bad_*.py"))
    tree.mkdir()
    for number, file in enumerate(chance.sample(files, FILES)):
        copy = tree / f"x{number}.py"
        shutil.copy(file, copy)
        # What was written a moment ago is not kept.
        os.utime(copy, (1, 1))
    environment = {**os.environ, "XDG_CACHE_HOME": str(home / "cache")}
    alone = _told(tree, environment, "--no-cache")
    failures: list[str] = []
    killed = 0
    start = time.monotonic()
    for number in range(arguments.rounds):
        runs = [_begun(tree, environment, chance) for _ in range(arguments.runs)]
        for run in chance.sample(runs, len(runs) // 2):
            time.sleep(chance.random() * 0.4)
            killed += run.poll() is None
            run.kill()
        ends = [run.wait() for run in runs]
        failures += [f"round {number}: a run ended with {e}" for e in ends if e not in (0, 1, -9)]
        failures += [f"round {number}: {told}" for told in _broken(home / "cache" / "accumlint")]
        if _told(tree, environment) != alone:
            failures.append(f"round {number}: with the cache something else is told")
    known = len({file for held in _caches(home / "cache" / "accumlint") for file in held})
    if known != FILES:
        failures.append(f"the cache knows {known} of {FILES} files")
    left = len(list((home / "cache" / "accumlint").glob("*.json.*")))
    print(
        f"{arguments.rounds * arguments.runs} runs, {arguments.runs} at once on one cache,"
        f" {killed} killed, {time.monotonic() - start:.0f} s: {len(failures)} failures;"
        f" {known} of {FILES} files known at the end, {left} unfinished files left to be removed"
    )
    return failures


def _begun(
    tree: Path, environment: Mapping[str, str], chance: random.Random
) -> subprocess.Popen[bytes]:
    names = [f"x{number}.py" for number in chance.sample(range(FILES), FILES // 3)]
    command = [*COMMAND, "check", "-j", "1", *names]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=tree, env=environment, stdout=quiet, stderr=quiet)


def _told(tree: Path, environment: Mapping[str, str], *options: str) -> str:
    command = [*COMMAND, "check", "--output-format", "json", *options]
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    ).stdout


def _caches(folder: Path) -> list[Mapping[str, object]]:
    """What each file of the cache knows."""
    return [json.loads(file.read_text().splitlines()[0])["known"] for file in folder.glob("*.json")]


def _broken(folder: Path) -> list[str]:
    try:
        _caches(folder)
    except (ValueError, LookupError) as problem:
        return [f"the cache is broken: {problem}"]
    return []


class Editor:
    """The other end of the language server, which sends and reads its messages as they are."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "server"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.ask("initialize", {"processId": None, "rootUri": folder.as_uri(), "capabilities": {}})
        self.tell("initialized", {})

    def tell(self, method: str, params: object, **more: object) -> None:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        assert self.process.stdin
        self.process.stdin.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.process.stdin.flush()

    def read(self) -> Mapping[str, Any]:
        assert self.process.stdout
        length = 0
        while (row := self.process.stdout.readline().strip()) or not length:
            if row.lower().startswith(b"content-length:"):
                length = int(row.split(b":")[1])
        return cast("Mapping[str, Any]", json.loads(self.process.stdout.read(length)))

    def ask(self, method: str, params: object) -> None:
        self.tell(method, params, id=1)
        while self.read().get("id") != 1:
            pass

    def findings(self, uri: str) -> int:
        """How many findings the server publishes next for a document."""
        while True:
            message = self.read()
            if message.get("method") == "textDocument/publishDiagnostics":
                if message["params"]["uri"] == uri:
                    return len(message["params"]["diagnostics"])

    @property
    def memory(self) -> float:
        """The memory of the server, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        row = next(row for row in status.splitlines() if row.startswith("VmRSS"))
        return int(row.split()[1]) / 1024


def _edits(home: Path, count: int) -> list[str]:
    """What went wrong while an editor edited."""
    names = ("acc102/bad_*.py", "acc204/bad_*.py", "acc501/bad_*.py")
    sources = [sorted(FIXTURES.glob(name))[0].read_text() for name in names]
    editor = Editor(home)
    uris = [(home / f"open{number}.py").as_uri() for number in range(len(sources))]
    expected: list[int] = []
    for uri, source in zip(uris, sources, strict=True):
        item = {"uri": uri, "languageId": "python", "version": 0, "text": source}
        editor.tell("textDocument/didOpen", {"textDocument": item})
        expected.append(editor.findings(uri))
    failures: list[str] = []
    memory: dict[int, float] = {}
    start = time.monotonic()
    for number in range(1, count + 1):
        at = number % len(sources)
        text = sources[at] + f"\nedit_{number} = {number}\n"
        document = {"uri": uris[at], "version": number}
        change = {"textDocument": document, "contentChanges": [{"text": text}]}
        editor.tell("textDocument/didChange", change)
        if (found := editor.findings(uris[at])) != expected[at]:
            failures.append(f"edit {number}: {found} findings instead of {expected[at]}")
        if number % max(1, count // 10) == 0:
            memory[number] = editor.memory
    took = (time.monotonic() - start) / count
    editor.process.kill()
    first, last = min(memory), max(memory)
    told = ", ".join(f"{number}: {held:.0f}" for number, held in memory.items())
    print(f"{count} edits, {1000 * took:.0f} ms each; MiB after so many edits: {told}")
    if memory[last] > 1.1 * memory[first] + 10:
        failures.append(f"memory grew from {memory[first]:.0f} to {memory[last]:.0f} MiB")
    return failures


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="how often so many runs begin")
    parser.add_argument("--runs", type=int, default=20, help="runs at once")
    parser.add_argument("--edits", type=int, default=500, help="edits in the editor")
    return parser.parse_args(namespace=Arguments())


if __name__ == "__main__":
    main()
