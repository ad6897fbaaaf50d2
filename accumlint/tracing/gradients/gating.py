"""Gating: which steps and clears Accelerate's wrappers leave out within a window."""

from __future__ import annotations

from accumlint.reading.frameworks import CONTRACTS, PLAIN, Contract
from accumlint.tracing.machine import Machine
from accumlint.tracing.values import Object


class Gating:
    """The accelerators of one run, and what was prepared by them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.accelerator: Object | None = None
        self.prepared_any = False
        self.handed_any = False

    def in_force(self) -> Object | None:
        stack = self.machine.state.accumulating
        return stack[-1] if stack else self.accelerator

    def unprepared(self, value: Object) -> bool:
        """True for an object seen being built in a file that prepares others, and not this one."""
        if value.traced is None or not value.traced.certain or value.prepared or value.handed:
            return False
        return self.prepared_any or self.handed_any

    def contract(self, optimizer: Object) -> Contract:
        """What is promised about an optimizer's steps."""
        accumulates = bool(self.machine.state.accumulating) or self.machine.relevance.accumulates
        if self.in_force() is None or self.unprepared(optimizer):
            return PLAIN
        return CONTRACTS["accelerator"] if optimizer.prepared or accumulates else PLAIN

    def gate(self, optimizer: Object) -> bool:
        """False where Accelerate's wrapper leaves a step or a clear out."""
        accelerator = self.in_force()
        return accelerator is None or not self.contract(optimizer).gates or accelerator.sync

    def handed(self, objects: list[Object]) -> None:
        """Objects given to a call that cannot be followed, which may prepare them."""
        if any(value.role == "accelerator" for value in objects):
            self.handed_any = True
        for value in objects:
            value.handed = True
