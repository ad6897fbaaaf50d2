"""Functions of torch and einops on tensors: losses, conversions, sums, joins, arithmetic, reductions over ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

from accumlint.reading import frameworks
from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.calls.builtin import added_up
from accumlint.tracing.calls.call import Answer, Call
from accumlint.tracing.calls.numeric import word
from accumlint.tracing.gradients import tensors
from accumlint.tracing.parts import Parts
from accumlint.tracing.values import Library, Method, Number, Unknown, Value

# A group counts as one axis.
_AXIS = re.compile(r"\([^)]*\)|\S+")


def torch_functions(call: Call) -> Iterator[Callable[[Parts, Call], Answer]]:
    """What may model a call of a function of torch or einops, in the order in which it is asked."""
    last = call.last
    if call.path.startswith("einops."):
        if last in EINOPS and isinstance(call.first, Unknown):
            yield EINOPS[last]
        return
    if last == "Parameter" or call.kwargs.get("requires_grad") is True:
        yield _parameter
    if last in TORCH:
        yield TORCH[last]
    if "_foreach_" in last and "norm" not in last:
        yield _for_each
    if call.path.startswith("torch.nn.") and last[:1].isupper():
        yield _module


def _parameter(parts: Parts, call: Call) -> Value:
    """A tensor that is trained is a network of one parameter."""
    assigned = parts.program.parents.get(call.node)
    names = (p.dotted(a) for a in assigned.targets) if isinstance(assigned, p.Assign) else ()
    return Unknown(call.path, networks=frozenset({next(iter(names), call.path)}))


def _for_each(parts: Parts, call: Call) -> Value:
    """Gradients are multiplied, many at once."""
    for given in tensors.flat([call.first])[:1]:
        parts.updates.rescaled(given, "…", False, call.node)
    return None


def _module(parts: Parts, call: Call) -> Value:
    """A layer of torch's."""
    networks = parts.objects.networks_of(call.args)
    return parts.objects.made("model", "model", call.last, networks, call.node)


def _of_number(_: Parts, call: Call) -> Answer:
    """A tensor of a number, or of a list of one."""
    first = call.first
    if isinstance(first, list) and len(first) == 1:
        first = first[0]
    counts = isinstance(first, Number) and call.last in ("tensor", "as_tensor")
    return first if counts or isinstance(first, Unknown) else NotImplemented


def _is_tensor(_: Parts, call: Call) -> Answer:
    """Whether something is a tensor, which what a network gives is."""
    return True if isinstance(call.first, Unknown) and call.first.networks else NotImplemented


def _filled(_: Parts, call: Call) -> Answer:
    """A tensor of one zero or one, to which losses are added."""
    first = call.first
    short = isinstance(first, list | tuple) and len(first) <= 1
    if call.args and first not in (1, (), []) and not short:
        return NotImplemented
    return 0.0 if call.last == "zeros" else 1.0


def _backward(parts: Parts, call: Call) -> Answer:
    """`torch.autograd.backward(loss)`."""
    if not call.args:
        return NotImplemented
    subject = "torch.autograd"
    parts.losses.backward(call.first, "tensor", call.node, call.kwargs, subject=subject)
    return None


def _norm(parts: Parts, call: Call) -> Answer:
    """The norm of gradients.

    Over one dimension it is a number for each row: of the inputs' gradients, which are moved along them.
    """
    whole = "dim" not in call.kwargs and _is_gradient(call.first)
    if not whole and call.last != "get_total_norm":
        return NotImplemented
    parts.updates.norm(tensors.flat(call.args), call.node, call.path)
    return Unknown("norm")


def _sum_or_mean(parts: Parts, call: Call) -> Answer:
    """The sum or the mean of a tensor, or of a list of tensors."""
    first, mean = call.first, call.last == "mean"
    if isinstance(first, Unknown):
        over = call.argument(1, "dim", "axis")
        return (tensors.mean_over if mean else tensors.summed)(first, over, call.node)
    if not isinstance(first, list | tuple):
        return NotImplemented
    total = added_up(parts, first, call.node)
    if mean and first and isinstance(total, Unknown):
        return parts.tensors.linear("/", total, len(first), call.node)
    return total


