"""What would decide an undecided finding: a set-up file that is ready to be filled in, or what else the user can do."""

from __future__ import annotations

import ast
import builtins
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from accumlint.confirming.evidence import Evidence, Undecided, deciding, roots
from accumlint.confirming.launch import Launched
from accumlint.confirming.plan import Plan
from accumlint.reading import names

# What takes the place of a name in a set-up file, by its role.
_ROLES = {
    "model": "a small torch.nn.Module, of some thousand parameters",
    "criterion": "a function that gives the loss",
    "loader": "a list of micro-batches, of which the loop takes one at a time",
    "optimizer": "an optimizer over the parameters of the model that is given here too",
}
# What is said of a name that a set-up file has given.
GIVEN = "as the set-up file gives it"
# What can show a loss where nothing else is known to be missing.
_TELLING = {"model", "criterion"}
# How reasons begin that are about what the loss is computed with.
_COMPUTED = ("a stand-in reached the loss", "no loss was seen")
# How a reason begins where data made on the spot is too much alike.
_ALIKE = "every micro-batch counted as many targets"
# What is said of tensors that do not fit each other.
_SIZES = re.compile(
    r"batch_size \(|is invalid for input of size|must match the size|shapes cannot be multiplied"
    r"|[Dd]imension out of range|is out of bounds|Expected size|[Ss]izes? of tensors? must match|same (size|shape)"
)
# What is done with a tensor, by which nothing else goes.
_OF_TENSORS = {
    "size", "shape", "to", "view", "reshape", "item", "detach", "float", "long", "bool", "cpu", "cuda", "device",
    "dtype", "unsqueeze", "squeeze", "flatten", "expand", "clone", "mean", "sum",
}  # fmt: skip
# Names of modules and of what is the same everywhere.
_KNOWN = {*dir(builtins), "torch", "F", "nn", "np", "os", "sys", "math", "dist", "self", "cls"}
_CONFIGURATION = re.compile(r"(^|[._])(args|config|cfg|conf|settings|options|opts?|hparams)$")
_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")
# Names of functions and modules that compute a loss; a loss in lower case is what such a one gives.
_CRITERION = re.compile(r"^(Loss|(loss|criterion)_?(fn|func|function|module)|criterion)$")
# What lets a run go on that ended early.
ENDED = {
    "time": "`--timeout` gives it more time",
    "killed": "`--memory` gives each rank more",
}


