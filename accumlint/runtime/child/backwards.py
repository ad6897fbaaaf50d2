"""Backward passes, observed: what flows into the sampled parameters and what then lies in `.grad`."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# torch's own annotations are partial.

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

import torch

from accumlint.runtime.child import criteria, graph
from accumlint.runtime.child.frames import where
from accumlint.runtime.child.recorder import Event, Recorder

# As many graphs are followed.
_MOST = 512


class _Held:
    """What lives as long as the graph of a micro-batch does."""


class Graphs:
    """The graphs that went backward and are still held."""

    def __init__(self) -> None:
        self._held: list[weakref.ref[_Held]] = []

    def add(self, node: Any) -> None:
        """Follows the graph of a micro-batch from its loss."""
        if node is not None and len(self._held) < _MOST:
            sentinel = _Held()
            node.metadata[f"{graph.MARK}.held"] = sentinel
            self._held.append(weakref.ref(sentinel))

    def count(self) -> int:
        """How many are held."""
        self._held = [held for held in self._held if held() is not None]
        return len(self._held)


def observe(recorder: Recorder) -> None:
    """Has backward passes observed."""
    engine = torch.autograd
    recorder.patches.put(engine, "backward", _observed(recorder, engine.backward), everywhere=True)
    recorder.patches.put(engine, "grad", _asked(recorder, engine.grad), everywhere=True)


def _observed(recorder: Recorder, original: Any) -> Any:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.watches or recorder.backward is not None:
            return original(tensors, *args, **kwargs)
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        event = _begun(recorder, roots, kwargs)
        try:
            return original(tensors, *args, **kwargs)
        except BaseException as error:
            event["raised"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
            raise
        finally:
            recorder.backward = None
            with recorder.aside():
                for number, sample in recorder.sampled():
                    told = event["gradients"].setdefault(str(number), {})
                    told |= {"flowed": sample.flowed(), "after": sample.lying()}

    return backward


def _begun(recorder: Recorder, roots: list[torch.Tensor], options: dict[str, Any]) -> Event:
    """The event of a backward pass that is about to run."""
    place = where()
    recorder.backwards += 1
    recorder.drawn[recorder.source] = recorder.drawn.get(recorder.source, 0) + 1
    event = recorder.note(
        "backward", place, number=recorder.backwards, losses=[], gradients={}, calls=place.calls,
        retain=bool(options.get("retain_graph")), **recorder.ranks, forwards=recorder.forwards,
    )  # fmt: skip
    recorder.forwards = []
    with recorder.aside():
        event["accelerate"] = _accelerate()
        for number, sample in recorder.sampled():
            sample.flowed()
            event["gradients"][str(number)] = {
                "before": sample.lying(), "sharded": sample.sharded, "apart": sample.apart, "precise": sample.precise,
            }  # fmt: skip
        losses = criteria.prepare(recorder, event, roots)
        GRAPHS.add(losses[0] if losses else next((root.grad_fn for root in roots), None))
    recorder.backward = event
    return event


GRAPHS = Graphs()


def _accelerate() -> int:
    """The accumulation steps that Accelerate knows of in this process, 0 where it is not in use."""
    state: Any = sys.modules.get("accelerate.state")
    shared = getattr(getattr(state, "GradientState", None), "_shared_state", None)
    if not shared:
        return 0
    return int(state.GradientState().num_steps)


def _asked(recorder: Recorder, original: Any) -> Any:
    """Notes gradients that are asked for, of parameters: somebody puts them into `.grad` himself."""

    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.watches or recorder.backward is not None:
            return original(outputs, inputs, *args, **kwargs)
        given = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        leaves = {id(p) for p in given}
        with recorder.aside():
            asked = any(id(p) in leaves for _, s in recorder.sampled() for p in s.parameters)
        if not asked:
            return original(outputs, given, *args, **kwargs)
        roots = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        event = _begun(recorder, roots, kwargs)
        event["by_hand"] = True
        try:
            return original(outputs, given, *args, **kwargs)
        finally:
            recorder.backward = None
            with recorder.aside():
                for number, sample in recorder.sampled():
                    told = event["gradients"].setdefault(str(number), {})
                    told |= {"flowed": sample.flowed(), "after": sample.lying()}

    return grad
