"""The batch of an update is nowhere written down."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from accumlint.reading.ir import (
    Attr,
    Binary,
    Call,
    Const,
    Expr,
    Item,
    Name,
    Sequence,
    Star,
    Table,
    Text,
    called,
    dotted,
    walk_expr,
)
from accumlint.reading.names import is_steps
from accumlint.reading.program import Program
from accumlint.rule import Claim, Confidence, Finding, Rule, Severity
from accumlint.tracing.trace import Trace

from ._definitions import stands_for

_MICRO_BATCH = re.compile(
    r"^((per_(device|gpu)_)?(train(ing)?_)?(micro_?|mini_?|device_|local_)?(batch_?size|bsz?)(_per_(device|gpu|rank))?)$",
    re.IGNORECASE,
)
_EFFECTIVE = re.compile(
    r"(total|effective|global|full|real|actual)_?\w*(batch|bsz?)|(batch|bsz?)\w*_(total|effective|global)"
    r"|(tokens|samples|rows|examples)_per_(update|step|iter|batch)",
    re.IGNORECASE,
)
_SHOWING = re.compile(
    r"log|print|info|warn|debug|report|write|save|dump|record|track|hparam|wandb|echo|display|config\.update|add_text",
    re.IGNORECASE,
)
_SETTINGS = re.compile(
    r"^((\w*_)?(args?|cfg|config|conf|hparams?|hps|flags|opts?|options|settings))$", re.IGNORECASE
)
_RECORDED_WHOLE = re.compile(
    r"vars|asdict|dict|to_container|to_dict|to_yaml|dumps|pformat|str|repr"
)


class EffectiveBatchSizeNotRecorded(Rule):
    """Batch size, accumulation steps and learning rate can be set, and no log tells what batch an update had.

    An update's batch is micro-batch size x accumulation steps x ranks, and the learning rate was tuned for that. A run
    with twice the ranks and half the steps is the same run; one with twice the ranks and the same steps is not. Who
    looks at a curve a month later finds a batch size of 4 and has to guess the other two factors.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader


    def train(model, dataset, args):
        loader = DataLoader(dataset, batch_size=args.batch_size, drop_last=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        batches = iter(loader)
        for update in range(len(loader) // args.accumulation_steps):
            optimizer.zero_grad()
            for _ in range(args.accumulation_steps):
                images, labels = next(batches)
                loss = F.cross_entropy(model(images), labels)
                (loss / args.accumulation_steps).backward()
            optimizer.step()  # error: ACC705
            print(f"update {update}: learning rate {args.lr}")
    ```

    Good:

    ```diff
         optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    +    batch_of_update = args.batch_size * args.accumulation_steps
    +    print(f"learning rate {args.lr} for {batch_of_update} rows per update")
         batches = iter(loader)
    -    for update in range(len(loader) // args.accumulation_steps):
    +    for _ in range(len(loader) // args.accumulation_steps):
             optimizer.zero_grad()
    @@
             optimizer.step()
    -        print(f"update {update}: learning rate {args.lr}")
    ```

    When it stays silent: when the settings are logged or saved as a whole, when batch size and steps are printed side
    by side, when a total batch is what is set (the steps or the micro-batch are worked out from it), where a framework
    keeps count (DeepSpeed, Lightning, the Hugging Face Trainer), and when the file knows no batch size at all.

    See: [Goyal et al.][goyal], who tie the learning rate to the batch of the update.

    [goyal]: https://arxiv.org/abs/1706.02677
    """

    severity = Severity.INFO
    claim = Claim.LOG
    unmeasured = "no run tells what is not shown"
    opt_in = True

    def check(self, trace: Trace) -> Iterator[Finding]:
        program = trace.program
        if not trace.main.asked:
            return
        for window in trace.main.accumulating_windows():
            # Under a framework that records the batch of an update by itself, there is nothing to tell.
            kept = any(backward.via in ("engine", "lightning") for backward in window.backwards)
            named = (word for n in program.nodes for word in words_of(n))
            sizes = [] if kept else list(filter(_MICRO_BATCH.match, named))
            if sizes and not is_worked_out(program) and not is_recorded(program):
                yield self.at(
                    window.step,
                    f"nothing records how many rows a step of `{window.step.optimizer.text}` is made of: "
                    f"`{sizes[0]}` times the accumulation steps",
                    confidence=Confidence.LIKELY,
                    window=window,
                )


def is_worked_out(program: Program) -> bool:
    """True when one factor comes from the whole, so that the whole is what was set: `batch_size // steps`."""
    quotients = (n for n in program.of(Binary) if n.op in ("/", "//"))
    cuts = (c for name in ("chunk", "split", "tensor_split") for c in program.calls.get(name, ()))
    return any(
        has_size(words(q.left)) and (has_size(words(q.right)) or has_steps(words(q.right)))
        for q in quotients
    ) or any(has_steps(told) or has_size(told) for told in map(given_words, cuts))


def is_recorded(program: Program) -> bool:
    """True when something is logged or saved that tells the batch of an update."""
    shown: list[Expr] = []
    for call in program.of(Call):
        # What is started with the settings of the run: `wandb.init(config=…)`, `init_trackers(…)`.
        if _SHOWING.search(dotted(call.func)) or called(call) in ("init", "init_trackers"):
            shown += [argument.value for argument in call.args]
            told = given_words(call)
            if has_steps(told) and has_size(told):
                return True
    if not shown:
        return False
    everything = Sequence(shown[0].at, "tuple", tuple(shown))
    parts = stands_for(program, everything)
    if any(is_product(part) for whole in (everything, *parts) for part in handed(whole)):
        return True
    tables = [part for part in parts if isinstance(part, Table)]
    return any(is_settings(part) for whole in (everything, *tables) for part in handed(whole))


def handed(value: Expr) -> Iterator[Expr]:
    """The parts of a value that are shown with it."""
    yield value
    match value:
        case Sequence(items=parts) | Text(parts=parts):
            inner: Iterable[Expr] = parts
        case Table(items=items):
            inner = [part for _, part in items]
        case Star(value=part):
            inner = [part]
        case Call(args=args):
            inner = [argument.value for argument in args if not is_settings(argument.value)]
        case _:
            inner = []
    for part in inner:
        yield from handed(part)


def is_product(value: Expr) -> bool:
    """True for a total that goes by its name, or for a product of batch size and steps."""
    match value:
        case Name() | Attr() | Item():
            return any(_EFFECTIVE.search(word) for word in words_of(value))
        case Binary(op="*"):
            told = words(value)
            return has_size(told) and has_steps(told) and not any("lr" in word for word in told)
        case _:
            return False


def is_settings(value: Expr) -> bool:
    """True for the settings of a run as a whole: `args`, `vars(args)`."""
    match value:
        case Call(func=func, args=args):
            of = [a.value for a in args] or ([func.base] if isinstance(func, Attr) else [])
            return bool(_RECORDED_WHOLE.fullmatch(called(value))) and any(map(is_settings, of))
        case Name() | Attr():
            return any(_SETTINGS.match(word) for word in words_of(value))
        case _:
            return False


def has_size(told: Iterable[str]) -> bool:
    return any(_MICRO_BATCH.match(word) or _EFFECTIVE.search(word) for word in told)


def has_steps(told: Iterable[str]) -> bool:
    return any(map(is_steps, told))


def words(value: Expr) -> list[str]:
    """The last parts of all names in an expression, and the keys that it asks for."""
    return [word for node in walk_expr(value) for word in words_of(node)]


def given_words(call: Call) -> list[str]:
    """The same, of all that is given to a call."""
    return [word for argument in call.args for word in words(argument.value)]


def words_of(node: object) -> tuple[str, ...]:
    """The last part of one name: `batch_size` of `args.batch_size`, and of `config["batch_size"]`."""
    match node:
        case Name(id=word) | Attr(name=word) | Item(index=Const(value=str(word))):
            return (word,)
        case _:
            return ()
