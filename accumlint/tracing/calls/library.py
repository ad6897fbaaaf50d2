"""Imported functions and classes: those of torch and its frameworks that make something, and the standard library's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial

from accumlint.reading import frameworks
from accumlint.reading import ir as p
from accumlint.reading.names import is_of_plugin
from accumlint.tracing import trace as t
from accumlint.tracing.calls.builtin import BUILTINS, ITERABLES
from accumlint.tracing.calls.call import Answer, Call
from accumlint.tracing.calls.containers import record
from accumlint.tracing.calls.numeric import NUMERIC, numeric
from accumlint.tracing.calls.torch_functions import all_reduce, criterion, loss, torch_functions
from accumlint.tracing.gradients.tensors import combined, flat, scaled
from accumlint.tracing.parts import Parts
from accumlint.tracing.values import (
    Bound,
    Closure,
    Context,
    Lazy,
    Library,
    Native,
    Number,
    Object,
    Partial,
    Unknown,
    Value,
)  # fmt: skip

_STEPS = "gradient_accumulation_steps"


def call_library(parts: Parts, call: Call) -> Value:
    """What a call of something imported or built in returns and does, by its dotted path."""
    for handler in _handlers(parts, call):
        found = handler(parts, call)
        if found is not NotImplemented:
            return found
    return parts.opaque_call(Library(call.path), call)


def _handlers(parts: Parts, call: Call) -> Iterator[Callable[[Parts, Call], Answer]]:
    """What may model a call, in the order in which it is asked."""
    path, last = call.path, call.last
    if last in BUILTINS and (
        "." not in path or path in ("collections.OrderedDict", "collections.defaultdict")
    ):
        yield BUILTINS[last]
    handler = LIBRARY.get(last)
    if handler not in (_wrapper, _scaler) and frameworks.optimizer_kind(path):
        # Whatever else it is called: a module of optimizers holds it.
        yield _optimizer
    elif handler is not None:
        yield handler
    elif last.endswith("Scaler") and last in parts.program.imports.values():
        yield _scaler
    elif (last.endswith("trange") and call.args) or last.lower().startswith("tqdm"):
        yield _progress
    if path.startswith(("torch", "dist.", "F.", "einops.")):
        yield from torch_functions(call)
    if last.startswith("all_reduce"):
        yield all_reduce


# What makes something with a role


def _wrapper(parts: Parts, call: Call) -> Value:
    """A model in a wrapper that reduces its gradients, or shards it."""
    wrapper = frameworks.WRAPPERS[call.last]
    given = (*call.args, call.kwargs.get("module"), call.kwargs.get("model"))
    model = next((a for a in given if isinstance(a, Object)), None)
    if model is None:
        first = call.first
        networks = first.networks if isinstance(first, Unknown) else frozenset[str]()
        model = parts.objects.made("model", "model", "", networks, call.node)
    if wrapper == "dp":
        return Object(model.text, model.traced, networks=model.networks, inner=model)
    for network in model.networks:
        parts.state.wrappers[network] = wrapper
    if wrapper == "fsdp2":
        model.wrapper = wrapper
        return model
    parts.state.wrapped.add(model)
    found = Object(model.text, model.traced, networks=model.networks, wrapper=wrapper, inner=model)
    if parts.symbols.get(model.text) is model:
        # Who is given something under the model's name is given the wrapper.
        parts.symbols[model.text] = found
    return found


def _made(parts: Parts, call: Call, role: str) -> Object:
    """Something of a role, of which nothing else matters."""
    return parts.objects.made(role, role, call.last, frozenset(), call.node)


def _scaler(parts: Parts, call: Call) -> Value:
    """A scaler, which may be told to do nothing; one of a project's does what it does."""
    scaler = _made(parts, call, "scaler")
    if call.last in frameworks.SCALERS:
        scaler.enabled = call.kwargs.get("enabled", True)
    return scaler


