"""Entry point of a rank: torchrun runs it in a fork of its own process, which has imported torch already."""

from __future__ import annotations

import subprocess
import sys

import torch

from accumlint.confirming.harness.isolation import kernel
from accumlint.confirming.harness.worker import main

# torch has no public function for this.
if torch.cuda._is_in_bad_fork():  # pyright: ignore[reportPrivateUsage]
    # Newer versions of torchrun query the number of GPUs, after which a forked process cannot use any.
    kernel.die_with_parent()
    sys.exit(subprocess.call([sys.executable, "-m", "accumlint.confirming.harness", *sys.argv[1:]]))
main(sys.argv[1])