def advice(plan: Plan, launched: Launched) -> str:
    """What else decides a finding than a set-up file; "" where nothing that is run does."""
    if plan.job is None:
        return "" if plan.rule.unmeasured or plan.reason.startswith("Python") else _by_script(plan)
    if launched.fault:
        return ""
    hints = [ENDED[launched.how]] if launched.how in ENDED else []
    return "; ".join((*hints, _by_script(plan)))


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
    given = _given_already(evidence)
    source, roles = plan.job.text, plan.job.roles
    data = _data(evidence, plan)
    wanted = {
        name: line
        for name, line in _wanted(plan, launched, evidence, reason).items()
        if not {name, f"self.{name}", name.removeprefix("self.")} & given
    }
    if not wanted:
        return ""
    if any(_role(name, roles, source) == "optimizer" for name in wanted):
        # What it is over.
        models = (n for n, role in roles.items() if role == "model" and n not in given)
        wanted = dict.fromkeys(islice(models, 1), 0) | wanted
    entries = [
        f"        {json.dumps(name)}: ...,  # {_meant(name, line, roles, source, data)}"
        for name, line in wanted.items()
    ]
    return "\n".join(
        (
            '"""Objects that `accumlint confirm --setup` cannot make up; this is called for every run of the loop.',
            "",
            "\n".join(
                textwrap.wrap(f"Without them: {reason}".replace('"', "'").replace("\\", "/"), 110)
            ),
            '"""',
            "",
            "",
            "def setup(rank, world, device):",
            "    return {",
            *entries,
            "    }",
            "",
        )
    )


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
        return {one: 0 for name in reason.names for one in _made_of(_given(name), source)}
    first = evidence.raw.get("equal") if evidence else None
    if first is None:
        line = launched.line
        return dict.fromkeys(_read(line, source), line)
    if str(reason).startswith(_ALIKE):
        # The user's own micro-batches may differ.
        loaders = [n for n, what in first["standins"].items() if "micro-batches made on" in what]
        own = [n for n in loaders if _role(n, plan.job.roles, source) == "loader"]
        return dict.fromkeys(own[:1], 0)
    if first["unbound"] or any(one["inside"] for one in first["notes"]["refused"]):
        # What is refused happens before anything that is given could take its place.
        return {}
    raised = first["raised"]
    failures: list[Mapping[str, Any]] = first["failed"]
    if raised and (owner := _missed(raised["message"], raised["line"], source)):
        return {owner: raised["line"]}
    if raised and "does not require grad" in raised["message"]:
        # What it was to be computed from has failed before.
        for index in reversed(range(len(failures))):
            if found := roots(failures, failures[index]["wanted"], index):
                return found
    if raised and (criterion := _unmade(raised["line"], source)):
        return {criterion: raised["line"]}
    if raised and _SIZES.search(raised["message"]):
        # How large a network's outputs are is made up.
        networks = [n for n, what in first["standins"].items() if "a network of" in what]
        found = [n for n in networks if plan.job.roles.get(n) == "model"] or networks
        if found := _mentioned(found, raised["line"], source) or found:
            return dict.fromkeys((*found, *_shaping(raised["line"], source)), 0)
    wanted = roots(failures, first["wanted"], len(failures))
    trained = any(e["kind"] == "step" for e in first["notes"]["events"])
    if not trained or str(reason).startswith(_COMPUTED):
        told = [(name, 0) for text in first["notes"]["touched"] if (name := _given(text))]
        wanted = roots(failures, told, len(failures)) | wanted
    if wanted or trained:
        return wanted
    if raised:
        line: int = raised["line"]
        wanted = dict.fromkeys(_read(line, source), line)
    elif failure := deciding(failures):
        wanted = roots(failures, failure["wanted"], failures.index(failure))
    # The model itself, or what computes the loss from its output, would tell.
    return wanted or {
        name: 0
        for name, role in plan.job.roles.items()
        if role in _TELLING and "." not in name.removeprefix("self.")
    }


def _mentioned(names_: Iterable[str], line: int, source: str) -> list[str]:
    """Those of some names that the statement at a line reads."""
    around = [
        n
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]
    read = (
        {ast.unparse(n) for n in ast.walk(around[-1]) if isinstance(n, ast.expr)}
        if around
        else set[str]()
    )
    return [name for name in names_ if name in read]


def _shaping(line: int, source: str) -> Iterator[str]:
    """The names by which a statement at a line gives tensors a shape."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="view" | "reshape"), args=args, lineno=at) if (
                at == line
            ):
                yield from (ast.unparse(a) for a in args if isinstance(a, ast.Name | ast.Attribute))
            case _:
                pass


def _made_of(name: str, source: str) -> list[str]:
    """What takes the place of a name: of a class of the user's, or a method of one, what is made of it."""
    cls = name.partition(".")[0]
    if f"class {cls}" not in source:
        return [name]
    made = [
        ast.unparse(target)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func) == cls
        for target in node.targets
    ]
    return list(dict.fromkeys(made)) or [name]


def _missed(message: str, line: int, text: str) -> str:
    """What lacks the attribute of an object of the user's that an exception misses at a line, "" for none.

    Of the object itself it is the attribute that is asked for, and of its settings they are.
    """
    found = _ATTRIBUTE.search(message)
    if not found or f"class {found[1]}" not in text:
        return ""
    owners = [
        ast.unparse(n.value)
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.Attribute) and n.attr == found[2] and n.lineno == line
    ]
    owner = owners[0] if owners else "self"
    return owner if _CONFIGURATION.search(owner) else f"self.{found[2]}"


