"""The parts of the interpreter that lie below calls and expressions, each made of those before it."""

from __future__ import annotations

from accumlint.tracing.attributes import Attributes
from accumlint.tracing.calls.cross_file import CrossFile
from accumlint.tracing.calls.functions import FunctionCalls
from accumlint.tracing.control.exceptions import Exceptions
from accumlint.tracing.control.guards import Guards
from accumlint.tracing.control.iteration import Iteration
from accumlint.tracing.control.trip_counts import TripCounts
from accumlint.tracing.gradients.engines import Engines
from accumlint.tracing.gradients.gating import Gating
from accumlint.tracing.gradients.losses import Losses
from accumlint.tracing.gradients.sync_contexts import SyncContexts
from accumlint.tracing.gradients.tensor_arithmetic import Tensors
from accumlint.tracing.gradients.updates import Updates
from accumlint.tracing.machine import Machine
from accumlint.tracing.name_resolver import NameResolver
from accumlint.tracing.name_roles import NameRoles
from accumlint.tracing.object_methods import ObjectMethods
from accumlint.tracing.objects import Objects


class Parts(Machine):
    """A machine with its parts, in the order in which one may use another."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Files, classes and names …
        self.gating = Gating(self)
        self.guards = Guards(self, self.gating)
        self.roles = NameRoles(self)
        self.cross_file = CrossFile(self, self.guards)
        self.objects = Objects(self, self.cross_file)
        self.trip_counts = TripCounts(self, self.roles, self.cross_file)
        self.resolver = NameResolver(
            self, self.guards, self.roles, self.cross_file, self.objects, self.trip_counts
        )
        self.exceptions = Exceptions(self, self.guards)
        # … gradients …
        self.tensors = Tensors(self, self.guards)
        self.losses = Losses(self, self.gating, self.cross_file)
        self.sync_contexts = SyncContexts(self, self.guards, self.cross_file)
        self.updates = Updates(self, self.gating, self.resolver, self.tensors, self.losses)
        self.engines = Engines(
            self, self.cross_file, self.resolver, self.sync_contexts, self.updates
        )
        # … and what objects and functions do.
        self.object_methods = ObjectMethods(self, self.cross_file, self.resolver, self.engines)
        self.attributes = Attributes(self, self.cross_file, self.resolver, self.object_methods)
        self.function_calls = FunctionCalls(
            self, self.cross_file, self.guards, self.resolver, self.engines, self.attributes
        )
        self.iteration = Iteration(
            self, self.cross_file, self.resolver, self.exceptions, self.function_calls
        )
