"""What all runs of one program know of the project's other files."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from functools import cached_property

from accumlint.reading import ir as p
from accumlint.reading.excerpts import Excerpt
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.tracing.control.branch_relevance import Weighing
from accumlint.tracing.graph import CallGraph


@dataclass(eq=False)
class Borders:
    """What all runs of one program know of the project's other files.

    `refused` are functions that turned out not to be worth following, `telling` those that gave a loss once and are
    worth it even where they give none, `leads` the nodes of the program that lead to nodes of other files. `misplaced`
    clears gradients behind the step, and not where it stands.
    """

    program: Program
    project: Project
    excerpts: tuple[Excerpt, ...]
    refused: set[p.Function] = field(default_factory=set[p.Function])
    telling: set[p.Function] = field(default_factory=set[p.Function])
    leads: dict[p.Node, p.Node] = field(default_factory=dict[p.Node, p.Node])
    misplaced: Set[p.Node] = frozenset()

    @cached_property
    def graph(self) -> CallGraph:
        """Who calls whom in the program."""
        return CallGraph(self.program)

    @cached_property
    def weighing(self) -> Weighing:
        """What the guards of the program hold."""
        return Weighing(self.program)