def _optimizer(parts: Parts, call: Call) -> Value:
    """An optimizer of the parameters that it is given."""
    objects, given = parts.objects, flat(call.given)
    kind = frameworks.optimizer_kind(call.path)
    if not kind and not given and "build" not in call.path:
        return Unknown(call.path)
    return objects.made("optimizer", "optimizer", kind, objects.networks_of(given), call.node)


def _accelerator(parts: Parts, call: Call) -> Value:
    """An accelerator, with the steps by which it divides."""
    found, kwargs = _made(parts, call, "accelerator"), call.kwargs
    steps = kwargs.get(_STEPS)
    if steps != 1 or "accumulate" in parts.program.calls:
        # One that is told 1 and never counts divides by 1, whatever windows the loop has.
        steps = parts.resolver.size(steps, _STEPS)
    if kwargs.get("step_scheduler_with_optimizer") is False:
        found.free_schedulers = True
    state = parts.state
    if isinstance(steps, int):
        found.steps = steps
        if steps > 1 and not state.asked:
            state.literal = steps
    elif steps is not None or "gradient_accumulation_plugin" in kwargs:
        found.steps = parts.steps()
    elif any(is_of_plugin(p.render(item)) for item in parts.program.of(p.Item)):
        # Under DeepSpeed its engine divides, by the steps of the configuration that is read here.
        found.steps = parts.scenario.steps
    elif kwargs.keys() & {"deepspeed_plugin", "deepspeed_plugins"} or (
        "**" in kwargs and not _none_by_default(parts, call.node)
    ):
        # The steps may come from what cannot be read here.
        assert found.traced is not None
        found.traced = t.TrainingObject(
            "accelerator", found.traced.text, "Accelerator", call.node, False
        )
    parts.gating.accelerator = found
    return found


def _none_by_default(parts: Parts, node: p.Node) -> bool:
    """True for `Accelerator(**settings)`, where nothing is in `settings` unless a caller puts it there."""
    given = [a.value for a in node.args if a.star == "**"] if isinstance(node, p.Call) else []
    function = parts.program.function_around(node)
    empty = {
        param.name
        for param in (function.params if function is not None else ())
        if param.star == "**"
        or (param.default is not None and p.render(param.default) in ("{}", "dict()"))
    }
    return bool(given) and all(isinstance(v, p.Name) and v.id in empty for v in given)


def _initialize(parts: Parts, call: Call) -> Answer:
    """DeepSpeed's engine, with the steps by which it divides; apex's `amp` gives back what it is given."""
    if not call.path.endswith("deepspeed.initialize"):
        return parts.engines.passed(call.args) if "amp" in call.path else NotImplemented
    kwargs, node = call.kwargs, call.node
    models = (a for a in call.args if isinstance(a, Object) and a.role == "model")
    model = kwargs.get("model", next(models, None))
    networks = model.networks if isinstance(model, Object) else frozenset[str]()
    engine = parts.objects.made(
        "engine", "engine", "deepspeed", networks or frozenset({"engine"}), node
    )
    parts.state.wrappers.update(dict.fromkeys(engine.networks, "deepspeed"))
    optimizer = Object(
        "optimizer",
        t.TrainingObject("optimizer", "engine", "", node, False),
        networks=engine.networks,
    )
    engine.attributes["optimizer"] = optimizer
    config = kwargs.get("config", kwargs.get("config_params"))
    steps = None
    # From the sizes of an update and of a micro-batch alone, DeepSpeed works the steps out.
    if isinstance(config, dict) and (_STEPS in config or "train_batch_size" not in config):
        steps = parts.resolver.size(config.get(_STEPS, ""), _STEPS) or 1
    if isinstance(steps, int):
        engine.steps = steps
        if steps > 1 and not parts.state.asked:
            parts.state.literal = steps
    return (
        engine,
        optimizer,
        parts.objects.symbol("loader", "training_dataloader", node),
        parts.objects.symbol("scheduler", "lr_scheduler@deepspeed", node),
    )


