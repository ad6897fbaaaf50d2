"""Suggests how to decide an undecided finding: a set-up file to complete, or a run of the user's script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accumlint.confirming import setup_template
from accumlint.confirming.evidence import Evidence, Undecided, deciding, roots
from accumlint.confirming.launch import Launched
from accumlint.confirming.plan import Plan
from accumlint.confirming.user_script import text_of

# The description of a provided object among the fakes.
FROM_SETUP = "as the set-up file gives it"
# The beginnings of reasons about windows, which provided micro-batches may change.
_WINDOW_REASONS = (
    "every micro-batch counts as many targets", "no step at the end of an epoch", "no epoch came to its end",
    "a short window at the beginning", "every window held one micro-batch", "the loop took fewer than three steps",
    "the optimizer never stepped",
)  # fmt: skip
# Errors of a call with wrong arguments.
_CALLED = re.compile(r"positional argument|keyword argument")
_ABSENT = re.compile(r"No module named '([\w.]+)'")
# Tensor methods and attributes: the object before the dot is the one to provide.
_TENSOR_METHODS = {
    "size", "shape", "to", "view", "reshape", "item", "detach", "float", "long", "bool", "cpu", "cuda", "device",
    "dtype", "unsqueeze", "squeeze", "flatten", "expand", "clone", "mean", "sum",
}  # fmt: skip
# Options that let a run continue that ended early.
ENDED = {"time": "`--timeout` gives it more time", "killed": "`--memory` gives each rank more"}


def advice(plan: Plan, launched: Launched, evidence: Evidence | None, reason: Undecided) -> str:
    """Advice besides a set-up file; "" where no run decides the finding."""
    if plan.rule.unmeasured:
        return f"`accumlint rule {plan.report.code}` says what to look for in the code"
    if plan.job is None:
        return "" if plan.reason.startswith("Python") else _by_script(plan)
    if launched.fault:
        return ""
    hints = [ENDED[launched.how]] if launched.how in ENDED else []
    lacking, provided = _lacking(plan, evidence, reason)
    if provided and not lacking:
        names = " and ".join(f"`{name}`" for name in provided)
        hints.append(
            f"what the set-up file gives as {names} does not support what the loop does with it"
        )
    if missing := _left_behind(plan.job.text, evidence):
        rest = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        hints.append(
            f"run in its project, the file finds what it imports from `{missing[0]}`{rest}"
        )
    if absent := _ABSENT.search(str(reason)):
        hints.append(f"with `{absent[1]}` installed beside accumlint, that statement runs")
    return "; ".join((*hints, _by_script(plan)))


def _by_script(plan: Plan) -> str:
    shown = plan.report.shown
    command = f"`accumlint confirm {shown}:{plan.report.mark.place.line} --run -- "
    if _is_script(plan.job.text if plan.job else text_of(plan.report.file) or ""):
        return f"{command}{shown}` measures the script itself, with its own model and data"
    measures = "measures the script itself, with its own model and data"
    return f"{command}SCRIPT [ARGUMENT]...` {measures}; SCRIPT is what imports this file"


def _is_script(text: str) -> bool:
    """Whether running a file trains."""
    top = ast.parse(text).body
    return any(
        isinstance(n, ast.For | ast.While)
        or (isinstance(n, ast.If) and "__name__" in ast.unparse(n.test))
        or (isinstance(n, ast.Expr) and isinstance(n.value, ast.Call))
        for n in top
    )


def _left_behind(source: str, evidence: Evidence | None) -> list[str]:
    """The absent modules of its own package that a source imports, as it names them."""
    lines = {
        failed["line"]
        for failed in (_first(evidence) or {"failed": ()})["failed"]
        if "no known parent package" in failed["reason"]
    }
    found = [
        "." * node.level + (node.module or "")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.level and node.lineno in lines
    ]
    return list(dict.fromkeys(found))


def setup(plan: Plan, launched: Launched, evidence: Evidence | None, reason: Undecided) -> str:
    """A set-up file with the missing names, "" where no name would help."""
    if plan.job is None or launched.fault:
        return ""
    wanted, _ = _lacking(plan, evidence, reason)
    return setup_template.written(wanted, plan.job.roles, plan.job.text, str(reason))


def _lacking(
    plan: Plan, evidence: Evidence | None, reason: Undecided
) -> tuple[dict[str, int], list[str]]:
    """The missing names with their lines, and the names that are provided already."""
    first = _first(evidence)
    fakes: Mapping[str, str] = first["fakes"] if first else {}
    known = {name for name, what in fakes.items() if what == FROM_SETUP}
    wanted: dict[str, int] = {}
    provided: list[str] = []
    for found, line in _wanted(plan, first, reason).items():
        name = _provided_name(found)
        if {name, f"self.{name}", name.removeprefix("self.")} & known:
            provided.append(name)
        elif name:
            wanted.setdefault(name, line)
    # A call with wrong arguments is the fault of the provided object.
    return ({} if provided and _CALLED.search(str(reason)) else wanted), provided


def _first(evidence: Evidence | None) -> Mapping[str, Any] | None:
    return evidence.raw.get("equal") if evidence else None


def _wanted(plan: Plan, first: Mapping[str, Any] | None, reason: Undecided) -> dict[str, int]:
    """The missing names with the lines that need them; 0 for an unknown line."""
    if reason.names or first is None:
        return dict.fromkeys(reason.names, 0)
    if first["unbound"] or any(one["inside"] for one in first["notes"]["refused"]):
        # The sandbox refuses the operation before a provided object could be used.
        return {}
    failures: Sequence[Mapping[str, Any]] = first["failed"]
    notes = first["notes"]
    touched = ((_provided_name(text), 0) for text in (*notes["touched"], *notes["factors"]))
    found = roots(failures, [*first["wanted"], *touched], len(failures))
    if not found and str(reason).startswith(_WINDOW_REASONS):
        found = dict.fromkeys(_with_role("loader", plan, first), 0)
    if not found and (failure := deciding(failures)):
        found = roots(failures, failure["wanted"], failures.index(failure))
    if not found:
        found = {n: 0 for role in ("model", "criterion") for n in _with_role(role, plan, first)}
    return found


def _with_role(role: str, plan: Plan, first: Mapping[str, Any]) -> Iterator[str]:
    """The names with a role in the loop, among those with fakes."""
    roles = plan.job.roles if plan.job else {}
    for name in (*roles, *first["fakes"]):
        feeds = role == "loader" and "micro-batches made on" in first["fakes"].get(name, "")
        plain = all(map(str.isidentifier, name.split(".")))
        if plain and (feeds or setup_template.role_of(name, roles) == role):
            yield name


def _provided_name(text: str) -> str:
    """The name under which an object is to be provided: the called object, not the result of the call."""
    found = re.match(r"[A-Za-z_][\w.]*", text)
    owner, _, last = found[0].rstrip(".").rpartition(".") if found else ("", "", "")
    return owner if owner and last in _TENSOR_METHODS else f"{owner}.{last}".lstrip(".")
