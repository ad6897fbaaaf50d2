"""Calls a function that does one micro-batch as its framework would, again and again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.gradient_slice import Relevance, key
from accumlint.tracing import trace as t
from accumlint.tracing.calls.call import Call
from accumlint.tracing.parts import Parts
from accumlint.tracing.state import Loop
from accumlint.tracing.trainers import Trainer, batch_number
from accumlint.tracing.values import Closure, Lazy, Object, Unknown, Value

_COUNTERS = frozenset(
    {
        "batch_idx", "batch_index", "step", "i", "idx", "it", "iteration", "n_iter", "iter_num", "curr_step",
        "current_step", "global_step",
    }
)  # fmt: skip
_DATA = (
    "batch", "data", "input", "image", "sample", "target", "label", "obs", "text", "audio", "token", "mask", "img",
    "x", "y", "loss", "feature", "video",
)  # fmt: skip


def run_through(machine: Parts, closure: Closure, receiver: Value, function: p.Function) -> None:
    """A function that trains runs once, to its end where it hands out how far it is (`yield`)."""
    call = Call(function.name, [], {"**": None}, function)
    made = machine.function_calls.invoke(closure, receiver, call)
    if isinstance(made, Lazy) and made.kind == "generator" and made.closure is not None:
        call = Call(function.name, [], made.kwargs, function)
        machine.function_calls.run_generator(made.closure, call, lambda _: None)


def repeat(
    machine: Parts,
    closure: Closure,
    receiver: Value,
    function: p.Function,
    trainer: Trainer | None = None,
) -> None:
    """A function that does one micro-batch is called again and again with fresh data, by its trainer if it has one."""
    # A trainer steps at the end of an epoch, so that nothing is left for the next one.
    calls = machine.scenario.length * (2 if trainer is None else 1)
    numbered = _batch_number(machine, closure)
    epoch = machine.scenario.length if numbered else calls
    if isinstance(receiver, Object):
        # Lightning tells a module how many there will be.
        machine.symbols[f"{receiver.text}.trainer.num_training_batches"] = epoch
    loop = Loop(function, 0, trainer is not None or epoch < calls)
    machine.state.loops.append(loop)
    for call in range(calls):
        if call == 1 and trainer is None and runs_once(function, machine):
            break
        number = call % epoch
        machine.state.epoch += loop.loader and number == 0
        machine.state.last.append(loop.loader and number + 1 == epoch)
        loop.index += 1
        iterations = machine.borders.graph.iterations
        machine.symbols.update(dict.fromkeys(iterations, number + 1))
        kwargs = trainer.given(number) if trainer else _given(machine, function, number, numbered)
        called = Call(function.name, [], kwargs, function)
        value = machine.function_calls.invoke(closure, receiver, called)
        if trainer is not None:
            trainer.proceed(value, number, last=number + 1 == epoch)
        if machine.state.last.pop():
            _end_epoch(machine, closure, receiver, epoch)
    machine.state.loops.pop()


def _given(machine: Parts, function: p.Function, number: int, numbered: str) -> dict[str, Value]:
    """What a framework gives a step for the `number`th micro-batch: new data, and the number in `numbered`."""
    kwargs: dict[str, Value] = {"**": None}
    batch = machine.fetch()
    known = (*machine.borders.graph.guarding, *machine.cross_file.guarding)
    ending = ending_flags(function, known, machine.relevance)
    for param in function.params:
        if param.name in ("self", "cls") or param.star:
            continue
        low = param.name.lower()
        if param.name == numbered or low in _COUNTERS:
            # Whoever calls it counts so that whole windows come out, as far as is known.
            kwargs[param.name] = number + (
                param.name != numbered and _from_one(function, param.name)
            )
        elif param.name in ending:
            kwargs[param.name] = (number + 1) % machine.scenario.steps == 0
        elif (
            not machine.roles.of(param.name)
            and not machine.roles.is_steps(param.name)
            and _is_data(low)
        ):
            given = Unknown(param.name, frozenset({batch}))
            # Whoever made a loss that is handed in may have divided it.
            given.loss = given.lost = machine.roles.file.is_loss(param.name)
            kwargs[param.name] = given
    return kwargs


def _from_one(function: p.Function, name: str) -> bool:
    """True where a function asks a number for `number % steps == 0`, and never for `(number + 1) % steps`."""
    left = [n.left for n in p.walk(function.body) if isinstance(n, p.Binary) and n.op == "%"]
    return any(isinstance(x, p.Name) and x.id == name for x in left) and not any(
        isinstance(x, p.Binary) and isinstance(x.left, p.Name) and x.left.id == name for x in left
    )


def ending_flags(
    function: p.Function, known: Iterable[p.Function], slice_: Relevance
) -> frozenset[str]:
    """The parameters without which a function goes backward, and neither steps nor clears: its callers accumulate.

    Those that it hands on to a `known` function as such a parameter are, too.
    """
    if not function.params:
        return frozenset()
    found = set(_guarding(function, slice_))
    calls: dict[str, list[p.Call]] = {}
    for node in p.walk(function.body):
        if isinstance(node, p.Call):
            calls.setdefault(p.dotted(node.func).rpartition(".")[2], []).append(node)
    for callee in (f for f in known if f.name in calls):
        flags = _guarding(callee, slice_)
        places = [param.name for param in callee.params if param.name not in ("self", "cls")]
        for call in calls[callee.name] if flags else ():
            for flag in flags:
                given = call.keyword(flag) or call.positional(places.index(flag))
                found.update({given.id} if isinstance(given, p.Name) else ())
    return frozenset(found) & {param.name for param in function.params}


def _guarding(function: p.Function, slice_: Relevance) -> frozenset[str]:
    """The parameters that guard a function's step and clearing, and not its backward."""
    guarded: dict[str, list[p.Stmt]] = {}
    for name, body in function.guarded:
        if slice_.backwards.isdisjoint(body):
            guarded.setdefault(name, []).extend(body)
    return frozenset(
        name
        for name, body in guarded.items()
        if not slice_.stepping.isdisjoint(body)
        and any(isinstance(n, p.Attr) and names.is_clearing(n.name) for n in p.walk(tuple(body)))
    )


