"""Checks generated files that are long, wide or deep in one way each, and says what they cost.

    python benchmarks/hostile.py [--size 1] [--only NAME ...] [--limit 10] [--write FOLDER]

Each kind is checked at half the size and at the whole one, in a process of its own: work that grows with the square of
a file's length shows as a factor near 4, work that a budget ends as one below 2. With `--write` the files are written
instead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypedDict

# Checks the file that is named, and tells the CPU seconds of the check without those of starting.
CHECK = """\
import json, resource, sys, time
from accumlint import config, reading, tracing
from accumlint.check import check
from accumlint.diagnostics import fix_selection, judge
from accumlint.files.inputs.discovery import find
from accumlint.diagnostics.suppression_filter import selection
targets, _ = find((sys.argv[1],), config.Options(isolated=True))
selection(targets[0].settings)
start = time.process_time()
checked, = check(targets)
seconds = time.process_time() - start
print(json.dumps({
    "died": "",
    "seconds": seconds,
    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "findings": len(checked.reports),
    "problems": [[p.kind.name.lower(), p.message, p.traceback] for p in checked.problems],
}))
"""

HEAD = """\
import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = """\
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOOP = "for i, x in enumerate(loader):\n"


def _body(n: int, line: Callable[[int], str]) -> str:
    return HEAD + LOOP + "".join(f"    {line(i)}\n" for i in range(n)) + STEP


def _functions(n: int, one: Callable[[int], str]) -> str:
    return HEAD + "\n".join(map(one, range(n)))


def _train(i: int) -> str:
    return (
        f"def train_{i}(model, optimizer, loader):\n"
        "    for step, x in enumerate(loader):\n"
        "        loss = model(x).mean() / 4\n"
        "        loss.backward()\n"
        "        if (step + 1) % 4 == 0:\n"
        "            optimizer.step()\n"
        "            optimizer.zero_grad()\n"
    )


def _chained(i: int) -> str:
    """A function that trains and calls the one before."""
    call = f"    train_{i - 1}(model, optimizer, loader)\n" if i else ""
    return _train(i) + call


def _trainer(i: int) -> str:
    inner = "".join(
        f"    {line}\n" for line in _train(i).replace("(model", "(self, model").splitlines()
    )
    return f"class Trainer{i}{f'(Trainer{i - 1})' if i else ''}:\n{inner}"


def _autograd(i: int) -> str:
    return (
        f"class Op{i}(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g\n"
    )


def _nested(n: int, opening: Callable[[int], str]) -> str:
    """Blocks within each other, as deep as Python's own tokenizer goes."""
    deep = min(n, 90)
    rows = [" " * i + opening(i) for i in range(deep)]
    inner = "".join(" " * deep + row.lstrip() + "\n" for row in STEP.splitlines())
    return HEAD + "\n".join(rows) + "\n" + inner


def _namesake(i: int) -> str:
    return (
        f"class C{i}:\n    def go(self, loss):\n        other.go(loss)\n        loss.backward()\n"
    )


def _heir(i: int) -> str:
    return (
        f"class C{i}(C{i - 1}):\n    def go(self, loss):\n        loss.backward()\n"
        f"        C{i - 1}().go(loss)\n"
    )


def _link(i: int) -> str:
    return f"def f{i}(loss):\n    f{i + 1}(loss)\n    loss.backward()\n"


def _elifs(n: int, body: str) -> str:
    most = min(n, 990)
    chain = "".join(
        f"    {'elif' if i else 'if'} mode == {i}:\n        {body.format(i)}\n" for i in range(most)
    )
    return HEAD + LOOP + chain + STEP


