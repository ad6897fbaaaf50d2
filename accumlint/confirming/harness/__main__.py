"""Where torchrun begins a rank: in a fork of its own process, in which torch is imported already."""

from __future__ import annotations

import sys

from accumlint.confirming.harness.worker import main

main(sys.argv[1])