def _end_epoch(machine: Parts, closure: Closure, receiver: Value, length: int) -> None:
    """The end of a pass over the data, with what the module does there itself."""
    for name in ("on_train_epoch_end", "training_epoch_end"):
        hook = machine.cross_file.find_method(closure.owner, name) if closure.owner else None
        if hook is not None:
            call = Call(name, [], {"**": None}, hook.function)
            machine.function_calls.invoke(hook, receiver, call)
    stamp = machine.stamp(closure.function, closure.function.name)
    machine.emit(t.EpochEnd(*stamp, machine.state.ledger.pending(), length))


def _is_data(name: str) -> bool:
    return any(w == name or (len(w) > 1 and w in name) for w in _DATA)


def _batch_number(machine: Parts, closure: Closure) -> str:
    """The parameter in which Lightning gives a step the number of the micro-batch in its epoch, "" for other steps."""
    function, owner = closure.function, closure.owner
    if function.name != "training_step" or owner is None:
        return ""
    module = "LightningModule" in machine.cross_file.all_bases(owner)
    return batch_number(function) if module else ""


# What only a whole run does.
_SETTING_UP = (
    "deepspeed.initialize", "accelerator.prepare", "Accelerator", "fabric.launch", "Fabric",
)  # fmt: skip


def runs_once(function: p.Function, machine: Parts) -> bool:
    """True for a test, and for a function that makes its own optimizer or engine: another call trains another model."""
    if function.name.startswith("test") or any("fixture" in d for d in function.decorators):
        return True
    if any(call.endswith(_SETTING_UP) for call in function.calls):
        return True
    made = {o.traced.node for o in machine.state.ledger.optimizers if o.traced and o.traced.certain}
    return any(node in made for node in p.walk(function.body))


def counted_by_callers(machine: Parts, closure: Closure, function: p.Function) -> Iterator[str]:
    """The attributes that are counted up around the calls of a method: nobody does while the method runs alone.

    Either where its class or a subclass calls it, by way of other methods too, or by a method that is there for whoever
    calls both.
    """
    cross_file = machine.cross_file
    lineage = cross_file.lineage(closure.owner) if closure.owner else []
    heirs = (
        c for c in machine.program.classes.values() if closure.owner in cross_file.lineage(c)[1:]
    )
    methods = [m for cls in dict.fromkeys((*lineage, *heirs)) for m in cls.methods.values()]
    graph = machine.borders.graph
    calling = graph.callers(methods, function)
    alone = (m for m in methods if not graph.named(key(m)) and m is not function)
    beside = {m for m in alone if not loops(m, machine.relevance)}
    inside = {name for m in methods if m not in beside for name in graph.raised(m)}
    for method in methods:
        if method in calling:
            yield from graph.raised(method)
        elif method in beside:
            yield from (name for name in graph.raised(method) if name not in inside)


def loops(function: p.Function, slice_: Relevance) -> bool:
    return any(
        isinstance(n, p.For | p.While) and n in slice_.backwards for n in p.walk(function.body)
    )