def _methods(n: int) -> str:
    methods = "".join(
        f"    def part_{i}(self, x):\n        self.count_{i} += 1\n"
        f"        return self.part_{i + 1}(x)\n"
        for i in range(n)
    )
    return (
        HEAD + "class Trainer:\n    def __init__(self):\n        self.optimizer = optimizer\n" + methods
        + f"    def part_{n}(self, x):\n        loss = model(x).mean()\n        loss.backward()\n"
        "        self.optimizer.step()\n    def training_step(self, batch, batch_idx):\n"
        "        return self.part_0(batch)\n"
    )  # fmt: skip


def _doubling(n: int) -> str:
    """Functions that call the next one twice each."""
    rows = [
        f"def f{i}(x):\n    loss = f{i + 1}(x)\n    return loss + f{i + 1}(x)\n" for i in range(n)
    ]
    return HEAD + "\n".join(rows) + (
        f"def f{n}(x):\n    loss = model(x).mean()\n    loss.backward()\n    return loss\n" + LOOP +
        "    f0(x)\n    optimizer.step()\n    optimizer.zero_grad()\n"
    )  # fmt: skip


def _flags(n: int) -> str:
    """A parameter that may or may not be set before each of many events."""
    names = ", ".join(f"a{i}" for i in range(n))
    rows = "".join(f"        if a{i}:\n            loss.backward()\n" for i in range(n))
    head = (
        f"def train({names}, loader=None):\n    for x in loader:\n        loss = model(x).mean()\n"
    )
    return HEAD + head + rows + (
        "        optimizer.step()\n"
    )  # fmt: skip


def _loops(n: int) -> str:
    return HEAD + "".join(LOOP + STEP for _ in range(n))


def _unreached(n: int) -> str:
    """Backwards behind guards that are never open, in functions that call each other."""
    return HEAD + "\n".join(
        f"def never_{i}(x, flag=False):\n    if flag == 'one' and not DEBUG_{i}:\n"
        f"        return never_{max(0, i - 1)}(x)\n"
        f"    raise ValueError\n    model(x).sum().backward()\n"
        for i in range(n)
    )  # fmt: skip


