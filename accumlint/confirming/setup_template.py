"""A set-up file to fill in: each name that is missing, what is to stand for it, and where the source reads it."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping

from accumlint.reading import names

# What takes the place of a name in a set-up file, by its role.
_ROLES = {
    "model": "a small torch.nn.Module, of some thousand parameters",
    "modules": "a torch.nn.ModuleDict of small modules",
    "criterion": "a function that gives the loss",
    "loader": "a list of micro-batches, of which the loop takes one at a time",
    "collated": "a list of micro-batches, as the data collator gives them to the loss",
    "optimizer": "an optimizer over the parameters of the model that is given here too",
}
_CONFIGURATION = re.compile(r"(^|[._])(args|config|cfg|conf|settings|options|opts?|hparams)$")
# Names of functions and modules that compute a loss; a loss in lower case is what such a one gives.
_CRITERION = re.compile(r"^(Loss|(loss|criterion)_?(fn|func|function|module)|criterion)$")
# What every module has.
_OF_MODULES = {
    "parameters", "named_parameters", "train", "eval", "to", "cuda", "cpu", "half", "float", "zero_grad", "modules",
    "state_dict", "load_state_dict", "requires_grad_", "apply", "children", "named_modules", "module", "no_sync",
    "training", "backward", "step",
}  # fmt: skip
# What the Trainer of transformers is given to train on.
TRAINED_ON = "self.train_dataset"
# As wide as a line of the file may be, its indentation left out.
_WIDTH = 92
# Of longer lines, the beginning tells enough.
_LONG = 80
# What is called or asked for more often is told by its first places.
_MOST = 6


def is_configuration(name: str) -> bool:
    return bool(_CONFIGURATION.search(name))


def is_criterion(name: str) -> bool:
    return bool(_CRITERION.search(name))


def written(
    wanted: Mapping[str, int],
    roles: Mapping[str, str],
    source: str,
    told: Mapping[str, str],
    reason: str,
) -> str:
    """The file that asks for names, of which each has the line that reads it, 0 where that is not known.

    `told` is what is said of a role besides, like what a network gets; `reason` tells what happened without them.
    """
    without = f"Without them: {reason}".replace('"', "'").replace("\\", "/")
    lines = [
        '"""What `accumlint confirm` cannot make up: put objects of your own in the places of `...`.',
        "",
        "`setup` is called for every run of the loop, so that each begins with fresh objects."
        " What stays `...` is made up.",
        "",
        *textwrap.wrap(without, 110),
        '"""',
        "",
        "import torch",
        "",
        "",
        "def setup(rank, world, device):",
        "    return {",
    ]
    for name, line in wanted.items():
        meant = "; ".join(_meant(name, line, roles, source, told))
        lines += [f"        # {part}" for part in textwrap.wrap(meant, _WIDTH)]
        lines.append(f"        {json.dumps(name)}: ...,")
    return "\n".join((*lines, "    }", ""))


def role_of(name: str, roles: Mapping[str, str], source: str) -> str:
    """The role of what is to be given under a name, "" for none."""
    last = name.rpartition(".")[2]
    if roles.get(name, "settings") == "settings" and re.search(
        rf"\b{re.escape(name)}\.step\(", source
    ):
        return names.role_of(last) or "optimizer"
    if role := roles.get(name):
        return role
    if name in gone_through(source):
        return "loader"
    # What is called is no loss yet.
    called = last.lower().endswith("loss") and re.search(rf"\b{last}\(", source)
    return "criterion" if called or is_criterion(last) else names.role_of(last)


def gone_through(source: str, line: int = 0) -> set[str]:
    """The names that loops which train go through: that of the innermost around a line that has one, else all."""
    loops = _loops(source)
    around = [n for n in loops if n.lineno <= line <= (n.end_lineno or n.lineno)]
    inwards = sorted(around, key=lambda n: -n.lineno)
    innermost = next(filter(None, (_source(loop.iter) for loop in inwards)), "")
    return {innermost} if innermost else set(filter(None, (_source(n.iter) for n in loops)))


def counts(source: str, line: int) -> Iterator[str]:
    """The settings that say how often loops which train go round inside the one around a line, or around it."""
    around = [n for n in _loops(source) if n.lineno <= line <= (n.end_lineno or n.lineno)]
    named = [n for n in around if _source(n.iter)]
    within = max(named, key=lambda n: n.lineno, default=None)
    for loop in _loops(source):
        if within and not within.lineno < loop.lineno <= (within.end_lineno or within.lineno):
            continue
        match loop.iter:
            case ast.Call(func=ast.Name("range"), args=[ast.Attribute(value=owner) as count]):
                if is_configuration(ast.unparse(owner)):
                    yield ast.unparse(count)
            case _:
                pass


def left_behind(source: str, lines: Collection[int]) -> list[str]:
    """The modules of its own package that a source imports from at some lines, as it names them."""
    found = [
        "." * node.level + (node.module or "")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.level and node.lineno in lines
    ]
    return list(dict.fromkeys(found))


