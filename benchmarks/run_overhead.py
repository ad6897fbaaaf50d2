"""Measures what watching costs: the time of a micro-batch with and without observers, for models of two sizes."""
# pyright: reportUnknownMemberType=false
# torch's own annotations are partial.

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from statistics import median

# Width and layers, and how many micro-batches are timed.
MODELS = {"10 M": (912, 12, 48), "100 M": (2040, 24, 16), "1 B": (6450, 24, 48)}
WAYS = ("watched", "over", "between")
DEVICES = {"cpu": ("10 M", "100 M"), "cuda": ("10 M", "100 M", "1 B")}


def train(device: str, width: int, layers: int, microbatches: int) -> list[float]:
    """Seconds of each micro-batch: forward, backward, and every fourth time a step."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers))
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(64, width, device=device)
    labels = torch.randint(0, width, (64,), device=device)
    seconds: list[float] = []
    for step in range(microbatches + 4):
        begun = time.perf_counter()
        loss = nn.functional.cross_entropy(model(inputs), labels) / 4
        loss.backward()
        if step % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    # The first window imports what torch needs for a step.
    return seconds[4:]


def between() -> AbstractContextManager[object]:
    """Watches the first update and none that is timed."""
    import accumlint

    return accumlint.watch(updates=1, every=1_000_000, log=lambda _: None)


def microseconds_of_a_step() -> tuple[float, float]:
    """Microseconds of CPU time of a small model's step: bare, and between two windows of a watch."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update() -> None:
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()

    def step() -> float:
        begun = time.process_time()
        for _ in range(2000):
            optimizer.step()
        return (time.process_time() - begun) / 2000 * 1e6

    series: list[tuple[float, float]] = []
    for _ in range(25):
        update()
        bare = step()
        with between():
            update()
            series.append((bare, step()))
    # Other work only adds.
    return min(bare for bare, _ in series), min(watched for _, watched in series)


def measured(device: str, name: str, watched: str) -> float:
    """The median of the windows' seconds per micro-batch: bare, watched, after the watching, or between two windows."""
    environment = {**os.environ}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--device", device, "--one", name]
        if watched == "between":
            command.append("--between")
        elif watched != "bare":
            import accumlint

            boot = os.path.join(os.path.dirname(accumlint.__file__), "runtime", "boot")
            asked = {
                "folder": folder,
                "windows": 10_000 if watched == "watched" else 1,
                "patience": 0,
                "stop": False,
            }
            environment |= {"PYTHONPATH": boot, "ACCUMLINT_RUN": json.dumps(asked)}
        ran = subprocess.run(
            command,
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
    seconds: list[float] = json.loads(ran.stdout)
    windows = [sum(seconds[at : at + 4]) / 4 for at in range(0, len(seconds), 4)]
    return median(windows)


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=MODELS, help="time one model and print the seconds")
    parser.add_argument(
        "--between", action="store_true", help="time it between two windows of accumlint.watch"
    )
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument(
        "--step", action="store_true", help="time a small model's step between two windows"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.step:
        bare, watched = microseconds_of_a_step()
        print(f"{bare:.1f} us per step, {watched:.1f} between two windows ({watched - bare:+.1f})")
        return
    if options.one:
        with between() if options.between else nullcontext():
            print(json.dumps(train(options.device, *MODELS[options.one])))
        return
    print(
        "| parameters | ms per micro-batch | watched | after the watching | between two windows |\n"
        "| --- | --- | --- | --- | --- |"
    )
    for name in DEVICES[options.device]:
        # Side by side, as other work on the machine changes with time.
        rounds = [
            {way: measured(options.device, name, way) for way in ("bare", *WAYS)}
            for _ in range(options.rounds)
        ]
        bare = median(one["bare"] for one in rounds) * 1000
        times = [median(one[way] for one in rounds) * 1000 for way in WAYS]
        cells = [f"{time:.1f} ({time / bare - 1:+.1%})" for time in times]
        print(f"| {name} | {bare:.1f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
