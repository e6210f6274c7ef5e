"""JAX networks (plain, equinox, flax) against the same weights in torch, and what the gradient check catches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import walkback as wb
from needs import needed
from walkback.integrations.jax import arrays, traced

jax = needed("jax")
jnp = jax.numpy

NET, BATCHES = wb.selftest.network(depth=3), wb.selftest.batches(8)
NUMBERS = [(x.numpy(), y.numpy()) for x, y in BATCHES]
CLAIM = wb.Claim(accuracy=0.5, frozen=0.3)


def feedback() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.normal(size=(10, 32)).astype(np.float32) for _ in range(4)]


B = feedback()


def torch_credit(trace):
    error = trace.logits.softmax(1) - torch.nn.functional.one_hot(trace.labels, 10)
    return [error @ torch.from_numpy(b) for b in B]


def jax_credit(one):
    error = jax.nn.softmax(one.logits) - jax.nn.one_hot(one.labels, 10)
    return [error @ b for b in B]


def weights() -> dict[str, np.ndarray]:
    return {name: p.detach().numpy() for name, p in NET.state_dict().items()}


def plain(params, x, taps):
    """The network of `walkback.selftest`, written in JAX alone."""

    def linear(name, h):
        return h @ params[f"{name}.weight"].T + params[f"{name}.bias"]

    def norm(name, h):
        centred = h - h.mean(-1, keepdims=True)
        spread = jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred / spread * params[f"{name}.weight"] + params[f"{name}.bias"]

    h = linear("embed", x) + taps[0]
    for i in range(3):
        inside = jax.nn.gelu(linear(f"blocks.{i}.1", norm(f"blocks.{i}.0", h)), approximate=False)
        h = h + linear(f"blocks.{i}.3", inside) + taps[i + 1]
    return linear("out_head", norm("out_ln", h))


def same(report: wb.Report) -> None:
    """Every number of a report is that of the torch path, to 1e-5; its verdict and null bands too."""
    ours = wb.diagnose(NET, BATCHES, credit=torch_credit, claim=CLAIM)
    assert report.verdict == ours.verdict
    assert report.failed == ours.failed
    for name, values in ours.per_layer.items():
        if values is None:
            assert report.per_layer[name] is None, name
        else:
            theirs = report.per_layer[name]
            assert [v is None for v in theirs] == [v is None for v in values], name
            known = [(a, b) for a, b in zip(theirs, values) if b is not None]
            assert [a for a, _ in known] == pytest.approx([b for _, b in known], rel=1e-5, abs=1e-7), name
    numbers = {k: v for k, v in ours.values.items() if v is not None}
    assert {k: report.values[k] for k in numbers} == pytest.approx(numbers, rel=1e-5, abs=1e-7)
    assert {n.code for n in report.notes} == {n.code for n in ours.notes}
    assert report.conditions["probe_accuracy"] == ours.conditions["probe_accuracy"]
    assert report.conditions["backward_error"] < 1e-3


def test_a_plain_function_gives_the_numbers_of_torch():
    same(wb.diagnose_arrays(arrays(plain, weights(), NUMBERS, jax_credit), claim=CLAIM))


def test_equinox_gives_the_numbers_of_torch():
    eqx = needed("equinox")

    def linear(name, inputs, outputs):
        made = eqx.nn.Linear(inputs, outputs, key=jax.random.key(0))
        named = (weights()[f"{name}.weight"], weights()[f"{name}.bias"])
        return eqx.tree_at(lambda m: (m.weight, m.bias), made, tuple(map(jnp.asarray, named)))

    def norm(name):
        made = eqx.nn.LayerNorm(32)
        named = (weights()[f"{name}.weight"], weights()[f"{name}.bias"])
        return eqx.tree_at(lambda m: (m.weight, m.bias), made, tuple(map(jnp.asarray, named)))

    gelu = eqx.nn.Lambda(lambda h: jax.nn.gelu(h, approximate=False))

    class Net(eqx.Module):
        embed: eqx.nn.Linear
        blocks: list
        head: eqx.nn.Sequential

    blocks = [
        eqx.nn.Sequential(
            [norm(f"blocks.{i}.0"), linear(f"blocks.{i}.1", 32, 32), gelu, linear(f"blocks.{i}.3", 32, 32)]
        )
        for i in range(3)
    ]
    net = Net(linear("embed", 16, 32), blocks, eqx.nn.Sequential([norm("out_ln"), linear("out_head", 32, 10)]))

    def forward(net, x, taps):
        h = jax.vmap(net.embed)(x) + taps["embed"]
        for i, block in enumerate(net.blocks):
            h = h + jax.vmap(block)(h) + taps[f"block {i}"]
        return jax.vmap(net.head)(h)

    same(wb.diagnose_arrays(arrays(forward, net, NUMBERS, jax_credit), claim=CLAIM))


def test_flax_gives_the_numbers_of_torch():
    nn = needed("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, taps):
            h = nn.Dense(32, name="embed")(x) + taps[0]
            for i in range(3):
                inside = nn.Dense(32, name=f"in{i}")(nn.LayerNorm(epsilon=1e-5, name=f"norm{i}")(h))
                h = h + nn.Dense(32, name=f"out{i}")(jax.nn.gelu(inside, approximate=False)) + taps[i + 1]
            return nn.Dense(10, name="head")(nn.LayerNorm(epsilon=1e-5, name="out_ln")(h))

    names = {"embed": "embed", "out_head": "head", "out_ln": "out_ln"}
    names |= {f"blocks.{i}.{k}": f"{name}{i}" for i in range(3) for k, name in ((0, "norm"), (1, "in"), (3, "out"))}
    found = weights()
    params = {
        flax: {"scale" if "norm" in flax or flax == "out_ln" else "kernel": found[f"{ours}.weight"].T}
        | {"bias": found[f"{ours}.bias"]}
        for ours, flax in names.items()
    }
    same(wb.diagnose_arrays(arrays(Net().apply, {"params": params}, NUMBERS, jax_credit), claim=CLAIM))


def test_a_compiled_forward_returns_its_states():
    @jax.jit
    def compiled(params, x, taps):
        h = [jnp.tanh(x @ params["a"]) + taps[0]]
        h.append(jnp.tanh(h[0] @ params["b"]) + taps[1])
        return h[1] @ params["c"], h

    def silent(params, x, taps):
        return compiled(params, x, taps)[0]

    draw = np.random.default_rng(1)
    params = {k: draw.normal(size=s).astype(np.float32) for k, s in (("a", (16, 8)), ("b", (8, 8)), ("c", (8, 10)))}
    x, y = NUMBERS[0]
    one = traced(compiled, params, x, y)
    # The gradient by hand: (softmax − onehot) Cᵀ, then ⊙ (1 − h₁²) Bᵀ.
    error = np.asarray(jax.nn.softmax(one.logits)) - np.eye(10)[y]
    top = error @ params["c"].T
    np.testing.assert_allclose(one.grads[1], top, atol=1e-5)
    np.testing.assert_allclose(one.grads[0], (top * (1 - np.asarray(one.states[1]) ** 2)) @ params["b"].T, atol=1e-5)
    with pytest.raises(wb.InputError, match=r"let it return \(logits, \[h_0, …, h_L\]\)"):
        traced(silent, params, x, y)


def test_a_stopped_gradient_is_caught_and_is_a_credit_of_its_own():
    def cut(params, x, taps):
        h = jnp.tanh(x @ params["a"]) + taps[0]
        h = jax.lax.stop_gradient(h) * 0.5 + h * 0.5 + taps[1]
        return h @ params["c"]

    draw = np.random.default_rng(1)
    params = {k: draw.normal(size=s).astype(np.float32) for k, s in (("a", (16, 8)), ("c", (8, 10)))}
    report = wb.diagnose_arrays(arrays(cut, params, NUMBERS))
    assert report.altered is not None
    assert report.altered["sites"] == [0]
    assert report.altered["error"] == pytest.approx(0.5, abs=1e-3)  # half of it goes through

    def whole(params, x, taps):
        h = jnp.tanh(x @ params["a"]) + taps[0]
        return (h + taps[1]) @ params["c"]

    credit = arrays(whole, params, NUMBERS, lambda t: traced(cut, params, t.inputs, t.labels).grads)
    report = wb.diagnose_arrays(credit)
    assert report.altered is None
    assert report.per_layer["cosine"] == pytest.approx([1.0, 1.0])


def test_wrong_functions_say_what_is_expected():
    x, y = NUMBERS[0]
    with pytest.raises(wb.InputError, match="was added twice"):
        traced(lambda p, x, taps: (x + taps[0]) + taps[0], {}, x, y)
    with pytest.raises(wb.InputError, match="one number per sample"):
        traced(lambda p, x, taps: (x + taps[0]) + taps[1], {}, x, y, lambda logits, y: logits.mean())
    with pytest.raises(wb.InputError, match="2 sites or more"):
        traced(lambda p, x, taps: x, {}, x, y)
    with pytest.raises(wb.InputError, match="to return logits"):
        traced(lambda p, x, taps: None, {}, x, y)


def test_bfloat16_states_are_read():
    made = (
        {"states": [h.astype(jnp.bfloat16) for h in one.states], "grads": one.grads}
        for one in (traced(plain, weights(), x, y) for x, y in NUMBERS[:2])
    )
    report = wb.diagnose_arrays(made, reduction="sum")
    assert report.conditions["dtype"] == "bfloat16"
