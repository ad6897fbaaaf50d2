"""Hints for a run from the text of a file and the events of a path through it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from accumlint.reading import frameworks, names
from accumlint.reading import ir as p
from accumlint.reading.program import Program
from accumlint.rule import Symptom
from accumlint.tracing import name_roles
from accumlint.tracing import trace as t


def of_program(program: Program) -> dict[str, str]:
    """Roles that the source suggests, by text."""
    found: dict[str, str] = {}
    for hints in (masks, pieces, windows, settings, criteria):
        found |= hints(program)
    return found


def is_distributed(events: Sequence[t.Event], symptom: Symptom | None = None) -> bool:
    """True when the loop uses several ranks: with a wrapper that reduces, or its own reductions.

    How targets weigh is asked of one rank where only flags are reduced: a fake may stand for the optimizer that reduces
    the gradients.
    """
    reduced = {event.what for event in events if isinstance(event, t.Reduce)}
    flags = {"other"} if symptom is Symptom.WEIGHTS else set[str]()
    return reduces(events, False) or bool(reduced - flags)


def roles(events: Iterable[t.Event]) -> dict[str, str]:
    """Roles by text, from the events of a path."""
    found: dict[str, str] = {}
    for event in events:
        for name in ("model", "optimizer", "scaler", "scheduler"):
            value = getattr(event, name, None)
            if isinstance(value, t.TrainingObject) and value.text.replace(".", "").isidentifier():
                found.setdefault(value.text, value.role)
    return found


def engines(events: Iterable[t.Event]) -> dict[str, str]:
    """Names of engines that another file creates; their fakes keep the contract."""
    called = (e.engine for e in events if isinstance(e, t.EngineCall))
    return {
        engine.text: "engine"
        for engine in called
        if engine.role == "model" and engine.text.replace(".", "").isidentifier()
    }


def windows(program: Program) -> dict[str, str]:
    """The role "steps" for names that only the guard of a step identifies as the window size."""
    guards = (node for node in program.of(p.If) if _steps(node))
    sizes = (
        part.right
        for guard in guards
        for part in p.walk_expr(guard.test)
        if isinstance(part, p.Binary) and part.op == "%"
    )
    found = {name: "steps" for size in (*sizes, *_counted_up_to(program)) if (name := _last(size))}
    return found | dict(_bounds(program))


def _counted_up_to(program: Program) -> Iterator[p.Expr]:
    """What a counter of micro-batches is compared with in the guard of a step."""
    counters = {
        node.target.id
        for node in program.of(p.Augment)
        if isinstance(node.target, p.Name)
        and isinstance(node.value, p.Const)
        and node.value.value == 1
    }
    for guard in program.of(p.If):
        match guard.test:
            case p.Compare(left=p.Name(id=name), rest=((("==" | ">="), right), *_)):
                begins = (n.targets for n in p.walk(guard.body) if isinstance(n, p.Assign))
                names_ = {t.id for targets in begins for t in targets if isinstance(t, p.Name)}
                if name in counters & names_ and _steps(guard):
                    yield right
            case _:
                pass


_BATCH = re.compile(r"batch_?size$")


def _bounds(program: Program) -> Iterator[tuple[str, str]]:
    """Names for the epoch's length, from the guard of a step, and for a size that is divided into batches."""
    for node in program.nodes:
        if isinstance(node, p.If) and isinstance(node.test, p.Bool) and _steps(node):
            for part in p.walk_expr(node.test):
                if isinstance(part, p.Compare) and isinstance(part.left, p.Binary):
                    sign, right = part.rest[0]
                    if sign == "==" and part.left.op == "+" and (name := _last(right)):
                        yield name, "length"
        if isinstance(node, p.Binary) and node.op in ("/", "//"):
            whole, share = _last(node.left), _last(node.right)
            if whole != share and _BATCH.search(whole):
                if _BATCH.search(share) or names.is_steps(share):
                    yield whole, "window"


def masks(program: Program) -> dict[str, str]:
    """The role "mask" for names that are passed as a `mask` parameter."""
    functions = {f.name: [param.name for param in f.params] for f in program.of(p.Function)}
    found: dict[str, str] = {}
    for call in program.of(p.Call):
        params = functions.get(p.dotted(call.func) or "", [])
        for place, name in enumerate(params):
            argument = call.positional(place) if name == "mask" else None
            while isinstance(argument, p.Item):
                argument = argument.base
            if isinstance(argument, p.Name) and argument.id != name:
                found[argument.id] = "mask"
    return found


