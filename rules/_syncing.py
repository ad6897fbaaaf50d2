"""How a forward and its backward come to stand under `no_sync`."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Enclose, Import, Rename, Verb
from accumlint.reading.frameworks import is_chance
from accumlint.reading.ir import Call, For, Name, dotted
from accumlint.reading.program import Program
from accumlint.tracing.trace import Window

from ._boundaries import boundary_tests, loop_of


def under_no_sync(program: Program, window: Window, ddp: str = "") -> Iterator[tuple[Verb, ...]]:
    """Encloses what stands between a forward of `ddp` (by default: what it calls) and its backward."""
    for contribution in window.contributions[-1:]:
        forward = contribution.forward
        # A helper that is given the model may call it anywhere: its forward is no event.
        if forward is None or forward not in window.between:
            continue
        if not isinstance(forward.node, Call) or is_chance(dotted(forward.node.func)):
            continue
        name = ddp or dotted(forward.node.func)
        loop = loop_of(program, contribution.backward.node)
        for test in boundary_tests(program, window):
            verbs: list[Verb] = [Import("contextlib", "nullcontext")]
            if isinstance(loop, For) and isinstance(loop.target, Name) and loop.target.id == "_":
                verbs.append(Rename(loop.target, "micro_step"))
                test = test.replace("_ + 1", "micro_step + 1", 1)
            header = f"with nullcontext() if {test} else {name}.no_sync():"
            yield *verbs, Enclose(forward.node, contribution.backward.node, header)
