"""For tests: does a step apply the gradient of the large batch? Does a rule of one's own find its defect?

torch is imported when it is asked for gradients.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accumlint.confirming.measurement import Unmeasurable, measured
from accumlint.confirming.result import Pass, Update
from accumlint.confirming.symptoms.microbatch_outcomes import ranges

__all__ = [
    "TOLERANCES",
    "Unmeasurable",
    "assert_findings",
    "assert_large_batch_equivalent",
    "assert_page",
]

if TYPE_CHECKING:
    from torch import nn

# Measured on loops that are right: 5e-15, 3e-7, 3e-3 and 6e-4, with room for kernels that sum in any order.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 5e-2, "float16": 2e-2}
# Gradients are compared as lists of numbers.
_LARGEST = 250_000
_SHOWN = 5


@dataclass
class _Counted:
    """Micro-batches that know which of them is in hand."""

    batches: Sequence[Any]
    current: int = 0
    rank: int = 0

    @property
    def fetched(self) -> int:
        return self.current

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.current += 1
            yield batch


def assert_large_batch_equivalent(
    train_step: Callable[[Any], object],
    batches: Iterable[Any],
    *,
    model: nn.Module | Sequence[nn.Module],
    loop: bool = False,
    tolerance: float | None = None,
    reference: Callable[[Sequence[Any]], Any] | None = None,
) -> None:
    """Asserts that every optimizer step applies the gradient of the mean loss over all targets of its micro-batches.

    `train_step` is called with each of the `batches`; with `loop`, once with all of them, and may go through them
    several times. It goes backward, steps the optimizer where a window ends, and clears. `model` holds the parameters
    that are compared, 250,000 at most. The reference is taken from the same graphs, so dropout and batch norm may stay
    on, and it is clipped where the loop clips. `tolerance` is the largest relative error of an update; by default 1e-9
    for parameters in float64, 1e-4 in float32, 2e-2 in float16, 5e-2 in bfloat16.

    Losses that weigh their targets by themselves (a focal loss, weights of samples, a root) count as a whole, and their
    large batch is the mean over micro-batches of one size; a constant that a loss is multiplied with is left to it.
    `reference` says otherwise what the large batch's loss is: it is given the micro-batches of a window, on each rank
    its own, and returns one loss, whose gradient, averaged over ranks, the update should apply.

    In a process group, every rank calls this with its own micro-batches, and gets the same answer.

    Raises:
        AssertionError: naming the updates that apply something else, and the micro-batches that none applies.
        Unmeasurable: where there is nothing to compare: no loss of torch's was seen, or nobody knows the large batch.
    """
    __tracebackhide__ = True
    import torch
    from torch import nn

    from accumlint.confirming.harness.recording.large_batch import LargeBatch
    from accumlint.confirming.harness.recording.notes import Settings
    from accumlint.confirming.harness.recording.torch_hooks import watching

    models = [model] if isinstance(model, nn.Module) else list(model)
    parameters = [p for one in models for p in one.parameters()]
    size = sum(p.numel() for p in parameters)
    if not 0 < size <= _LARGEST:
        raise Unmeasurable(
            f"the model has {size:,} parameters; between 1 and {_LARGEST:,} can be compared"
        )
    dtype, cpu = parameters[0].dtype, torch.device("cpu")
    if tolerance is None:
        tolerance = TOLERANCES.get(str(dtype).removeprefix("torch."), 1e-4)
    counted = _Counted(list(batches))
    settings = Settings(file=_file(train_step), line=0, device=cpu, dtype=dtype, as_is=True)
    recorder = LargeBatch(counted, settings, counted.batches, reference)
    recorder.models.extend(models)
    with watching(recorder):
        if loop:
            train_step(counted)
        else:
            for batch in counted:
                train_step(batch)
        recorder.note("epoch")
    done = _measured(recorder.gather_events(), reference is not None)
    if wrong := list(_wrong(done, tolerance)):
        raise AssertionError("\n".join(wrong))


def assert_findings(file: str | os.PathLike[str], *rules: str) -> None:
    """Asserts that some rules find in a file what its markers say, and nothing else.

    A marker is a comment at the end of a line that should have a finding: `# error: TEAM001`, several codes separated
    by commas. `rules` are codes, names or beginnings of codes; opt-in rules by their own code or name.

    Raises:
        AssertionError: naming each line whose finding is missing or not expected, and a file that cannot be read.
    """
    _hold(Path(file).read_text(encoding="utf-8"), str(file), rules)


def assert_page(rule: str) -> None:
    """Asserts that a rule's page tells the truth: its Bad blocks raise exactly their markers, its Good blocks nothing.

    Raises:
        AssertionError: naming what is missing or not expected, and a page that has no such blocks.
    """
    from accumlint.common.examples import blocks, markers
    from accumlint.registry import packs

    entry = packs.find(rule)
    page = packs.rule(entry).page()
    bad, good = (blocks(page, heading) for heading in ("Bad:", "Good:"))
    assert bad, f"the page of {entry.code} has no example of the defect under `Bad:`"
    assert good, f"the page of {entry.code} has no example of what is right under `Good:`"
    for block in bad:
        assert markers(block), f"no line of an example under `Bad:` ends in `# error: {entry.code}`"
        _hold(block, f"{entry.code}, Bad", (entry.code,))
    for block in good:
        assert not markers(block), "an example under `Good:` has a marker"
        _hold(block, f"{entry.code}, Good", (entry.code,))


def _hold(source: str, shown: str, rules: tuple[str, ...]) -> None:
    from accumlint.check import check_bytes
    from accumlint.common.examples import markers
    from accumlint.config import Settings
    from accumlint.files.inputs.discovery import Target
    from accumlint.registry import packs

    packs.require(rules)
    target = Target(shown, os.path.abspath(shown), Settings(Path.cwd(), select=rules))
    checked = check_bytes(source.encode(), target)
    assert not checked.problems, f"{shown}: {checked.problems[0].message}"
    found = {(report.mark.place.line, report.code): report.message for report in checked.reports}
    expected = markers(source)
    wrong = [
        *(f"{shown}:{line}: {code} was expected" for line, code in sorted(expected - found.keys())),
        *(
            f"{shown}:{line}: {code} was not expected: {found[line, code]}"
            for line, code in sorted(found.keys() - expected)
        ),
    ]
    assert not wrong, "\n".join(wrong)


def _file(function: Callable[..., object]) -> str:
    """The file that a step is written in, as its frames call it; "" for one that Python did not compile."""
    while hasattr(function, "func"):
        # functools.partial
        function = function.func  # pyright: ignore[reportFunctionMemberAccess]
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_filename if code else ""


def _measured(ranks: Sequence[tuple[Sequence[Mapping[str, Any]], int]], given: bool) -> Pass:
    """The updates of a run, from the events and the number of losses of each rank; `given`: its large batch is.

    Raises:
        Unmeasurable: where nothing can be compared.
    """
    events = [event for own, _ in ranks for event in own]
    parts = [part for event in events for part in event.get("contributions", ())]
    if not given:
        if not any(losses for _, losses in ranks):
            raise Unmeasurable(
                "no loss was seen: neither one of torch's functions nor a mean or sum of several elements"
            )
        if not parts:
            raise Unmeasurable(
                "nothing went backward from the losses that were seen into the model"
            )
        counts = {part["count"] for part in parts}
        if any(part["shaped"] for part in parts) and len(counts) > 1:
            raise Unmeasurable(
                "the loss weighs its targets by itself, and micro-batches have different numbers of them: `reference=`"
                " tells what the large batch's loss is"
            )
    if not all(event.get("comparable", True) for event in events):
        raise Unmeasurable(
            "only clipping all gradients together by their 2-norm can be repeated on the large batch's"
        )
    notes = [
        {
            "spec": {"regime": "own"}, "raised": None, "pressure": 0.0, "notes": {"events": own, "scales": ()},
        }
        for own, _ in ranks
    ]  # fmt: skip
    return measured(notes, steps=1, line=0, weighted=True)


def _wrong(done: Pass, tolerance: float) -> Iterator[str]:
    """What differs from the large batch, one line each; nothing where all is equal."""
    backwards = {m.microbatch for m in done.moments if m.kind == "backward"}
    if not done.updates:
        yield f"the optimizer never stepped in {len(backwards)} micro-batches"
        return
    off = [u for u in done.updates if not u.error <= tolerance]
    if off:
        yield (
            f"{len(off)} of {len(done.updates)} updates apply another gradient than the large batch's"
            f" (relative error above {tolerance:g}):"
        )
        yield from (f"  {_told(u)}" for u in off[:_SHOWN])
        if len(off) > _SHOWN:
            yield f"  and {len(off) - _SHOWN} more"
    if done.left:
        yield f"micro-batches {ranges(done.left)} went backward, and no update of their pass applies them"


def _told(u: Update) -> str:
    factor = f"{u.scale:.4g}" + (f" ({u.factor})" if u.factor else "")
    weights = ""
    if len(set(u.targets)) > 1 and min(u.weights) > 0:
        ratio = max(u.weights) / min(u.weights)
        counts = "/".join(map(str, u.targets))
        weights = f"; with {counts} targets, one target weighs up to {ratio:.3g} times another"
    return (
        f"update {u.number} (micro-batches {ranges(u.microbatches)}): relative error {u.error:.2g},"
        f" cosine {u.cosine:.3f}, factor {factor}{weights}"
    )