def _unmade(line: int, text: str) -> str:
    """The name of the loss function that a statement at a line makes, "" where it makes none."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=ast.Call()):
                inside = node.lineno <= line <= (node.end_lineno or line)
                if inside and _CRITERION.search(ast.unparse(target).rpartition(".")[2]):
                    return ast.unparse(target)
            case _:
                pass
    return ""


def _given(text: str) -> str:
    """The name under which what a run calls `text` is given: that of what is called, and not of what it gives."""
    found = re.match(r"[A-Za-z_][\w.]*", text)
    owner, _, last = found[0].rstrip(".").rpartition(".") if found else ("", "", "")
    return owner if owner and last in _OF_TENSORS else f"{owner}.{last}".lstrip(".")


def _read(line: int, text: str) -> Iterator[str]:
    """What is called at a line, or else read there; nothing where a loss goes backward, which is the end of all."""
    nodes = [n for n in ast.walk(ast.parse(text)) if getattr(n, "lineno", 0) == line]
    called = [n.func for n in nodes if isinstance(n, ast.Call)]
    if any(isinstance(f, ast.Attribute) and f.attr == "backward" for f in called):
        return
    read = [
        ast.unparse(n)
        for n in nodes
        if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Load)
    ]
    for told in (map(_called, called), read):
        if found := [name for name in dict.fromkeys(told) if _is_free(name)]:
            yield from found
            return


def _called(function: ast.expr) -> str:
    """What has to be given for a call: a function, or the object that has the method."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.value.id if function.value.id != "self" else ast.unparse(function)
    if isinstance(function, ast.Attribute) and ast.unparse(function).count(".") > 1:
        # What an attribute of an object of the user's can do comes with it.
        owner = ast.unparse(function.value)
        return owner if owner.startswith("self.") else ast.unparse(function)
    return ast.unparse(function)


def _is_free(name: str) -> bool:
    """Whether a name is the user's own."""
    dotted = all(part.isidentifier() for part in name.split("."))
    return dotted and (name.startswith("self.") or name.partition(".")[0] not in _KNOWN)


def _data(evidence: Evidence | None, plan: Plan) -> str:
    """What a network gets in a run whose micro-batches are made on the spot, "" where that is not known."""
    first = evidence.raw.get("equal") if evidence else None
    if first is None or plan.job is None:
        return ""
    if first["kind"] == "tokens":
        return (
            f"; it gets rows of token ids below 11 and labels, of which {plan.job.ignored} is none"
        )
    return "; it gets rows of 5 numbers" if first["kind"] in ("rows", "values") else ""


def _role(name: str, roles: Mapping[str, str], source: str) -> str:
    """The role of what is to be given under a name, "" for none."""
    last = name.rpartition(".")[2]
    if role := roles.get(name):
        return role
    # What is called is no loss yet.
    called = last.lower().endswith("loss") and re.search(rf"\b{last}\(", source)
    return "criterion" if called or _CRITERION.search(last) else names.role_of(last)


def _meant(name: str, line: int, roles: Mapping[str, str], source: str, data: str) -> str:
    """What is to stand for a name: what its role asks for, and where it is read."""
    role = _role(name, roles, source)
    said = [_ROLES[role] + (data if role == "model" else "")] if role in _ROLES else []
    if not said and _CONFIGURATION.search(name):
        said.append("a types.SimpleNamespace with what its name does not tell")
    # What is imported is read without the package that it is from.
    parts = name.split(".")
    number = line or _first_use({".".join(parts[i:]) for i in range(len(parts))}, source)
    if number:
        said.append(f"read at line {number}: {source.splitlines()[number - 1].strip()[:80]}")
    return "; ".join(said) or "whatever the loop needs"


def _first_use(names_: Iterable[str], source: str) -> int:
    """The first line that reads one of some names, 0 for none."""
    known = set(names_)
    uses = (
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node) in known
    )
    return min(uses, default=0)
