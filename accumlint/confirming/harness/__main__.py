"""Where torchrun begins a rank: in a fork of its own process, in which torch is imported already."""

from __future__ import annotations

import subprocess
import sys

import torch

from accumlint.confirming.harness.isolation import kernel
from accumlint.confirming.harness.worker import main

# torch has no public name for this question.
if torch.cuda._is_in_bad_fork():  # pyright: ignore[reportPrivateUsage]
    # Newer versions of torchrun ask how many GPUs there are, and no process forked after that can use one.
    kernel.die_with_parent()
    sys.exit(subprocess.call([sys.executable, "-m", "accumlint.confirming.harness", *sys.argv[1:]]))
main(sys.argv[1])
