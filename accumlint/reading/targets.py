"""Evidence of how many targets the loss of a micro-batch is a mean over: as many in each, or not.

It is looked for where a loss and its labels come from: in the checked file, in what it imports from its project and in
the files that import it. Each row of `TABLE` is one kind of evidence and counts once, however often it is seen.
The weights are set by hand: weights fitted to the labelled loops (`benchmarks/evidence.py`) tell the counts of other
repositories no better.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

from accumlint.common.frozen import frozen
from accumlint.files.source import nodes
from accumlint.reading import ir as p
from accumlint.reading.frameworks import LABELLING_ROWS

if TYPE_CHECKING:
    from accumlint.reading.syntax import Source


class Kind(str, Enum):
    """What evidence speaks of: a loss with a target per position, counts that vary, or counts that are equal."""

    POSITION = "position"
    VARIES = "varies"
    EQUAL = "equal"


@frozen
class Row:
    """A kind of evidence: what it speaks of, its weight, and what a finding says of the place.

    `of_labels`: it shows labels of positions. `of_model`: it tells of the loss alone that the model gives.
    """

    kind: Kind
    weight: float
    says: str
    of_labels: bool = False
    of_model: bool = False


TABLE = {
    "flattened": Row(Kind.POSITION, 0, "the loss has a target for every position"),
    "shifted": Row(Kind.POSITION, 0, "the labels are shifted by one position"),
    "given": Row(Kind.POSITION, 0, "the model is given tokens and their labels"),
    "language model": Row(Kind.POSITION, 0, "the model predicts tokens"),
    "left out": Row(Kind.VARIES, 3, "labels are set to the value that the loss ignores", of_labels=True),
    "padded labels": Row(Kind.VARIES, 3, "labels are padded with a value that the loss ignores", of_labels=True),
    "ignored padding": Row(Kind.VARIES, 3, "the loss ignores padding"),
    "own value": Row(Kind.VARIES, 3, "the loss ignores a value of the data"),
    "picked": Row(Kind.VARIES, 3, "a loss takes the positions that a mask picks"),
    "selected": Row(Kind.VARIES, 3, "a loss is given what `masked_select` leaves"),
    "masked mean": Row(Kind.VARIES, 2, "a loss is divided by the number that a mask keeps"),
    "random mask": Row(Kind.VARIES, 3, "the labels are those of a random mask", of_labels=True),
    "loss mask": Row(Kind.VARIES, 3, "a mask says which positions the loss counts", of_labels=True),
    "tuning data": Row(Kind.VARIES, 3, "the rows are instructions or conversations", of_labels=True),
    "text": Row(
        Kind.VARIES, 3, "a library of language models is imported, and no code of the data is here",
        of_labels=True, of_model=True,
    ),
    "collator": Row(Kind.VARIES, 2, "the collator pads labels where rows differ in length"),
    "truncated": Row(Kind.VARIES, 1, "rows are truncated one by one"),
    "chat": Row(Kind.VARIES, 1, "the rows are written by a chat template"),
    "padded": Row(Kind.VARIES, 1, "rows of different lengths are padded"),
    "attention mask": Row(Kind.VARIES, 1, "the model is given a mask of the padding"),
    "counted": Row(Kind.VARIES, 1, "the labels that are not ignored are counted"),
    "blocks": Row(Kind.EQUAL, -2, "rows are blocks of one length"),
    "drawn": Row(Kind.EQUAL, -3, "rows of one length are drawn from a stream"),
    "classes": Row(Kind.EQUAL, -3, "the model has one label for each row"),
    "pairs": Row(Kind.EQUAL, -3, "the rows are pairs of a chosen and a rejected answer"),
    "ratio": Row(Kind.EQUAL, -3, "a fixed share of each row is masked"),
}  # fmt: skip
# Evidence of a loss with a target for every position, beside that of its kind, which some loss of a project has.
_OF_POSITIONS = {"picked", "masked mean"}
# The least sum of weights at which counts likely vary.
STRONG = 3


@frozen(eq=False)
class Evidence:
    """A place that speaks for or against counts that vary; `is_local`: it stands in the checked file."""

    key: str
    node: ast.AST
    source: Source
    is_local: bool

    @property
    def row(self) -> Row:
        return TABLE[self.key]

    @property
    def part(self) -> p.Node:
        """The place as a node that a finding can name."""
        return p.Opaque(self.node)


def weight(evidence: Iterable[Evidence]) -> float:
    """The sum of the weights."""
    return sum(e.row.weight for e in evidence)


def is_loss_function(name: str) -> bool:
    """True for the name of a loss over the logits of classes."""
    return _LOSSES.search(name.rpartition(".")[2]) is not None


def about_losses(evidence: Iterable[Evidence], *, of_model: bool) -> tuple[Evidence, ...]:
    """Evidence without how other losses than the one that goes backward are computed.

    What the checked file itself computes is read, and a loss that is not the model's comes from no other file.
    """
    return tuple(e for e in evidence if e.key not in _OF_POSITIONS or (of_model and not e.is_local))


def has_positions(evidence: Iterable[Evidence]) -> bool:
    """True where something shows that a loss has a target for every position of a row."""
    shown = _OF_POSITIONS | {"selected"}
    return any(e.row.kind is Kind.POSITION or e.key in shown for e in evidence)


def has_labels(evidence: Iterable[Evidence]) -> bool:
    """True where something shows that labels are those of positions."""
    return any(e.row.of_labels for e in evidence)


def leaves_labels_out(evidence: Iterable[Evidence]) -> bool:
    """True where something other than a name shows by itself that a loss leaves labels out."""
    return any(
        e.row.weight >= STRONG and e.key != "tuning data" and not e.row.of_model for e in evidence
    )


def gathered(trees: Iterable[tuple[Source, ast.AST]]) -> tuple[Evidence, ...]:
    """The first place of each kind of evidence, in the order of the trees; the first tree is the checked file's."""
    held = [(source, list(nodes(tree))) for source, tree in trees]
    ignored = frozenset(
        {"-100", *(text for _, found in held for node in found for text in _ignored_by(node))}
    ) - {""}
    first: dict[str, Evidence] = {}
    for number, (source, found) in enumerate(held):
        keys = ((_line(node), key, node) for node in found for key in _keys(node, ignored))
        for _, key, node in sorted(keys, key=itemgetter(0)):
            # Other losses of a project may be about pairs.
            if key != "pairs" or not number:
                first.setdefault(key, Evidence(key, node, source, not number))
    tuning = first.get("tuning data")
    if tuning is not None and any(_text(tuning.node) in _defined(found) for _, found in held[1:]):
        # What its name promises is seen where it is defined, or is not there.
        del first["tuning data"]
    return tuple(first.values())