# What is done to gradients, and around them


def _clip(parts: Parts, call: Call) -> Value:
    """Gradients are clipped; without a limit they are only measured."""
    clipped = [a for a in flat(call.given) if isinstance(a, Unknown | Object)]
    if _only_measures(call.node):
        parts.updates.norm(clipped, call.node, call.last)
    else:
        parts.updates.clip(clipped, "torch", call.node, call.last)
    return parts.updates.clipped_norm()


def _only_measures(node: p.Node) -> bool:
    """True for a clip without a limit, which is a way to ask for the norm."""
    given = [p.render(a.value) for a in node.args] if isinstance(node, p.Call) else []
    return any(text.endswith(".inf") or "'inf'" in text for text in given)


def _no_grad(parts: Parts, call: Call) -> Value:
    """What is computed inside has no graph."""
    state = parts.state
    if call.last == "set_grad_enabled" and call.first is not False:
        return Context("plain")

    def enter(_: p.Node) -> Value:
        state.no_grad += 1
        return None

    def leave(_: p.Node) -> None:
        state.no_grad -= 1

    return Context("no_grad", enter, leave)


def _exit_stack(_: Parts, __: Call) -> Value:
    """A stack of contexts, left in the order in which they are on it."""
    stack = Context("stack")

    def leave(_: p.Node) -> None:
        while stack.args:
            last = stack.args.pop()
            if isinstance(last, Native):
                last.call([], {})

    stack.enter = lambda _: stack
    stack.leave = leave
    return stack


def _autocast(parts: Parts, call: Call) -> Value:
    """What is computed inside is of a lower precision."""
    return parts.sync_contexts.autocast(call.kwargs)


def _context(_: Parts, call: Call) -> Answer:
    """A context that no gradient hears of; some give what they are given, as apex does with the loss."""
    first = call.first if call.last in ("nullcontext", "scale_loss") else None
    if call.last == "scale_loss" and not isinstance(first, Unknown):
        return NotImplemented
    return Context("plain", lambda _: first)


# The standard library, numpy and progress bars


def _partial(_: Parts, call: Call) -> Answer:
    """A function with some arguments."""
    if not call.args:
        return NotImplemented
    return Partial(call.args[0], call.args[1:], dict(call.kwargs))


def _namedtuple(_: Parts, call: Call) -> Answer:
    """A class of named tuples."""
    if len(call.args) < 2:
        return NotImplemented
    fields = _fields(call.args[1])
    return Native(call.last, lambda given, named: record(fields, given, named, call.node))


def _fields(told: Value) -> list[str]:
    """The names that `namedtuple("Output", ["loss", "logits"])` or `namedtuple("Output", "loss logits")` is given."""
    if isinstance(told, str):
        return told.replace(",", " ").split()
    listed = told if isinstance(told, list | tuple) else ()
    return [name for name in listed if isinstance(name, str)]


def _copy(parts: Parts, call: Call) -> Value:
    """A copy; of a model, another model."""
    match call.first:
        case Object(role="model") as model:
            text = f"{model.text} copy"
            return parts.objects.made("model", text, "", frozenset(), call.node)
        case list() as items:
            return list(items)
        case dict() as table:
            return dict(table)
        case first:
            return first


def _keep(_: Parts, call: Call) -> Answer:
    """A model or a function as it is, as far as its gradient goes."""
    return call.first if isinstance(call.first, Object | Closure | Bound) else NotImplemented


def _spawn(parts: Parts, call: Call) -> Answer:
    """`spawn(worker, args=(…), nprocs=n)`: each process calls the worker with its rank and the rest."""
    worker, given = call.argument(0, "fn"), call.argument(1, "args")
    if not isinstance(worker, Closure) or not worker.function.params:
        return NotImplemented
    rank = parts.function_calls.parameter(worker.function.params[0], worker.function)
    rest = given if isinstance(given, list | tuple) else ()
    return parts.apply(worker, [rank, *rest], {}, call.node)


