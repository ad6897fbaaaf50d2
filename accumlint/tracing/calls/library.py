"""Calls of imported functions: torch, its frameworks, the standard library."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from accumlint.reading import frameworks
from accumlint.reading import ir as p
from accumlint.reading.names import is_of_plugin
from accumlint.tracing import trace as t
from accumlint.tracing.calls.builtin import added_up, call_builtin, iterable, text_of
from accumlint.tracing.calls.einops import call_einops
from accumlint.tracing.calls.numeric import NUMERIC, numeric
from accumlint.tracing.gradients.tensors import (
    combined,
    copied,
    derived,
    detached,
    flat,
    mean_over,
    scaled,
    summed,
)
from accumlint.tracing.values import (
    Batch,
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

if TYPE_CHECKING:
    from accumlint.tracing.interpreter import Machine


_STEPS = "gradient_accumulation_steps"
_ITERABLES = frozenset(
    {"enumerate", "zip", "islice", "cycle", "map", "iter", "reversed", "sorted", "filter", "chain", "count", "range"}
)  # fmt: skip
_CONTEXTS = frozenset(
    {
        "suppress", "detect_anomaly", "profile", "record_function", "closing", "set_stream", "stream", "Join", "device",
        "sdp_kernel", "sdpa_kernel", "custom_amp", "profiler", "logging_redirect_tqdm", "set_detect_anomaly",
    }
)  # fmt: skip
# What gives a model or a function back as it is, as far as its gradient goes.
_KEEPING = frozenset(
    {"compile", "convert_sync_batchnorm", "DistributedOptimizer", "checkpoint_wrapper", "unwrap_model"}
)  # fmt: skip
# What makes a tensor of a number, or of a list of one.
_OF_NUMBERS = frozenset({"tensor", "as_tensor", "from_numpy", "FloatTensor"})
_JOINING = frozenset({"stack", "cat", "concat", "concatenate"})
# Functions of torch that hand their tensor on.
_PASSING = frozenset(
    {"clamp", "clamp_min", "nan_to_num", "squeeze", "unsqueeze", "view_as_real", "maximum"}
)


def call_library(
    machine: Machine, path: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
) -> Value:
    """What a call of the dotted `path` returns and does."""
    found = _called(machine, path, args, kwargs, node)
    if path.startswith("numpy.") and isinstance(found, Unknown) and found.networks:
        # Its arrays know of no graph.
        return detached(found)
    return found


def _called(
    machine: Machine, path: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
) -> Value:
    last = path.rpartition(".")[2]
    things = machine.things
    first = args[0] if args else None
    everything = flat([*args, *kwargs.values()])
    if "." not in path or path in ("collections.OrderedDict", "collections.defaultdict"):
        found = call_builtin(machine, last, args, kwargs, node)
        if found is not None:
            return found[0]
    if last in frameworks.WRAPPERS:
        return _wrapped(machine, last, args, kwargs, node)
    if last in frameworks.SCALERS:
        scaler = things.made("scaler", "scaler", last, frozenset(), node)
        scaler.enabled = kwargs.get("enabled", True) is not False
        return scaler
    if last in frameworks.NATIVE_SCALERS or (
        last in machine.program.imports.values() and last.endswith("Scaler")
    ):
        return things.made("scaler", "scaler", last, frozenset(), node)
    kind = frameworks.optimizer_kind(path)
    if kind or last in frameworks.OPTIMIZER_FACTORIES:
        if last in frameworks.OPTIMIZER_FACTORIES and "build" not in path and len(everything) == 0:
            return Unknown(path)
        return things.made("optimizer", "optimizer", kind, things.networks_of(everything), node)
    if last in frameworks.SCHEDULERS:
        return things.made("scheduler", "scheduler", last, frozenset(), node)
    if last in frameworks.LOADERS:
        return things.made("loader", "loader", last, frozenset(), node)
    if last in frameworks.CRITERIA:
        criterion = things.made("criterion", "criterion", last, frozenset(), node)
        criterion.reduction = _reduction(kwargs)
        criterion.varies = _varies(machine, last, kwargs)
        return criterion
    if last in frameworks.LOSSES:
        loss = machine.tensors.loss_of(
            f"{last}(…)", everything, _reduction(kwargs), _varies(machine, last, kwargs), node
        )
        if machine.state.no_grad:
            loss.networks = frozenset()
        return loss
    if last in frameworks.CLIPS:
        clipped = [a for a in everything if isinstance(a, Unknown | Object)]
        if _only_measures(node):
            things.machine.updating.norm(clipped, node, last)
        else:
            things.machine.updating.clip(clipped, "torch", node, last)
        return Unknown("norm", pending_batches(machine))
    if last == "Accelerator":
        return _accelerator(machine, kwargs, node)
    if last == "Fabric":
        return things.made("fabric", "fabric", last, frozenset(), node)
    if path.endswith("deepspeed.initialize"):
        return _deepspeed(machine, args, kwargs, node)
    if last in ("no_grad", "inference_mode"):
        return _no_grad(machine)
    if last == "set_grad_enabled":
        return _no_grad(machine) if first is False else Context("plain")
    if last == "ExitStack":
        stack = Context("stack")
        stack.enter = lambda _: stack
        stack.leave = lambda _: _unwind(stack)
        return stack
    if last == "nullcontext":
        return Context("plain", lambda _: first)
    if last in frameworks.AUTOCASTS:
        return machine.syncing.autocast(kwargs)
    if last in _CONTEXTS:
        return Context("plain")
    if last == "scale_loss" and isinstance(first, Unknown):
        loss = first
        return Context("plain", lambda _: loss)
    if last == "initialize" and "amp" in path:
        return things.machine.engines.passed(args)
    if last == "partial" and args:
        return Partial(args[0], args[1:], dict(kwargs))
    if last == "namedtuple" and len(args) > 1:
        fields = _fields(args[1])
        return Native(last, lambda given, named: record(fields, given, named, node))
    if last == "deepcopy" or (last == "copy" and "copy" in path):
        return _copied(machine, first, node)
    if last in _KEEPING and isinstance(first, Object | Closure | Bound):
        return first
    if last in _ITERABLES:
        return iterable(machine, last, args, kwargs)
    if last == "spawn":
        worker = first if first is not None else kwargs.get("fn")
        if isinstance(worker, Closure) and worker.function.params:
            return _spawned(machine, worker, args, kwargs, node)
    if last.endswith("trange") and args:
        return Lazy("range", args)
    if last in frameworks.WRAPPING_ITERABLES or last.lower().startswith("tqdm"):
        source = first if first is not None else kwargs.get("iterable")
        if source is not None:
            return source if isinstance(source, Lazy | list | tuple) else Lazy("iter", [source])
        return Unknown(path)
    if last == "mean" and isinstance(first, list) and first:
        average = _average(first, node)
        if average is not None:
            return average
    if last in NUMERIC and args and all(isinstance(a, Number) for a in flat(args)):
        return numeric(last, flat(args) if len(args) == 1 else args)
    if path.startswith(("torch", "dist.", "F.")):
        found = _torch(machine, path, last, args, kwargs, node)
        if found is not None:
            return found[0]
    if (found := call_einops(machine, path, args, kwargs, node)) is not None:
        return found[0]
    if last.startswith("all_reduce") or last in ("reduce_tensor", "all_reduce_mean"):
        return _all_reduce(machine, args, kwargs, node, path)
    if everything and all(isinstance(v, Number) for v in everything) and last in ("int", "float"):
        return numeric(last, args)
    return machine.unfollowed.call(path, Library(path), args, kwargs, node)


def _average(values: list[Value], node: p.Node) -> Unknown | None:
    """`np.mean(losses)`: the average of losses that were kept as numbers."""
    losses = [v for v in values if isinstance(v, Unknown) and v.loss and not v.networks]
    if len(losses) != len(values):
        return None
    share = Fraction(1, len(losses))
    terms = (term for loss in losses for term in scaled(loss, share, "", node).linear)
    return combined("mean(…)", tuple(terms), *losses, node=node)


def _spawned(
    machine: Machine, worker: Closure, args: list[Value], kwargs: dict[str, Value], node: p.Node
) -> Value:
    """`spawn(worker, args=(…), nprocs=n)`: each process calls the worker with its rank and the rest."""
    given = args[1] if len(args) > 1 else kwargs.get("args", ())
    rank = machine.invoking.parameter(worker.function.params[0], worker.function)
    rest = list(given) if isinstance(given, list | tuple) else []
    return machine.calling.apply(worker, [rank, *rest], {}, node)


def _wrapped(
    machine: Machine, last: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
) -> Value:
    wrapper = frameworks.WRAPPERS[last]
    given = (*args, kwargs.get("module"), kwargs.get("model"))
    model = next((a for a in given if isinstance(a, Object)), None)
    if model is None:
        first = args[0] if args else None
        networks = first.networks if isinstance(first, Unknown) else frozenset[str]()
        model = machine.things.made("model", "model", "", networks, node)
    if wrapper == "dp":
        return Object(model.text, model.thing, networks=model.networks, inner=model)
    for network in model.networks:
        machine.state.wrappers[network] = wrapper
    if wrapper == "fsdp2":
        model.wrapper = wrapper
        return model
    machine.state.wrapped.add(model)
    found = Object(model.text, model.thing, networks=model.networks, wrapper=wrapper, inner=model)
    if machine.symbols.get(model.text) is model:
        # Who is given something under the model's name is given the wrapper.
        machine.symbols[model.text] = found
    return found


def _accelerator(machine: Machine, kwargs: dict[str, Value], node: p.Node) -> Object:
    found = machine.things.made("accelerator", "accelerator", "Accelerator", frozenset(), node)
    steps = machine.naming.size(kwargs.get(_STEPS), _STEPS)
    if kwargs.get("step_scheduler_with_optimizer") is False:
        found.free_schedulers = True
    state = machine.state
    if isinstance(steps, int):
        found.steps = steps
        if steps > 1 and not state.asked:
            state.literal = steps
    elif steps is not None or "gradient_accumulation_plugin" in kwargs:
        found.steps = machine.scenario.steps
        state.asked = True
    elif any(is_of_plugin(p.render(item)) for item in machine.program.of(p.Item)):
        # Under DeepSpeed its engine divides, by the steps of the configuration that is read here.
        found.steps = machine.scenario.steps
    elif kwargs.keys() & {"deepspeed_plugin", "deepspeed_plugins"} or (
        "**" in kwargs and not _none_by_default(machine, node)
    ):
        # The steps may come from what cannot be read here.
        assert found.thing is not None
        found.thing = t.Thing("accelerator", found.thing.text, "Accelerator", node, False)
    machine.engines.accelerator = found
    return found


def _none_by_default(machine: Machine, node: p.Node) -> bool:
    """True for `Accelerator(**settings)`, where nothing is in `settings` unless a caller puts it there."""
    given = [a.value for a in node.args if a.star == "**"] if isinstance(node, p.Call) else []
    function = machine.program.function_around(node)
    empty = {
        param.name
        for param in (function.params if function is not None else ())
        if param.star == "**"
        or (param.default is not None and p.render(param.default) in ("{}", "dict()"))
    }
    return bool(given) and all(isinstance(v, p.Name) and v.id in empty for v in given)


def _deepspeed(
    machine: Machine, args: list[Value], kwargs: dict[str, Value], node: p.Node
) -> Value:
    model = kwargs.get(
        "model", next((a for a in args if isinstance(a, Object) and a.role == "model"), None)
    )
    networks = model.networks if isinstance(model, Object) else frozenset[str]()
    engine = machine.things.made(
        "engine", "engine", "deepspeed", networks or frozenset({"engine"}), node
    )
    machine.state.wrappers.update(dict.fromkeys(engine.networks, "deepspeed"))
    optimizer = Object(
        "optimizer", t.Thing("optimizer", "engine", "", node, False), networks=engine.networks
    )
    engine.attributes["optimizer"] = optimizer
    config = kwargs.get("config", kwargs.get("config_params"))
    steps = None
    # From the sizes of an update and of a micro-batch alone, DeepSpeed works the steps out.
    if isinstance(config, dict) and (_STEPS in config or "train_batch_size" not in config):
        steps = machine.naming.size(config.get(_STEPS, ""), _STEPS) or 1
    if isinstance(steps, int):
        engine.steps = steps
        if steps > 1 and not machine.state.asked:
            machine.state.literal = steps
    return (
        engine,
        optimizer,
        machine.things.symbol("loader", "training_dataloader", node),
        machine.things.symbol("scheduler", "lr_scheduler@deepspeed", node),
    )


def _no_grad(machine: Machine) -> Context:
    state = machine.state

    def enter(_: p.Node) -> Value:
        state.no_grad += 1
        return None

    def leave(_: p.Node) -> None:
        state.no_grad -= 1

    return Context("no_grad", enter, leave)


def _unwind(stack: Context) -> None:
    while stack.args:
        last = stack.args.pop()
        if isinstance(last, Native):
            last.call([], {})


def _fields(told: Value) -> list[str]:
    """The names that `namedtuple("Output", ["loss", "logits"])` or `namedtuple("Output", "loss logits")` is given."""
    if isinstance(told, str):
        return told.replace(",", " ").split()
    listed = told if isinstance(told, list | tuple) else ()
    return [name for name in listed if isinstance(name, str)]


def record(fields: list[str], given: list[Value], named: dict[str, Value], node: p.Node) -> Unknown:
    """A named tuple: what it holds goes by a number and by a name."""
    found = derived("namedtuple(…)", *given, *named.values(), node=node)
    for position, name in enumerate(fields):
        value = given[position] if position < len(given) else named.get(name)
        found.attributes[name] = found.attributes[f"[{position}]"] = value
    return found


def _copied(machine: Machine, value: Value, node: p.Node) -> Value:
    if isinstance(value, Object) and value.role == "model":
        return machine.things.made("model", f"{value.text} copy", "", frozenset(), node)
    if isinstance(value, list):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    return value


def _torch(
    machine: Machine,
    path: str,
    last: str,
    args: list[Value],
    kwargs: dict[str, Value],
    node: p.Node,
) -> tuple[Value] | None:
    first = args[0] if args else None
    if last == "Parameter" or kwargs.get("requires_grad") is True:
        # A tensor that is trained is a network of one parameter.
        assigned = machine.program.parents.get(node)
        names_ = (p.dotted(a) for a in assigned.targets) if isinstance(assigned, p.Assign) else ()
        return (Unknown(path, networks=frozenset({next(iter(names_), path)})),)
    if last in _OF_NUMBERS and isinstance(first, list) and len(first) == 1:
        first = first[0]
    if last in ("tensor", "as_tensor") and isinstance(first, Number):
        return (first,)
    if last == "is_tensor" and isinstance(first, Unknown) and first.networks:
        return (True,)
    if last in ("zeros", "ones") and (
        not args or first in (1, (), []) or (isinstance(first, list | tuple) and len(first) <= 1)
    ):
        return (0.0 if last == "zeros" else 1.0,)
    if last in _OF_NUMBERS and isinstance(first, Unknown):
        return (first,)
    if last == "backward" and args:
        machine.losses.backward(first, "tensor", node, kwargs, subject="torch.autograd")
        return (None,)
    # Over one dimension it is a number for each row: of the inputs' gradients, which are moved along them.
    whole = last in ("norm", "vector_norm") and "dim" not in kwargs
    if (whole and _is_gradient(first)) or last == "get_total_norm":
        machine.updating.norm(flat(args), node, path)
        return (Unknown("norm"),)
    if last in ("sum", "mean") and isinstance(first, Unknown):
        over = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
        return ((summed if last == "sum" else mean_over)(first, over, node),)
    if last in ("mean", "sum") and isinstance(first, list | tuple):
        total = added_up(machine, first, node)
        if last == "mean" and first and isinstance(total, Unknown):
            total = machine.tensors.linear("/", total, len(first), node)
        return (total,)
    if last in _JOINING and isinstance(first, list | tuple) and first:
        losses = [v for v in first if isinstance(v, Unknown) and v.loss]
        if len(losses) == len(first):
            # A stack of losses, about to be reduced: its mean is their mean.
            total = added_up(machine, first, node)
            return (machine.tensors.linear("/", total, len(first), node),)
        return None
    if last in _PASSING and isinstance(first, Unknown):
        return (first,)
    if last in ("eq", "ne", "argmax", "masked_select") and isinstance(first, Unknown):
        return (machine.unfollowed.method(first, last, args[1:], kwargs, node),)
    if last in ("chunk", "tensor_split") and isinstance(first, Unknown) and len(args) > 1:
        pieces = machine.iterating.pieces(first, args[1])
        return (pieces,) if pieces is not None else None
    if last in ("div", "mul", "true_divide") and len(args) > 1:
        return (machine.tensors.linear("/" if last != "mul" else "*", first, args[1], node),)
    if "_foreach_" in last and "norm" not in last:
        for given in flat([first])[:1]:
            machine.updating.rescaled(given, "…", False, node)
        return (None,)
    if last in ("all_reduce", "reduce", "all_reduce_coalesced"):
        return (_all_reduce(machine, args, kwargs, node, path),)
    if path.startswith("torch.nn.") and last[:1].isupper():
        networks = machine.things.networks_of(args)
        return (machine.things.made("model", "model", last, networks, node),)
    if last == "grad":
        return (derived(path, *[a for a in flat(args) if isinstance(a, Unknown)]),)
    return None


def _is_gradient(value: Value) -> bool:
    return isinstance(value, Unknown) and value.text.endswith((".grad", ".grad.data"))


def _all_reduce(
    machine: Machine, args: list[Value], kwargs: dict[str, Value], node: p.Node, path: str
) -> Value:
    first = args[0] if args else kwargs.get("tensor")
    how = _over_ranks(path, args[1:], kwargs)
    averaged = how == "mean" or "mean" in path
    gradients = next((a for a in flat([first]) if isinstance(a, Unknown) and a.parameters), None)
    if gradients is not None:
        # What is done to a buffer of gradients afterwards is not always seen.
        direct = _is_gradient(gradients) or any(
            isinstance(n, p.Attr) and n.name == "grad" for n in _first_argument(node)
        )
        factor = Fraction(1) if how and direct else None
        machine.updating.rescaled(gradients, "ranks", True, node, factor, int(how == "sum"))
        machine.emit(t.Reduce(*machine.stamp(node, gradients.text), "gradients", averaged))
        return None
    what = "other"
    if isinstance(first, Unknown):
        what = "loss" if first.networks else ("count" if first.count else "other")
    summed = path.startswith("torch.distributed.") and not averaged
    if isinstance(first, Unknown) and first.loss and not first.networks and summed:
        first.terms = scaled(first, Fraction(1), t.OVER_RANKS, node).linear
    machine.emit(t.Reduce(*machine.stamp(node, text_of(first)), what, averaged))
    if not isinstance(first, Unknown):
        target = node.positional(0) if isinstance(node, p.Call) else None
        if how and isinstance(first, Number) and isinstance(target, p.Name):
            # What the other ranks add to a plain number is theirs to know.
            machine.bind(target, Unknown(target.id), node)
        return None
    if "distributed.nn" in path:
        found = copied(first, node)
        found.over = f"{how} with gradient" if how else ""
        return found
    if path.endswith(("reduce_tensor", "all_reduce_mean")):
        return detached(first)
    if how:
        first.over = how
    return first


def _first_argument(node: p.Node) -> list[p.Node]:
    first = node.positional(0) if isinstance(node, p.Call) else None
    return list(p.walk_expr(first)) if first is not None else []


def _over_ranks(path: str, args: list[Value], kwargs: dict[str, Value]) -> str:
    """What torch's own `all_reduce` makes of the ranks' values: "sum", "mean", or "" for anything else."""
    given = [kwargs["op"]] if "op" in kwargs else args[:1]
    shown = given[0].path.rpartition(".")[2] if given and isinstance(given[0], Library) else ""
    if not path.startswith("torch.distributed"):
        return ""
    return {"SUM": "sum", "AVG": "mean"}.get(shown, "" if given else "sum")


def _only_measures(node: p.Node) -> bool:
    """True for a clip without a limit, which is a way to ask for the norm."""
    given = [p.render(a.value) for a in node.args] if isinstance(node, p.Call) else []
    return any(text.endswith(".inf") or "'inf'" in text for text in given)


def pending_batches(machine: Machine) -> frozenset[Batch]:
    """A gradient norm depends on the data: a guard on it is a guard on the data."""
    loops = machine.state.loops
    return frozenset({machine.members.piece_of_iteration()}) if loops else frozenset[Batch]()


def _reduction(kwargs: dict[str, Value]) -> str:
    given = kwargs.get("reduction", "mean")
    if kwargs.get("reduce") is False:
        return "none"
    if kwargs.get("size_average") is False:
        return "sum"
    if given == "batchmean":
        return "mean"
    return given if isinstance(given, str) and given in ("mean", "sum", "none") else "unknown"


def _varies(machine: Machine, name: str, kwargs: dict[str, Value]) -> str:
    if name not in frameworks.COUNTED_LOSSES:
        return ""
    if "ignore_index" in kwargs:
        value = kwargs["ignore_index"]
        if value == -1 and not machine.relevance.marks:
            # No label is -1 unless somebody writes it: the customary way to ignore nothing.
            return ""
        return f"`ignore_index={value}`" if isinstance(value, int) else "`ignore_index`"
    if machine.ignores:
        return "`-100` by default"
    return "`weight`" if kwargs.get("weight") is not None else ""
