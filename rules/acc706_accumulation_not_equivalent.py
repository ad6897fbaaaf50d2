"""What the window computes depends on which rows stand together in a micro-batch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from accumlint.reading.ir import (
    Argument,
    Assign,
    Attr,
    Call,
    Const,
    Expr,
    Function,
    If,
    Name,
    Node,
    called,
    dotted,
    render,
    walk,
    walk_expr,
)
from accumlint.reading.program import Program
from accumlint.rule import Confidence, Finding, Rule, Severity
from accumlint.tracing.trace import Forward, Trace

from ._definitions import stands_for

_BATCH_NORM = re.compile(r"^(Lazy|Sync|Synchronized)?BatchNorm([123]d|\dd)?(Act\dd)?$|^ABN$")
# Architectures of torchvision and timm that normalise by batch statistics.
_BY_BATCH = re.compile(
    r"^(wide_)?resne[xs]?t\d|^vgg\d+_bn|^densenet\d|^(tf_)?mobilenet_?v|^(tf_)?efficientnet|^regnet|^shufflenet|^mnasnet"
    r"|^googlenet|^inception_v"
)
_FROZEN = re.compile(
    r"(freeze|frozen|fix)\w*(bn|batch_?norm)|(bn|batch_?norm)\w*(eval|freeze|frozen)", re.IGNORECASE
)
_AMONG_ROWS = re.compile(
    r"(^|_)(clip|sig_?lip)_?loss|info_?nce|nt_?xent|sup_?con|multiple_?negatives|in_?batch_neg|barlow_?twins|vicreg",
    re.IGNORECASE,
)
_BALANCE = re.compile(
    r"load_?balanc\w*|balanc\w*_?loss|router_aux_loss\w*|moe_(aux_)?loss", re.IGNORECASE
)
_LOSS = re.compile("entropy|nll|crit|loss", re.IGNORECASE)
_EVALUATION = re.compile(r"eval|valid|test|infer|predict|metric|accura", re.IGNORECASE)


class AccumulationNotEquivalent(Rule):
    """The gradient depends on which rows stand together, so no accumulation can give that of the large batch.

    BatchNorm normalises every micro-batch by its own mean and variance and moves its running averages N times per
    update. A contrastive loss over the rows of a batch sees only the negatives of its own micro-batch: with N = 4 a
    quarter of them. A load-balancing loss is a product of two means over the batch, and the mean of N products is not
    the product of the means. The loop is right; whoever compares it with the large batch will find another training.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                images, texts = next(batches)
                logits = model(images, texts)
                loss = F.cross_entropy(logits, torch.arange(len(images)))
                (loss / accumulation_steps).backward()  # error: ACC706
            optimizer.step()
    ```

    Good:

    ```python
    import torch
    import torch.nn.functional as F


    def train(encode, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            window = [next(batches) for _ in range(accumulation_steps)]
            with torch.no_grad():
                known = [encode(rows) for rows in window]
            optimizer.zero_grad()
            for index, rows in enumerate(window):
                features = torch.cat(known[:index] + [encode(rows)] + known[index + 1 :])
                loss = F.cross_entropy(features @ features.T, torch.arange(len(features)))
                loss.backward()
            optimizer.step()
    ```

    GroupNorm and LayerNorm know no batch; `SyncBatchNorm` puts ranks together, not micro-batches. A load-balancing loss
    is the large batch's when the router's fractions are taken over the whole window.

    When it stays silent: when the features of the window are put together (as in the good example), when the statistics
    are frozen (`.eval()` on the layers, `FrozenBatchNorm2d`), on negatives from a queue, and on a model whose making is
    nowhere to be seen. The finding is `likely` where only a name says what the model or the loss is.

    When the fix is not offered: always; another normalisation is another model.

    Measured (N = 4): with BatchNorm the gradient is off by 2.8 %, and the running mean by 97 % after 6 windows; an
    in-batch contrastive loss is off by 61 % (cosine .82), a load-balancing loss by 73 %.

    See: [GradCache][cache], which accumulates contrastive losses exactly; [`GroupNorm`][norm].

    [cache]: https://arxiv.org/abs/2101.06983
    [norm]: https://docs.pytorch.org/docs/stable/generated/torch.nn.GroupNorm.html
    """

    severity = Severity.INFO
    unmeasured = "the large batch would have to be run as one"
    opt_in = True

    def check(self, trace: Trace) -> Iterator[Finding]:
        program = trace.program
        for window in trace.main.accumulating_windows():
            # One backward's loss is made of several micro-batches.
            if any(c.spans not in ((), (c.microbatch,)) for c in window.contributions):
                continue
            made: list[Node] = []
            for forward in {forward.node: forward for forward in window.of(Forward)}.values():
                made_by = list(dict.fromkeys(makers(program, forward.node)))
                made += [node for maker in made_by for node in defined(program, maker)]
                seen = batch_norm(program, made_by, forward.model.text)
                if seen is not None:
                    layer, is_sure = seen
                    yield self.at(
                        forward,
                        f"`{forward.model.text}` normalises each micro-batch by its own statistics (`{layer}`)",
                        confidence=Confidence.CERTAIN if is_sure else Confidence.LIKELY,
                        window=window,
                    )
            said = joint_loss(program, made)
            if said is not None:
                effect, is_sure = said
                yield self.at(
                    window.backwards[0],
                    f"`{window.backwards[0].loss}` {effect}",
                    confidence=Confidence.CERTAIN if is_sure else Confidence.LIKELY,
                    window=window,
                )


def makers(program: Program, call: Node) -> Iterator[str]:
    """What the called model may have been made by: the last names of calls that its name stands for."""
    if isinstance(call, Call):
        for part in stands_for(program, call.func):
            for made in walk_expr(part):
                match made:
                    # timm takes the architecture as a word.
                    case Call(args=[Argument(value=Const(value=str(word))), *_]):
                        yield word.rpartition("/")[2]
                    case Call(func=func):
                        yield last(func)
                    case _:
                        pass


def defined(program: Program, maker: str) -> Iterator[Node]:
    """All nodes of a class or function and of what it names, in this file or in the one that it is imported from."""
    definitions = program.definitions
    seen: set[str] = set()
    waiting = [maker]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        found = (definitions[name],) if name in definitions else program.imported(name)
        for node in walk(found):
            yield node
            if isinstance(node, Name):
                waiting.append(node.id)


def batch_norm(program: Program, made_by: Iterable[str], model: str) -> tuple[str, bool] | None:
    """What tells that a model normalises by batch statistics, and whether it surely does; None for most models."""
    if is_frozen(program, model):
        return None
    for maker in made_by:
        nodes = list(defined(program, maker))
        tests = (n for n in nodes if called(n) in ("isinstance", "issubclass"))
        tested = {n for test in tests for n in walk((test,))}
        layers = [n for n in nodes if n not in tested and _BATCH_NORM.match(last(n))]
        built = [n.func for n in nodes if isinstance(n, Call) and n.func in layers]
        if layers:
            return last((built or layers)[0]), bool(built)
        if _BY_BATCH.match(maker):
            return maker, False
    return None


def is_frozen(program: Program, model: str) -> bool:
    """True when a file keeps batch statistics, or a part of the model, as they are."""
    for node in program.nodes:
        match node:
            case Name(id=name) | Attr(name=name) | Function(name=name) if _FROZEN.search(name):
                return True
            case If(test=test, body=body) if any(
                _BATCH_NORM.match(last(n)) for n in walk_expr(test)
            ):
                if any(called(n) == "eval" for n in walk(body)):
                    return True
            case Call(func=Attr(base=Attr() as part)) if called(node) == "eval":
                if dotted(part).startswith(f"{model}."):
                    return True
            case _:
                pass
    return False


def joint_loss(program: Program, made: list[Node]) -> tuple[str, bool] | None:
    """What a loss does that is more than a mean over rows, and whether it surely does."""
    own = [f for f in program.functions if not _EVALUATION.search(f.name)]
    functions = [*own, *(n for n in made if isinstance(n, Function))]
    bodies = [list(walk(f.body, into_functions=False)) for f in functions]
    bodies.append(list(walk(program.body, into_functions=False)))
    if any(matches_rows(body) for body in bodies):
        return "sets the rows of one micro-batch against each other, and no others", True
    for node in (n for body in bodies for n in body):
        name = last(node)
        if _AMONG_ROWS.search(name):
            return f"sets the rows of one micro-batch against each other (`{name}`)", False
        # A model may be asked to balance its experts.
        asked = node.keyword("output_router_logits") if isinstance(node, Call) else None
        if _BALANCE.fullmatch(name) or (isinstance(asked, Const) and asked.value is True):
            return "balances the experts over one micro-batch, and not over the window", False
    return None


def matches_rows(body: list[Node]) -> bool:
    """True when each row's right answer is its own number: `cross_entropy(logits, arange(rows))`."""
    counted = (n for n in body if isinstance(n, Assign) and counts_up(n.value))
    numbers = {render(target) for node in counted for target in node.targets}
    losses = [n for n in body if isinstance(n, Call) and _LOSS.search(last(n.func))]
    answers = (call.positional(1) or call.keyword("target") for call in losses)
    return any(a is not None and (render(a) in numbers or counts_up(a)) for a in answers)


def counts_up(value: Expr) -> bool:
    """True for `torch.arange(rows)`, on whatever device."""
    while isinstance(value, Call) and isinstance(value.func, Attr) and last(value.func) != "arange":
        value = value.func.base
    return isinstance(value, Call) and last(value.func) == "arange"


def last(node: Node) -> str:
    """The last part of a name, "" for anything else."""
    match node:
        case Name(id=name) | Attr(name=name):
            return name
        case _:
            return ""
