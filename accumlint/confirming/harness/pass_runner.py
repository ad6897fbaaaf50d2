"""Runs one pass over a loop: sets up its data, recorder and fakes, and returns the recorded notes."""
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from accumlint.confirming.harness.binding import Binding
from accumlint.confirming.harness.environment import surroundings
from accumlint.confirming.harness.execution import run
from accumlint.confirming.harness.fakes.accelerators import Unbound
from accumlint.confirming.harness.fakes.batches import Data, Enough
from accumlint.confirming.harness.fakes.framework_contracts import LIGHTNING, PACKAGES
from accumlint.confirming.harness.fakes.grad_scalers import Scaling
from accumlint.confirming.harness.fakes.networks import seed_with
from accumlint.confirming.harness.fakes.role_stubs import PassConfig
from accumlint.confirming.harness.fakes.usual_settings import WIDTH
from accumlint.confirming.harness.job_rank import Rank
from accumlint.confirming.harness.missing_names import missing_names
from accumlint.confirming.harness.pass_outcome import even, raising
from accumlint.confirming.harness.recording.notes import Settings
from accumlint.confirming.harness.recording.recorder import Recorder
from accumlint.confirming.harness.recording.torch_hooks import watching
from accumlint.confirming.harness.rewriting.source_hints import look
from accumlint.confirming.harness.setup_objects import SetupError, load_setup

_SCALE = 1024.0
# The rows of a batch with unequal numbers of targets.
_MOST_ROWS = 16


def _counts(regime: str, kind: str, rank: int, cut: int) -> Any:
    """The targets of each micro-batch on a rank; row counts are divisible by four, `cut` rows all have targets."""
    ragged = ((3, 10, 5, 8, 2, 9, 4), (9, 2, 7, 4, 10, 3, 6))[rank % 2]
    more = max(1, cut // 2)
    if kind in ("rows", "values"):
        ragged = ((4, 12, 8, 16, 4, 12, 8), (12, 4, 8, 4, 16, 8, 4))[rank % 2]
        more = max(1, cut // 4)
    if regime == "ragged":
        return lambda number: more * ragged[(number - 1) % len(ragged)]
    return lambda _: cut or 4


def _trailing(steps: int, stepped: Collection[int]) -> int:
    """The micro-batches of an epoch beyond whole windows: a number after which the loop has not `stepped`."""
    return next((n for n in range(steps - 1, -1, -1) if n not in stepped), max(1, steps - 1))


def _pass_config(job: Any, world: int) -> PassConfig:
    """The configuration of a pass on so many ranks."""
    return PassConfig(
        job["roles"], job["choices"], world, copies=world if job["accelerate"] else 1,
        driven=PACKAGES if job["entry"]["driver"] else LIGHTNING,
        unwrapped=job["unwrapped"], unused=job["unused"], scripted=job["scripted"], scaled=job["scaled"],
        ordinary=job["ordinarily"], lenient=job["leniently"], exact=job["exact"], undivided=job["undivided"],
    )  # fmt: skip


def make(job: Any, spec: Any, kind: str, rank: Rank, pressure: float = 0.0) -> dict[str, Any]:
    """Runs a pass over the loop of a job, and returns the notes as plain values."""
    order, device = rank.order, rank.device
    seed_with(order["seed"])
    dtype = getattr(torch, order["dtype"])
    # New tensors have the precision of the run by default.
    torch.set_default_dtype(dtype)
    data = _data(job, spec, kind, rank, dtype)
    pressed = spec["pressure"]
    settings = Settings(
        file=job["file"], line=job["line"], device=device, dtype=dtype, pressure=pressure if pressed else None,
        totals=tuple(job["totals"]), graphs=job["graphs"], whole=spec["regime"] == "trailing",
        **{name: spec[name] for name in ("steps", "updates", "sabotage", "inject", "large", "undefined")},
    )  # fmt: skip
    recorder = Recorder(data, settings)
    rank.recorders.append(recorder)
    raised: dict[str, Any] | None = None
    unbound = ""
    objects: dict[str, Any] = {}
    wanted: list[tuple[str, int]] = []
    if order["setup"]:
        try:
            objects = load_setup(order["setup"], data, rank.world, device)
        except SetupError as problem:
            unbound = str(problem)
    if "source" not in job:
        job["source"] = look(job["text"])
    binding = Binding(
        recorder, data, spec["steps"], job["source"], _pass_config(job, rank.world), objects
    )
    scaling = Scaling(
        0.0 if spec["unscaled"] else _SCALE,
        1 if spec["growing"] else 2000,
        binding.note_fake if job["scaled"] else None,
    )
    with surroundings(binding, scaling):
        try:
            if not unbound:
                with watching(recorder):
                    run(job, binding)
        except (Enough, StopIteration):
            pass
        except Unbound as reason:
            unbound = str(reason)
        except BaseException as error:  # noqa: BLE001 (whatever the user's code raises is a result)
            raised = raising(error, job["file"], order["memory"])
            wanted = missing_names(error, job["file"], job["text"], binding.fakes)
    even(recorder.notes.events)
    return {
        "spec": spec, "kind": kind, "raised": raised, "unbound": unbound, "fakes": binding.fakes,
        "wraps": recorder.wraps or recorder.reduces, "wanted": wanted,
        "lenient": job["leniently"], "ordinary": job["ordinarily"],
        "steps": sorted(binding.source_steps), "failed": binding.failures.plain(),
        "size": sum(p.numel() for p in recorder.parameters()), "pressure": pressure if pressed else 0.0,
        "notes": {
            **vars(recorder.notes), "graphs": recorder.graphs.most, "fetched": data.fetched, "length": data.length,
            "unfed": data.unfed, "struck": data.struck,
        },
    }  # fmt: skip


def _data(job: Any, spec: Any, kind: str, rank: Rank, dtype: torch.dtype) -> Data:
    """The data of a pass."""
    regime, steps = spec["regime"], spec["steps"]
    length, pieces = 2 * steps, steps
    if regime == "trailing":
        length += _trailing(steps, job.get("stepped", ()))
        # Windows stay open by one piece.
        pieces = max(steps - 1, 1)
    # Pieces have two rows.
    cut = 2 * pieces if job["cuts"] else 0
    # Full batches have as many rows: of unequal numbers of targets, the rest is left out.
    rows = _MOST_ROWS if regime == "ragged" and not cut else 0
    return Data(
        kind=kind, counts=_counts(regime, kind, rank.rank, cut), length=length, seed=rank.order["seed"],
        rank=rank.rank, device=rank.device, dtype=dtype, ignored=job["ignored"], pads=job["pads"], cut_rows=cut,
        rows=rows, limit=40 * length, poisoned=spec["poison"], exhausts=spec["exhausts"], withholds=spec["withholds"],
        frozen=job["frozen"], width=job["width"] or WIDTH,
    )  # fmt: skip
