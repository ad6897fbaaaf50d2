"""Backward passes: what each term of a loss adds to the gradients of its networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from accumlint.reading import ir as p
from accumlint.reading.frameworks import CONTRACTS, PLAIN
from accumlint.tracing import trace as t
from accumlint.tracing.gradients.tensors import own_counts
from accumlint.tracing.machine import Machine
from accumlint.tracing.values import Batch, Number, Object, Term, Unknown, Value


class Backwards:
    """The backward passes of one run."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        # The data of the last forward, and the iteration that it ran in.
        self.latest: Batch | None = None
        self.latest_at: tuple[object, ...] = ()
        self._gone: set[Unknown] = set()

    def backward(
        self,
        loss: Value,
        via: str,
        node: p.Node,
        kwargs: dict[str, Value],
        divided: int | None = 1,
        subject: str = "",
    ) -> None:
        """A backward pass: every term of the loss leaves its gradient in its networks."""
        machine, state = self.machine, self.machine.state
        # Nothing is divided by zero steps: the framework raises.
        divided = divided or None
        if isinstance(loss, list | tuple):
            for part in loss:
                self.backward(part, via, node, kwargs, divided, subject)
            return
        if not isinstance(loss, Unknown):
            loss = Unknown("loss", loss=True, lost=isinstance(loss, Number))
        if state.no_grad:
            return
        if not loss.tensor and not self._is_divided(loss):
            # Nothing is known of how it was made.
            loss.lost = True
        scaler = loss.scaler
        index = len(state.events)
        pieces: list[t.Contribution] = []
        terms = [x for x in loss.linear if x.atom.networks] or list(loss.linear)
        state.current = machine.ordinal(self._key(loss, terms))
        silenced = bool(state.silenced)
        event = t.Backward(
            node, index, state.current, state.epoch, subject or loss.text, via, _written(node, loss.text), (), silenced,
            bool(state.accumulating), kwargs.get("retain_graph") is True, loss.lost, divided,
            scaler.traced if scaler is not None else None,
            tuple(dict.fromkeys(f for x in terms for f in x.atom.forwards)), bool(state.autocast),
        )  # fmt: skip
        summed = _summed_over_microbatches(terms)
        for term in _minimised(terms):
            pieces.extend(self._contributions(term, loss, event, divided, scaler, summed))
        object.__setattr__(event, "contributions", tuple(pieces))
        machine.emit(event)
        self._gone.update(x.atom for x in terms)
        for piece in pieces:
            state.ledger.add(piece)

    def _is_divided(self, loss: Unknown) -> bool:
        """True for what was divided by the accumulation steps since it came from where nothing is known."""
        share = Fraction(1, self.machine.scenario.steps)
        return all(x.factor == share for x in loss.linear)

    def is_gone(self, loss: Unknown) -> bool:
        """True for a loss that went backward already: what is done to it changes no gradient any more."""
        atoms = [x.atom for x in loss.linear if x.atom.networks]
        return bool(atoms) and self._gone.issuperset(atoms)

    def _key(self, loss: Unknown, terms: list[Term]) -> object:
        batches = frozenset[Batch]().union(*(x.atom.batches for x in terms)) or loss.batches
        if batches:
            return max(batches, key=lambda b: b.serial).when
        here = self.machine.loop_position()
        # A loss that was lost on its way comes of the forward before it.
        return self.latest.when if self.latest is not None and self.latest_at == here else (here, 1)

    def _contributions(
        self,
        term: Term,
        loss: Unknown,
        event: t.Backward,
        divided: int | None,
        scaler: Object | None,
        summed: bool,
    ) -> Iterator[t.Contribution]:
        state = self.machine.state
        atom = term.atom
        spans = _spans(atom)
        microbatch = spans[0] if summed else event.microbatch
        weight = term.factor
        if atom.lost or loss.lost or divided is None:
            weight = None
        elif weight is not None and divided != 1:
            weight = weight / divided
        origin = f"{atom.text}@{id(atom.origin.at) if atom.origin is not None else ''}"
        reduction, varies = atom.reduction, atom.varies or loss.varies
        own = own_counts(term) if reduction == "none" else ""
        if own:
            # Only a number goes backward: there was one row.
            reduction, varies = "mean", varies or f"`{own}`"
        contract = CONTRACTS.get(event.via, PLAIN)
        for network in sorted(atom.networks) or ["?"]:
            synced: bool | None = None
            forward = atom.forwards[0] if atom.forwards else None
            wrapper = state.wrappers.get(network, "")
            # What reduces by itself does so whatever the module's own flags say.
            if not contract.syncs and wrapper in ("ddp", "fsdp", "fabric"):
                last = next((f for f in atom.forwards if f.armed is not None), None)
                synced = None if last is None else bool(last.armed) and not last.bypassed
                if wrapper == "fsdp" and last is not None:
                    # It asks while it goes backward, wherever the forward was.
                    synced = network not in state.silenced
            if event.via in ("accelerator", "fabric"):
                wrapper = contract.framework
            elif event.via == "engine" and wrapper != contract.framework:
                wrapper = ""
            yield t.Contribution(
                microbatch, event, network, weight, tuple(sorted(term.symbols)), reduction,
                varies, scaler is not None, synced, origin, forward, spans, wrapper, term.ranks,
                loss.over or atom.over, atom.divisor, atom.origin,
            )  # fmt: skip


def _written(node: p.Node, text: str) -> str:
    """The loss of a backward call as the user wrote it; a part of it that is called a loss where the whole is long."""
    shown: p.Expr | None = None
    if isinstance(node, p.Call):
        shown = node.positional(0) or node.keyword("loss")
        if shown is None and isinstance(node.func, p.Attr):
            shown = node.func.base
            if isinstance(shown, p.Call) and "scale" in p.dotted(shown.func).rpartition(".")[2]:
                shown = shown.positional(0) or shown
    elif isinstance(node, p.Return):
        # A trainer goes backward with it, or with the loss in it.
        shown = node.value
        if isinstance(shown, p.Table):
            keys = {p.render(key): value for key, value in shown.items if key is not None}
            shown = keys.get("'loss'", shown)
    if shown is None:
        return text
    names = (n for n in p.walk_expr(shown) if isinstance(n, p.Name | p.Attr))
    losses = (n for n in map(p.dotted, names) if "loss" in n.rpartition(".")[2].lower())
    return next(
        (x for x in (p.render(shown), *losses, text) if 0 < len(x) <= 40 and x != "…"), text
    )


def _spans(atom: Unknown) -> tuple[int, ...]:
    return tuple(sorted({f.microbatch for f in atom.forwards}))


def _minimised(terms: list[Term]) -> list[Term]:
    """The same terms without the sign that all of them have where the code maximises: g is the gradient of that."""
    turned = [replace(x, factor=-x.factor) for x in terms if x.factor is not None and x.factor < 0]
    return turned if len(turned) == len(terms) else terms


def _summed_over_microbatches(terms: list[Term]) -> bool:
    """True for one loss of several micro-batches, added up before its backward."""
    written = {(x.atom.text, id(x.atom.origin)) for x in terms}
    spans = [_spans(x.atom) for x in terms]
    return len(written) == 1 and len(set(spans)) > 1 and all(len(span) == 1 for span in spans)
