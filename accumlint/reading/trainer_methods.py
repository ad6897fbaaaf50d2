"""What Trainers, their methods and their models do with the count of targets that the Trainer of transformers makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.common.frozen import frozen
from accumlint.reading import ir as p
from accumlint.reading.names import is_steps

# Trainers that divide in their own `training_step`, and nowhere else.
_DIVIDING = frozenset({"Trainer", "Seq2SeqTrainer"})


@frozen
class StockTrainer:
    """A call that makes a trainer which takes the loss from its model, or that lets an engine train.

    `divided` tells why the mean of each micro-batch is divided by the accumulation steps, or `undivided` why neither
    the trainer nor the model divides it; `model` is the `forward` that this rests on.
    """

    call: p.Call
    divided: str = ""
    undivided: str = ""
    model: p.Function | None = None


def goes_backward(cls: p.Class, name: str) -> bool:
    """True when a method of the class goes backward, by itself or by way of the class's other methods."""
    seen, waiting = {name}, [name]
    while waiting:
        method = cls.methods.get(waiting.pop())
        for call in method.calls if method is not None else ():
            receiver, _, last = call.rpartition(".")
            if last.endswith("backward") and receiver != "super()":
                return True
            if receiver == "self" and last not in seen:
                seen.add(last)
                waiting.append(last)
    return False


def undivided_backwards(function: p.Function, owner: p.Class | None) -> list[p.Call]:
    """The backward of a `training_step` that is given the Trainer's count, where nobody has divided its loss."""
    bases = {base.rpartition(".")[2] for base in function.bases}
    counted = any(param.name == "num_items_in_batch" for param in function.params)
    if function.name != "training_step" or not counted or not bases <= _DIVIDING or not bases:
        return []
    losses = owner.methods.get("compute_loss") if owner is not None else None
    nodes = list(p.walk(function.body))
    told = {id(n) for back in nodes if isinstance(back, p.Return) for n in p.walk((back,))}
    read = {*_names(n for n in nodes if id(n) not in told)}
    read |= {*_names(p.walk(losses.body))} if losses is not None else set()
    asked = any(is_steps(name) for name in read) or "num_items_in_batch" in function.names_read
    found = [
        n
        for n in nodes
        if isinstance(n, p.Call) and p.dotted(n.func) == "self.accelerator.backward"
    ]
    return [] if asked or len(found) != 1 or len(found[0].args) != 1 else found


def _names(nodes: Iterable[p.Node]) -> Iterator[str]:
    """The names and attributes among some nodes."""
    for node in nodes:
        match node:
            case p.Name(id=name) | p.Attr(name=name):
                yield name
            case _:
                pass


def has_no_labels(function: p.Function) -> bool:
    """True when all that is read from the batch are parts of a pair, or keys other than `labels`.

    What a helper reads besides is not asked, unless nothing else is read.
    """
    names = [param.name for param in function.params]
    batch = names[2] if len(names) > 2 else ""
    keys: list[p.Expr] = []
    known = helped = 0
    for node in p.walk(function.body):
        match node:
            case (
                p.Item(base=p.Name(id=name), index=key)
                | p.Call(
                    func=p.Attr(base=p.Name(id=name), name="get" | "pop"),
                    args=[p.Argument(value=key), *_],
                )
            ) if name == batch:
                known += 1
                keys.append(key)
            case p.Call(func=p.Attr(base=p.Name(id=name), name="items" | "keys")) if name == batch:
                known += 1
            case p.Compare(left=key, rest=[("in" | "not in", p.Name(id=name))]) if name == batch:
                known += 1
            case p.Call(func=p.Attr(base=p.Name(id="self")), args=args):
                helped += sum(
                    isinstance(a.value, p.Name) and a.value.id == batch and not a.star for a in args
                )
            case _:
                pass
    uses = sum(isinstance(n, p.Name) and n.id == batch for n in p.walk(function.body))
    return (
        known > 0
        and known + helped == uses
        and all(isinstance(key, p.Const) and key.value != "labels" for key in keys)
    )


def takes_the_count(function: p.Function) -> bool:
    """True when the Trainer's count arrives by name or, in a method of its signature, among `**kwargs`."""
    names = {param.name for param in function.params}
    if "num_items_in_batch" in names:
        return True
    return "return_outputs" in names and any(param.star == "**" for param in function.params)


def uses_the_count(function: p.Function) -> bool:
    """True when the count, the keyword arguments or the accumulation steps are read, or nothing is computed."""
    rest = {param.name for param in function.params if param.star == "**"}
    nodes = list(p.walk(function.body))
    read = function.names_read | {node.name for node in nodes if isinstance(node, p.Attr)}
    steps = {"gradient_accumulation_steps", "current_gradient_accumulation_steps"}
    abstract = any(
        isinstance(n, p.Raise) and "NotImplemented" in n.exception for n in function.body
    )
    return abstract or bool(read & {"num_items_in_batch", *rest, *steps})
