"""What a run measured of an optimizer's updates, as charts over the updates and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from accumlint.common.frozen import frozen
from accumlint.diagnostics.drawing.components import details, table
from accumlint.diagnostics.drawing.markup import Markup, element, joined, picture
from accumlint.diagnostics.results.measured import Measured, Update, Weight

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 430, 210, 58, 12, 26, 40
# Of more updates, the text alternative gives the range.
_MOST_TOLD = 12
_MOST_TICKS = 8

Values = Sequence["float | None"]


@frozen
class _Line:
    """A curve over the updates, with gaps where a value is None; `kind` is its class."""

    name: str
    kind: str
    values: tuple[float | None, ...]


@frozen
class _Plane:
    """The axes of a chart: `updates` from left to right, 0 to `top` from bottom to top."""

    updates: int
    top: float

    def x(self, at: int) -> float:
        room = _WIDTH - _LEFT - _RIGHT
        return _LEFT + room * (at + 0.5) / self.updates

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self.top


def section(measured: Measured, name: str) -> Markup:
    """The charts and the table of an optimizer; `name` begins the ids."""
    charts = [*_charts(measured, name)]
    kind = measured.optimizer.rpartition(".")[2]
    ranks = f", {measured.ranks} ranks" if measured.ranks > 1 else ""
    return element(
        "section",
        element("h2", f"Updates of {kind}", id=f"{name}-head"),
        element(
            "p",
            f"{len(measured.updates)} watched{ranks}. Norms are over the {measured.elements} recorded elements of "
            "the gradient. What was not measured is not drawn.",
            class_="setting",
        ),
        element("div", *charts, class_="charts updates"),
        details("The figures as a table", _table(measured)) if charts else "",
        class_="left-over",
        aria_labelledby=f"{name}-head",
    )


def _charts(measured: Measured, name: str) -> Iterator[Markup]:
    updates = measured.updates
    norms = [
        line
        for line in (
            _Line("before clipping", "unclipped", tuple(u.unclipped for u in updates)),
            _Line("applied", "applied", tuple(u.applied for u in updates)),
            _Line("wanted", "wanted", tuple(u.wanted for u in updates)),
        )
        if any(value is not None for value in line.values)
    ]
    if norms:
        known = any(line.kind == "wanted" for line in norms)
        wanted = (
            "what the large batch gives, before any clipping"
            if known
            else "the large batch is not known"
        )
        yield _figure(
            "Gradient norm", f"What the steps apply; {wanted}.",
            _lines(norms, f"{name}-norms", "Gradient norm over the updates", "norm", 0.0), norms,
        )  # fmt: skip
    weights = [relative(update.weights) for update in updates]
    if any(weights):
        yield _figure(
            "Weight per target",
            "Of each micro-batch, relative to the mean over all targets of its update: 1 where all weigh the same.",
            _dots(weights, f"{name}-weights"),
        )
    spread = _Line("spread", "applied", tuple(u.spread for u in updates))
    if any(value is not None for value in spread.values):
        yield _figure(
            "Difference between ranks",
            "The largest difference between the gradients that two ranks apply, relative to their norm.",
            _lines([spread], f"{name}-ranks", "Difference between ranks over the updates", "relative", 0.01),
        )  # fmt: skip


def relative(weights: Sequence[Weight]) -> list[tuple[float, float]]:
    """The least and the most weight of a target of each micro-batch, relative to the mean over the update."""
    targets = sum(weight.targets for weight in weights)
    mean = sum(weight.weight * weight.targets for weight in weights) / targets if targets else 0.0
    return [(weight.least / mean, weight.most / mean) for weight in weights] if mean else []


def _figure(title: str, told: str, drawn: Markup, lines: Sequence[_Line] = ()) -> Markup:
    keys = [element("span", _key(line), f" {line.name}") for line in lines if len(lines) > 1]
    return element(
        "figure",
        element("figcaption", element("strong", title), told, element("span", *keys, class_="keys")),
        drawn,
    )  # fmt: skip


def _key(line: _Line) -> Markup:
    stroke = element("path", class_=f"curve {line.kind}", d="M0 6H28")
    return element("svg", stroke, class_="key", width=28, height=12, aria_hidden="true")


def _lines(lines: Sequence[_Line], name: str, title: str, unit: str, least: float) -> Markup:
    """Curves over the updates; the axis reaches `least` at least."""
    known = [value for line in lines for value in line.values if value is not None]
    plane = _Plane(len(lines[0].values), _top(max([*known, least])))
    parts = [*_axes(plane, unit)]
    for line in lines:
        points = [
            (plane.x(at), plane.y(value)) if value is not None else None
            for at, value in enumerate(line.values)
        ]
        parts.append(element("path", class_=f"curve {line.kind}", d=_path(points)))
        if line.kind == "applied":
            dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in filter(None, points))
            parts.append(element("path", class_="dots", d=dots))
    told = "; ".join(f"{line.name}: {_told(line.values)}" for line in lines)
    return picture(parts, _WIDTH, _HEIGHT, name, title, told)


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """A path through the points, interrupted where there is none."""
    parts: list[str] = []
    pen = "M"
    for point in points:
        if point is not None:
            parts.append(f"{pen}{point[0]:.1f} {point[1]:.1f}")
        pen = "M" if point is None else "L"
    return "".join(parts)


def _dots(weights: Sequence[Sequence[tuple[float, float]]], name: str) -> Markup:
    """A dot for each micro-batch, and a line from the least to the most weight of each update."""
    most = max(abs(value) for each in weights for pair in each for value in pair)
    plane = _Plane(len(weights), _top(max(most, 1.0)))
    parts = [*_axes(plane, "weight")]
    parts.append(element("path", class_="one", d=f"M{_LEFT} {plane.y(1):.1f}H{_WIDTH - _RIGHT}"))
    spans, dots, told = "", "", list[float | None]()
    for at, each in enumerate(weights):
        x = plane.x(at)
        values = [max(value, 0.0) for pair in each for value in pair]
        if values:
            spans += f"M{x:.1f} {plane.y(min(values)):.1f}V{plane.y(max(values)):.1f}"
        places = dict.fromkeys(f"M{x:.1f} {plane.y(value):.1f}h0" for value in values)
        dots += "".join(places)
        told.append(max(values) - min(values) if values else None)
    parts += [element("path", class_="span", d=spans), element("path", class_="dots", d=dots)]
    text = f"largest less smallest weight of a target within each update: {_told(told)}"
    return picture(parts, _WIDTH, _HEIGHT, name, "Weight per target over the updates", text)


def _axes(plane: _Plane, unit: str) -> Iterator[Markup]:
    for part in range(5):
        value = plane.top * part / 4
        y = plane.y(value)
        yield element(
            "path", class_="base" if part == 0 else "lane", d=f"M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"
        )
        yield element("text", f"{value:.3g}", x=_LEFT - 8, y=y + 4, class_="small end quiet")
    step = max(math.ceil(plane.updates / _MOST_TICKS), 1)
    for at in range(0, plane.updates, step):
        y = _HEIGHT - _BOTTOM + 16
        yield element("text", str(at + 1), x=plane.x(at), y=y, class_="small middle quiet")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield element("text", "update", x=middle, y=_HEIGHT - 6, class_="small middle quiet")
    yield element("text", unit, x=_LEFT - 8, y=12, class_="small end quiet")


def _top(value: float) -> float:
    """The smallest 1, 2, 4 or 8 times a power of ten that is not below a value; 1 for 0."""
    if not value:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * part for part in (1, 2, 4, 8, 10, 20) if power * part >= value)


def _told(values: Values) -> str:
    """The values of a few updates, the range of many."""
    if len(values) <= _MOST_TOLD:
        return ", ".join(map(_number, values))
    known = [value for value in values if value is not None]
    return f"from {_number(min(known))} to {_number(max(known))} in {len(values)} updates"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _table(measured: Measured) -> Markup:
    heads = [
        "update",
        "line",
        "micro-batches",
        "norm applied",
        "before clipping",
        "norm wanted",
        "weight per target",
    ]
    if measured.ranks > 1:
        heads.append("difference of ranks")
    rows = [
        _row(number, update, several=measured.ranks > 1)
        for number, update in enumerate(measured.updates, 1)
    ]
    return joined(table(f"Updates of {measured.optimizer}", heads, rows))


def _row(number: int, update: Update, *, several: bool) -> list[str]:
    weights = [value for pair in relative(update.weights) for value in pair]
    spread = f"{_number(min(weights))} to {_number(max(weights))}" if weights else "unknown"
    clipped = "none" if update.unclipped is None else _number(update.unclipped)
    row = [
        str(number), str(update.row), str(update.microbatches), _number(update.applied), clipped,
        _number(update.wanted), spread,
    ]  # fmt: skip
    return [*row, _number(update.spread)] if several else row
