"""What would decide an undecided finding: a set-up file that is ready to be filled in, or what else the user can do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from accumlint.confirming import failing_lines, setup_template
from accumlint.confirming.evidence import Evidence, Undecided, deciding, roots
from accumlint.confirming.launch import Launched
from accumlint.confirming.plan import Plan
from accumlint.reading import names

# What is said of a name that a set-up file has given.
GIVEN = "as the set-up file gives it"
# What can show a loss where nothing else is known to be missing.
_TELLING = {"model", "criterion"}
# How reasons begin that are about what the loss is computed with.
_COMPUTED = ("a stand-in reached the loss", "no loss was seen")
# How a reason begins where data made on the spot is too much alike.
_ALIKE = "every micro-batch counted as many targets"
# How reasons begin that are about which windows an epoch makes, and what the user's own micro-batches have to be then.
_OF_WINDOWS = {
    _ALIKE: "with different numbers of targets",
    "no partial window was stepped": "of which the last window has fewer than {steps}",
    "no epoch ended": "which end inside a window of {steps}",
    "a short window at the beginning": "which end inside a window of {steps}",
    "every window held one micro-batch": "as many as several windows of {steps} hold",
    "too few windows were seen": "as many as several windows of {steps} hold",
}
# Those that are about what a condition may have kept from being run.
_SKIPPED = (
    "nothing was clipped", "the scheduler never moved", "the running average never moved", "nothing was reduced",
    "a GradScaler is part of the finding",
)  # fmt: skip
# How one begins where networks or losses are too much alike.
_ZERO = "the large batch's gradient is zero"
# What is said of a call that its function does not fit.
_CALLED = re.compile(r"positional argument|keyword argument")
# What is said of tensors that do not fit each other.
_SIZES = re.compile(
    r"batch_size \(|is invalid for input of size|must match the size|shapes cannot be multiplied"
    r"|[Dd]imension out of range|has no dimensions"
    r"|is out of bounds|Expected size|[Ss]izes? of tensors? must match|same (size|shape)"
)
# What lets a run go on that ended early.
ENDED = {
    "time": "`--timeout` gives it more time",
    "killed": "`--memory` gives each rank more",
}


def advice(plan: Plan, launched: Launched, evidence: Evidence | None, reason: Undecided) -> str:
    """What else decides a finding than a set-up file; "" where nothing that is run does."""
    if plan.job is None:
        return "" if plan.rule.unmeasured or plan.reason.startswith("Python") else _by_script(plan)
    if launched.fault:
        return ""
    hints = [ENDED[launched.how]] if launched.how in ENDED else []
    lacking, given = _lacking(plan, launched, evidence, reason)
    if given and not lacking:
        told = " and ".join(f"`{name}`" for name in given)
        hints.append(
            f"what the set-up file gives as {told} does not support what the loop does with it"
        )
    if missing := setup_template.left_behind(plan.job.text, _lines_of_imports(evidence)):
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        hints.append(
            f"run in its project, the file finds what it imports from `{missing[0]}`{others}"
        )
    return "; ".join((*hints, _by_script(plan)))


def _lines_of_imports(evidence: Evidence | None) -> list[int]:
    """The lines that imported from a package around the file, and found none."""
    first = evidence.raw.get("equal") if evidence else None
    return _lines_of_failed_imports(first["failed"]) if first else []


def _lines_of_failed_imports(failures: Sequence[Mapping[str, Any]]) -> list[int]:
    return [one["line"] for one in failures if "no known parent package" in one["reason"]]


def _by_script(plan: Plan) -> str:
    place = f"{plan.report.shown}:{plan.report.mark.place.line}"
    return (
        f"`accumlint confirm {place} --run -- SCRIPT [ARGUMENT]...` asks the script itself, on its own data;"
        " SCRIPT is this file or one that imports it"
    )


def setup(plan: Plan, launched: Launched, evidence: Evidence | None, reason: Undecided) -> str:
    """A set-up file to fill in with what is missing, "" where no name would help."""
    if plan.job is None or launched.fault:
        return ""
    wanted, _ = _lacking(plan, launched, evidence, reason)
    if not wanted:
        return ""
    source, roles, given = plan.job.text, plan.job.roles, _given_already(evidence)
    wanted |= {name: 0 for name in _beside(plan, wanted, evidence) if name not in {*wanted, *given}}
    if any(setup_template.role_of(name, roles, source) == "optimizer" for name in wanted):
        # What it is over.
        models = (n for n, role in roles.items() if role == "model" and n not in given)
        wanted = dict.fromkeys(islice(models, 1), 0) | wanted
    told = {"model": _data(evidence, plan), "loader": _of_windows(reason, evidence)}
    said = {role: text for role, text in told.items() if text}
    return setup_template.written(wanted, roles, source, said, str(reason))


def _beside(plan: Plan, wanted: Iterable[str], evidence: Evidence | None) -> Iterator[str]:
    """What would be missed next: the data of a network, and the network that a loss asks for several things."""
    assert plan.job is not None
    source, roles = plan.job.text, plan.job.roles
    first = evidence.raw.get("equal") if evidence else None
    # What is imported from the file's own package, and is not here.
    yield from setup_template.called_from(
        source, plan.job.entry, plan.job.line, _lines_of_imports(evidence)
    )
    for name in wanted:
        role = setup_template.role_of(name, roles, source)
        if role == "criterion":
            for owner in setup_template.compared(name, source):
                if roles.get(owner) == "model":
                    yield owner
                    yield from _feeding(plan, first, source) if first else ()
        elif role == "model" and first and plan.job.entry["driver"] != "trainer":
            yield from _feeding(plan, first, source)


def _lacking(
    plan: Plan, launched: Launched, evidence: Evidence | None, reason: Undecided
) -> tuple[dict[str, int], list[str]]:
    """The names that are missing, with their lines, and those that would be but have been given."""
    assert plan.job is not None
    known = _given_already(evidence)
    wanted: dict[str, int] = {}
    given: list[str] = []
    for found, line in _wanted(plan, launched, evidence, reason).items():
        name = failing_lines.giving(found, plan.job.text)
        if {name, f"self.{name}", name.removeprefix("self.")} & known:
            given.append(name)
        elif name:
            wanted.setdefault(name, line)
    # What is called with something that it does not take is what is at fault.
    return ({} if given and _CALLED.search(str(reason)) else wanted), given


def _given_already(evidence: Evidence | None) -> set[str]:
    """The names that a set-up file has given in the run."""
    first = evidence.raw.get("equal") if evidence else None
    standins: Mapping[str, str] = first["standins"] if first else {}
    return {name for name, what in standins.items() if what == GIVEN}


def _wanted(
    plan: Plan, launched: Launched, evidence: Evidence | None, reason: Undecided
) -> dict[str, int]:
    """The names that are missing, with the lines that ask for them; 0 for a line that is not known."""
    assert plan.job is not None
    source = plan.job.text
    if reason.names:
        return {
            one: 0
            for name in reason.names
            for one in failing_lines.made_of(failing_lines.given(name), source)
        }
    first = evidence.raw.get("equal") if evidence else None
    if first is None:
        line = launched.line
        return dict.fromkeys(failing_lines.read(line, source), line)
    if _of_windows(reason, evidence):
        # The user's own micro-batches may be others.
        return dict.fromkeys(_feeding(plan, first, source), 0)
    if first["unbound"] or any(one["inside"] for one in first["notes"]["refused"]):
        # What is refused happens before anything that is given could take its place.
        return {}
    if str(reason).startswith(_SKIPPED):
        return {
            name: 0
            for name in setup_template.conditions(source, plan.job.line)
            if failing_lines.is_free(name)
        }
    raised = first["raised"]
    failures: list[Mapping[str, Any]] = first["failed"]
    if raised and (owner := failing_lines.missed(raised["message"], raised["line"], source)):
        return {owner: raised["line"]}
    if raised and "does not require grad" in raised["message"]:
        # What it was to be computed from has failed before.
        behind = failing_lines.behind_losses(source)
        for index in reversed(range(len(failures))):
            if not behind & {*failures[index]["names"]}:
                continue
            if found := roots(failures, failures[index]["wanted"], index):
                return found
    if raised and (criterion := failing_lines.unmade(raised["line"], source)):
        return {criterion: raised["line"]}
    if raised and _SIZES.search(raised["message"]):
        # How large a network's outputs are is made up.
        networks = [n for n, what in first["standins"].items() if "a network of" in what]
        lacking = [n for one in failures if one["inside"] for n, _ in one["wanted"]]
        involved = {*failing_lines.behind(raised["line"], source), *lacking}
        found = [n for n in networks if n in involved]
        found = found or [n for n in networks if plan.job.roles.get(n) == "model"] or networks
        if found:
            misshaped = [f["line"] for f in failures if f["inside"] and _SIZES.search(f["reason"])]
            told = (name for line in misshaped for name in failing_lines.shaped_by(line, source))
            return dict.fromkeys((*found, *failing_lines.shaping(raised["line"], source), *told), 0)
    wanted = roots(failures, first["wanted"], len(failures))
    trained = any(e["kind"] == "step" for e in first["notes"]["events"])
    computed = str(reason).startswith(_COMPUTED)
    if not trained or computed:
        wanted = _reaching(plan, first, source, wanted, computed)
        if wanted:
            # What else is None and was to be something is asked for at once.
            wanted |= _nothings(failures, failing_lines.behind_losses(source))
    if str(reason).startswith(_ZERO):
        return wanted or _of_the_loop(plan, first, source)
    if wanted or (trained and not computed):
        return wanted
    if raised:
        line: int = raised["line"]
        wanted = dict.fromkeys(failing_lines.read(line, source), line)
    elif failure := deciding(failures):
        wanted = roots(failures, failure["wanted"], failures.index(failure))
        if not failure["inside"]:
            # Settings that others lacked are easily given with it.
            wanted = _settings(failures) | wanted
    return wanted or _of_the_loop(plan, first, source)


def _reaching(
    plan: Plan, first: Mapping[str, Any], source: str, wanted: Mapping[str, int], computed: bool
) -> dict[str, int]:
    """What is `wanted`, and what stand-ins reached a loss for; where statements have left that, what they lacked."""
    failures: list[Mapping[str, Any]] = first["failed"]
    notes = first["notes"]
    told = [(name, 0) for text in notes["touched"] if (name := failing_lines.given(text))]
    found = roots(failures, told, len(failures)) | dict(wanted)
    left = {name for one in failures if one["inside"] for name in one["names"]}
    if (computed and notes["own_loss"] and not found) or left & set(
        map(failing_lines.given, found)
    ):
        found = {
            name: line for name, line in found.items() if failing_lines.given(name) not in left
        }
        found |= {n: at for n, at in _first_missing(plan, first, source).items() if n not in found}
    return found


def _first_missing(plan: Plan, first: Mapping[str, Any], source: str) -> dict[str, int]:
    """What kept the statements of a loop from their values, and its data, which may be why.

    Left out is what statements that failed before should have given, and what functions are called with.
    """
    assert plan.job is not None
    failures: list[Mapping[str, Any]] = first["failed"]
    left = {name for one in failures for name in one["names"]} | setup_template.parameters(source)
    networks = {name for name, what in first["standins"].items() if "a network of" in what}
    left -= networks
    wanted: dict[str, int] = {}
    for index, one in enumerate(failures):
        if one["inside"]:
            made = {name: at for name, at in one["wanted"] if name in networks}
            rest = [(name, at) for name, at in one["wanted"] if name not in networks]
            found = made | roots(failures, rest, index)
            free = {name: at for name, at in found.items() if failing_lines.given(name) not in left}
            wanted = free | wanted
    return wanted | {n: 0 for n in _feeding(plan, first, source) if n not in wanted}


def _nothings(failures: Sequence[Mapping[str, Any]], behind: set[str]) -> dict[str, int]:
    """What was None in the loop, for the statements that failed of it and are `behind` the loss."""
    found: dict[str, int] = {}
    for index, failure in enumerate(failures):
        if failure["inside"] and "NoneType" in failure["reason"] and behind & {*failure["names"]}:
            found |= roots(failures, failure["wanted"], index)
    return found


def _of_windows(reason: Undecided, evidence: Evidence | None) -> str:
    """What the user's own micro-batches have to be where a reason is about windows, "" for another reason."""
    first = evidence.raw.get("equal") if evidence else None
    told = (text for start, text in _OF_WINDOWS.items() if str(reason).startswith(start))
    return next(told, "").format(steps=first["spec"]["steps"]) if first else ""


