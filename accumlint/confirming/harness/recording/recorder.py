"""Records a training loop: losses, backwards, clipping, steps, reductions, the GradScaler and the scheduler.

The reference needs no second run. Every loss is evaluated elementwise and reduced as requested; right before a
backward, autograd gives the weight of each element in the root, and the gradient of the elements' sum. The
recorder uses no collectives: each rank records its own notes, and the comparison reads those of all ranks.
"""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accumlint.confirming.harness.fakes.batches import Enough
from accumlint.confirming.harness.fakes.loss_functions import grads_of
from accumlint.confirming.harness.fakes.name_words import evaluates
from accumlint.confirming.harness.parameters import parameters_of
from accumlint.confirming.harness.pass_outcome import even
from accumlint.confirming.harness.process_group import gathered, world_size
from accumlint.confirming.harness.recording.contributions import contributions, flat
from accumlint.confirming.harness.recording.loss_mode import LossMode
from accumlint.confirming.harness.recording.notes import Feed, Settings
from accumlint.confirming.harness.recording.retained_graphs import Graphs, totals
from accumlint.confirming.measurement import reference, windows

# A gradient above any threshold.
_LARGE = 1e30
# The longest pass that waits for the end of an epoch, in accumulation steps.
_EPOCH = 5


class Recorder(LossMode):
    """The recorder of one pass, entered around the user's code."""

    def __init__(self, data: Feed, settings: Settings) -> None:
        super().__init__(data, settings)
        self.models: list[nn.Module] = []
        self.steps: Counter[int] = Counter()
        self.stepped = 0
        self.building = 0
        self.epoch = 0
        self.scale = 1.0
        self.backwards = 0
        self.schedulers: list[Any] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.known_optimizers: list[Any] = []
        self.stepping: list[Any] = []
        self.inserting_step = False
        self.step_calls = 0
        # The number of DDP wrappers, which synchronize the parameters.
        self.wraps = 0
        # Whether the loop reduces what is as large as gradients, so that no wrapper does it.
        self.reduces = False
        self.graphs = Graphs(lambda: self.data.current, settings.sabotage == "drop")
        self.retained: list[Any] = []
        self.withheld: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.has_gradients = False
        self.substitute_loss: Callable[[], torch.Tensor | None] | None = None
        self.spent: Callable[[], None] = lambda: None

    # Parameters: one vector over all models, in the order of creation

    def parameters(self) -> list[torch.Tensor]:
        return list(dict.fromkeys(p for model in self.models for p in model.parameters()))

    def gradients(self) -> list[torch.Tensor]:
        """The gradients that are present."""
        return [p.grad for p in self.parameters() if p.grad is not None]

    def positions(self, parameters: Iterable[torch.Tensor]) -> list[int]:
        """The indices of parameters among all."""
        wanted = {id(p) for p in parameters}
        return [i for i, p in enumerate(self.parameters()) if id(p) in wanted]

    def note(self, kind: str, **values: Any) -> None:
        self.notes.events.append(
            {"kind": kind, "microbatch": self.data.current, "line": self.line(), **values}
        )

    def _called(self) -> Iterator[str]:
        """The functions between here and the user's file, innermost first."""
        frame = sys._getframe(1)
        while frame is not None and not self.is_user_frame(frame):
            yield frame.f_code.co_name
            frame = frame.f_back

    def refuse(self, what: str) -> None:
        """Records an operation that the sandbox refused; `inside` during training, but not evaluation."""
        inside = self.data.fetched > 0 and not evaluates(self._called())
        found = {"what": what, "line": self.line(), "inside": inside}
        if found not in self.notes.refused:
            self.notes.refused.append(found)

    # Backward

    def before_backward(self, tensors: Any) -> None:
        """Records the contributions of a backward from `tensors`."""
        if not any(p.requires_grad for p in self.parameters()):
            return
        self.detect_clear()
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        found: list[dict[str, Any]] = []
        for root in roots:
            if isinstance(root, torch.Tensor) and root.requires_grad:
                found.extend(self._contributions(root))
        self.backwards += 1
        # Graphs of earlier micro-batches are freed unless the loop retains them.
        finished = {part["number"] for part in found} if self.settings.graphs else set[int]()
        self.losses = [
            x
            for x in self.losses
            # A reference to a loss would retain its graph.
            if x.microbatch > self.data.current - 12 and x.number not in finished
        ]
        self.note("backward", contributions=found, scale=self.scale, steps=self.settings.steps)

    def _contributions(self, root: torch.Tensor) -> list[dict[str, Any]]:
        # Faster without function modes; these computations are not the user's.
        with self.quiet(), torch._C.DisableTorchFunction():
            return list(contributions(root, self.losses, self.parameters(), self.backwards))

    def _has_gradient(self, root: torch.Tensor) -> bool:
        """Whether a root has a nonzero gradient."""
        if not root.requires_grad:
            return False
        try:
            with self.quiet():
                found = grads_of(root, [p for p in self.parameters() if p.requires_grad])
        except RuntimeError:
            # The user's own backward will raise the same.
            return True
        return any(g is not None and bool(g.abs().max() > 1e-9) for g in found)

    def rooted(self, tensors: Any, starts: Any) -> Any:
        """The root of a backward; a substitute loss where it has no gradient and a substitute is allowed."""
        if self.substitute_loss is None or not isinstance(tensors, torch.Tensor):
            return tensors
        is_number = tensors.numel() == 1 or starts is not None
        if is_number and self._has_gradient(tensors):
            return tensors
        # Function modes are inactive inside of a `backward`.
        with self:
            found = self.substitute_loss()
        if found is None:
            return tensors
        self.notes.replaced = True
        return found * self.scale

    def evened(self, tensors: Any) -> Any:
        """Control "even": the root, scaled so that every target has the same weight."""
        if not isinstance(tensors, torch.Tensor):
            return tensors
        found = self._contributions(tensors)
        share = sum(part["weight"] * part["count"] for part in found)
        return tensors * (sum(part["count"] for part in found) / share) if share else tensors

    def after_backward(self) -> None:
        if self.data.current == self.settings.inject and not self.notes.tampered:
            # Injected overflow: a gradient is not finite until the next clear.
            large = _LARGE if self.settings.large else math.inf
            for grad in self.gradients():
                grad.view(-1)[:1] = math.nan if self.settings.undefined else large
                self.notes.tampered = True
        self.has_gradients = self.any_gradient()
        if self.settings.sabotage == "forget" and self.backwards % 2 == 0:
            # Control "forget": drops the gradients of every other micro-batch.
            for grad in self.gradients():
                grad.zero_()
        if self.settings.sabotage == "schedule":
            for scheduler in self.schedulers:
                scheduler.step()
        often = {"hurry": 1, "regular": self.settings.steps}.get(self.settings.sabotage)
        if often and self.backwards % often == 0:
            self.step_now()

    def step_now(self) -> None:
        """Controls that add steps; the learning rate is 0, so that scaled gradients do no harm."""
        self.inserting_step = True
        for optimizer in self.optimizers:
            rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = 0.0
            optimizer.step()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            if self.settings.sabotage in ("regular", "flush"):
                optimizer.zero_grad()
        self.inserting_step = False

    # Steps

    def before_step(self, optimizer: Any, *__: Any) -> None:
        if self.busy:
            return
        params = self.parameters()
        param_ids = set(map(id, parameters_of(optimizer)))
        if param_ids.isdisjoint(map(id, params)):
            return
        self.detect_clear()
        self.stepping.append(optimizer)
        if self.stepping.count(optimizer) > 1:
            # A step of a subclass calls torch's step; they are one.
            return
        self.step_calls += 1
        if self._is_withheld():
            # Removes the gradients until the step is over.
            self.withheld = [
                (p, p.grad) for p in params if id(p) in param_ids and p.grad is not None
            ]
            for p, _ in self.withheld:
                p.grad = None
            return
        if self.settings.sabotage == "part" and self.data.rank:
            for grad in self.gradients():
                grad.mul_(1.5)
        if self.settings.sabotage == "mend":
            self.mend(optimizer, params, param_ids)
        if self.settings.sabotage == "average":
            self._average(params)
        self.note(
            "step",
            optimizer=self.index(optimizer),
            parameters=[i for i, p in enumerate(params) if id(p) in param_ids],
            epoch=self.epoch,
            totals=list(totals(self.settings.totals, self.is_user_frame)),
            **self.applied(params, param_ids),
        )

    def _reread(self, optimizer: Any, params: list[torch.Tensor], param_ids: set[int]) -> None:
        """Records the gradients again after a step of a project-defined optimizer, which may change them first."""
        step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
        if step.__code__.co_filename != self.settings.file or not self.any_gradient():
            return
        last = next(e for e in reversed(self.notes.events) if e["kind"] == "step")
        last.update(self.applied(params, param_ids))
        if self.settings.sabotage == "part" and self.data.rank:
            last["applied"] = [1.5 * x for x in last["applied"]]

    def applied(self, params: list[torch.Tensor], param_ids: set[int]) -> dict[str, Any]:
        """The gradient that a step applies, and the indices of the optimizer's elements in it (None: all)."""
        vector: list[float] = []
        mask: list[bool] = []
        with torch._C.DisableTorchFunction():
            for p in params:
                vector.extend(flat(p.grad if id(p) in param_ids else None, p))
                mask.extend([id(p) in param_ids] * p.numel())
        indices = None if all(mask) else [i for i, is_applied in enumerate(mask) if is_applied]
        values = [x for p in params for x in flat(p, p)] if world_size() > 1 else []
        return {"applied": vector, "owned": indices, "held": values, "wraps": self.wraps}

    def _average(self, params: list[torch.Tensor]) -> None:
        """Control "average": replaces gradients by their mean over the ranks."""
        for p in params:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(grad)
            p.grad = grad / world_size()

    def _is_withheld(self) -> bool:
        """Whether a control suppresses this step."""
        sabotage = self.settings.sabotage
        if sabotage == "seldom":
            return self.step_calls % 2 == 0
        return sabotage == "void" or (sabotage == "regular" and not self.inserting_step)

    def mend(self, optimizer: Any, params: list[torch.Tensor], param_ids: set[int]) -> None:
        """Control "mend": replaces the gradients by the window's reference right before the step."""
        size = [p.numel() for p in params]
        step = {
            "kind": "step", "optimizer": self.index(optimizer), "applied": [0.0] * sum(size), "owned": None,
            "parameters": [i for i, p in enumerate(params) if id(p) in param_ids],
        }  # fmt: skip
        events = [*self.notes.events, step]
        even(events)
        window = windows(events)[-1]
        with self.quiet():
            mended = list(torch.split(torch.tensor(reference(gathered(window))), size))
        for p, values in zip(params, mended, strict=True):
            if id(p) in param_ids:
                p.grad = values.to(p.device, p.dtype).view_as(p)

    def after_step(self, optimizer: Any, *_: Any) -> None:
        param_ids = set(map(id, parameters_of(optimizer)))
        if self.busy or param_ids.isdisjoint(map(id, self.parameters())):
            return
        if optimizer in self.stepping:
            self.stepping.remove(optimizer)
        if optimizer in self.stepping:
            return
        if self._is_withheld():
            for p, grad in self.withheld:
                p.grad = grad
            self.withheld = []
            return
        self._reread(optimizer, self.parameters(), param_ids)
        # Optimizers that step in parallel count as one.
        self.steps[self.index(optimizer)] += 1
        self.stepped = max(self.steps.values())

    def turn(self) -> None:
        """Ends the pass when it is complete; called at fetches and loop iterations."""
        if self.stepped >= self.settings.updates and not self._goes_on():
            raise Enough

    def _goes_on(self) -> bool:
        """Whether the pass waits for the end of an epoch and the first update after it."""
        # At most one epoch and its neighbouring windows.
        seen = max(self.data.fetched, self.backwards)
        if not self.settings.whole or seen > _EPOCH * self.settings.steps:
            return False
        ends = (i for i, e in enumerate(self.notes.events) if e["kind"] == "epoch")
        after = self.notes.events[next(ends, len(self.notes.events)) :]
        return not any(e["kind"] == "step" for e in after)

    def index(self, optimizer: Any) -> int:
        """The number of an optimizer, in the order of first use."""
        if optimizer not in self.known_optimizers:
            self.known_optimizers.append(optimizer)
        return self.known_optimizers.index(optimizer)

    def any_gradient(self) -> bool:
        with torch._C.DisableTorchFunction():
            return any(bool(grad.any()) for grad in self.gradients())

    def detect_clear(self) -> None:
        """Records a manual clear, when the gradients have disappeared."""
        if self.has_gradients and not self.any_gradient():
            self.note("clear", parameters=list(range(len(self.parameters()))))
            self.has_gradients = False