_LOSS = re.compile(r"(train_)?(loss|cost)(_?f|es)?")


def criteria(program: Program) -> dict[str, str]:
    """The role "criterion" for parameters named like a loss that their function calls."""
    found: dict[str, str] = {}
    for function in program.of(p.Function):
        named = {param.name for param in function.params if _LOSS.fullmatch(param.name)}
        written = {
            target.id
            for node in p.walk(function.body if named else ())
            if isinstance(node, p.Assign)
            for target in node.targets
            if isinstance(target, p.Name)
        }
        found |= dict.fromkeys(named & {*function.calls} - written if named else (), "criterion")
    return found


def settings(program: Program) -> dict[str, str]:
    """The role "settings" for `opt` and `opts` whose attributes no optimizer has."""
    looked = (n.base for n in program.of(p.Item) if _is_word(n.index))
    every = (*looked, *name_roles.asked(program))
    texts = {p.dotted(n) or "" for n in every if isinstance(n, p.Name | p.Attr)}
    return {text: "settings" for text in texts if text.rpartition(".")[2] in ("opt", "opts")}


def _is_word(node: p.Expr) -> bool:
    return isinstance(node, p.Const) and isinstance(node.value, str)


def _last(size: p.Expr) -> str:
    """The last name of a setting: "subdivisions" of `settings.subdivisions` and `settings["subdivisions"]`."""
    if isinstance(size, p.Item) and isinstance(size.index, p.Const):
        return str(size.index.value) if _is_word(size.index) else ""
    return (p.dotted(size) or "").rpartition(".")[2] if isinstance(size, p.Name | p.Attr) else ""


def _steps(block: p.If | p.For | p.While) -> bool:
    calls = (n.func for n in p.walk(block.body) if isinstance(n, p.Call))
    return any(isinstance(f, p.Attr) and f.name == "step" for f in calls)


def disables(program: Program) -> bool:
    """Whether a GradScaler is disabled by a literal."""
    return any(
        isinstance(node, p.Call)
        and (p.dotted(node.func) or "").endswith("GradScaler")
        and isinstance(argument := node.keyword("enabled"), p.Const)
        and argument.value is False
        for node in program.nodes
    )


_OF_A_LOSS = re.compile(r"nan|finite|inf\b|loss|norm|overflow|skip", re.IGNORECASE)
_IS_NONE = re.compile(r"\b[a-z_]\w* (is|==) None$")
_EXHAUSTED = re.compile(r"out[ _]?of[ _]?memory", re.IGNORECASE)


def gives_up(program: Program, node: p.Node | None) -> bool:
    """Whether a loop skips a micro-batch when memory runs out, at a node if one is given."""
    named = _EXHAUSTED.search(program.text) is not None
    handlers = [
        list(p.walk(body))
        for attempt in program.of(p.Try)
        for kind, _, body in attempt.handlers
        if named or kind.endswith(("RuntimeError", "Exception")) or not kind
    ]
    if node is not None:
        return any(n.at is node.at for body in handlers for n in body)
    goes_on = (isinstance(n, p.Jump) and n.kind == "continue" for body in handlers for n in body)
    return named or any(goes_on)


def leaves_out(program: Program, node: p.Node | None) -> bool:
    """Whether a guard, at a node if one is given, skips an invalid loss or a lack of memory."""
    tests = [p.render(guard.test) for guard in _guards(program, node)]
    return (
        gives_up(program, node)
        or any(map(_OF_A_LOSS.search, tests))
        or guards_against_none(program, node)
    )


def _guards(program: Program, node: p.Node | None) -> list[p.If]:
    """The guards of a source, or the innermost one at a node: outer ones decide on more than the micro-batch."""
    if node is None:
        return [*program.of(p.If)]
    return [n for n in (node, *program.above(node)) if isinstance(n, p.If)][:1]


def guards_against_none(program: Program, node: p.Node | None) -> bool:
    """Whether a guard, at a node if one is given, skips a micro-batch that is None, and no other kind."""
    skipping = [
        p.render(guard.test)
        for guard in _guards(program, node)
        if any(isinstance(n, p.Jump) and n.kind == "continue" for n in p.walk(guard.body))
    ]
    return any(map(_IS_NONE.search, skipping)) and not any(map(_OF_A_LOSS.search, skipping))