def _feeding(plan: Plan, first: Mapping[str, Any], source: str) -> Iterator[str]:
    """What decides how many micro-batches a window holds: the loader of a loop, and settings that count its rounds."""
    assert plan.job is not None
    if plan.job.entry["driver"] == "trainer":
        yield setup_template.TRAINED_ON
        return
    own = sorted(filter(failing_lines.is_free, setup_template.gone_through(source, plan.job.line)))
    loaders = [n for n, what in first["standins"].items() if "micro-batches made on" in what]
    made = [n for n in loaders if setup_template.role_of(n, plan.job.roles, source) == "loader"]
    # The innermost loop may go through something else, the terms of a loss or the tasks of a micro-batch.
    named = [n for n in made if "(" not in n]
    yield from [n for n in own if n in loaders][:1] or named[:1] or own[:1] or made[:1]
    yield from setup_template.counts(source, plan.job.line)


def _settings(failures: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The settings that failed statements lacked, in the order in which they failed."""
    return {
        name: line
        for failure in failures
        for name, line in failure["wanted"]
        if names.is_configuration(name) and "." in name
    }


def _of_the_loop(plan: Plan, first: Mapping[str, Any], source: str) -> dict[str, int]:
    """What a loop is about, where nothing else tells why it does not train.

    That is its model and what computes the loss from its output; where a loss was seen, its optimizer and its data too.
    """
    assert plan.job is not None
    roles = plan.job.roles
    networks = [n for n, what in first["standins"].items() if "a network of" in what]
    telling = _TELLING | {"optimizer"} if first["notes"]["losses"] else _TELLING
    found = [
        n for n, role in roles.items() if role in telling and "." not in n.removeprefix("self.")
    ]
    if not any(roles.get(n) in _TELLING for n in found):
        found = [n for n in networks if n in failing_lines.behind_losses(source)] or networks[:1]
    if first["notes"]["losses"]:
        if not any(roles.get(n) == "optimizer" for n in found):
            found += failing_lines.stepping(plan.job.line, source)
        found += sorted(
            filter(failing_lines.is_free, setup_template.gone_through(source, plan.job.line))
        )
    return dict.fromkeys(found, 0)


def _data(evidence: Evidence | None, plan: Plan) -> str:
    """What a network gets in a run whose micro-batches are made on the spot, "" where that is not known."""
    first = evidence.raw.get("equal") if evidence else None
    if first is None or plan.job is None:
        return ""
    if first["kind"] == "tokens":
        return f"it gets rows of token ids below 11 and labels, of which {plan.job.ignored} is none"
    return "it gets rows of 5 numbers" if first["kind"] in ("rows", "values") else ""
