"""Executes the rewritten source of a loop and calls its entry point."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import sys
import types
from collections.abc import Generator
from typing import Any

from accumlint.confirming.harness import calls
from accumlint.confirming.harness.binding import Binding
from accumlint.confirming.harness.fakes import framework_contracts
from accumlint.confirming.harness.fakes.accelerators import Unbound
from accumlint.confirming.harness.rewriting.ast_nodes import RUNTIME
from accumlint.confirming.harness.rewriting.rewriter import rewritten
from accumlint.confirming.harness.rewriting.slicing import Guide

# Hooks that Lightning calls at the end of an epoch.
_ENDS = ("training_epoch_end", "on_train_epoch_end")


class _Builtins(dict[str, Any]):
    """Builtins that resolve names which the slice leaves undefined to fakes."""

    def __init__(self, binding: Binding) -> None:
        super().__init__(vars(builtins))
        self.binding = binding

    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        # The only private access from outside: an undefined name.
        return self.binding._missing(name)  # pyright: ignore[reportPrivateUsage]


def _code(job: Any, binding: Binding) -> Any:
    """The compiled source, cached for all passes of a job."""
    key = "lenient code" if job["leniently"] else "code"
    if key not in job:
        guide = Guide(
            frozenset(map(tuple, job["kept"])), frozenset(map(tuple, job["eventful"])), job["roles"], job["choices"],
            frozenset(map(tuple, job["leave_out"])), frozenset(job["averages"]),
            frozenset(map(tuple, job["clippers"])), job["leniently"], frozenset(binding.provided),
        )  # fmt: skip
        job[key] = compile(
            rewritten(job["text"], job["file"], guide), job["file"], "exec", dont_inherit=True
        )
    return job[key]


@contextlib.contextmanager
def _known(module: types.ModuleType) -> Generator[None, None, None]:
    """Registers a module in `sys.modules` while it is executed, as dataclasses require."""
    name = module.__name__
    if name in sys.modules:
        yield
        return
    sys.modules[name] = module
    try:
        yield
    finally:
        sys.modules.pop(name, None)


def run(job: Any, binding: Binding) -> None:
    """Runs the loop of a job: the module, then its entry function or the framework's loop."""
    entry = job["entry"]
    binding.failures.read(job["text"], job["line"])
    module = types.ModuleType(job["module"])
    space = vars(module)
    # A circular import may read names that are not defined yet.
    space["__getattr__"] = binding.stub
    space |= {
        "__name__": "__main__" if entry["function"] is None else job["module"],
        "__file__": job["file"],
        "__package__": job["package"],
        "__builtins__": _Builtins(binding),
        RUNTIME: binding,
    }
    with _known(module):
        exec(_code(job, binding), space)
    if entry["driver"]:
        made = space[entry["owner"]] if entry["owner"] else space[entry["function"]]
        made = calls.instance(binding, made) if entry["owner"] else made
        framework_contracts.drive(entry["driver"], made, binding)
    if entry["function"] is None:
        return
    function = _function(entry, space, binding)
    owner: Any = getattr(function, "__self__", None)
    if isinstance(owner, binding.contracts["LightningModule"]) and owner.automatic_optimization:
        # A class between them may be in another file.
        if entry["function"] == "training_step":
            framework_contracts.drive("module", owner, binding)
    if entry["calls"] == "microbatch":
        _microbatches(binding, function, entry)
        return
    args, kwargs = calls.arguments(binding, function)
    epochs = 2 if entry["calls"] == "twice" else 1
    for number in range(epochs):
        if epochs > 1:
            kwargs |= calls.epoch_arguments(binding, kwargs, number)
        begun = binding.recorder.epoch
        made = function(*args, **kwargs)
        if inspect.isgenerator(made):
            # A training generator yields its progress to the caller.
            for _ in made:
                pass
        if epochs > 1 and binding.recorder.epoch == begun:
            # Its loop counts micro-batches instead of iterating over them.
            binding.recorder.epoch += 1
            binding.recorder.note("epoch")


def _microbatches(binding: Binding, function: Any, entry: Any) -> None:
    """Calls a step function for one micro-batch after another, in epochs where it is Lightning's.

    Where it only goes backward, the method `stepping` of the same object ends each window. The parameter `ending` flags
    the last micro-batch of a window.
    """
    stepping, ending = entry["stepping"], entry["ending"]
    owner = getattr(function, "__self__", None)
    window = binding.steps_ if binding.source.mentions_steps else 1
    epochs = isinstance(owner, binding.contracts["LightningModule"])
    for number in range(binding.data.limit):
        place = number % binding.data.length if epochs else number
        binding.turn(True)
        if epochs and not place:
            binding.recorder.epoch += 1
        args, kwargs = calls.microbatch_arguments(binding, function, place)
        last = (number + 1) % window == 0
        bound = inspect.signature(function).bind(*args, **kwargs)
        if epochs:
            # Lightning passes the index of the micro-batch as the second argument.
            bound.arguments.update(dict.fromkeys(list(bound.arguments)[1:2], place))
        if ending:
            bound.arguments[ending] = last
        function(*bound.args, **bound.kwargs)
        if stepping and last:
            getattr(owner, stepping)()
        if epochs and place == binding.data.length - 1:
            for name in _ENDS:
                if callable(end := getattr(type(owner), name, None)):
                    end(owner, *calls.arguments(binding, end, 1)[0])
            binding.recorder.note("epoch")


def _function(entry: Any, space: dict[str, Any], binding: Binding) -> Any:
    """The entry function of a run, ready to be called."""
    maker = entry["maker"]
    if maker is None:
        return _member(entry["function"], entry["owner"], space, binding)
    outer = _member(maker, entry["maker_owner"], space, binding)
    args, kwargs = calls.arguments(binding, outer)
    outer(*args, **kwargs)
    found = binding.functions.get(entry["function"])
    if found is None:
        raise Unbound(f"`{maker}` did not define `{entry['function']}`")
    return found


def _member(name: str, owner: str, space: dict[str, Any], binding: Binding) -> Any:
    if not owner:
        if name not in space:
            raise Unbound(f"`{name}` was not defined")
        return space[name]
    cls = space.get(owner)
    if not isinstance(cls, type):
        raise Unbound(f"the class `{owner}` was not defined")
    # Attributes that `__init__` or another class would set are chosen by name.
    binding.complete(cls)
    return getattr(calls.instance(binding, cls), name)
