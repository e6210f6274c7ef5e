"""What the walk through a script says of its expressions, and that no script makes it long."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

import pytest

from walkback.pitfalls.flow import Flow
from walkback.pitfalls.script import Script
from walkback.pitfalls.values import BY_LAYER, COSINE, GRAD, SENT, Value

HEAD = "import jax\nimport numpy as np\nimport torch\nimport torch.nn.functional as F\n"


def held(code: str) -> tuple[Flow, Value]:
    """The walk, and what the last expression of a script holds."""
    tree = ast.parse(HEAD + textwrap.dedent(code))
    flow, last = Script(tree).flow, tree.body[-1]
    assert isinstance(last, ast.Expr)
    return flow, flow.of(last.value)


@pytest.mark.parametrize(
    "code",
    [
        "u = torch.autograd.grad(loss, w)\nu[0]",
        "u = jax.value_and_grad(loss)(w)[1]\nu",
        "out = {}\nfor p in ps:\n    out[n] = p.grad.flatten()\nout['a']",
        "def f(v):\n    return v.reshape(-1).double()\nf(grad)",
        "class A:\n    def set(self, x):\n        self.kept = x\nA().set(grad)\nbox = A()\nbox.kept",
        "pairs = list(zip(names, [p.grad for p in ps]))\nfor name, u in pairs:\n    pass\nu",
        "for x in batches:\n    u = torch.autograd.grad(f(x), w)\n    break\nu",
        "try:\n    u = x.grad\nexcept AttributeError:\n    u = 0\nu",
        "t = jax.tree_util.tree_map(lambda v: v.ravel(), jax.grad(loss)(w))\nt",
    ],
)
def test_a_gradient_is_followed(code: str) -> None:
    flow, value = held(code)
    assert flow.has(value, GRAD)


@pytest.mark.parametrize(
    "code",
    [
        "w = w - lr * grad\nw",
        "n = grad.norm()\nF.relu(n)",
        "def f(v):\n    return len(v)\nf(grad)",
        "u = grad\nu = x\nu",
    ],
)
def test_what_is_no_gradient_is_not_called_one(code: str) -> None:
    flow, value = held(code)
    assert not flow.has(value, GRAD, SENT)


@pytest.mark.parametrize(
    "code",
    [
        "(a * b).sum() / (a.norm() * b.norm())",
        "a @ b / np.linalg.norm(a) / np.linalg.norm(b)",
        "torch.einsum('bd,bd->b', a, b) / torch.sqrt((a**2).sum(1) * (b * b).sum(1))",
        "np.dot(a, b) * (np.dot(a, a) * np.dot(b, b)) ** -0.5",
        "u, v = F.normalize(a), b / b.norm()\n(u * v).sum()",
        "def unit(x):\n    return x / x.norm()\nunit(a) @ unit(b)",
        "na, nb = a.norm(), b.norm()\nd = torch.dot(a, b)\nd.div(na.mul(nb)).item()",
        "def n(x):\n    return (x * x).sum().sqrt()\n(a * b).sum() / (n(a) * n(b))",
    ],
)
def test_a_cosine_is_one_however_it_is_written(code: str) -> None:
    flow, value = held(code)
    assert COSINE in value.kinds
    assert len(flow.cosines) == 1


@pytest.mark.parametrize(
    "code",
    ["b.norm() / a.norm()", "(a * b).sum() / (a**2).sum()", "a / (a.norm() * 2)", "(a - b).norm() / b.norm()", "a @ b"],
)
def test_what_is_no_cosine(code: str) -> None:
    flow, value = held(code)
    assert COSINE not in value.kinds
    assert not flow.cosines


def test_cosines_of_a_tree_are_of_every_layer() -> None:
    _, value = held("def cos(u, v):\n    return u @ v / (u.norm() * v.norm())\njax.tree.map(cos, a, b)")
    assert {COSINE, BY_LAYER} <= value.kinds


def _chains(n: int) -> Iterator[str]:
    """Scripts of n lines in each of which something doubles."""
    yield "x0 = g\n" + "".join(f"x{i + 1} = x{i} + x{i}\n" for i in range(n))
    yield "x0 = g.norm()\n" + "".join(f"x{i + 1} = x{i} * x{i}\n" for i in range(n))
    yield "x0 = 3\n" + "".join(f"x{i + 1} = x{i} ** x{i}\n" for i in range(n))
    yield "x0 = g\n" + "".join(f"x{i + 1} = (x{i}, x{i})\n" for i in range(n))
    yield "x0 = g\n" + "".join(f"if c:\n    x{i + 1} = (x{i}, a)\nelse:\n    x{i + 1} = (b, x{i})\n" for i in range(n))
    yield "".join(f"def f{i}(a):\n    return f{i + 1}(a) + f{i + 1}(a)\n" for i in range(n)) + "f0(g)\n"
    yield "".join(f"def f{i}(a):\n    return (f{i - 1}(a), f{i - 1}(a))\n" for i in range(n)) + f"f{n - 1}(g)\n"


@pytest.mark.parametrize("kind", range(7))
def test_every_node_is_walked_once(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    for n in (60, 120):
        code, walked = list(_chains(n))[kind], 0

        def value(self: Flow, node: ast.expr, scope: object, before: object = Flow.value) -> Value:
            nonlocal walked
            walked += 1
            return before(self, node, scope)  # type: ignore[operator]

        with monkeypatch.context() as patch:
            patch.setattr(Flow, "value", value)
            flow = Script(ast.parse(code)).flow
        assert all(len(v.kinds) < 40 and len(v.floors) <= 8 for v in flow.values.values())
        steps.append(walked)
    assert steps[1] < 2.2 * steps[0]


def test_functions_that_call_one_another_without_end_are_walked() -> None:
    code = (
        "".join(f"def f{i}(a):\n    return f{i + 1}(a)\n" for i in range(900))
        + "def f900(a):\n    return f0(a)\nf0(g)\n"
    )
    assert Script(ast.parse(code)).flow.cosines == []