# Each kind: what it is made of, and how many of them at size 1.
KINDS: Mapping[str, tuple[int, Callable[[int], str]]] = {
    "assignments": (10_000, lambda n: _body(n, lambda i: f"a{i} = x + {i}")),
    "chained assignments": (10_000, lambda n: _body(n, lambda i: f"a{i + 1} = a{i} + x" if i else "a1 = x")),
    "losses": (10_000, lambda n: _body(n, lambda i: f"loss{i} = model(x).mean()")),
    "summed losses": (10_000, lambda n: _body(n, lambda i: "total = total + model(x).mean()" if i else "total = 0")),
    "calls": (10_000, lambda n: _body(n, lambda i: f"log(x, {i})")),
    "backwards": (10_000, lambda n: _body(n, lambda _: "model(x).mean().backward()")),
    "steps": (10_000, lambda n: _body(n, lambda _: "optimizer.step()")),
    "attributes": (10_000, lambda n: _body(n, lambda i: f"self.a{i} = x")),
    "augments": (10_000, lambda n: _body(n, lambda i: f"total_{i} += loss.item()")),
    "ifs": (3_000, lambda n: _body(n, lambda i: f"if flag_{i}:\n        optimizer.zero_grad()")),
    "ifs that return": (3_000, lambda n: _body(n, lambda i: f"if flag_{i}:\n        break")),
    "ifs of steps": (3_000, lambda n: _body(n, lambda i: f"if i % {i + 2} == 0:\n        optimizer.step()")),
    "elifs": (990, lambda n: _elifs(n, "x = x + {}")),
    "elifs of steps": (990, lambda n: _elifs(n, "optimizer.step()")),
    "deep ifs": (90, lambda n: _nested(n, lambda i: f"if flag_{i}:")),
    "deep loops": (90, lambda n: _nested(n, lambda i: f"for x{i} in loader:" if i else "for x in loader:")),
    "deep withs": (90, lambda n: _nested(n, lambda i: f"with context_{i}():")),
    "deep functions": (90, lambda n: _nested(n, lambda i: f"def f{i}(x):")),
    "deep classes": (90, lambda n: _nested(n, lambda i: f"class C{i}:")),
    "deep tries": (18, lambda n: HEAD + "".join(" " * i + "try:\n" for i in range(n)) + "".join(
        " " * n + r.lstrip() + "\n" for r in STEP.splitlines()) + "".join(
        " " * i + "except ValueError:\n" + " " * (i + 1) + "optimizer.step()\n" for i in reversed(range(n)))),
    "training functions": (2_000, lambda n: _functions(n, _train)),
    "training functions that call": (1_000, lambda n: _functions(n, _chained)),
    "one name": (2_000, lambda n: _functions(n, lambda _: _train(0))),
    "trainers": (1_000, lambda n: _functions(n, _trainer)),
    "autograd functions": (4_000, lambda n: _functions(n, _autograd) + LOOP + STEP),
    "methods": (3_000, _methods),
    "namesakes": (600, lambda n: _functions(n, _namesake) + _body(1, lambda _: "stepper.go(x)")),
    "namesakes that call": (1_000, lambda n: HEAD + "def go(loss, a, b):\n    go(loss, a + b, b)\n" * n
                            + _body(1, lambda _: "go(x, 1, 2)")),
    "heirs": (600, lambda n: _functions(n, _heir) + _body(1, lambda _: f"C{n - 1}().go(model(x))")),
    "functions in a row": (1_000, lambda n: _functions(n, _link) + _body(1, lambda _: "f0(model(x))")),
    "doubling calls": (200, _doubling),
    "flags": (250, _flags),
    "training loops": (1_500, _loops),
    "unreached backwards": (1_500, _unreached),
    "names": (100_000, lambda n: HEAD + "".join(f"a{i} = {i}\n" for i in range(n)) + LOOP + STEP),
    "names that are used": (20_000, lambda n: HEAD + "".join(f"a{i} = {i}\n" for i in range(n)) + LOOP
        + "".join(f"    x = x + a{i}\n" for i in range(n)) + STEP),
    "parameters": (20_000, lambda n: HEAD + f"def train(loader, {', '.join(f'p{i}=None' for i in range(n))}):\n"
        "    for x in loader:\n        loss = model(x).mean()\n        loss.backward()\n        optimizer.step()\n"),
    "arguments": (20_000, lambda n: HEAD + LOOP + f"    x = f({', '.join(f'x[{i}]' for i in range(n))})\n" + STEP),
    "a list": (100_000, lambda n: HEAD + f"data = [{', '.join(map(str, range(n)))}]\n" + LOOP + STEP),
    "a table": (30_000, lambda n:
        HEAD + "data = {" + ", ".join(f"'k{i}': {i}" for i in range(n)) + "}\n" + LOOP + STEP),
    "targets": (20_000, lambda n: HEAD + LOOP + "    " + " = ".join(f"a{i}" for i in range(n)) + " = x\n" + STEP),
    "a long sum": (350, lambda n: HEAD + LOOP + "    y = " + " + ".join(f"x{i}" for i in range(n)) + "\n" + STEP),
    "long sums": (400, lambda n: _body(n, lambda i: f"y{i} = " + " + ".join(f"x{j}" for j in range(300)))),
    "boolean words": (10_000, lambda n: HEAD + LOOP + "    y = f(" + ", ".join(f"a{i} and b{i}" for i in range(n))
        + ")\n" + STEP),
    "a condition": (300, lambda n: HEAD + LOOP + "    if " + " or ".join(f"f{i}" for i in range(n))
        + ":\n        optimizer.step()\n" + STEP),
    "conditions": (500, lambda n: _body(n, lambda i: "if " + " or ".join(f"f{i}_{j}" for j in range(50))
        + ":\n        optimizer.step()")),
    "attribute chains": (1_000, lambda n: _body(n, lambda i: f"y{i} = x" + ".a" * 300)),
    "call chains": (1_000, lambda n: _body(n, lambda i: f"y{i} = x" + ".a()" * 150)),
    "comprehensions": (3_000, lambda n: _body(n, lambda i: f"y{i} = [model(z).mean() for z in x]")),
    "f-strings": (5_000, lambda n: _body(n, lambda i: f"print(f'{{loss}} {{x}} {{i:>{i}}}')")),
    "imports": (10_000, lambda n: HEAD + "".join(f"import m{i}\n" for i in range(n)) + LOOP + STEP),
    "optimizers": (1_000, lambda n: HEAD + "".join(f"opt{i} = torch.optim.SGD(model.parameters())\n" for i in range(n))
        + LOOP + STEP + "".join(f"    opt{i}.step()\n" for i in range(n))),
    "models": (1_000, lambda n: HEAD + "".join(f"model{i} = nn.Linear(2, 2)\n" for i in range(n)) + LOOP
        + "    loss = 0\n" + "".join(f"    loss = loss + model{i}(x).mean()\n" for i in range(n))
        + "    loss.backward()\n    optimizer.step()\n"),
    "withs": (3_000, lambda n: _body(n, lambda _: "with model.no_sync():\n        model(x).mean().backward()")),
    "tries": (3_000, lambda n:
        _body(n, lambda _: "try:\n        optimizer.step()\n    except ValueError:\n        pass")),
    "loops in a loop": (1_000, lambda n:
        _body(n, lambda i: f"for j in range({i}):\n        model(x).mean().backward()")),
    "ignores": (10_000, lambda n: _body(n, lambda i: f"a{i} = x  # accumlint: ignore[ACC102]")),
    "findings": (1_000, lambda n: _functions(n, lambda i: _train(i).replace(" / 4", ""))),
    "findings of scalers": (500, lambda n: _functions(n, lambda i: (
        f"def train_{i}(model, optimizer, scaler, loader):\n    for x in loader:\n"
        "        scaler.scale(model(x).mean()).backward()\n        nn.utils.clip_grad_norm_(model.parameters(), 1)\n"
        "        scaler.step(optimizer)\n        optimizer.zero_grad()\n"))),
    "compute losses": (2_000, lambda n: _functions(n, lambda i: (
        f"class T{i}(Trainer):\n    def compute_loss(self, model, inputs, return_outputs=False):\n"
        "        return model(**inputs).loss.mean()\n"))),
    "training steps": (1_000, lambda n: _functions(n, lambda i: (
        f"class M{i}(pl.LightningModule):\n    def training_step(self, batch, batch_idx):\n"
        "        loss = self(batch).mean()\n        self.manual_backward(loss)\n        self.optimizers().step()\n"))),
    "closures": (1_000, lambda n: HEAD + "def make():\n" + "".join(
        "".join(f"    {row}\n" for row in _train(i).splitlines()) for i in range(n)) + "    return train_0\n"),
    "lines without words": (300_000, lambda n: HEAD + "\n" * n + LOOP + STEP),
    "a long text": (5_000_000, lambda n: HEAD + "'" + "x" * n + "'\n" + LOOP + STEP),
    "quotes": (200_000, lambda n: HEAD + "#" + "'" * n + "\n" + LOOP + STEP),
    "wide characters": (3_000, lambda n: HEAD + LOOP + "    x = (" + "'é', x, " * n + ")\n" + STEP),
    "statements on a line": (10_000, lambda n: HEAD + LOOP + "    " + "; ".join(f"a{i} = x" for i in range(n)) + "\n"
        + STEP),
    "decorators": (3_000, lambda n: HEAD + "".join(f"@d{i}\n" for i in range(n)) + _train(0)),
    "bases": (5_000, lambda n: HEAD + f"class T({', '.join(f'B{i}' for i in range(n))}):\n    def f(self, x):\n"
        "        model(x).mean().backward()\n"),
    "globals": (5_000, lambda n:
        HEAD + "def train():\n" + "".join(f"    global g{i}\n    g{i} = {i}\n" for i in range(n))
        + "    for x in loader:\n        model(x).mean().backward()\n        optimizer.step()\n"),
    "deletes": (5_000, lambda n: _body(n, lambda i: f"del a{i}")),
    "lambdas": (5_000, lambda n: _body(n, lambda i: f"f{i} = lambda z: model(z).mean().backward()")),
    "generators": (1_000, lambda n: _functions(n, lambda i: (
        f"def g{i}():\n    for x in {f'g{i - 1}()' if i else 'loader'}:\n        yield x\n"))
        + f"for x in g{n - 1}():\n" + STEP),
    "whiles": (1_000, lambda n: HEAD + "def train(loader):\n" + "".join(
        f"    while step_{i} < 10:\n        step_{i} += 1\n        model(x).mean().backward()\n" for i in range(n))
        + "    optimizer.step()\n"),
    "matches": (2_000, lambda n: HEAD + LOOP + "    match x:\n" + "".join(
        f"        case {i}:\n            optimizer.step()\n" for i in range(n)) + STEP),
}  # fmt: skip


