"""Makes one pass over a loop: its data, its recorder, its fakes, and what was noted."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateImportUsage=false, reportUnknownLambdaType=false
# torch's own annotations are partial.

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from accumlint.confirming.harness.binding import Binding
from accumlint.confirming.harness.environment import surroundings
from accumlint.confirming.harness.execution import run
from accumlint.confirming.harness.fakes import framework_contracts
from accumlint.confirming.harness.fakes.accelerators import Unbound
from accumlint.confirming.harness.fakes.batches import Data, Enough
from accumlint.confirming.harness.fakes.grad_scalers import Scaling
from accumlint.confirming.harness.fakes.networks import seed_with
from accumlint.confirming.harness.fakes.role_stubs import Way
from accumlint.confirming.harness.missing_names import missing_names
from accumlint.confirming.harness.pass_outcome import even, raising
from accumlint.confirming.harness.recording.notes import Settings
from accumlint.confirming.harness.recording.recorder import Recorder
from accumlint.confirming.harness.recording.torch_hooks import watching
from accumlint.confirming.harness.rewriting.source_hints import look
from accumlint.confirming.harness.setup_objects import GivenError, given

_SCALE = 1024.0


def _counts(regime: str, kind: str, rank: int, cut: int) -> Any:
    """The counted targets of each micro-batch on a rank; numbers of rows can be cut into four.

    Of a batch that is `cut`, each row has targets.
    """
    ragged = ((3, 10, 5, 8, 2, 9, 4), (9, 2, 7, 4, 10, 3, 6))[rank % 2]
    more = max(1, cut // 2)
    if kind in ("rows", "values"):
        ragged = ((4, 12, 8, 16, 4, 12, 8), (12, 4, 8, 4, 16, 8, 4))[rank % 2]
        more = max(1, cut // 4)
    if regime == "ragged":
        return lambda number: more * ragged[(number - 1) % len(ragged)]
    return lambda _: cut or 4


def _trailing(steps: int, stepped: Collection[int]) -> int:
    """How many micro-batches an epoch has beyond whole windows: as many as leave something.

    That are not those after which a loop has `stepped`; where its windows are shifted by a first one, it may be none.
    """
    return next((n for n in range(steps - 1, -1, -1) if n not in stepped), max(1, steps - 1))


def _way(job: Any, world: int) -> Way:
    """How a pass of a job is played on so many ranks."""
    contracts = framework_contracts
    return Way(
        job["roles"], job["choices"], world, copies=world if job["accelerate"] else 1,
        driven=contracts.PACKAGES if job["entry"]["driver"] else contracts.LIGHTNING, steppers=tuple(job["steppers"]),
        unwrapped=job["unwrapped"], unused=job["unused"], scripted=job["scripted"], scaled=job["scaled"],
        ordinary=job["ordinarily"], lenient=job["leniently"], exact=job["exact"], undivided=job["undivided"],
    )  # fmt: skip


def make(
    job: Any,
    spec: Any,
    kind: str,
    order: Any,
    rank: int,
    world: int,
    device: torch.device,
    pressure: float,
    recorders: list[Recorder],
) -> dict[str, Any]:
    seed_with(order["seed"])
    steps = spec["steps"]
    dtype = getattr(torch, order["dtype"])
    # What the user's code makes without saying so is of the precision of the run.
    torch.set_default_dtype(dtype)
    length = 2 * steps + (
        _trailing(steps, job.get("stepped", ())) if spec["regime"] == "trailing" else 0
    )
    # Into as many pieces of two rows as there are steps; where windows are to be left open, into one less.
    pieces = steps - 1 if spec["regime"] == "trailing" and steps > 1 else steps
    cut = 2 * pieces if job["cuts"] else 0
    data = Data(
        kind=kind, counts=_counts(spec["regime"], kind, rank, cut), length=length,
        seed=order["seed"], rank=rank, device=device, dtype=dtype,
        ignored=job["ignored"], pads=job["pads"], cut_rows=cut, limit=40 * length,
    )  # fmt: skip
    settings = Settings(
        file=job["file"], line=job["line"], device=device, dtype=dtype,
        pressure=pressure if spec.get("pressure") else None,
        steps=steps, updates=spec["updates"], totals=tuple(job["totals"]), sabotage=spec.get("sabotage", ""),
        inject=spec.get("inject", 0), large=spec.get("large", False),
        undefined=spec.get("undefined", False), graphs=job["graphs"],
        whole=spec["regime"] == "trailing",
    )  # fmt: skip
    data.poisoned, data.exhausts = spec.get("poison", 0), spec.get("exhausts", False)
    data.frozen = job["frozen"]
    data.width = job["width"] or data.width
    recorder = Recorder(data, settings)
    recorders.append(recorder)
    raised: dict[str, Any] | None = None
    unbound = ""
    objects: dict[str, Any] = {}
    if order["setup"]:
        try:
            objects = given(order["setup"], data, world, device)
        except GivenError as problem:
            unbound = str(problem)
    if "source" not in job:
        job["source"] = look(job["text"])
    binding = Binding(recorder, data, steps, job["source"], _way(job, world), objects)
    wanted: list[tuple[str, int]] = []
    scaling = Scaling(
        0.0 if spec["unscaled"] else _SCALE,
        1 if spec["growing"] else 2000,
        binding.tell if job["scaled"] else None,
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
    notes = recorder.notes
    even(notes.events)
    return {
        "spec": spec, "kind": kind, "raised": raised, "unbound": unbound, "fakes": binding.fakes,
        "wraps": recorder.wraps, "wanted": wanted, "lenient": job["leniently"], "ordinary": job["ordinarily"],
        "steps": sorted(binding.own_steps), "failed": binding.failures.plain(),
        "size": sum(p.numel() for p in recorder.parameters()),
        "pressure": pressure if spec.get("pressure") else 0.0,
        "notes": {
            "events": notes.events, "losses": notes.losses, "scales": notes.scales, "touched": notes.touched,
            "told": notes.told, "graphs": recorder.graphs.most,
            "initial_scale": notes.initial_scale, "fetched": data.fetched,
            "refused": notes.refused, "own_loss": notes.own_loss, "replaced": notes.replaced, "handed": notes.handed,
            "length": data.length, "unfed": data.unfed,
            "wrapped": notes.wrapped, "summed": notes.summed,
        },
    }  # fmt: skip