def is_in_one_window(program: Program, node: p.Node | None) -> bool:
    """Whether the innermost loop around a node goes over micro-batches of one window, and another one steps."""
    loops = [n for n in program.above(node) if isinstance(n, p.For | p.While)] if node else []
    return len(loops) > 1 and not _steps(loops[0]) and _steps(loops[1])


def clippers(events: Iterable[t.Event]) -> Iterator[p.Call]:
    """Calls that clip gradients and are neither a torch function nor a framework's method."""
    for event in events:
        if isinstance(event, t.Clip) and event.via == "torch" and isinstance(event.node, p.Call):
            called = (p.dotted(event.node.func) or "").rpartition(".")[2]
            if called and called not in frameworks.CLIPS:
                yield event.node


def is_unwrapped(events: Sequence[t.Event], text: str, reported: bool) -> bool:
    """True where models reduce gradients, by a path or as `reported` by a finding, without a visible wrapper."""
    # Accelerate and Fabric wrap their arguments.
    if any(wrapper in text for wrapper in (*frameworks.WRAPPERS, ".prepare(", "fabric.setup")):
        return False
    return reported or reduces(events, False)


def reduces(events: Sequence[t.Event], summed: bool) -> bool:
    """Whether models reduce gradients on a path; where `summed`, a reduced loss counts as well."""
    reduced = {event.what for event in events if isinstance(event, t.Reduce)}
    if summed and "loss" in reduced:
        return "gradients" not in reduced
    return any(
        isinstance(e, t.NoSync | t.SyncFlag)
        or (isinstance(e, t.Forward) and (e.armed is not None or e.bypassed))
        for e in events
    )


def is_scripted(events: Iterable[t.Event], text: str) -> bool:
    """True where an engine other than DeepSpeed's goes backward several times before its step is called: it does not
    accumulate itself."""
    if "deepspeed" in text.lower() or "gradient_accumulation_boundary" in text:
        return False
    backwards = 0
    for event in events:
        if isinstance(event, t.EngineCall):
            backwards = 0
        elif isinstance(event, t.Backward) and event.via == "engine":
            backwards += 1
            if backwards > 1:
                return True
    return False


_OF_TOKENS = (
    "input_ids", "vocab", "token", "ignore_index", "attention_mask", "seq_len", "block_size", "-100",
)  # fmt: skip
_OF_VALUES = ("mse_loss", "mseloss", "l1_loss", "l1loss", "smooth_l1", "noise", "huber")
_OF_ROWS = ("image", "num_classes", "pixel", "label", "bce", "softplus")
_OF_CLASSES = ("cross_entropy", "crossentropy", "nll_loss")


def kind(text: str) -> str:
    """The kind of data that the text suggests: tokens, rows with a class each, or values."""
    low = text.lower()
    tokens, values, rows = (
        sum(map(low.count, words)) for words in (_OF_TOKENS, _OF_VALUES, _OF_ROWS)
    )
    # Labels with places that are left out are those of tokens.
    rows -= low.count("label") * ("-100" in low)
    if values > tokens and not any(word in low for word in _OF_CLASSES):
        return "values"
    return "tokens" if tokens > rows else "rows"


_PAD = r"\s*(==|!=|\.ne\(|\.eq\()\s*[\w.]*pad"
_PADDED = re.compile(r"[\w\])]" + _PAD)
_PADDED_LABELS = re.compile(r"(label|target|tgt|answer)\w*" + _PAD)
_PADDING = re.compile(r"pad_?(token_?)?(id|idx|index)|padding_idx")


def pads(program: Program) -> bool:
    """Whether padding is identified by comparing tokens, or by a loss that ignores it."""
    return bool(_PADDED.search(program.text)) or any(map(_PADDING.search, _left_out(program)))


def _left_out(program: Program) -> Iterator[str]:
    """The names of labels that losses ignore."""
    for call in program.of(p.Call):
        argument = call.keyword("ignore_index")
        if isinstance(argument, p.Name | p.Attr):
            yield p.dotted(argument) or ""


# Functions and slices that cut a batch into pieces.
_CUTS = re.compile(r"\.(split|chunk|tensor_split)\([A-Za-z]|range\(0, .+, .+\)|\[\w+ \* \w+ ?: ?\(")


def cuts(program: Program) -> bool:
    """Whether a source cuts something into pieces, possibly its batches."""
    return bool(_CUTS.search(program.text))


_LOSS_LIKE = re.compile(r"loss|nll|objective|elbo|cost")
_COUNTED = re.compile(r"num_items|n_items|items_in_")