def joined(own: Iterable[Evidence], *further: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """The evidence of a file, with each kind that only the files which call it show."""
    first = {e.key: e for e in own}
    for e in chain.from_iterable(further):
        first.setdefault(e.key, replace(e, is_local=False))
    return tuple(first.values())


def _defined(found: Iterable[ast.AST]) -> set[str]:
    return {n.name for n in found if isinstance(n, ast.ClassDef | ast.FunctionDef)}


def _line(node: ast.AST) -> int:
    return node.lineno if isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.alias) else 0


def _ignored_by(node: ast.AST) -> Iterator[str]:
    """The values that losses ignore: an `ignore_index`, and constants that are -100."""
    match node:
        case ast.keyword(arg="ignore_index", value=value):
            yield _text(value)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            # `pad_label = CrossEntropyLoss().ignore_index`
            if _text(value) in ("-100", "ignore_index"):
                yield name
        case ast.ImportFrom(names=names):
            # A constant of another file is known by its name.
            yield from (a.asname or a.name for a in names if "IGNORE" in a.name)
        case _:
            pass


_LOSSES = re.compile(r"cross_?entropy|nll_loss|criterion|loss_?f|(^|_)ce($|_)", re.IGNORECASE)
# What a name tells by itself.
_NAMES = {
    "language model": re.compile(
        r"For(CausalLM|MaskedLM|Seq2SeqLM|Vision2Seq|SpeechSeq2Seq|ImageTextToText|TokenClassification|PreTraining)"
        r"|ForConditionalGeneration|LMHeadModel|LanguageModel"
    ),
    "classes": LABELLING_ROWS,
    "tuning data": re.compile(
        r"(SFT|[Ii]nstruct|[Cc]hat|Alpaca|[Cc]onversation|[Ss]upervised)\w*([Dd]ata|[Cc]ollat|[Ll]oader)"
        r"|^(train_on_responses_only|SFTTrainer)$"
    ),
    "blocks": re.compile(r"^group_texts$|ConstantLength|Packed\w*Dataset|TokenBlockDataset"),
    "random mask": re.compile(r"masked_lm|lm_label_ids|(^|_)mlm(_(?!ln)|$)|^M(lm|LM)[A-Z]"),
    "pairs": re.compile(r"^(\w+_)?rejected(_\w+)?$"),
    "ratio": re.compile(r"^mask(ing)?_ratio$", re.IGNORECASE),
}
# What a call tells by its name alone.
_CALLS = {
    "apply_chat_template": ("chat",),
    "DataCollatorForCompletionOnlyLM": ("padded labels",),
    "DataCollatorForSeq2Seq": ("padded labels",),
    "DataCollatorForTokenClassification": ("padded labels",),
    "DataCollatorWithPadding": ("padded",),
    "mask_tokens": ("random mask",),
    "pack_padded_sequence": ("padded",),
    "pad_sequence": ("padded",),
    "torch_mask_tokens": ("random mask",),
}
_FILLING = {
    "append", "extend", "fill_", "full", "full_like", "index_fill_", "masked_fill", "masked_fill_", "new_full", "pad",
    "scatter_", "where",
}  # fmt: skip
# Values that many files name although no label has them.
_CUSTOMARY = {"", "-100", "-1"}


