"""Measures how accumulation goes wrong, on a small model, and writes the tables and plots of docs/wrong.md.

    python pages/wrong.py

Needs torch and about half a minute on a CPU. Every variant is a loop that differs from the right one in one thing.
"""

# torch leaves some of its types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from generate import SCHEMES, in_scheme, picture
from torch import Tensor, nn
from torch.nn import functional as F

from accumlint.confirming.reports.figures import arrows
from accumlint.confirming.result import Update
from accumlint.diagnostics.drawing.components import placed, standalone
from accumlint.diagnostics.drawing.markup import Markup, element
from accumlint.diagnostics.drawing.markup import picture as drawing

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURES = DOCS / "wrong.md", DOCS / "pictures"
STEPS, WORDS, RATE, SCALE = 4, 23, 0.5, 65536.0
EQUAL, RAGGED = (64, 64, 64, 64), (10, 400, 20, 300)


@dataclass(frozen=True)
class Variant:
    """A loop: what it does otherwise than the right one, and the rule that tells."""

    name: str
    rule: str = ""
    divisor: float = STEPS
    tokens: tuple[int, ...] = EQUAL
    clip: str = "never"
    clear: str = "after"
    first: int = STEPS - 1
    trailing: int = 0


VARIANTS = (
    Variant("right"),
    Variant("loss never divided", "ACC102", divisor=1),
    Variant("loss divided twice", "ACC103", divisor=STEPS * STEPS),
    Variant("mean of means, token counts differ", "ACC101", tokens=RAGGED),
    Variant("clipped while scaled", "ACC201", clip="scaled"),
    Variant("clipped every micro-batch", "ACC202", clip="each"),
    Variant("never cleared", "ACC401", clear="never"),
    Variant("cleared inside the window", "ACC402", clear="each"),
    Variant("steps on `i % 4 == 0`", "ACC503", first=0),
    Variant("partial window leaks", "ACC501", trailing=2),
)


@dataclass
class Measured:
    """What the updates of a variant applied, against the gradient of the mean over all tokens of their windows."""

    errors: list[float] = field(default_factory=list[float])
    cosines: list[float] = field(default_factory=list[float])
    lengths: list[float] = field(default_factory=list[float])
    losses: list[float] = field(default_factory=list[float])

    @property
    def worst(self) -> int:
        return max(range(len(self.errors)), key=self.errors.__getitem__)


class Model(nn.Module):
    """Predicts a word from the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.outer = (
            nn.Embedding(WORDS, 12),
            nn.Linear(12, 12),
            nn.Linear(12, WORDS),
        )

    def forward(self, words: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(self.embed(words))))


def run(
    variant: Variant, updates: int, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD
) -> Measured:
    """Trains for so many updates and compares each applied gradient with the large batch's."""
    torch.manual_seed(0)
    model = Model().double()
    rate = RATE if optimizer is torch.optim.SGD else 0.02
    stepper = optimizer(model.parameters(), lr=rate)  # pyright: ignore[reportCallIssue]
    parameters = list(model.parameters())
    pending: list[tuple[Tensor, Tensor]] = []
    done = Measured()
    held = torch.randint(WORDS, (2000,)), torch.arange(2000)
    target = (held[0] * 7 + 3) % WORDS
    index = 0
    while len(done.errors) < updates:
        words, answers = batch(variant.tokens[index % len(variant.tokens)])
        pending.append((words, answers))
        loss = F.cross_entropy(model(words), answers) / variant.divisor
        scale = SCALE if variant.clip == "scaled" else 1.0
        (loss * scale).backward()
        if variant.clip == "each":
            nn.utils.clip_grad_norm_(parameters, 0.05)
        epoch = 2 * STEPS + variant.trailing if variant.trailing else STEPS
        if index % epoch % STEPS == variant.first:
            reference = gradient(model, pending)
            if variant.clip == "each":
                reference = reference * min(1.0, 0.05 / norm(reference))
            if variant.clip == "scaled":
                nn.utils.clip_grad_norm_(parameters, 1.0)
                for parameter in parameters:
                    parameter.grad = None if parameter.grad is None else parameter.grad / SCALE
            compare(done, flat([p.grad for p in parameters if p.grad is not None]), reference)
            stepper.step()
            pending.clear()
            if variant.clear == "after":
                stepper.zero_grad()
            with torch.no_grad():
                done.losses.append(float(F.cross_entropy(model(held[0]), target)))
        if variant.clear == "each":
            stepper.zero_grad()
        index += 1
    return done


def batch(tokens: int) -> tuple[Tensor, Tensor]:
    """Words and those that follow them; where texts differ in length, short ones use other words than long ones."""
    half = WORDS // 2
    low, high = (0, WORDS) if tokens in EQUAL else (half, WORDS) if tokens < 50 else (0, half)
    words = torch.randint(low, high, (tokens,))
    return words, (words * 7 + 3) % WORDS