class Told(TypedDict):
    """What checking a file took and gave; `died` is what ended the process, "" where it came to its end."""

    died: str
    seconds: float
    memory: float
    findings: int
    problems: list[tuple[str, str, str]]


class Arguments(argparse.Namespace):
    size: float
    only: list[str]
    limit: float
    write: Path | None


def main() -> None:
    arguments = _arguments()
    kinds = [kind for kind in KINDS if not arguments.only or kind in arguments.only]
    if arguments.write:
        arguments.write.mkdir(parents=True, exist_ok=True)
        for kind in kinds:
            path = arguments.write / f"{kind.replace(' ', '_').replace('-', '_')}.py"
            path.write_text(made(kind, arguments.size), encoding="utf-8")
        return
    worst, wrong = 0.0, 0
    for kind in kinds:
        half, whole = (_checked(kind, arguments.size * part, arguments.limit) for part in (0.5, 1))
        worst = max(worst, whole["seconds"])
        faults = list(_faults(whole))
        wrong += bool(faults) or whole["seconds"] > arguments.limit
        factor = whole["seconds"] / half["seconds"]
        told = "; ".join((*faults, *(message for _, message, _ in whole["problems"])))
        print(
            f"{kind:28} {whole['seconds']:6.2f} s  x{factor:4.1f} {whole['memory']:6.0f} MiB "
            f"{whole['findings']:5} findings  {told}",
            flush=True,
        )
    print(
        f"{len(kinds)} kinds, {wrong} of them past {arguments.limit:g} s or with a fault; the longest {worst:.1f} s"
    )
    sys.exit(wrong > 0)


def made(kind: str, size: float) -> str:
    count, make = KINDS[kind]
    return make(max(2, int(count * size)))


def _faults(told: Told) -> Iterator[str]:
    if told["died"]:
        yield f"died: {told['died']}"
    for kind, _, traceback in told["problems"]:
        if kind == "fault":
            yield traceback[-600:]


def _checked(kind: str, size: float, limit: float) -> Told:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.py")
        path.write_text(made(kind, size), encoding="utf-8")
        command = [sys.executable, "-c", CHECK, str(path)]
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=limit * 20
            )
        except subprocess.TimeoutExpired:
            return _dead("given up", limit)
    return json.loads(ran.stdout) if ran.returncode == 0 else _dead(ran.stderr[-800:], limit)


def _dead(why: str, limit: float) -> Told:
    return {"died": why, "seconds": limit * 20, "memory": 0, "findings": 0, "problems": []}


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=float, default=1, help="how large the files are")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these kinds only")
    parser.add_argument("--limit", type=float, default=10, help="CPU seconds that a file may take")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the files and stop")
    return parser.parse_args(namespace=Arguments())


if __name__ == "__main__":
    main()
