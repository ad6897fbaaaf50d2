"""One process of a job: its order, its rank, and the exchange with the other ranks."""
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from accumlint.confirming.harness.recording.recorder import Recorder


@dataclass
class Rank:
    """A rank in the job `number`; `recorders` are those of its passes, `store` is shared by all ranks."""

    order: Any
    rank: int
    world: int
    number: int
    store: Any
    recorders: list[Recorder] = field(default_factory=list[Recorder])

    @property
    def scratch(self) -> Path:
        """The folder that the job may write to."""
        return Path(self.order["scratch"], f"{self.number}.{self.rank}")

    @cached_property
    def device(self) -> torch.device:
        """The device of the job."""
        if self.order["device"] == "cpu" or not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())

    def join(self, name: str = "") -> None:
        """Joins a process group of all ranks; a named one replaces it, without pending messages of a failed pass."""
        if name:
            dist.destroy_process_group()
        on_gpus = self.device.type == "cuda"
        per_rank = on_gpus and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
        dist.init_process_group(
            "nccl" if per_rank else "gloo", rank=self.rank, world_size=self.world,
            store=dist.PrefixStore(name, self.store) if name else self.store,
            # A rank that waits for a failed one should still be able to report.
            timeout=timedelta(seconds=max(5.0, self.order["limit"] / 4)),
        )  # fmt: skip

    def all_gather(self, key: str, value: Any) -> list[Any]:
        """The value of each rank, in order."""
        self.store.set(f"{key}/{self.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{key}/{r}")) for r in range(self.world)]
