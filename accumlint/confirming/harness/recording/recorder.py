"""Watches a training loop from within: losses, backwards, clipping, steps, reductions, the scaler and the schedule.

The reference needs no second run. Every loss is evaluated elementwise and reduced as the user asked; right before a
backward, autograd gives the weight that the user's code puts on each element, and the gradient of the elements' plain
sum. Nothing collective happens here: each rank notes its own, and whoever compares has all ranks' notes.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false
# torch's own annotations are partial.

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

# A gradient that is above any threshold.
_LARGE = 1e30
# An epoch that ends inside a window, and the windows before and after it, in accumulation steps.
_EPOCH = 5


class Recorder(LossMode):
    """Records one pass. Enter it around the user's code."""

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
        self.seen: list[Any] = []
        self.stepping: list[Any] = []
        self.own_step = False
        self.asked = 0
        # How many times a model was put in DDP, which gives all ranks the same parameters.
        self.wraps = 0
        self.graphs = Graphs(lambda: self.data.current, settings.sabotage == "drop")
        self.kept: list[Any] = []
        self.withheld: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.held = False
        self.own_loss: Callable[[], torch.Tensor | None] | None = None
        self.spent: Callable[[], None] = lambda: None

    # Parameters: one vector over all fake models, in the order in which they were made

    def parameters(self) -> list[torch.Tensor]:
        return list(dict.fromkeys(p for model in self.models for p in model.parameters()))

    def gradients(self) -> list[torch.Tensor]:
        """The gradients that parameters hold."""
        return [p.grad for p in self.parameters() if p.grad is not None]

    def positions(self, parameters: Iterable[torch.Tensor]) -> list[int]:
        """Where parameters stand among all."""
        wanted = {id(p) for p in parameters}
        return [i for i, p in enumerate(self.parameters()) if id(p) in wanted]

    def note(self, kind: str, **values: Any) -> None:
        self.notes.events.append(
            {"kind": kind, "microbatch": self.data.current, "line": self.line(), **values}
        )

    def _called(self) -> Iterator[str]:
        """The functions of other files that the user's file is in, innermost first."""
        frame = sys._getframe(1)
        while frame is not None and not self.is_own(frame):
            yield frame.f_code.co_name
            frame = frame.f_back

    def refuse(self, what: str) -> None:
        """Notes what the guard has just refused; `inside` when training had begun, and this is no evaluation."""
        inside = self.data.fetched > 0 and not evaluates(self._called())
        found = {"what": what, "line": self.line(), "inside": inside}
        if found not in self.notes.refused:
            self.notes.refused.append(found)

    # Backward

    def before_backward(self, tensors: Any) -> None:
        """Notes what going backward from `tensors` will bring."""
        if not any(p.requires_grad for p in self.parameters()):
            return
        self.look()
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        found: list[dict[str, Any]] = []
        for root in roots:
            if isinstance(root, torch.Tensor) and root.requires_grad:
                found.extend(self._contributions(root))
        self.backwards += 1
        # Graphs of earlier micro-batches are gone unless somebody keeps them.
        gone = {part["number"] for part in found} if self.settings.graphs else set[int]()
        self.losses = [
            x
            for x in self.losses
            # To hold a loss is to hold its graph.
            if x.microbatch > self.data.current - 12 and x.number not in gone
        ]
        self.note("backward", contributions=found, scale=self.scale, steps=self.settings.steps)

    def _contributions(self, root: torch.Tensor) -> list[dict[str, Any]]:
        # Nothing in there is the user's, and hearing of it takes time.
        with self.quiet(), torch._C.DisableTorchFunction():
            return list(contributions(root, self.losses, self.parameters(), self.backwards))

    def _moves(self, root: torch.Tensor) -> bool:
        """Whether a loss has a gradient."""
        if not root.requires_grad:
            return False
        try:
            with self.quiet():
                found = grads_of(root, [p for p in self.parameters() if p.requires_grad])
        except RuntimeError:
            # The user's own backward will meet the same.
            return True
        return any(g is not None and bool(g.abs().max() > 1e-9) for g in found)

    def rooted(self, tensors: Any, starts: Any) -> Any:
        """What goes backward; where it moves no parameter or is no number, another loss in its place, if one may be."""
        if self.own_loss is None or not isinstance(tensors, torch.Tensor):
            return tensors
        is_number = tensors.numel() == 1 or starts is not None
        if is_number and self._moves(tensors):
            return tensors
        # Torch does not tell this mode what is computed inside a `backward`.
        with self:
            found = self.own_loss()
        if found is None:
            return tensors
        self.notes.replaced = True
        return found * self.scale

    def evened(self, tensors: Any) -> Any:
        """The control: what goes backward, such that every target weighs the same."""
        if not isinstance(tensors, torch.Tensor):
            return tensors
        found = self._contributions(tensors)
        share = sum(part["weight"] * part["count"] for part in found)
        return tensors * (sum(part["count"] for part in found) / share) if share else tensors

    def after_backward(self) -> None:
        if self.data.current == self.settings.inject and not self.notes.tampered:
            # An overflow: a gradient is not finite from here to the next clear.
            for grad in self.gradients():
                grad.view(-1)[:1] = self._overflow()
                self.notes.tampered = True
        self.held = self.holds()
        if self.settings.sabotage == "forget" and self.backwards % 2 == 0:
            # The control: what every other micro-batch brought is lost, as if it had been cleared.
            for grad in self.gradients():
                grad.zero_()
        if self.settings.sabotage == "schedule":
            for scheduler in self.schedulers:
                scheduler.step()
        often = {"hurry": 1, "regular": self.settings.steps}.get(self.settings.sabotage)
        if often and self.backwards % often == 0:
            self.step_now()

    def _overflow(self) -> float:
        if self.settings.undefined:
            return math.nan
        return _LARGE if self.settings.large else math.inf

    def step_now(self) -> None:
        """The control: steps that the loop does not ask for. They move nothing, so that scaled gradients do no harm."""
        self.own_step = True
        for optimizer in self.optimizers:
            rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = 0.0
            optimizer.step()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            if self.settings.sabotage in ("regular", "flush"):
                optimizer.zero_grad()
        self.own_step = False

    # Steps

    def before_step(self, optimizer: Any, *_: Any) -> None:
        if self.busy:
            return
        params = self.parameters()
        owned = set(map(id, parameters_of(optimizer)))
        if owned.isdisjoint(map(id, params)):
            return
        self.look()
        self.stepping.append(optimizer)
        if self.stepping.count(optimizer) > 1:
            # A step of the user's class ends in torch's, and is one step.
            return
        self.asked += 1
        if self._is_withheld():
            self._withhold([p for p in params if id(p) in owned])
            return
        if self.settings.sabotage == "part" and self.data.rank:
            for grad in self.gradients():
                grad.mul_(1.5)
        if self.settings.sabotage == "mend":
            self.mend(optimizer, params, owned)
        if self.settings.sabotage == "average":
            self._average(params)
        self.note(
            "step",
            optimizer=self.index(optimizer),
            parameters=[i for i, p in enumerate(params) if id(p) in owned],
            epoch=self.epoch,
            totals=list(totals(self.settings.totals, self.is_own)),
            **self.applied(params, owned),
        )

    def _reread(self, optimizer: Any, params: list[torch.Tensor], owned: set[int]) -> None:
        """A step of the user's own class may change the gradients before it applies them."""
        step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
        if step.__code__.co_filename != self.settings.file or not self.holds():
            return
        last = next(e for e in reversed(self.notes.events) if e["kind"] == "step")
        last.update(self.applied(params, owned))
        if self.settings.sabotage == "part" and self.data.rank:
            last["applied"] = [1.5 * x for x in last["applied"]]

    def applied(self, params: list[torch.Tensor], owned: set[int]) -> dict[str, Any]:
        """The gradient that a step applies, and which part of it is the optimizer's own (None: all)."""
        vector: list[float] = []
        mask: list[bool] = []
        with torch._C.DisableTorchFunction():
            for p in params:
                vector.extend(flat(p.grad if id(p) in owned else None, p))
                mask.extend([id(p) in owned] * p.numel())
        own = None if all(mask) else [i for i, is_own in enumerate(mask) if is_own]
        held = [x for p in params for x in flat(p, p)] if world_size() > 1 else []
        return {"applied": vector, "owned": own, "held": held, "wraps": self.wraps}

    def _average(self, params: list[torch.Tensor]) -> None:
        """The control: every rank ends up with the mean over ranks, however the loop went about it."""
        for p in params:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(grad)
            p.grad = grad / world_size()

    def _is_withheld(self) -> bool:
        """Whether this step is one that a control keeps from happening."""
        sabotage = self.settings.sabotage
        if sabotage == "seldom":
            return self.asked % 2 == 0
        return sabotage == "void" or (sabotage == "regular" and not self.own_step)

    def _withhold(self, params: list[torch.Tensor]) -> None:
        """Takes the gradients away until the step is over."""
        self.withheld = [(p, p.grad) for p in params if p.grad is not None]
        for p in params:
            p.grad = None

    def mend(self, optimizer: Any, params: list[torch.Tensor], owned: set[int]) -> None:
        """The control: what the window should have brought, put in the gradient's place right before the step."""
        size = [p.numel() for p in params]
        step = {
            "kind": "step", "optimizer": self.index(optimizer), "applied": [0.0] * sum(size), "owned": None,
            "parameters": [i for i, p in enumerate(params) if id(p) in owned],
        }  # fmt: skip
        events = [*self.notes.events, step]
        even(events)
        own = windows(events)[-1]
        with self.quiet():
            mended = list(torch.split(torch.tensor(reference(gathered(own))), size))
        for p, values in zip(params, mended, strict=True):
            if id(p) in owned:
                p.grad = values.to(p.device, p.dtype).view_as(p)

    def after_step(self, optimizer: Any, *_: Any) -> None:
        owned = set(map(id, parameters_of(optimizer)))
        if self.busy or owned.isdisjoint(map(id, self.parameters())):
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
        self._reread(optimizer, self.parameters(), owned)
        # Optimizers that step side by side take as many windows as one alone.
        self.steps[self.index(optimizer)] += 1
        self.stepped = max(self.steps.values())

    def turn(self) -> None:
        """Called where ending is harmless: when a micro-batch is fetched or a loop begins a round."""
        if self.stepped >= self.settings.updates and not self._goes_on():
            raise Enough

    def _goes_on(self) -> bool:
        """Whether an epoch is about to end that the pass is to see, with the first update of the next."""
        # Not longer than an epoch and what is around it.
        seen = max(self.data.fetched, self.backwards)
        if not self.settings.whole or seen > _EPOCH * self.settings.steps:
            return False
        ends = (i for i, e in enumerate(self.notes.events) if e["kind"] == "epoch")
        after = self.notes.events[next(ends, len(self.notes.events)) :]
        return not any(e["kind"] == "step" for e in after)

    def index(self, optimizer: Any) -> int:
        """The number of an optimizer, in the order in which they were seen."""
        if optimizer not in self.seen:
            self.seen.append(optimizer)
        return self.seen.index(optimizer)

    def holds(self) -> bool:
        with torch._C.DisableTorchFunction():
            return any(bool(grad.any()) for grad in self.gradients())

    def look(self) -> None:
        """Notes a clear that was done by hand, when what was held is gone."""
        if self.held and not self.holds():
            self.note("clear", parameters=list(range(len(self.parameters()))))
            self.held = False
