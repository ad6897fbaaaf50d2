"""What names stand for is told by what is done with them."""

import ast

import pytest

from accumlint.reading import names
from accumlint.reading.lowering import lowered
from accumlint.reading.roles import Roles, infer
from accumlint.reading.syntax import Source


def roles(text: str) -> Roles:
    source = Source("train.py", text)
    return infer(lowered(ast.parse(text).body, source))


PLAIN = """
def run(a, b, c, d):
    for i, (x, y) in enumerate(b):
        v = F.cross_entropy(a(x), y) / d
        v.backward()
        if (i + 1) % d == 0:
            c.step()
            c.zero_grad()
"""
SCALED = """
def run(k, a, b, c, s, d):
    e = iter(b)
    for _ in range(100):
        for _ in range(d):
            x, y = next(e)
            u = k(a(x), y)
            s.scale(u / d).backward()
        s.step(c)
        s.update()
"""
METHODS = """
class T:
    def __init__(self, a, b, d):
        self.q, self.d = a, d
        self.w = torch.optim.SGD(a.parameters(), lr=0.1)

    def one(self, x, y):
        z = F.mse_loss(self.q(x), y)
        return z

    def all(self, b):
        for i, (x, y) in enumerate(b):
            (self.one(x, y) / self.d).backward()
            if i % self.d == 0:
                self.w.step()
                self.w.zero_grad()
"""
MIXED = """
def moved(t, device):
    return t.to(device)

def run(a, b, c, device):
    a = moved(a, device)
    for x, y in b:
        x = moved(x, device)
        c.zero_grad()
        F.mse_loss(a(x), y).backward()
        c.step()
"""


@pytest.mark.parametrize(
    ("text", "name", "role"),
    [
        (PLAIN, "a", "model"),
        (PLAIN, "b", "loader"),
        (PLAIN, "c", "optimizer"),
        (PLAIN, "d", ""),
        (SCALED, "a", "model"),
        (SCALED, "b", "loader"),
        (SCALED, "e", "loader"),
        (SCALED, "c", "optimizer"),
        (SCALED, "s", "scaler"),
        (SCALED, "k", "criterion"),
        (METHODS, "a", "model"),
        (METHODS, "q", "model"),
        (METHODS, "w", "optimizer"),
        (MIXED, "b", "loader"),
        (MIXED, "c", "optimizer"),
        (MIXED, "t", ""),
    ],
)
def test_the_role_is_what_is_done(text: str, name: str, role: str):
    assert roles(text).of(name) == role


@pytest.mark.parametrize(
    ("text", "loss", "labels"), [(PLAIN, "v", "y"), (SCALED, "u", "y"), (METHODS, "z", "y")]
)
def test_losses_and_labels_are_told_by_their_use(text: str, loss: str, labels: str):
    found = roles(text)
    assert found.is_loss(loss)
    assert not found.is_loss("x")
    assert found.are_labels(labels)


@pytest.mark.parametrize(
    ("text", "windows"),
    [(PLAIN, {"d"}), (SCALED, {"d"}), (METHODS, {"d", "self.d"}), (MIXED, set[str]())],
)
def test_the_steps_are_what_the_boundary_asks_for(text: str, windows: set[str]):
    assert roles(text).windows == windows


def test_a_name_is_asked_where_nothing_is_done():
    found = roles("def run(model, flag):\n    return flag\n")
    assert found.of("model") == "model"
    assert found.is_loss("total_loss")


def test_two_roles_for_a_name_give_none():
    text = """
def one(p, x):
    p.zero_grad()
    x.backward()
    p.step()

def other(p, x):
    for y in p.parameters():
        print(y)
"""
    assert roles(text).of("p") == ""


@pytest.mark.parametrize(
    ("function", "expected"),
    [("scale_gradients", True), ("divide_grads", True), ("unscale_gradients", False)],
)
def test_what_scales_gradients_back_does_not_rescale_them(function: str, *, expected: bool) -> None:
    assert names.is_rescaling(function) is expected
