"""What would decide an undecided finding: a set-up file to fill in, or the user's own script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accumlint.confirming import setup_template
from accumlint.confirming.evidence import Evidence, Undecided, deciding, roots
from accumlint.confirming.launch import Launched
from accumlint.confirming.plan import Plan

# What is said of a name that a set-up file has given.
GIVEN = "as the set-up file gives it"
# How reasons begin that are about the windows an epoch makes: the user's own micro-batches may be others.
_OF_WINDOWS = (
    "every micro-batch counts as many targets", "no step at the end of an epoch", "no epoch came to its end",
    "a short window at the beginning", "every window held one micro-batch", "the loop took fewer than three steps",
    "the optimizer never stepped",
)  # fmt: skip
# What is said of a call that its function does not fit.
_CALLED = re.compile(r"positional argument|keyword argument")
# Methods of tensors: what they are called on is what can be given.
_OF_TENSORS = {
    "size", "shape", "to", "view", "reshape", "item", "detach", "float", "long", "bool", "cpu", "cuda", "device",
    "dtype", "unsqueeze", "squeeze", "flatten", "expand", "clone", "mean", "sum",
}  # fmt: skip
# What lets a run go on that ended early.
ENDED = {"time": "`--timeout` gives it more time", "killed": "`--memory` gives each rank more"}


def advice(plan: Plan, launched: Launched, evidence: Evidence | None, reason: Undecided) -> str:
    """What else decides a finding than a set-up file; "" where nothing that is run does."""
    if plan.rule.unmeasured:
        return f"`accumlint rule {plan.report.code}` says what to look for in the code"
    if plan.job is None:
        return "" if plan.reason.startswith("Python") else _by_script(plan)
    if launched.fault:
        return ""
    hints = [ENDED[launched.how]] if launched.how in ENDED else []
    lacking, given = _lacking(plan, evidence, reason)
    if given and not lacking:
        told = " and ".join(f"`{name}`" for name in given)
        hints.append(
            f"what the set-up file gives as {told} does not support what the loop does with it"
        )
    if missing := _left_behind(plan.job.text, evidence):
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        hints.append(
            f"run in its project, the file finds what it imports from `{missing[0]}`{others}"
        )
    return "; ".join((*hints, _by_script(plan)))


def _by_script(plan: Plan) -> str:
    shown = plan.report.shown
    asks = f"`accumlint confirm {shown}:{plan.report.mark.place.line} --run -- "
    if plan.job and _is_script(plan.job.text):
        return f"{asks}{shown}` measures the script itself, with its own model and data"
    measures = "measures the script itself, with its own model and data"
    return f"{asks}SCRIPT [ARGUMENT]...` {measures}; SCRIPT is what imports this file"


def _is_script(text: str) -> bool:
    """Whether a file trains when it is started."""
    top = ast.parse(text).body
    return any(
        isinstance(n, ast.For | ast.While)
        or (isinstance(n, ast.If) and "__name__" in ast.unparse(n.test))
        or (isinstance(n, ast.Expr) and isinstance(n.value, ast.Call))
        for n in top
    )


def _left_behind(source: str, evidence: Evidence | None) -> list[str]:
    """The modules of its own package that a source imports from and that are not here, as it names them."""
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
    """A set-up file to fill in with what is missing, "" where no name would help."""
    if plan.job is None or launched.fault:
        return ""
    wanted, _ = _lacking(plan, evidence, reason)
    return setup_template.written(wanted, plan.job.roles, plan.job.text, str(reason))


def _lacking(
    plan: Plan, evidence: Evidence | None, reason: Undecided
) -> tuple[dict[str, int], list[str]]:
    """The names that are missing, with their lines, and those that would be but have been given."""
    first = _first(evidence)
    fakes: Mapping[str, str] = first["fakes"] if first else {}
    known = {name for name, what in fakes.items() if what == GIVEN}
    wanted: dict[str, int] = {}
    given: list[str] = []
    for found, line in _wanted(plan, first, reason).items():
        name = _giving(found)
        if {name, f"self.{name}", name.removeprefix("self.")} & known:
            given.append(name)
        elif name:
            wanted.setdefault(name, line)
    # What is called with something that it does not take is what is at fault.
    return ({} if given and _CALLED.search(str(reason)) else wanted), given


def _first(evidence: Evidence | None) -> Mapping[str, Any] | None:
    return evidence.raw.get("equal") if evidence else None


def _wanted(plan: Plan, first: Mapping[str, Any] | None, reason: Undecided) -> dict[str, int]:
    """The names that are missing, with the lines that ask for them; 0 for a line that is not known."""
    if reason.names or first is None:
        return dict.fromkeys(reason.names, 0)
    if first["unbound"] or any(one["inside"] for one in first["notes"]["refused"]):
        # What is refused happens before anything that is given could take its place.
        return {}
    failures: Sequence[Mapping[str, Any]] = first["failed"]
    touched = ((_giving(text), 0) for text in first["notes"]["touched"])
    found = roots(failures, [*first["wanted"], *touched], len(failures))
    if not found and str(reason).startswith(_OF_WINDOWS):
        found = dict.fromkeys(_of_role("loader", plan, first), 0)
    if not found and (failure := deciding(failures)):
        found = roots(failures, failure["wanted"], failures.index(failure))
    if not found:
        found = {n: 0 for role in ("model", "criterion") for n in _of_role(role, plan, first)}
    return found


def _of_role(role: str, plan: Plan, first: Mapping[str, Any]) -> Iterator[str]:
    """What has a role in the loop, by the names that fakes were made for."""
    roles = plan.job.roles if plan.job else {}
    for name in (*roles, *first["fakes"]):
        feeds = role == "loader" and "micro-batches made on" in first["fakes"].get(name, "")
        plain = all(map(str.isidentifier, name.split(".")))
        if plain and (feeds or setup_template.role_of(name, roles) == role):
            yield name


def _giving(text: str) -> str:
    """The name under which what a run calls `text` is given: that of what is called, and not of what it gives."""
    found = re.match(r"[A-Za-z_][\w.]*", text)
    owner, _, last = found[0].rstrip(".").rpartition(".") if found else ("", "", "")
    return owner if owner and last in _OF_TENSORS else f"{owner}.{last}".lstrip(".")
