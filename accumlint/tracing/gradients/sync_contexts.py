"""Contexts and flags around a micro-batch: `no_sync`, sync flags, autocast, exit stacks."""

from __future__ import annotations

from collections.abc import Sequence

from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.calls.cross_file import CrossFile
from accumlint.tracing.control.guards import Guards
from accumlint.tracing.machine import Machine
from accumlint.tracing.values import Context, Native, Object, Unknown, Value


class SyncContexts:
    """Turns what is said about synchronisation into events."""

    def __init__(self, machine: Machine, guards: Guards, cross_file: CrossFile) -> None:
        self.machine = machine
        self.guards = guards
        self.cross_file = cross_file

    def decided(self, flag: Value, node: p.Node) -> bool:
        """A flag's truth, decided now if it never was: whoever asks later gets the same answer."""
        known = self.guards.known_truth(flag)
        return known if known is not None else self.guards.truth(flag, p.Opaque(node.at), node)

    def sync_flag(self, receiver: Value, value: Value, node: p.Node, path: str) -> None:
        machine = self.machine
        state = machine.state
        networks = receiver.networks if isinstance(receiver, Object | Unknown) else frozenset[str]()
        on: bool | None = value if isinstance(value, bool) else self.guards.known_truth(value)
        wrapper = next((state.wrappers[n] for n in networks if n in state.wrappers), "ddp")
        called = node.func if isinstance(node, p.Call) else None
        if isinstance(called, p.Attr) and called.name == "set_requires_gradient_sync":
            wrapper = "fsdp2"
        after = False
        for event in reversed(state.events):
            if isinstance(event, t.Backward | t.Step):
                break
            if isinstance(event, t.Forward) and (
                event.microbatch == state.current or not state.current
            ):
                after = True
                break
        if isinstance(receiver, Object) and not receiver.wrapper:
            receiver.wrapper = wrapper
        for network in networks:
            state.wrappers.setdefault(network, wrapper)
            if wrapper != "fsdp2":
                state.flags[network] = on
        machine.emit(t.SyncFlag(*machine.stamp(node, path), on, wrapper, after, networks))

    def no_sync(self, model: Object, wrapper: str = "") -> Context:
        machine = self.machine
        state = machine.state
        networks = sorted(model.networks)
        known = next((state.wrappers[n] for n in networks if n in state.wrappers), "")
        kind = wrapper or known or self._only_wrapper()
        for network in networks:
            state.wrappers.setdefault(network, kind)
        if not model.wrapper:
            model.wrapper = kind
        return self._silent(networks, kind, model.text)

    def _only_wrapper(self) -> str:
        """What wraps a model that was not seen being wrapped: FSDP where the file names it, and DDP nowhere."""
        named = {name.rpartition(".")[2] for name in self.machine.home.source.identifiers}
        fully = "FullyShardedDataParallel" in named and "DistributedDataParallel" not in named
        return "fsdp" if fully else "ddp"

    def _silent(self, networks: Sequence[str], wrapper: str, text: str) -> Context:
        """A context in which some networks are not reduced."""
        machine = self.machine
        silenced = machine.state.silenced

        def enter(at: p.Node) -> Value:
            silenced.extend(networks)
            machine.emit(t.NoSync(*machine.stamp(at, text), True, wrapper))
            return None

        def leave(at: p.Node) -> None:
            for network in networks:
                silenced.remove(network)
            machine.emit(t.NoSync(*machine.stamp(at, text), False, wrapper))

        return Context("no_sync", enter, leave)

    def autocast(self, kwargs: dict[str, Value]) -> Context:
        """An autocast context, which runs what is in it in a lower precision."""
        state = self.machine.state
        if kwargs.get("enabled", True) is False:
            return Context("plain")

        def enter(_: p.Node) -> Value:
            state.autocast += 1
            return None

        def leave(_: p.Node) -> None:
            state.autocast -= 1

        return Context("autocast", enter, leave)

    def stack_method(self, base: Context, name: str, args: list[Value], node: p.Node) -> Value:
        """`ExitStack.enter_context`: what is entered is left with the stack."""
        if name == "enter_context" and args:
            context = self.context(args[0])
            value = context.enter(node) if context.enter is not None else None
            if (leave := context.leave) is not None:
                base.args.append(Native("leave", lambda _, __: leave(node)))
            return value
        return None

    def context(self, value: Value) -> Context:
        if isinstance(value, Context):
            return value
        if isinstance(value, Object) and value.cls is not None:
            method_of, apply = self.cross_file.method_of, self.machine.apply
            enter, leave = method_of(value, "__enter__"), method_of(value, "__exit__")
            if enter is not None or leave is not None:
                return Context(
                    "plain",
                    (lambda at: apply(enter, [], {}, at)) if enter else None,
                    (lambda at: apply(leave, [None, None, None], {}, at)) if leave else None,
                )
        wrappers = self.machine.state.wrappers
        if isinstance(value, Unknown) and wrappers and _is_no_sync(value.text):
            # Whose it is has been settled elsewhere.
            return self._silent(sorted(wrappers), next(iter(wrappers.values())), value.text)
        return Context("plain", lambda _: value)


def _is_no_sync(text: str) -> bool:
    """True for a call of something that reads like `no_sync`: `config.no_sync_func()`."""
    called, found, _ = text.rpartition("(")
    return bool(found) and "no_sync" in called.rpartition(".")[2]
