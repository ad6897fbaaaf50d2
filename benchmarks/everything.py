"""Checks every Python file of some folders, and tells each that breaks accumlint down, hangs it or ends it wrongly.

    python benchmarks/everything.py /usr/lib/python3 .venv/lib ../some-repository

Files go to processes of many files each. Where one of these ends as it must not, its files are checked one by one.
With `--all`, also files that no byte of says that they train are parsed and traced.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# Takes the paths from standard input, and checks them as `accumlint check` does.
CHECK = """\
import sys
from accumlint.cli import main
from accumlint.files import prefilter
if sys.argv[1] == "all":
    prefilter.may_train = lambda data: True
    prefilter.trains = lambda text: True
main(["check", "--isolated", "--no-cache", "--output-format", "concise", *sys.stdin.read().split("\\0")])
"""


class Arguments(argparse.Namespace):
    folders: list[Path]
    all: bool
    batch: int
    limit: float


@dataclass(frozen=True)
class End:
    """How checking some files ended: 0 to 3 by accumlint's word, None when it was given up."""

    code: int | None
    told: str

    @property
    def is_wrong(self) -> bool:
        """True for a crash, a fault or a hang: findings are 1, what cannot be read is 2."""
        return self.code not in (0, 1, 2) or "Traceback" in self.told


def main() -> None:
    arguments = _arguments()
    files = [file for folder in arguments.folders for file in _files(folder)]
    start = time.monotonic()
    wrong = unread = cut = 0
    for first in range(0, len(files), arguments.batch):
        batch = files[first : first + arguments.batch]
        end = _checked(batch, arguments)
        ends = [(batch, end)]
        if end.is_wrong and len(batch) > 1:
            ends = [([file], _checked([file], arguments)) for file in batch]
        for names, one in ends:
            lines = one.told.splitlines()
            cut += sum("not followed to the end" in line for line in lines)
            unread += sum(": warning: " not in line for line in lines)
            if one.is_wrong:
                wrong += 1
                print(f"{names[0]}: ended with {one.code}\n{one.told[-1_500:]}", flush=True)
        done = min(first + len(batch), len(files))
        took = time.monotonic() - start
        print(f"{done:,} of {len(files):,} files, {took:.0f} s, {wrong} wrong", file=sys.stderr)
    print(
        f"{len(files):,} files: {wrong} crashes, hangs and wrong ends; "
        f"{unread} files refused in one line; {cut} not followed to the end"
    )
    sys.exit(wrong > 0)


def _files(folder: Path) -> Iterator[str]:
    for home, folders, names in os.walk(folder):
        folders.sort()
        yield from (os.path.join(home, name) for name in sorted(names) if name.endswith(".py"))


def _checked(files: Sequence[str], arguments: Arguments) -> End:
    command = [sys.executable, "-c", CHECK, "all" if arguments.all else "usual"]
    try:
        ran = subprocess.run(
            command,
            input="\0".join(files).encode(errors="surrogateescape"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=arguments.limit * len(files) ** 0.5,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return End(None, "given up")
    return End(ran.returncode, ran.stderr.decode(errors="replace"))


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--all", action="store_true", help="past the gates, too (slow)")
    parser.add_argument("--batch", type=int, default=500, help="files for each process")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one file")
    return parser.parse_args(namespace=Arguments())


if __name__ == "__main__":
    main()