def _join(parts: Parts, call: Call) -> Answer:
    """A stack of losses, about to be reduced: its mean is their mean."""
    first = call.first
    items = first if isinstance(first, list | tuple) else ()
    if not items or not all(isinstance(v, Unknown) and v.loss for v in items):
        return NotImplemented
    total = added_up(parts, first, call.node)
    return parts.tensors.linear("/", total, len(items), call.node)


def _pass(_: Parts, call: Call) -> Answer:
    """The tensor that is given, as far as its gradient goes."""
    return call.first if isinstance(call.first, Unknown) else NotImplemented


def _method(parts: Parts, call: Call) -> Answer:
    """What the tensor's method of the same name gives."""
    if not isinstance(call.first, Unknown):
        return NotImplemented
    return parts.apply(Method(call.first, call.last, ""), call.args[1:], call.kwargs, call.node)


def _chunk(parts: Parts, call: Call) -> Answer:
    """The pieces of a tensor."""
    if not isinstance(call.first, Unknown) or len(call.args) < 2:
        return NotImplemented
    pieces = parts.iteration.pieces(call.first, call.args[1])
    return pieces if pieces is not None else NotImplemented


def _times_or_over(parts: Parts, call: Call) -> Answer:
    """A product or a quotient."""
    if len(call.args) < 2:
        return NotImplemented
    op = "*" if call.last == "mul" else "/"
    return parts.tensors.linear(op, call.first, call.args[1], call.node)


def _grad(_: Parts, call: Call) -> Value:
    """Gradients that `torch.autograd.grad` returns, and adds to none."""
    return tensors.derived(
        call.path, *(a for a in tensors.flat(call.args) if isinstance(a, Unknown))
    )


def _is_gradient(value: Value) -> bool:
    return isinstance(value, Unknown) and value.text.endswith((".grad", ".grad.data"))


def all_reduce(parts: Parts, call: Call) -> Value:
    """A reduction over all ranks: of gradients, of a loss or a count that is shown, of anything else."""
    first, node, path = call.argument(0, "tensor"), call.node, call.path
    how = _over_ranks(call)
    averaged = how == "mean" or "mean" in path
    gradients = next(
        (a for a in tensors.flat([first]) if isinstance(a, Unknown) and a.parameters), None
    )
    if gradients is not None:
        # What is done to a buffer of gradients afterwards is not always seen.
        target = node.positional(0) if isinstance(node, p.Call) else None
        direct = _is_gradient(gradients) or any(
            isinstance(n, p.Attr) and n.name == "grad"
            for n in (p.walk_expr(target) if target is not None else ())
        )
        factor = Fraction(1) if how and direct else None
        parts.updates.rescaled(gradients, "ranks", True, node, factor, int(how == "sum"))
        parts.emit(t.Reduce(*parts.stamp(node, gradients.text), "gradients", averaged))
        return None
    what = "other"
    if isinstance(first, Unknown):
        what = "loss" if first.networks else ("count" if first.count else "other")
    summed = path.startswith("torch.distributed.") and not averaged
    if isinstance(first, Unknown) and first.loss and not first.networks and summed:
        first.terms = tensors.scaled(first, Fraction(1), t.OVER_RANKS, node).linear
    parts.emit(t.Reduce(*parts.stamp(node, word(first)), what, averaged))
    if not isinstance(first, Unknown):
        return None
    if "distributed.nn" in path:
        found = tensors.copied(first, node)
        found.over = f"{how} with gradient" if how else ""
        return found
    if path.endswith(("reduce_tensor", "all_reduce_mean")):
        return tensors.detached(first)
    if how:
        first.over = how
    return first


def _over_ranks(call: Call) -> str:
    """What torch's own `all_reduce` makes of the ranks' values: "sum", "mean", or "" for anything else."""
    given = [call.kwargs["op"]] if "op" in call.kwargs else call.args[1:2]
    shown = given[0].path.rpartition(".")[2] if given and isinstance(given[0], Library) else ""
    if not call.path.startswith("torch.distributed"):
        return ""
    return {"SUM": "sum", "AVG": "mean"}.get(shown, "" if given else "sum")