def _keys(node: ast.AST, ignored: frozenset[str]) -> Iterator[str]:
    match node:
        case ast.Call(func=func, args=args, keywords=keywords):
            yield from _of_call(func, args, keywords, ignored)
        case ast.Assign(targets=[ast.Subscript()], value=value) if _text(value) in ignored:
            yield "left out"
        case ast.Assign(
            targets=[target],
            value=ast.Subscript(
                value=base, slice=ast.Slice(lower=ast.Name() | ast.Attribute(), upper=None)
            ),
        ) if "" != _text(target) == _text(base):
            # `tokens = tokens[length:]`: what was cut off is a block.
            yield "blocks"
        case ast.BinOp(op=ast.Mult(), left=ast.List() | ast.Call()) if filling(node) in ignored:
            yield "left out"
        case ast.BinOp(
            op=ast.Mult(),
            left=ast.BinOp(op=ast.FloorDiv(), left=ast.Name() | ast.Call(), right=a),
            right=b,
        ):
            if "" != _text(a) == _text(b):
                yield "blocks"
        case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]):
            if {_text(left), _text(right)} & (ignored - {"0", "1", "-1"}):
                yield "counted"
        case ast.Subscript(slice=ast.Compare(comparators=[value])) if _text(value) == "-100":
            yield "left out"
        case ast.Subscript(slice=ast.Tuple(elts=[_, *elts])) if any(map(_drops_one, elts)):
            yield "shifted"
        case ast.keyword(arg="packing", value=ast.Constant(value=True)):
            yield "blocks"
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            yield from _of_name(name)
        case ast.Constant(value=str(name)) | ast.arg(arg=name) if "rejected" in name:
            yield from _of_name(name) if name.isidentifier() else ()
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            yield from _of_name(name)
            yield from _of_losses(node) if isinstance(node, ast.FunctionDef) else ()
        case _:
            pass


def filling(product: ast.AST) -> str:
    """What fills a list or tensor: `[-100] * n`, `torch.ones_like(labels) * -1`."""
    match product:
        case ast.BinOp(op=ast.Mult(), left=ast.List(elts=[element])):
            return _text(element)
        case ast.BinOp(op=ast.Mult(), left=ast.Call(func=made), right=factor):
            return _text(factor) if _text(made) in ("ones", "ones_like") else ""
        case _:
            return ""


@lru_cache(maxsize=4096)
def _of_name(name: str) -> tuple[str, ...]:
    return tuple(key for key, pattern in _NAMES.items() if pattern.search(name))


def _of_call(
    func: ast.expr, args: list[ast.expr], keywords: list[ast.keyword], ignored: frozenset[str]
) -> Iterator[str]:
    last = _text(func)
    given = {k.arg: k.value for k in keywords if k.arg}
    ignore = given.pop("ignore_index", None)
    if is_loss_function(last) and any(map(_is_flattened, (*args[:2], *given.values()))):
        yield "flattened"
    if ignore is not None and "pad" in ast.unparse(ignore).lower():
        yield "ignored padding"
    elif isinstance(ignore, ast.Constant) and _text(ignore) not in _CUSTOMARY:
        yield "own value"
    yield from _CALLS.get(last, ())
    if last == "DataCollatorForLanguageModeling":
        masks = "mlm_probability" in given or _is(given.get("mlm"), True)
        yield "random mask" if masks else "collator"
    if any("pad" in k and _text(v) in ignored for k, v in given.items()):
        yield "padded labels"
    values = {_text(v) for v in (*args, *given.values())} & ignored
    if last in ("eq", "ne"):
        if "-100" in values:
            yield "counted"
    elif _fills(last, values) or (last == "tensor" and "ignore_index" in map(_text, args[:1])):
        # `torch.tensor(criterion.ignore_index)` stands where a label shall be left out.
        yield "left out"
    if any(map(_LOSS_MASKS.search, given)):
        yield "loss mask"
    if given.keys() & {"labels", "targets"}:
        if {_text(args[0]) if args else "", *given} & {"input_ids", "input_tokens", "tokens"}:
            yield "given"
        if "attention_mask" in given:
            yield "attention mask"
    if _is(given.get("padding"), True) or _is(given.get("padding"), "longest"):
        yield "padded"
    if _is(given.get("truncation"), True):
        yield "truncated"
    first = args[0] if args else None
    # `torch.randint(len(data) - block_size, (batch_size,))`
    if last == "randint" and isinstance(first, ast.BinOp) and "len(" in ast.unparse(first):
        yield "drawn"


