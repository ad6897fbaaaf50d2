"""Observes backward passes: the gradients that reach sampled parameters, and the contents of `.grad` afterwards."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from accumlint.runtime.child import criteria, graph
from accumlint.runtime.child.frames import user_location
from accumlint.runtime.child.recorder import Event, Recorder

# The limit of graphs that are followed.
_MOST = 512


class _Sentinel:
    """An object in a graph's metadata that lives as long as the graph."""


class Graphs:
    """Counts the graphs of past backwards that are alive."""

    def __init__(self) -> None:
        self._sentinels: list[weakref.ref[_Sentinel]] = []

    def add(self, node: Any) -> None:
        """Follows the graph of a micro-batch from its loss."""
        if node is not None and len(self._sentinels) < _MOST:
            sentinel = _Sentinel()
            node.metadata[f"{graph.MARK}.held"] = sentinel
            self._sentinels.append(weakref.ref(sentinel))

    def count(self) -> int:
        """The number of graphs that are alive."""
        self._sentinels = [sentinel for sentinel in self._sentinels if sentinel() is not None]
        return len(self._sentinels)


def observe(recorder: Recorder) -> None:
    """Observes backward passes."""
    engine = torch.autograd
    recorder.patches.put(engine, "backward", _observed(recorder, engine.backward), everywhere=True)
    recorder.patches.put(engine, "grad", _observed_grad(recorder, engine.grad), everywhere=True)


def _observed(recorder: Recorder, original: Any) -> Any:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.watches or recorder.backward is not None:
            return original(tensors, *args, **kwargs)
        with _recorded(recorder, tensors, kwargs):
            return original(tensors, *args, **kwargs)

    return backward


@contextmanager
def _recorded(recorder: Recorder, tensors: Any, options: dict[str, Any]) -> Generator[Event]:
    """Records a backward pass that runs inside, from its roots to the gradients that it leaves."""
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    event = _begun(recorder, roots, options)
    try:
        yield event
    except BaseException as error:
        event["raised"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
        raise
    finally:
        recorder.backward = None
        with recorder.paused():
            for number, sample in recorder.sampled():
                gradients = event["gradients"].setdefault(str(number), {})
                gradients |= {"flowed": sample.incoming(), "after": sample.gradients()}


def _begun(recorder: Recorder, roots: list[torch.Tensor], options: dict[str, Any]) -> Event:
    """The event of a backward that is about to run."""
    place = user_location()
    recorder.backwards += 1
    recorder.trained = recorder.source
    recorder.drawn[recorder.source] = recorder.drawn.get(recorder.source, 0) + 1
    event = recorder.note(
        "backward", place, number=recorder.backwards, losses=[], gradients={}, calls=place.calls,
        retain=bool(options.get("retain_graph")), **recorder.ranks, forwards=recorder.forwards,
    )  # fmt: skip
    recorder.forwards = []
    with recorder.paused():
        event["accelerate"] = _accelerate()
        for number, sample in recorder.sampled():
            sample.incoming()
            event["gradients"][str(number)] = {
                "before": sample.gradients(), "sharded": sample.sharded, "apart": sample.partitioned,
                "precise": sample.precise,
            }  # fmt: skip
        losses = criteria.prepare(recorder, event, roots)
        GRAPHS.add(losses[0] if losses else next((root.grad_fn for root in roots), None))
    recorder.backward = event
    return event


GRAPHS = Graphs()


def _accelerate() -> int:
    """Accelerate's accumulation steps in this process, 0 if it is not in use."""
    state: Any = sys.modules.get("accelerate.state")
    shared = getattr(getattr(state, "GradientState", None), "_shared_state", None)
    if not shared:
        return 0
    return int(state.GradientState().num_steps)


def _observed_grad(recorder: Recorder, original: Any) -> Any:
    """Observes `autograd.grad` for parameters, whose results the caller may put into `.grad`."""

    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.watches or recorder.backward is not None:
            return original(outputs, inputs, *args, **kwargs)
        parameters = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        with recorder.paused():
            sampled = any(recorder.touching({id(p) for p in parameters}))
        if not sampled:
            return original(outputs, parameters, *args, **kwargs)
        with _recorded(recorder, outputs, kwargs) as event:
            event["by_hand"] = True
            return original(outputs, parameters, *args, **kwargs)

    return grad