def _reduced(parts: Parts, call: Call) -> Answer:
    """The sum or mean over the axes that a pattern drops."""
    value, node = call.first, call.node
    assert isinstance(value, Unknown)
    pattern, how = call.argument(1, "pattern"), call.argument(2, "reduction")
    if isinstance(pattern, str) and how in ("mean", "sum") and (value.tensor or value.loss):
        over = _dropped(pattern)
        return (
            tensors.mean_over(value, over, node)
            if how == "mean"
            else tensors.summed(value, over, node)
        )
    found = tensors.derived(f"{value.text}.{how}(…)", value, node=node)
    found.counted = value.counted
    found.lost = parts.tensors.hides(value, True)
    return found


def _dropped(pattern: str) -> list[Value] | None:
    """The axes that are left out on the right of a pattern; None where none is left."""
    before, _, after = pattern.partition("->")
    kept = _AXIS.findall(after)
    return [i for i, axis in enumerate(_AXIS.findall(before)) if axis not in kept] if kept else None


def criterion(parts: Parts, call: Call) -> Value:
    """A loss module."""
    found = parts.objects.made("criterion", "criterion", call.last, frozenset(), call.node)
    found.reduction, found.varies = _reduction(call.kwargs), _varies(parts, call)
    return found


def loss(parts: Parts, call: Call) -> Value:
    """A loss of what it is given."""
    reduction, varies = _reduction(call.kwargs), _varies(parts, call)
    given = tensors.flat(call.given)
    found = parts.tensors.loss_of(f"{call.last}(…)", given, reduction, varies, call.node)
    if parts.state.no_grad:
        found.networks = frozenset()
    return found


def _reduction(kwargs: dict[str, Value]) -> str:
    """How a loss is reduced, as it is told to."""
    given = kwargs.get("reduction", "mean")
    if kwargs.get("reduce") is False:
        return "none"
    if kwargs.get("size_average") is False:
        return "sum"
    if given == "batchmean":
        return "mean"
    return given if isinstance(given, str) and given in ("mean", "sum", "none") else "unknown"


def _varies(parts: Parts, call: Call) -> str:
    """What leaves some targets out of a loss, so that how many count varies; "" for nothing."""
    kwargs = call.kwargs
    if call.last not in frameworks.COUNTED_LOSSES:
        return ""
    if "ignore_index" in kwargs:
        value = kwargs["ignore_index"]
        if value == -1 and not (parts.relevance.marks or parts.program.data_marks):
            # No label is -1 unless somebody writes it: the customary way to ignore nothing.
            return ""
        return f"`ignore_index={value}`" if isinstance(value, int) else "`ignore_index`"
    if parts.ignores:
        return "`-100` by default"
    return "`weight`" if kwargs.get("weight") is not None else ""


# What models a call of a function of torch, by its last name.
TORCH: Mapping[str, Callable[[Parts, Call], Answer]] = {
    "backward": _backward,
    "grad": _grad,
    "is_tensor": _is_tensor,
    **dict.fromkeys(("all_reduce", "all_reduce_coalesced", "reduce"), all_reduce),
    **dict.fromkeys(("argmax", "eq", "masked_select", "ne"), _method),
    **dict.fromkeys(("as_tensor", "FloatTensor", "from_numpy", "tensor"), _of_number),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), _join),
    **dict.fromkeys(("chunk", "tensor_split"), _chunk),
    **dict.fromkeys(
        ("clamp", "clamp_min", "maximum", "nan_to_num", "squeeze", "unsqueeze", "view_as_real"),
        _pass,
    ),
    **dict.fromkeys(("div", "mul", "true_divide"), _times_or_over),
    **dict.fromkeys(("get_total_norm", "norm", "vector_norm"), _norm),
    **dict.fromkeys(("mean", "sum"), _sum_or_mean),
    **dict.fromkeys(("ones", "zeros"), _filled),
}
# The same of einops, on a tensor.
EINOPS: Mapping[str, Callable[[Parts, Call], Answer]] = {
    "reduce": _reduced,
    **dict.fromkeys(("rearrange", "repeat"), _pass),
}
