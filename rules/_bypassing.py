"""Losses that a model makes behind the back of Accelerate, which wraps it for several ranks."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.parts import (
    Assign,
    Attr,
    Call,
    Expr,
    Function,
    Name,
    With,
    dotted,
    target_names,
    walk,
    walk_expr,
)
from accumlint.reading.program import Program

_SILENT = ("no_grad", "inference_mode")


def past_the_prepared(program: Program) -> Call | None:
    """The method of what `accelerator.unwrap_model` gives that a loss which goes backward is made of, if any.

    A model that is called by itself as well has its gradients reduced, for all that is known.
    """
    if not {"unwrap_model", "prepare", "backward"} <= program.words:
        return None
    prepared = {
        dotted(argument.value)
        for call in program.of(Call)
        if isinstance(call.func, Attr) and call.func.name == "prepare"
        for argument in call.args
    }
    for function in program.functions:
        calls = list(_into_the_backward(program, function, prepared))
        for call in calls:
            model = _unwrapped(call)
            if (
                model in prepared
                and not _is_called(function, model)
                and not _is_given(calls, model)
            ):
                return call
    return None


def _into_the_backward(program: Program, function: Function, prepared: set[str]) -> Iterator[Call]:
    """The calls that what goes backward in a function comes of, but for how the prepared models were made."""
    nodes = list(walk(function.body))
    waiting: list[Expr] = [
        argument.value
        for n in nodes
        if isinstance(n, Call) and isinstance(n.func, Attr) and n.func.name == "backward"
        for argument in n.args[:1]
    ]
    made = [
        (target_names(target), n) for n in nodes if isinstance(n, Assign) for target in n.targets
    ]
    seen: set[Assign] = set()
    while waiting:
        parts = list(walk_expr(waiting.pop()))
        yield from (n for n in parts if isinstance(n, Call))
        read = {n.id for n in parts if isinstance(n, Name)} - prepared
        for written, assign in made:
            silent = any(is_silent(outer) for outer in program.above(assign))
            if written & read and assign not in seen and not silent:
                seen.add(assign)
                waiting.append(assign.value)


def _unwrapped(call: Call) -> str:
    """The model in `accelerator.unwrap_model(model).get_loss(…)`; of other calls the trace tells."""
    if not isinstance(call.func, Attr) or "loss" not in call.func.name:
        return ""
    inner = call.func.base
    if not isinstance(inner, Call) or not isinstance(inner.func, Attr) or not inner.args:
        return ""
    return dotted(inner.args[0].value) if inner.func.name == "unwrap_model" else ""


def _is_called(function: Function, model: str) -> bool:
    """True where a function calls a model by its own name."""
    return any(isinstance(n, Call) and dotted(n.func) == model for n in walk(function.body))


def _is_given(calls: list[Call], model: str) -> bool:
    """True where a helper is given the model and may call it."""
    return any(
        dotted(argument.value) == model
        for call in calls
        if dotted(call.func).rpartition(".")[2] != "unwrap_model"
        for argument in call.args
    )


def is_silent(outer: object) -> bool:
    """True for a context in which nothing keeps a graph."""
    return isinstance(outer, With) and any(
        dotted(item.func if isinstance(item, Call) else item).endswith(_SILENT)
        for item, _ in outer.items
    )