def gradient(model: Model, batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The gradient of one large batch."""
    words, answers = (torch.cat(part) for part in zip(*batches, strict=True))
    loss = F.cross_entropy(model(words), answers)
    return flat(torch.autograd.grad(loss, list(model.parameters())))


def norm(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient))


def flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def compare(done: Measured, applied: Tensor, reference: Tensor) -> None:
    length = norm(reference)
    done.errors.append(norm(applied - reference) / length)
    done.lengths.append(norm(applied) / length)
    norms = norm(applied) * length
    done.cosines.append(float(applied @ reference) / norms if norms else math.nan)


# Pictures


def lines(curves: Sequence[tuple[str, Sequence[float]]], title: str, name: str) -> Markup:
    """Curves over the updates, each with its name at its end."""
    width, height, left, bottom, top = 560.0, 230.0, 44.0, 200.0, 14.0
    most = max(max(values) for _, values in curves)
    count = max(len(values) for _, values in curves)

    def y(value: float) -> float:
        return bottom - value / most * (bottom - top)

    parts = [element("path", class_="base", d=f"M{left} {bottom}H{width}")]
    for tick in range(math.ceil(most)):
        parts.append(element("path", class_="lane", d=f"M{left} {y(tick):.1f}H{width}"))
        parts.append(
            element("text", str(tick), class_="small end quiet", x=left - 8, y=y(tick) + 4)
        )
    right = curves[0][0]
    # The right one is drawn last, over the others.
    for label, values in reversed(curves):
        points = (
            f"{left + n / (count - 1) * (width - left):.1f} {y(v):.1f}"
            for n, v in enumerate(values)
        )
        tone = "good" if label == right else "bad"
        parts.append(element("path", class_=f"curve {tone}", d=f"M{'L'.join(points)}"))
    # From the lowest end upwards, so that names stand in the order of their curves.
    lowest = height
    for label, values in sorted(curves, key=lambda curve: curve[1][-1]):
        lowest = min(y(values[-1]) + 4, lowest - 13)
        tone = "good" if label == right else "bad"
        parts.append(element("text", label, class_=f"small {tone}", x=width + 8, y=lowest))
    parts.append(
        element("text", "updates", class_="small quiet middle", x=(left + width) / 2, y=height - 6)
    )
    told = "; ".join(f"{label} ends at {values[-1]:.2f}" for label, values in curves)
    return drawing(parts, width + 210, height, name, title, told)


def pictured(variant: Variant, done: Measured) -> Markup | None:
    """The worst update's gradient beside the large batch's."""
    at = done.worst
    update = Update(
        number=at + 1, optimizer="optimizer", epoch=1, microbatches=(), targets=(), weights=(),
        applied=done.lengths[at], reference=1.0, error=done.errors[at], direction=0.0,
        cosine=done.cosines[at], scale=1.0, factor="", spread=0.0, reductions=0, clips=0, schedules=0,
    )  # fmt: skip
    return arrows(update, f"arrow-{slug(variant)}")


def slug(variant: Variant) -> str:
    return re.sub(r"\W+", "-", variant.name).strip("-")


def save(drawn: Markup, name: str, told: str) -> str:
    """Writes a picture in both schemes and returns the Markdown that shows it."""
    nested, width, height = placed(drawn, 12, 12)
    alone = standalone([nested], width + 24, height + 24)
    for scheme in SCHEMES:
        (PICTURES / f"{name}-{scheme}.svg").write_text(in_scheme(alone, scheme), encoding="utf-8")
    return picture(f"pictures/{name}", "svg", told)


# The page


def table(measured: Sequence[tuple[Variant, Measured]]) -> Iterator[str]:
    yield "| loop | rule | relative error | cosine | length |"
    yield "| --- | --- | --- | --- | --- |"
    for variant, done in measured:
        at = done.worst
        rule = f"[{variant.rule}](rules/{variant.rule.lower()}.md)" if variant.rule else ""
        figures = (figure(values[at]) for values in (done.errors, done.cosines, done.lengths))
        yield f"| {variant.name} | {rule} | {' | '.join(figures)} |"


def figure(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 0.001 else f"{value:.3g}"


def training(optimizer: type[torch.optim.Optimizer], title: str, name: str) -> str:
    chosen = [VARIANTS[n] for n in (0, 1, 2, 4, 6, 7)]
    curves = [(variant.name, run(variant, 40, optimizer).losses) for variant in chosen]
    capped = [(label, [min(value, 4.0) for value in values]) for label, values in curves]
    return save(lines(capped, title, name), name, title)


def write() -> None:
    PICTURES.mkdir(exist_ok=True)
    # More threads than one only get in each other's way on tensors as small as these.
    torch.set_num_threads(1)
    measured = [(variant, run(variant, 6)) for variant in VARIANTS]
    arrowed = [
        (variant, save(drawn, f"arrow-{slug(variant)}", f"Applied gradient, {variant.name}"))
        for variant, done in measured[1:]
        if done.lengths[done.worst] < 5 and (drawn := pictured(variant, done)) is not None
    ]
    grid = ["| | |", "| --- | --- |"]
    for one, other in zip(arrowed[::2], [*arrowed[1::2], None], strict=False):
        cells = [
            f"**{v.name}**<br>{drawn.replace(chr(10), ' ')}"
            for v, drawn in filter(None, (one, other))
        ]
        grid.append(f"| {' | '.join(cells)} |")
    parts = {
        "table": "\n".join(table(measured)),
        "arrows": "\n".join(grid),
        "sgd": training(torch.optim.SGD, "Loss by update with SGD", "training-sgd"),
        "adam": training(torch.optim.AdamW, "Loss by update with AdamW", "training-adam"),
    }
    text = PAGE.read_text(encoding="utf-8")
    for name, new in parts.items():
        text = re.sub(
            rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)",
            lambda m, new=new: f"{m[1]}\n{new}\n\n{m[2]}",
            text,
            flags=re.DOTALL,
        )
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