def _progress(_: Parts, call: Call) -> Value:
    """What goes through an iterable and shows how far it has come."""
    if call.last.endswith("trange") and call.args:
        return Lazy("range", call.args)
    source = call.argument(0, "iterable")
    if source is None:
        return Unknown(call.path)
    return source if isinstance(source, Lazy | list | tuple) else Lazy("iter", [source])


def _mean(_: Parts, call: Call) -> Answer:
    """`np.mean(losses)`: the average of losses that were kept as numbers."""
    values = call.first if isinstance(call.first, list) else []
    losses = [v for v in values if isinstance(v, Unknown) and v.loss and not v.networks]
    if not losses or len(losses) != len(values):
        return NotImplemented
    share = Fraction(1, len(losses))
    terms = (term for loss in losses for term in scaled(loss, share, "", call.node).linear)
    return combined("mean(…)", tuple(terms), *losses, node=call.node)


def _of_numbers(_: Parts, call: Call) -> Answer:
    """A function of numbers, or of one list of them."""
    numbers = flat(call.args)
    if not call.args or not all(isinstance(a, Number) for a in numbers):
        return NotImplemented
    return numeric(call.last, numbers if len(call.args) == 1 else call.args)


def _converted(_: Parts, call: Call) -> Answer:
    """A number as numpy's."""
    given = flat(call.given)
    known = given and all(isinstance(v, Number) for v in given)
    return numeric(call.last, call.args) if known else NotImplemented


# What models a call of something imported, by its last name; what it leaves to others goes on in `_handlers`.
LIBRARY: Mapping[str, Callable[[Parts, Call], Answer]] = {
    **dict.fromkeys(frameworks.WRAPPERS, _wrapper),
    **dict.fromkeys(frameworks.SCALERS | frameworks.NATIVE_SCALERS, _scaler),
    **dict.fromkeys(frameworks.OPTIMIZER_FACTORIES, _optimizer),
    **dict.fromkeys(frameworks.SCHEDULERS, partial(_made, role="scheduler")),
    **dict.fromkeys(frameworks.LOADERS, partial(_made, role="loader")),
    **dict.fromkeys(frameworks.CRITERIA, criterion),
    **dict.fromkeys(frameworks.LOSSES, loss),
    "Accelerator": _accelerator,
    "Fabric": partial(_made, role="fabric"),
    "initialize": _initialize,
    **dict.fromkeys(frameworks.CLIPS, _clip),
    **dict.fromkeys(("no_grad", "inference_mode", "set_grad_enabled"), _no_grad),
    "ExitStack": _exit_stack,
    **dict.fromkeys(frameworks.AUTOCASTS, _autocast),
    "nullcontext": _context,
    "scale_loss": _context,
    **dict.fromkeys(
        ("suppress", "detect_anomaly", "profile", "record_function", "closing", "set_stream", "stream", "Join",
         "device", "sdp_kernel", "sdpa_kernel", "custom_amp", "profiler", "logging_redirect_tqdm",
         "set_detect_anomaly"),
        _context,
    ),
    "partial": _partial,
    "namedtuple": _namedtuple,
    **dict.fromkeys(("copy", "deepcopy"), _copy),
    **dict.fromkeys(
        ("compile", "convert_sync_batchnorm", "DistributedOptimizer", "checkpoint_wrapper", "unwrap_model"), _keep
    ),
    **ITERABLES,
    "spawn": _spawn,
    **dict.fromkeys(frameworks.WRAPPING_ITERABLES, _progress),
    "mean": _mean,
    **dict.fromkeys(NUMERIC, _of_numbers),
    **dict.fromkeys(("int", "float"), _converted),
    "reduce_tensor": all_reduce,
}  # fmt: skip