_LOSS_MASKS = re.compile(r"^(loss|labels?|targets?)_masks?$")
_MASK = re.compile(r"mask|valid|active|non_?pad|!=|\.ne\(|not_equal")
_LOSS = re.compile(r"loss|entropy|criterion|nll|(^|_)(ce|kl|bce)(_|$)", re.IGNORECASE)


def _of_losses(function: ast.FunctionDef) -> Iterator[str]:
    """What a function that computes a loss shows: positions of two tensors that a mask picks, and a masked mean."""
    found = list(nodes(function))
    if not any(_LOSS.search(name) for name in (function.name, *map(_text, found))):
        return
    picked: dict[str, set[str]] = {}
    counts: set[str] = set()
    means: list[ast.BinOp] = []
    for node in found:
        match node:
            case ast.Subscript(
                value=base,
                slice=ast.Name() | ast.Attribute() | ast.Compare() | ast.UnaryOp() as index,
            ):
                picked.setdefault(ast.unparse(index), set()).add(ast.unparse(base))
            case ast.Call(func=ast.Attribute(attr="masked_select")):
                yield "selected"
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if any(
                map(_counts_a_mask, _sums(value))
            ):
                counts.add(name)
            case ast.BinOp(op=ast.Div()):
                means.append(node)
            case _:
                pass
    if any(len(bases) > 1 and _MASK.search(index) for index, bases in picked.items()):
        yield "picked"
    for mean in means:
        above = [ast.unparse(value) for value in _sums(mean.left)]
        below = list(_sums(mean.right))
        if above and (
            _text(mean.right) in counts
            or any(
                _counts_a_mask(value) or any(ast.unparse(value) in a for a in above)
                for value in below
            )
        ):
            yield "masked mean"


def _sums(value: ast.expr) -> Iterator[ast.expr]:
    """What is added up as a whole in an expression: the `x` of `x.sum()` and of `torch.sum(x)`."""
    for node in nodes(value):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="sum", value=ast.Name(id="torch")),
                args=[summed],
                keywords=[],
            ):
                yield summed
            case ast.Call(func=ast.Attribute(attr="sum", value=summed), args=[], keywords=[]):
                yield summed
            case _:
                pass


def _counts_a_mask(value: ast.expr) -> bool:
    return _MASK.search(ast.unparse(value)) is not None


def _fills(last: str, values: set[str]) -> bool:
    """True for a call that is given an ignored value: a constant's name anywhere, a number where it fills a tensor."""
    if any(not value.lstrip("-").isdigit() for value in values):
        return True
    return last in _FILLING and ("-100" in values or (bool(values) and "mask" in last))


def _is(value: ast.expr | None, constant: bool | str) -> bool:
    held = value.value if isinstance(value, ast.Constant) else None
    return type(held) is type(constant) and held == constant


def _is_flattened(value: ast.expr) -> bool:
    """True for `logits.view(-1, n)`, `x.flatten(0, 1)` and `x.transpose(1, 2)`, whatever is called after it."""
    while isinstance(value, ast.Call):
        last = _text(value.func)
        if last in ("view", "reshape") and value.args and _text(value.args[0]) == "-1":
            return True
        if last in ("flatten", "rearrange", "transpose", "permute"):
            return True
        if not isinstance(value.func, ast.Attribute):
            return False
        value = value.func.value
    return False


def _drops_one(index: ast.expr) -> bool:
    """True for the `:-1` and the `1:` of `[..., :-1, :]` and `[:, 1:]`."""
    match index:
        case ast.Slice(lower=None, upper=upper, step=None):
            return _text(upper) == "-1"
        case ast.Slice(lower=lower, upper=None, step=None):
            return _text(lower) == "1"
        case _:
            return False


def _text(value: ast.AST | None) -> str:
    """A whole number or the last name of an expression, "" for anything else."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return name
        case ast.Constant(value=int() as number):
            return str(number)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return f"-{number}"
        case _:
            return ""
