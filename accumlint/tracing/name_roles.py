"""What names tell of values in the file that is being executed: roles, accumulation steps, counters, epochs."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.program import Program
from accumlint.reading.roles import Roles
from accumlint.tracing.machine import Machine

_OF_OPTIMIZERS = names.CLEARS | {
    "step", "param_groups", "state_dict", "load_state_dict", "add_param_group", "defaults", "state", "optimizer",
    "backward", "zero_grads", "sync_gradients", "step_and_update_lr", "append", "items", "values", "keys",
    "train", "eval",
}  # fmt: skip


class NameRoles:
    """The roles of names in one run."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._settings: dict[str, bool] = {}

    @property
    def file(self) -> Roles:
        """What the names of the file are that is being executed."""
        return self.machine.home.relevance.roles

    def of(self, name: str) -> str:
        """The role that a name suggests, and what the file does with it."""
        if name in ("opt", "opts") and self._are_settings(name):
            return ""
        return self.file.of(name)

    def _are_settings(self, name: str) -> bool:
        """True where a name that is short for optimizer or for options is asked for what no optimizer has."""
        if name not in self._settings:
            texts = (p.dotted(of).rpartition(".")[2] for of in asked(self.machine.program))
            self._settings[name] = name in texts
        return self._settings[name]

    def is_steps(self, name: str) -> bool:
        """True for the accumulation steps; what is counted up is a counter, whatever its name."""
        return self.file.is_steps(name) and name not in self.machine.home.relevance.counters

    def is_counter(self, text: str, name: str) -> bool:
        """True for what is counted up; a setting is none because a variable of its name is."""
        counters = self.machine.home.relevance.counters
        return name in counters and (f".{name}" in counters or not names.is_configuration(text))

    def is_epoch(self, text: str, name: str) -> bool:
        """True for the number of the running epoch by name; what bounds a range is a number of epochs."""
        relevance = self.machine.home.relevance
        return (
            names.is_epoch(name)
            and not names.is_configuration(text)
            and name not in relevance.bounds
            and name not in relevance.counters
        )

    def length(self, name: str) -> int | None:
        """The number of micro-batches in what a name tells to be a loader; None for anything else."""
        if self.of(name) != "loader" or "dataset" in name:
            return None
        self.machine.state.length_asked = True
        return self.machine.scenario.length


def asked(program: Program) -> Iterator[p.Expr]:
    """What attributes are read of that optimizers do not have."""
    for node in program.nodes:
        match node:
            case p.Attr(base=base, name=name) if name not in _OF_OPTIMIZERS:
                yield base
            case p.Call(func=p.Name(id="getattr"), args=[of, *_]):
                yield of.value
            case _:
                pass