def called_from(
    source: str, entry: Mapping[str, str | None], line: int, lines: Collection[int]
) -> list[str]:
    """What is imported at some lines, and called by the function around a line or by what that calls in turn."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.lineno in lines
        for alias in node.names
    }
    functions = {n.name: n for n in nodes if isinstance(n, ast.FunctionDef)}
    reached = [n.name for n in functions.values() if n.lineno <= line <= (n.end_lineno or n.lineno)]
    if (name := entry["function"]) and name in functions:
        reached.append(name)
    called: dict[str, None] = {}
    for name in reached:
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Call):
                last = ast.unparse(node.func).removeprefix("self.")
                called.setdefault(last)
                if last in functions and last not in reached:
                    reached.append(last)
    return [name for name in called if name in imported]


def compared(criterion: str, source: str) -> list[str]:
    """What a loss gets several things of: `model`, where it compares `model.old(x)` with `model.new(x)`."""
    nodes = list(ast.walk(ast.parse(source)))
    read = {
        ast.unparse(part)
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) == criterion
        for argument in (*node.args, *(keyword.value for keyword in node.keywords))
        for part in ast.walk(argument)
        if isinstance(part, ast.Name)
    }
    gives: dict[str, set[str]] = {}
    for node in nodes:
        match node:
            case ast.Assign(
                targets=[target], value=ast.Call(func=ast.Attribute(value=owner, attr=method))
            ):
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                if read & {ast.unparse(part) for part in parts}:
                    gives.setdefault(ast.unparse(owner), set()).add(method)
            case _:
                pass
    return [owner for owner, methods in gives.items() if len(methods) > 1]


def conditions(source: str, line: int) -> list[str]:
    """What decides whether a line is run: the names in the conditions around it."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or line):
            for part in ast.walk(node.test):
                if isinstance(part, ast.Attribute | ast.Name) and isinstance(part.ctx, ast.Load):
                    found.setdefault(ast.unparse(part))
    # Of what is an attribute, that is asked for.
    return [n for n in found if not any(other.startswith(f"{n}.") for other in found)]


def parameters(source: str) -> set[str]:
    """The names of what functions are called with."""
    return {node.arg for node in ast.walk(ast.parse(source)) if isinstance(node, ast.arg)}


def _loops(source: str) -> list[ast.For]:
    """The loops in which something goes backward."""
    return [
        loop
        for loop in ast.walk(ast.parse(source))
        if isinstance(loop, ast.For) and any(map(_goes_backward, ast.walk(loop)))
    ]


def _source(through: ast.expr) -> str:
    """What a loop goes through in the end, under `enumerate` and the like; "" for counts and for what has no name."""
    while isinstance(through, ast.Call) and through.args and ast.unparse(through.func) != "range":
        through = through.args[0]
    return ast.unparse(through) if isinstance(through, ast.Name | ast.Attribute) else ""


def _goes_backward(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "backward"


def _meant(
    name: str, line: int, roles: Mapping[str, str], source: str, told: Mapping[str, str]
) -> Iterator[str]:
    """What is to stand for a name: what its role asks for, where it is read, and what is done with it."""
    role = role_of(name, roles, source)
    if role == "model" and re.search(rf"{re.escape(name)}(\.items\(|\[)", source):
        role = "modules"
    if name == TRAINED_ON:
        role = "collated"
    if role in _ROLES:
        yield _ROLES[role]
    elif is_configuration(name):
        yield "a types.SimpleNamespace with what its name does not tell"
    if role in told:
        yield told[role]
    if role == "collated":
        if keys := _keys(source):
            yield f"dictionaries with {', '.join(map(repr, keys[:_MOST]))}"
        return
    used = list(_used(name, source, role in ("model", "loader")))
    if used:
        yield from used
        return
    number = _place(name, line, source)
    if number:
        text = source.splitlines()[number - 1].strip()
        yield f"read at line {number}: {text if len(text) <= _LONG else text[:_LONG] + '…'}"
    elif role not in _ROLES:
        yield "whatever the loop needs"


def _place(name: str, line: int, source: str) -> int:
    """The line that reads a name: in the statement at a line where it is there, else the first that does."""
    # What is imported is read without the package that it is from.
    parts = name.split(".")
    known = {".".join(parts[i:]) for i in range(len(parts))}
    uses = [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node) in known
    ]
    after = [use for use in uses if line <= use <= line + 10]
    return min(after or uses, default=line) if uses else line


def _used(name: str, source: str, asks: bool) -> Iterator[str]:
    """How a source first calls something, and what it `asks` a network for besides what every module has."""
    calls: list[str] = []
    asked: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=called) if ast.unparse(called) == name:
                calls.append(f"line {node.lineno}: {name}({', '.join(_arguments(node))})")
            case ast.Attribute(value=owner) if _is(owner, name):
                if node.attr not in _OF_MODULES and not node.attr.startswith("__"):
                    asked.append(node.attr)
            case ast.Attribute(value=ast.Attribute(value=owner, attr="config")) if _is(owner, name):
                asked.append(f"config.{node.attr}")
            case _:
                pass
    if "config" in asked and any(one.startswith("config.") for one in asked):
        asked = [one for one in asked if one != "config"]
    yield from (f"called at {call}" for call in calls[:1])
    if (told := list(dict.fromkeys(asked))) and asks:
        yield f"needs {', '.join(f'.{one}' for one in told[:_MOST])}"


def _keys(source: str) -> list[str]:
    """The keys by which functions take what they are given apart, where that is called a micro-batch."""
    found = [
        node.slice.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("inputs", "batch")
    ]
    return list(dict.fromkeys(found))


def _is(owner: ast.expr, name: str) -> bool:
    """Whether an expression is a network of that name, or what takes a wrapper off it."""
    match owner:
        case ast.Call(func=ast.Attribute(attr=taken) | ast.Name(id=taken), args=[inner]):
            return "unwrap" in taken and ast.unparse(inner) == name
        case _:
            return ast.unparse(owner) == name


def _arguments(call: ast.Call) -> Iterable[str]:
    """The arguments of a call, long ones by what they are passed as."""
    for argument in call.args:
        text = ast.unparse(argument)
        yield text if len(text) <= 30 else "…"
    for keyword in call.keywords:
        text = ast.unparse(keyword.value)
        if keyword.arg is None:
            yield f"**{text}"
        else:
            yield f"{keyword.arg}={text if len(text) <= 20 else '…'}"
