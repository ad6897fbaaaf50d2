"""Plays a framework's trainer: what it gives a method for each micro-batch, and what it does with what that returns."""

from __future__ import annotations

from accumlint.reading import ir as p
from accumlint.reading.frameworks import CONTRACTS
from accumlint.reading.hooks import Driven
from accumlint.tracing import trace as t
from accumlint.tracing.calls.call import Call
from accumlint.tracing.parts import Parts
from accumlint.tracing.values import Closure, Object, Unknown, Value

VIA = "trainer"


class Trainer:
    """Goes backward, clips, steps and clears around a method, as its contract says."""

    def __init__(self, machine: Parts, driven: Driven, receiver: Value) -> None:
        self.machine = machine
        self.driven = driven
        function = driven.function
        self.steps = machine.steps()
        self.divisor = self.steps if driven.divides else 1
        traced = t.TrainingObject("optimizer", "optimizer", "", function, False)
        self.optimizer = Object("optimizer", traced)
        self.model: Value = None
        self.receiver = receiver
        if driven.hook.framework != "lightning" and isinstance(receiver, Object):
            self._equip(receiver)

    def _equip(self, receiver: Object) -> None:
        """Gives a trainer of the user's own what its framework makes for it."""
        function, attributes = self.driven.function, receiver.attributes
        model = attributes.get("model")
        if not isinstance(model, Object) or model.role != "model":
            model = self.machine.objects.symbol("model", "model", function)
        self.model = attributes["model"] = model
        traced = t.TrainingObject("accelerator", "self.accelerator", "", function, True)
        accelerator = Object("self.accelerator", traced, steps=self.divisor)
        attributes.setdefault("accelerator", accelerator)

    def given(self, number: int) -> dict[str, Value]:
        """The arguments of a call, the `number`th of its epoch."""
        machine, function = self.machine, self.driven.function
        batch = machine.fetch()
        kwargs: dict[str, Value] = {"**": None}
        home = machine.cross_file.homes[function.source]
        for position, param in enumerate(q for q in function.params[1:] if not q.star):
            if position == (0 if self.model is None else 1):
                kwargs[param.name] = Unknown(param.name, frozenset({batch}))
            elif position == 0:
                kwargs[param.name] = self.model
            elif self.model is None and param.name == batch_number(function):
                kwargs[param.name] = number
            elif param.default is not None:
                kwargs[param.name] = machine.cross_file.default(param.default, home)
        return kwargs

    def proceed(self, returned: Value, number: int, last: bool) -> None:
        """What follows a call: the backward pass, and at the boundary the update."""
        machine, hook, function = self.machine, self.driven.hook, self.driven.function
        if (end := self.driven.end) is not None:
            owner = self.receiver.cls if isinstance(self.receiver, Object) else None
            closure = Closure(end, None, owner)
            call = Call(end.name, [returned], {}, end)
            ended = machine.function_calls.invoke(closure, self.receiver, call)
            returned = returned if ended is None else ended
        loss = _loss_in(returned)
        if hook.goes_backward and loss is not None:
            place = machine.returned_at or function
            machine.losses.backward(loss, VIA, place, {}, self.divisor, hook.framework)
        if (number + 1) % self.steps == 0 or last:
            if hook.clips:
                machine.updates.clip([], VIA, function, hook.framework)
            machine.updates.step(self.optimizer, function, None, CONTRACTS[VIA])


def batch_number(function: p.Function) -> str:
    """The parameter in which Lightning gives the number of the micro-batch: the second, whatever it is called."""
    given = [param.name for param in function.params[1:] if not param.star]
    return given[1] if len(given) > 1 else ""


def _loss_in(returned: Value) -> Value:
    """The loss among what a method returns: itself, the first of several, or the entry `loss`."""
    match returned:
        case dict():
            return returned.get("loss")
        case list() | tuple():
            return returned[0] if returned else None
        case Unknown(attributes=attributes) if not returned.loss:
            return attributes.get("['loss']", returned)
        case _:
            return returned
