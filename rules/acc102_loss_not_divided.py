"""A mean loss is accumulated over a window and never divided."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from accumlint.editing import Replace
from accumlint.reading.ir import Augment, Binary, Expr, Item, Node, Slice, dotted
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Confidence,
    Finding,
    Fix,
    Observed,
    Rule,
    Severity,
    Symptom,
    unsafe,
)
from accumlint.tracing.trace import Backward, Contribution, Trace, Window

from ._dividing import divided, loss_of, window_sizes
from ._partial import lengths


class LossNotDivided(Rule):
    """The mean loss of every micro-batch goes backward and nothing divides it by the number of micro-batches.

    A backward adds to `.grad`, so the step applies the sum of N means where the large batch has their mean: the
    gradient is N times too long and points the right way. With SGD this is a learning rate N times too high, and one
    that changes whenever the accumulation steps do; with N = 4 the parameters end 115 % of the distance trained away.
    Adam and AdamW divide the factor out again (3e-6), but not where an absolute number meets the gradient: a clipping
    threshold, L2 weight decay (62 %), `eps`, the logged norm.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                images, labels = next(batches)
                loss = F.cross_entropy(model(images), labels)
                loss.backward()  # error: ACC102
            optimizer.step()
    ```

    Good:

    ```diff
                 loss = F.cross_entropy(model(images), labels)
    -            loss.backward()
    +            (loss / accumulation_steps).backward()
             optimizer.step()
    ```

    When it stays silent: when a framework divides (Accelerate's and DeepSpeed's `backward`, Lightning's automatic
    optimisation, the Hugging Face Trainer), when the gradients are divided before the step, when the loss is a sum
    (ACC105) or is divided by a count of the whole window, when its reduction could not be seen and it is multiplied by
    the number of ranks (it adds up on purpose) or taken in pieces over the features of a whole window (contrastive
    losses), and when it is multiplied by something that could not be followed (weights of its elements, of which a mean
    is taken afterwards, and its own weight among other losses only make the finding likely). A part of a sum that stays
    whole where the rest is divided, such as a penalty, is reported as well. So is a `training_step` that replaces the
    Trainer's, which divides, where ACC601 does not report it. A gradient that is never cleared is ACC401 and not
    reported twice. Fabric's `backward` does not divide; Lightning's modules are ACC606.

    The finding is `certain` when the loss is seen to be a mean, and `likely` when its reduction could not be seen, or
    when every micro-batch has two backwards of which one is divided and the other is not (adversarial training).
    It is an error with optimizers that follow the gradient's length or could not be determined, and with Adam's own
    `weight_decay`; a warning with Adam's like otherwise. A norm clip that is active in every window hides the factor
    altogether, but whether it is cannot be seen in the code.

    When the fix is not offered: without `--unsafe-fixes`. Dividing is right, but the learning rate was tuned with the
    longer gradient: with SGD multiply it by N to keep the run as it was.

    Measured (N = 4): relative error 3.0, cosine 1, length 4. Distance of the parameters after 30 windows, as a share
    of the distance trained: SGD 1.15, SGD with momentum 1.41, Adam and AdamW 3e-6, Adam with L2 decay .62, any of them
    with a norm clip that is always active below 1e-6 to 2e-6. Fabric and Lightning's manual optimisation: length 4.

    See: the gradient-accumulation section of [PyTorch's AMP examples][amp], which divides; [nanoGPT #168][nanogpt],
    which points out that Adam hides the factor and that the clipping threshold does not; [e2e_sae #70][e2e].

    [nanogpt]: https://github.com/karpathy/nanoGPT/issues/168
    [e2e]: https://github.com/ApolloResearch/e2e_sae/pull/70
    """

    severity = Severity.WARNING
    needs_followed = ("loss", "optimizer")
    observed = Observed.UNDIVIDED
    symptom = Symptom.SCALE
    of_losses = True
    fix = Applicability.UNSAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in trace.steady_windows():
            reductions = {c.reduction for c in window.contributions}
            divided = trace.divisions(window)
            for place, message in in_part(trace, window) if divided is None else ():
                sure, bad = Confidence.LIKELY, Severity.ERROR
                yield self.at(place, message, confidence=sure, severity=bad, window=window)
            backward = window.contributions[0].backward
            averaged = reductions == {"mean"}
            if (
                reductions & {"sum", "window"}
                or divided != 0
                or trace.foreign_divisor(window) is not None
                or all(b.via == "lightning" for b in window.backwards)
                or (not averaged and adds_up_ranks(trace.program, backward.loss))
                or (not averaged and is_recomputed(trace.program))
            ):
                continue
            pieces = trace.main.asked and len(window.microbatches) > trace.main.steps
            if trace.entry.driven is not None and backward.via == "accelerator":
                # In a Trainer's Accelerator.
                doubt = " (unless DeepSpeed does)"
            elif not averaged or pieces:
                doubt = " (if it is a mean)"
            else:
                weighted = all(c.symbols for c in window.contributions)
                doubt = " (unless its weights divide it)" if weighted else ""
            yield self.at(
                backward,
                f"`{backward.loss}` is summed over the micro-batches of a window and never divided{doubt}",
                confidence=Confidence.LIKELY if doubt else Confidence.CERTAIN,
                severity=self.severity if window.step.optimizer.is_scale_free else Severity.ERROR,
                window=window,
                applied=window.applied,
                expected="" if pieces else window.expected,
                fixes=() if pieces else divide(trace.program, window),
            )


def in_part(trace: Trace, window: Window) -> Iterator[tuple[Backward, str]]:
    """What is not divided in a window of which the rest is, and how that is told."""
    if (other := forgotten(trace, window)) is not None:
        yield other, f"`{other.loss}` is never divided, though another loss of the same window is"
    if (part := forgotten_part(trace, window)) is not None:
        loss = part.backward.loss
        weight = next((s[2:] for s in part.symbols if s.startswith("* ")), "")
        which = f" that is weighted by `{weight}`" if weight else ""
        yield part.backward, f"a part of `{loss}`{which} is never divided, though the rest of it is"


def forgotten(trace: Trace, window: Window) -> Backward | None:
    """The second backward of every micro-batch, whose loss keeps its factor where that of the first shrinks."""
    other = twin(trace, window)
    if other is None:
        return None
    here, there = _factors(window), _factors(other)
    shares = {n: here[n] / there[n] for n in here.keys() & there.keys() if here[n] and there[n]}
    steps = Fraction(trace.runs[1].steps, trace.main.steps)
    kept = [n for n, share in shares.items() if share == 1]
    divided = [n for n, share in shares.items() if share == steps]
    if len(kept) != 1 or not divided or len(shares) != len({b.node for b in window.backwards}):
        return None
    found = [b for b in window.backwards if b.node is kept[0]]
    return found[0] if {b.microbatch for b in found} == {*window.microbatches} else None


def forgotten_part(trace: Trace, window: Window) -> Contribution | None:
    """A term of a sum that goes backward in every micro-batch and keeps its factor where those of the rest shrink."""
    other = twin(trace, window)
    if other is None or len({b.node for b in window.backwards}) != 1:
        return None
    here, there = _parts(window), _parts(other)
    steps = Fraction(trace.runs[1].steps, trace.main.steps)
    shares = {part: here[part][0] / there[part][0] for part in here.keys() & there.keys()}
    if {*shares.values()} != {Fraction(1), steps}:
        return None
    whole = {part for part, share in shares.items() if share == 1}
    for c in window.contributions:
        if _part(c) in whole and len(here[_part(c)]) == len(window.microbatches):
            return c
    return None


def twin(trace: Trace, window: Window) -> Window | None:
    """The window with other accumulation steps; what another optimizer applies has a window of its own."""
    return trace.twin(window.step.optimizer) if len(trace.main.optimizers) == 1 else None


def _part(c: Contribution) -> tuple[str, ...]:
    """What tells a term of the loss from the others, in any micro-batch."""
    return (c.origin.partition("@")[0], c.network, *c.symbols)


def _parts(window: Window) -> dict[tuple[str, ...], list[Fraction]]:
    """The factor of each term in each micro-batch, where it is the same one; unknown factors only weigh the term."""
    parts: dict[tuple[str, ...], list[Fraction | None]] = {}
    for c in window.contributions:
        if not c.unknown_factors and c.reduction in ("mean", "unknown"):
            parts.setdefault(_part(c), []).append(c.weight)
    followed = {p: [f for f in factors if f] for p, factors in parts.items()}
    return {p: fs for p, fs in followed.items() if len(fs) == len(parts[p]) and len({*fs}) == 1}


def _factors(window: Window) -> dict[Node, Fraction]:
    """The factor of each backward that has the same one for every micro-batch and loss."""
    by_backward: dict[Node, set[Fraction | None]] = {}
    for c in window.contributions:
        known = c.weight if not c.symbols and c.reduction in ("mean", "unknown") else None
        by_backward.setdefault(c.backward.node, set()).add(known)
    one = {n: found.pop() for n, found in by_backward.items() if len(found) == 1}
    return {n: factor for n, factor in one.items() if factor is not None}


def adds_up_ranks(program: Program, loss: str) -> bool:
    """True for a loss that is multiplied by the number of ranks somewhere: it adds up on purpose."""
    factors = (n.value for n in program.of(Augment) if n.op == "*" and dotted(n.target) == loss)
    return any(program.roles.is_ranks(dotted(f).rpartition(".")[2]) for f in factors)


def is_recomputed(program: Program) -> bool:
    """True where all features of a window but one's own are put in again, and each backward is a part of one loss.

    `features[:j] + [own] + features[j + 1 :]`, as contrastive losses over a whole window are taken in pieces.
    """
    sums = ((n.left, n.right) for n in program.of(Binary) if n.op == "+")
    return any(isinstance(n, Binary) and _sliced(n.left) == _sliced(last) != "" for n, last in sums)


def _sliced(node: Expr) -> str:
    """What a slice is taken of, as written; "" for anything else."""
    return dotted(node.base) if isinstance(node, Item) and isinstance(node.index, Slice) else ""


def divide(program: Program, window: Window) -> Iterator[Fix]:
    """Divides what goes backward by the window's size, where one backward makes all of the window."""
    backward = window.contributions[0].backward
    loss = loss_of(backward)
    if loss is None or {b.node for b in window.backwards} != {backward.node}:
        return
    told = f"Divide `{backward.loss}` by the window's size, and tune the learning rate again"
    for size in window_sizes(program, window):
        yield unsafe(told, Replace(loss, divided(program, loss, size)))
    found = lengths(program, window)
    if found is not None:
        yield unsafe(told, found.insert, Replace(loss, divided(program, loss, found.length)))