def knows_window(program: Program) -> bool:
    """Whether the computation of the loss may depend on the window: it receives its size, or divides an expression.

    A loss with a name is divided by a statement of its own, which runs with any loss.
    """
    return (
        any(_COUNTED.search(name.id) for name in program.of(p.Name))
        or any(not isinstance(whole, p.Name | p.Attr | p.Item) for whole in _divided(program))
        or any(_passes_steps(node) for node in program.of(p.Assign))
    )


def _passes_steps(node: p.Assign) -> bool:
    """Whether the computation of a loss receives the accumulation steps."""
    if not any(map(_is_of_a_loss, node.targets)):
        return False
    calls = (part for part in p.walk_expr(node.value) if isinstance(part, p.Call))
    arguments = (argument.value for call in calls for argument in call.args)
    return any(isinstance(a, p.Name | p.Attr) and _may_be_steps(_last(a)) for a in arguments)


def divides(program: Program) -> bool:
    """Whether a source divides a loss by the window's size."""
    return any(_divided(program))


def _divided(program: Program) -> Iterator[p.Expr]:
    """Operands that a loss computation divides by accumulation steps, or by the literal size in a window's guard."""
    tested = [node.right for node in program.of(p.Binary) if node.op in ("%", "//")]
    sizes = {size.value for size in tested if isinstance(size, p.Const)}
    named = {_last(size) for size in tested if isinstance(size, p.Name | p.Attr)}

    def is_size(by: p.Expr) -> bool:
        return any(
            (isinstance(n, p.Const) and n.value in sizes)
            or (isinstance(n, p.Name | p.Attr) and (_last(n) in named or _may_be_steps(_last(n))))
            for n in p.walk_expr(by)
        )

    for node in program.nodes:
        if not isinstance(node, p.Assign | p.Augment | p.Return | p.Do):
            continue
        parts = [*p.walk((node,))]
        for part in parts if any(map(_is_of_a_loss, parts)) else ():
            match part:
                case p.Augment(op="/" | "*", target=whole, value=by) if is_size(by):
                    yield whole
                case p.Binary(op="/" | "//" | "*", left=whole, right=by) if is_size(by):
                    yield whole
                case p.Call(func=p.Attr(name="div" | "mul" | "div_" | "mul_", base=whole)):
                    if any(is_size(argument.value) for argument in part.args):
                        yield whole
                case _:
                    pass


def _may_be_steps(name: str) -> bool:
    """Whether a name may mean accumulation steps, including those of the current window."""
    return names.is_steps(name) or "accum" in name.lower()


def _is_of_a_loss(node: p.Node) -> bool:
    return isinstance(node, p.Name | p.Attr) and bool(_LOSS_LIKE.search(_last(node).lower()))


def pieces(program: Program) -> dict[str, str]:
    """The role "piece" for names that give the length of pieces."""
    found: list[str] = []
    for call in program.of(p.Call):
        name = (p.dotted(call.func) or "").rpartition(".")[2]
        start, length = call.positional(0), call.positional(2)
        if name == "range" and isinstance(start, p.Const) and start.value == 0 and length:
            found.append(_last(length))
        elif name == "split" and start is not None:
            found.append(_last(start))
    # From the piece's number times its length on.
    for node in program.of(p.Item):
        for part in (node.index, *p.walk_expr(node.index)):
            if isinstance(part, p.Slice) and isinstance(part.lower, p.Binary):
                if part.lower.op == "*" and isinstance(part.upper, p.Binary):
                    found.append(_last(part.lower.right))
    # The batch size of a loader is not a piece.
    return {name: "piece" for name in found if name and not re.fullmatch(r"batch_?size", name)}


def ignored(program: Program) -> int:
    """The label that losses ignore: 0 where it is padding, else as in the source."""
    of_padding = any(map(_PADDING.search, _left_out(program)))
    # Labels of padding may be replaced by the usual ones that are ignored.
    compared = _PADDED_LABELS.search(program.text) and "-100" not in program.text
    if pads(program) and (of_padding or compared):
        return 0
    constants = {
        target.id: statement.value.value
        for statement in program.body
        if isinstance(statement, p.Assign) and isinstance(statement.value, p.Const)
        for target in statement.targets
        if isinstance(target, p.Name)
    }
    for call in program.of(p.Call):
        match call.keyword("ignore_index"):
            case p.Const(value=value):
                pass
            case p.Name(id=name):
                value = constants.get(name)
            case p.Unary(operand=p.Const(value=int(value))):
                value = -value
            case _:
                continue
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return -100
