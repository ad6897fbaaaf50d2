"""Runs training scripts with torch observed, each in processes forked from one that has imported torch."""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import traceback
from importlib import import_module
from pathlib import Path

import torch

from accumlint.runtime.child.current import recorder as current
from accumlint.runtime.child.installation import start
from accumlint.runtime.child.recorder import WatchOptions

PACKAGES = {"accelerate": "accelerate", "lightning": "lightning", "fabric": "lightning"}


def main() -> None:
    """Runs the scripts of the order on standard input, each with its folder and number of ranks."""
    torch.set_num_threads(1)
    # What every script would import with its first step.
    import_module("torch._dynamo")
    for script, folder, ranks in json.load(sys.stdin):
        # What all scripts of a folder import; not before, as observers look through every module that is there.
        if package := PACKAGES.get(Path(script).parent.name):
            import_module(package)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = [_begun(script, folder, rank, ranks, port) for rank in range(ranks)]
        for child in children:
            os.waitpid(child, 0)


def _begun(script: str, folder: str, rank: int, ranks: int, port: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        if ranks > 1:
            meeting = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "RANK": rank,
                "LOCAL_RANK": rank,
            }
            os.environ.update({k: str(v) for k, v in {**meeting, "WORLD_SIZE": ranks}.items()})
        log = os.open(os.path.join(folder, f"log{rank}"), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        start(WatchOptions(folder))
        sys.argv = [script]
        runpy.run_path(script, run_name="__main__")
    except BaseException:  # noqa: BLE001 (what a script raises is a result)
        traceback.print_exc()
    finally:
        for recorder in filter(None, [current()]):
            recorder.finish("ended")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
