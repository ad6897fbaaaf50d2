"""Watches a script that trains its own model on its own data: everything stays as it is, whatever the model's size.

What a window should apply is what its backwards brought, each taken from the same graph right before, divided by what
the losses weigh together. Of a large model a sample of the parameters is compared.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false
# torch's own annotations are partial.

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from accumlint.confirming.harness.fakes.loss_functions import Loss, grads_of
from accumlint.confirming.harness.recording.contributions import shaped_by
from accumlint.confirming.harness.recording.loss_divisors import paths
from accumlint.confirming.harness.recording.microbatch_counter import Counted
from accumlint.confirming.harness.recording.notes import Settings
from accumlint.confirming.harness.recording.recorder import Recorder
from accumlint.reading import names

# Up to the first, every parameter is compared; beyond it, about as many as the second says.
_WHOLE, _SAMPLE = 20_000, 8192
_EVEN = 1e-3
# An epoch of so many micro-batches is run to its end where a finding is about that.
_SHORT = 128
_OURS = str(Path(__file__).parents[3])
_LIBRARIES = (sysconfig.get_path("stdlib"), "<", _OURS)
_INSTALLED = ("site-packages", "dist-packages")
# Where a script keeps its settings.
_HOLDERS = ("args", "opt", "config", "cfg", "conf", "hparams", "self", "params", "options")


class OwnRecorder(Recorder):
    """Records a script; `stop` is called when enough has been seen, and does not return."""

    def __init__(self, settings: Settings, rank: int, stop: Callable[[], None]) -> None:
        self.feed = Counted(rank, self._end_of_epoch, self.turn)
        super().__init__(self.feed, settings)
        self.stop = stop
        self.epoch = 1
        # Micro-batches of an epoch, as far as loaders tell, and the updates before the latest one ended.
        self.longest = 0
        self._stepped_before = 0
        # Why nothing can be compared, "" where all can be.
        self.unfit = ""
        self.asked_steps = 0
        self.steps_seen = 0
        # Called where something is moved from a GPU that is not here; None where there is one.
        self.moved: Callable[[], object] | None = None
        self._drawn: dict[int, torch.Tensor | None] = {}
        self._sums: dict[int, torch.Tensor] = {}
        # By the optimizer that it is for, and the call.
        self._shares: dict[int, dict[int, float]] = {}
        self._clipped: dict[str, Any] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.moved is not None:
            if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
                self.moved()
                return args[0]
            if _is_elsewhere(kwargs.get("device")):
                self.moved()
                kwargs = {**kwargs, "device": self.settings.device}
            if func is torch.Tensor.to and any(map(_is_elsewhere, args[1:])):
                self.moved()
                args = tuple(self.settings.device if _is_elsewhere(a) else a for a in args)
        return super().__torch_function__(func, types, args, kwargs)

    # What is the user's

    def is_own(self, frame: FrameType) -> bool:
        return _is_own(frame.f_code.co_filename)

    def note(self, kind: str, **values: Any) -> None:
        file, _ = self.place()
        super().note(kind, file=file, **values)

    def parameters(self) -> list[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        for optimizer in self.optimizers:
            for group in getattr(optimizer, "param_groups", ()):
                for p in group["params"]:
                    found.setdefault(id(p), p)
        return list(found.values())

    def _end_of_epoch(self) -> None:
        if self.settings.sabotage == "flush" and self._is_pending():
            # The control: what the epoch leaves is applied in it.
            self.step_now()
        self.note("epoch")
        self.epoch += 1
        self._stepped_before = self.stepped

    def _is_pending(self) -> bool:
        kinds = (event["kind"] for event in reversed(self.notes.events))
        return next((kind for kind in kinds if kind in ("step", "backward")), "") == "backward"

    def turn(self) -> None:
        self.longest = max(self.longest, self.feed.length())
        if self.feed.current >= self.settings.most:
            self.stop()
        if self.stepped >= self.settings.updates and not self._goes_on():
            self.stop()

    def _goes_on(self) -> bool:
        """Whether an epoch is about to end that the run is to see, with the first update of the next."""
        if not self.settings.whole or self.longest > _SHORT:
            return False
        if self.epoch > 1:
            return self.stepped <= self._stepped_before
        return bool(self.longest)

    # The sample

    def _draw(self, params: list[torch.Tensor]) -> None:
        """Chooses what is compared of parameters that have come."""
        total = sum(p.numel() for p in params)
        generator = torch.Generator().manual_seed(17)
        for p in params:
            if id(p) in self._drawn:
                continue
            if hasattr(p, "to_local"):
                self.unfit = "parameters are sharded over ranks, whose gradients are not compared"
            count = max(1, min(p.numel(), round(_SAMPLE * p.numel() / max(total, 1))))
            if total <= _WHOLE:
                self._drawn[id(p)] = None
            else:
                drawn = torch.randint(p.numel(), (count,), generator=generator)
                self._drawn[id(p)] = drawn.to(p.device)

    def sampled(self) -> tuple[int, int]:
        """How many numbers are compared, and of how many."""
        params = self.parameters()
        return sum(len(_taken(p, self._drawn.get(id(p)))) for p in params), sum(
            p.numel() for p in params
        )

    def _vector(self, grads: Mapping[int, torch.Tensor | None]) -> list[float]:
        """The sample of gradients by the ids of their parameters."""
        found: list[float] = []
        for p in self.parameters():
            grad, drawn = grads.get(id(p)), self._drawn.get(id(p))
            if grad is None:
                size = p.numel() if drawn is None else len(drawn)
                found.extend([0.0] * size)
            else:
                found.extend(_taken(grad, drawn).double().cpu().tolist())
        return found

    def holds(self) -> bool:
        return any(
            p.grad is not None and bool(_taken(p.grad, self._drawn.get(id(p))).any())
            for p in self.parameters()
        )

    # Losses and backwards

    def active(self) -> int:
        return self.feed.active()

    def remember(self, loss: Loss) -> None:
        loss.microbatch = self.feed.active()
        loss.site = self._site()
        super().remember(loss)

    def _site(self) -> int:
        """The call that the user's code is in, as a number."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self.is_own(frame):
            frame = frame.f_back
        return hash((frame.f_lineno, frame.f_lasti)) if frame is not None else 0

    def before_backward(self, tensors: Any, starts: Any = None, only: Any = None) -> None:
        params = [p for p in self.parameters() if p.requires_grad]
        if not params:
            return
        self.feed.backward()
        self._draw(self.parameters())
        self.look()
        wanted = params if only is None else [p for p in params if any(p is x for x in only)]
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        given = [starts] if isinstance(starts, torch.Tensor | None) else list(starts)
        given += [None] * (len(roots) - len(given))
        total: dict[int, torch.Tensor] = {}
        found: list[dict[str, Any]] = []
        self.busy = True
        try:
            for root, start in zip(roots, given, strict=False):
                found.extend(self._shared(root, start))
                for p, grad in self._brought(root, start, wanted):
                    total[id(p)] = total[id(p)] + grad if id(p) in total else grad
            self._keep(total, found)
            gradient = self._vector(dict(total))
        finally:
            self.busy = False
        self.backwards += 1
        self.losses = [x for x in self.losses if x.microbatch >= self.feed.current - 1]
        self.note("backward", contributions=found, scale=self.scale, gradient=gradient)

    def _brought(
        self, root: torch.Tensor, start: Any, wanted: list[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What going backward from a root adds to each parameter, on this rank alone."""
        try:
            grads: Any = torch.autograd.grad(
                root, wanted, start, retain_graph=True, allow_unused=True
            )
        except RuntimeError as problem:
            if "checkpoint" in str(problem).lower():
                self.unfit = (
                    "its checkpointing re-enters autograd, and nothing else may ask that for a gradient"
                    " (`use_reentrant=False` does not)"
                )
            # Else the user's own backward will meet the same.
            return
        for p, grad in zip(wanted, grads, strict=True):
            if grad is not None:
                yield p, grad.to_dense() if grad.is_sparse else grad

    def _shared(self, root: torch.Tensor, start: Any) -> Iterator[dict[str, Any]]:
        """What a root makes of each loss: how many of its elements count, and what they weigh together."""
        scaled = root if start is None else root * start
        every = grads_of(scaled, [x.elements for x in self.losses])
        weighed = [
            (x, w)
            for x, w in zip(self.losses, every, strict=True)
            if w is not None and bool(w.any())
        ]
        by_hand = all(x.by_hand for x, _ in weighed)
        shaped = shaped_by(scaled, weighed)
        for loss, weights in weighed:
            if loss.by_hand == by_hand and (not shaped or loss is shaped[0]):
                counted = loss.counted & (weights != 0)
                made = [one for x in shaped or (loss,) for one in x.made()]
                yield {
                    "microbatch": loss.microbatch, "loss": loss.site or loss.line, "number": loss.number,
                    "count": int(counted.sum()), "all": weights.numel(),
                    "share": float(weights[counted].double().sum()),
                    "shaped": bool(shaped), "factors": paths(scaled, made) if shaped else [],
                }  # fmt: skip

    def _keep(self, total: Mapping[int, torch.Tensor], found: list[dict[str, Any]]) -> None:
        """For the control that mends: all that the window brings."""
        if self.settings.sabotage != "mend":
            return
        for key, grad in total.items():
            part = grad.detach().double() / self.scale
            self._sums[key] = self._sums[key] + part if key in self._sums else part
        for one in found:
            for optimizer in self.optimizers:
                groups = getattr(optimizer, "param_groups", ())
                if any(id(p) in total for group in groups for p in group["params"]):
                    own = self._shares.setdefault(id(optimizer), {})
                    own[one["loss"]] = own.get(one["loss"], 0.0) + one["share"] / self.scale

    def evened(self, tensors: Any) -> Any:
        root = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
        self.busy = True
        try:
            every = list(self._shared(root, None))
        finally:
            self.busy = False
        count, share = sum(x["count"] for x in every), sum(x["share"] for x in every)
        # Any weight will do, as long as it is the same for all; a small one keeps the weights in place.
        return root * (_EVEN * count / share if share else 1.0)

    def after_backward(self) -> None:
        super().after_backward()
        self.feed.backwarded()

    # Clipping and steps

    def at_clip(self) -> dict[str, Any]:
        self._clipped = {"gradient": self._vector({id(p): p.grad for p in self.parameters()})}
        return self._clipped

    def before_step(self, optimizer: Any, *_: Any) -> None:
        self.steps_seen += 1
        self._draw(self.parameters())
        self.asked_steps = self.asked_steps or self._asked()
        super().before_step(optimizer)

    def applied(self, params: list[torch.Tensor], owned: set[int]) -> dict[str, Any]:
        vector = self._vector({id(p): p.grad for p in params if id(p) in owned})
        mask: list[bool] = []
        for p in params:
            drawn = self._drawn.get(id(p))
            mask.extend([id(p) in owned] * (p.numel() if drawn is None else len(drawn)))
        own = None if all(mask) else [i for i, is_own in enumerate(mask) if is_own]
        joined = dist.is_available() and dist.is_initialized()
        return {"applied": vector, "owned": own, "joined": joined}

    def mend(self, optimizer: Any, params: list[torch.Tensor], owned: set[int]) -> None:
        share = max(self._shares.pop(id(optimizer), {}).values(), key=abs, default=0.0)
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.busy = True
        try:
            if together:
                every = torch.tensor([share], dtype=torch.float64, device=params[0].device)
                dist.all_reduce(every)
                share = float(every)
            made: list[tuple[torch.Tensor, torch.Tensor]] = []
            for p in params:
                if id(p) not in owned:
                    continue
                total = self._sums.pop(id(p), None)
                total = torch.zeros_like(p, dtype=torch.float64) if total is None else total
                if together:
                    dist.all_reduce(total)
                made.append((p, total / (share or 1.0)))
            norm = float(sum(float(g.pow(2).sum()) for _, g in made)) ** 0.5
            least = self.threshold()
            factor = min(1.0, least / (norm + 1e-6)) if least else 1.0
            for p, grad in made:
                p.grad = (grad * factor).to(p.dtype)
        finally:
            self.busy = False

    def threshold(self) -> float:
        """What the window's gradient was clipped at, 0 for nothing."""
        for event in reversed(self.notes.events):
            if event["kind"] == "step":
                return 0.0
            if event["kind"] == "clip":
                return float(event["threshold"])
        return 0.0

    def skip(self, optimizer: Any) -> None:
        """A GradScaler left a step out: what its window brought is given up on purpose."""
        self.note("skip", optimizer=self.index(optimizer))
        self._sums.clear()
        self._shares.clear()

    def _asked(self) -> int:
        """The accumulation steps that the script was told, read in its frames; 0 where they are not to be found."""
        frame = sys._getframe(1)
        while frame is not None:
            if self.is_own(frame):
                for space in (frame.f_locals, frame.f_globals):
                    for value in _settings(space):
                        return value
            frame = frame.f_back
        return 0


def _settings(space: Mapping[Any, Any]) -> Iterator[int]:
    """The values in a namespace, and in what holds settings there, whose names say accumulation steps."""
    spaces = [space, *(_vars(space[name]) for name in _HOLDERS if name in space)]
    for one in spaces:
        for name, value in one.items():
            if isinstance(name, str) and names.is_steps(name) and type(value) is int and value > 0:
                yield value


def _vars(value: object) -> Mapping[Any, Any]:
    if isinstance(value, dict):
        # The user's own dict: nobody knows its types.
        return value  # pyright: ignore[reportUnknownVariableType]
    return getattr(value, "__dict__", {})


def _is_elsewhere(device: object) -> bool:
    """True for a device that is not here: any GPU, where there is none."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.split(":")[0] == "cuda"
    return type(device) is int


def _taken(grad: torch.Tensor, drawn: torch.Tensor | None) -> torch.Tensor:
    # Of what is sharded over ranks, this rank has a part; it is not compared.
    own: torch.Tensor = getattr(grad, "to_local", lambda: grad)()
    flat = own.detach().reshape(-1)
    return flat if drawn is None else flat[drawn.to(flat.device)]


@cache
def _is_own(file: str) -> bool:
    """True for code that no library and not Python itself brings."""
    return not file.startswith(_LIBRARIES) and not any(word in file for word in _INSTALLED)
