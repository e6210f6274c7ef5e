"""What trained blocks are worth: known answers, exact readouts, intervals that cover, and a model left as found."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import minimize
from scipy.special import logsumexp
from torch import Tensor, nn

import walkback as wb
from needs import needed
from walkback.measures import readout
from walkback.measures.blocks import randomise, settle
from walkback.measures.depth import _worth, depth
from walkback.measures.readout import STRENGTHS, choose, fit

CLASSES = 4


def task(samples: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Four classes by the signs of two products of inputs: no linear map of the inputs knows anything of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 8, generator=generator)
    y = 2 * (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] * x[:, 3] > 0).long()
    return [(x[i : i + 256], y[i : i + 256]) for i in range(0, samples, 256)]


TRAIN, TEST = task(2048, 0), task(1024, 1)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return drawn_network()


def drawn_network() -> nn.Module:
    return wb.nets.build("resmlp", (8,), CLASSES, width=16, depth=2)


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    net = network()
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        for x, y in task(2048, 2):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
    return net.eval()


# -- known answers -------------------------------------------------------------------------------------------------


def test_trained_blocks_are_worth_what_random_ones_lack(trained: nn.Module) -> None:
    found = depth(trained, TRAIN, TEST, draws=3)
    assert found.trained > 0.85
    assert found.interval[0] > 15, str(found)
    assert found.worth_pp == pytest.approx(100 * (found.trained - np.mean(found.rerandomised)))
    assert found.pixels == pytest.approx(0.25, abs=0.06)
    assert found.without_all == pytest.approx(0.25, abs=0.06), "the stem is linear"
    assert found.by_depth["trained"][0] == pytest.approx(found.by_depth["re-randomised"][0]), "the same stem"
    assert found.by_depth["trained"][-1] > found.by_depth["trained"][0] + 0.4
    assert min(found.without) < found.trained - 0.1


def test_random_blocks_are_worth_nothing_more() -> None:
    """One random draw against others: better or worse by chance, and not on average."""
    worths = [depth(network(seed), TRAIN[:4], TEST[:2], draws=2).worth_pp for seed in range(6)]
    assert abs(np.mean(worths)) < 5, worths
    assert min(worths) < 0 < max(worths), worths


def test_blocks_that_drown_the_stem_are_worth_less_than_random_ones(trained: nn.Module) -> None:
    """The last block writes one large direction over everything: its terminal norm then hides the rest."""
    net = copy.deepcopy(trained)
    with torch.no_grad():
        for block in net.blocks:
            block.w2.weight.zero_()
            block.w2.bias.copy_(1e12 * torch.randn(16, generator=torch.Generator().manual_seed(0)))
    found = depth(net, TRAIN, TEST, draws=3)
    assert found.interval[1] < 0, str(found)


def test_the_draws_are_those_of_reset_parameters(trained: nn.Module) -> None:
    """The same numbers, from a network put together by hand and a readout fitted in NumPy's own way."""
    found = depth(trained, TRAIN, TEST, draws=2, seed=7)
    for draw, expected in enumerate(found.rerandomised):
        net = copy.deepcopy(trained)
        torch.manual_seed(7 + 1 + draw)
        for block in net.blocks:
            for module in block.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
        x, other = (np.concatenate([net.out_ln(net(b[0], return_hidden=True)[1][-1]).detach().double() for b in part])
                    for part in (TRAIN, TEST))  # fmt: skip
        y, labels = (np.concatenate([b[1] for b in part]) for part in (TRAIN, TEST))
        predicts = softmax_regression(x, y, found.strength["re-randomised"][draw])
        assert np.mean(predicts(other) == labels) == pytest.approx(expected, abs=2e-3)


def softmax_regression(x: np.ndarray, y: np.ndarray, strength: float):
    """By gradient descent with momentum, from the formulas."""
    mean, std = x.mean(0), x.std(0, ddof=1)
    rows, onehot = (x - mean) / std, np.eye(CLASSES)[y]
    w, b, v, u = np.zeros((CLASSES, x.shape[1])), np.zeros(CLASSES), 0.0, 0.0
    for _ in range(3000):
        logits = rows @ w.T + b
        p = np.exp(logits - logits.max(1, keepdims=True))
        error = (p / p.sum(1, keepdims=True) - onehot) / len(x)
        v, u = 0.9 * v - 0.3 * (error.T @ rows + 2 * strength * w), 0.9 * u - 0.3 * error.sum(0)
        w, b = w + v, b + u
    return lambda other: ((other - mean) / std @ w.T + b).argmax(1)


# -- the parts -----------------------------------------------------------------------------------------------------


def test_a_fitted_readout_predicts_as_one_of_plain_descent() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(500, 6)), rng.integers(0, CLASSES, 500)
    found = fit(torch.tensor(x), torch.tensor(y), 1e-2)(torch.tensor(x)).numpy()
    assert (found == softmax_regression(x, y, 1e-2)(x)).mean() > 0.995


def test_the_ridge_is_the_one_of_least_cross_entropy_on_held_out_samples() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 40))
    y = (x[:, 0] + 0.8 * rng.normal(size=300) > 0).astype(int) + (x[:, 1] > 1)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(5)).numpy()
    out, kept = order[:30], order[30:]
    losses = []
    for strength in STRENGTHS:
        logits = by_scipy(x[kept], y[kept], strength)(x[out])
        losses.append(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(30), y[out]]))
    assert choose(torch.tensor(x), torch.tensor(y), 5) == STRENGTHS[int(np.argmin(losses))]


def by_scipy(x: np.ndarray, y: np.ndarray, strength: float):
    """Logits by SciPy's minimiser."""
    classes, mean, std = y.max() + 1, x.mean(0), x.std(0, ddof=1)
    rows = (x - mean) / std

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = flat[:-classes].reshape(classes, -1), flat[-classes:]
        logits = rows @ w.T + b
        error = np.exp(logits - logsumexp(logits, 1, keepdims=True)) - np.eye(classes)[y]
        slope = np.concatenate([(error.T @ rows / len(x) + 2 * strength * w).ravel(), error.mean(0)])
        value = np.mean(logsumexp(logits, 1) - logits[np.arange(len(x)), y]) + strength * (w**2).sum()
        return value, slope

    flat = minimize(loss, np.zeros(classes * (x.shape[1] + 1)), jac=True, method="L-BFGS-B", options={"ftol": 1e-13}).x
    return lambda other: (other - mean) / std @ flat[:-classes].reshape(classes, -1).T + flat[-classes:]


def test_the_ridge_is_chosen_on_held_out_samples_and_noise_gets_the_strongest() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(400, 60, dtype=torch.float64, generator=generator), torch.randint(2, (400,), generator=generator)
    assert choose(x, y, 0) in STRENGTHS
    assert choose(torch.zeros(400, 3, dtype=torch.float64), y, 0) == max(STRENGTHS)


def test_the_two_parts_of_the_error_are_those_of_their_sources() -> None:
    right = torch.tensor([True, True, False, True] * 25)
    same = [right.clone(), right.clone()]
    # Nothing told them apart, but of a hundred samples only.
    assert _worth(right, same)[2] == pytest.approx({"samples": 100 * np.sqrt(2 / 101 / 102), "draws": 0.0})
    rivals = [torch.zeros(100, dtype=torch.bool), torch.tensor([True, False] * 50), right]
    value, interval, parts = _worth(right, rivals)
    gains = np.stack([right.numpy().astype(float) - r.numpy() for r in rivals])
    between = np.var(gains.mean(1), ddof=1)
    gains = np.c_[gains, np.ones(3), -np.ones(3)]  # one more sample gained and one lost
    # Mean squares of two crossed random effects with one number per cell, from their sums.
    rest = gains - gains.mean(0) - gains.mean(1, keepdims=True) + gains.mean()
    noise = (rest**2).sum() / (101 * 2)
    assert parts["draws"] == pytest.approx(100 * np.sqrt((between - noise / 102) / 3))
    assert parts["samples"] == pytest.approx(100 * np.std(gains.mean(0), ddof=1) / np.sqrt(102))
    half = np.hypot(stats.norm.ppf(0.975) * parts["samples"], stats.t.ppf(0.975, 2) * parts["draws"])
    assert interval == pytest.approx((value - half, value + half))


# -- other networks ------------------------------------------------------------------------------------------------


def test_batch_norms_of_random_blocks_take_the_statistics_of_the_samples() -> None:
    torch.manual_seed(0)
    net = wb.nets.build("small-cnn", (3, 8, 8), 3, width=8, depth=2).eval()
    batches = [(torch.randn(128, 3, 8, 8), torch.randint(3, (128,))) for _ in range(2)]
    norm = net.blocks[0].norm1
    before, momentum = norm.running_mean.clone(), norm.momentum
    with torch.no_grad():
        means = [net.blocks[0].w1(net.embed(x)).mean((0, 2, 3)) for x, _ in batches]
    settle(net, net.blocks, batches)
    torch.testing.assert_close(norm.running_mean, (means[0] + means[1]) / 2)
    assert not norm.training
    assert norm.momentum == momentum
    norm.running_mean.copy_(before)
    assert depth(net, batches, batches, draws=2).pixels is not None
    assert torch.equal(norm.running_mean, before)


def test_batch_norms_of_the_readout_are_those_of_what_it_reads() -> None:
    """Trained blocks that write a large stream leave statistics under which a random network's ReLUs are all dead."""
    torch.manual_seed(0)
    net = PreActivation()
    with torch.no_grad():
        for block in net.blocks:
            block[1].bias.fill_(1e4)
    settle(net, [net.norm], TRAIN[:4])
    net.eval()
    found = depth(net, TRAIN[:4], TEST[:2], draws=2)
    with torch.no_grad():
        x, other = (net.embed(torch.cat([x for x, _ in part])) for part in (TRAIN[:4], TEST[:2]))
        stem = ((h - x.mean(0)) / torch.sqrt(x.var(0) + net.norm.eps) for h in (x, other))
        x, other = (torch.relu(h) for h in stem)
    y, labels = (torch.cat([y for _, y in part]) for part in (TRAIN[:4], TEST[:2]))
    expected = (fit(x, y, found.strength["trained"][0])(other) == labels).double().mean()
    assert found.without_all == pytest.approx(float(expected), abs=0.01), "the stem alone, with its own statistics"
    assert min(found.without_all, *found.rerandomised) > 0.35
    assert float(net.norm.running_mean.mean()) == pytest.approx(2e4, rel=1e-2), "left as found"


class PreActivation(nn.Module):
    """A stack whose readout is norm, ReLU and linear, as in a pre-activation ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32)) for _ in range(2))
        self.norm, self.head = nn.BatchNorm1d(32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(torch.relu(self.norm(h)))


def test_a_token_network_and_blocks_that_return_the_state() -> None:
    torch.manual_seed(0)
    net = wb.nets.build("vit-mini", (3, 8, 8), 3, width=8, depth=2, heads=2)
    batches = [(torch.randn(64, 3, 8, 8), torch.randint(3, (64,))) for _ in range(2)]
    found = depth(
        net, batches, batches, draws=2, build=lambda: wb.nets.build("vit-mini", (3, 8, 8), 3, width=8, depth=2, heads=2)
    )
    assert len(found.by_depth["trained"]) == 3
    assert len(found.without) == 2


# -- left as found, and clear errors -------------------------------------------------------------------------------


def test_the_model_is_left_as_found(trained: nn.Module) -> None:
    net = copy.deepcopy(trained).train()
    next(net.parameters()).grad = torch.ones_like(next(net.parameters()))
    before = copy.deepcopy(net.state_dict())
    random, modes = torch.get_rng_state(), [m.training for m in net.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
    depth(net, TRAIN[:2], TEST[:1], draws=2)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert [m.training for m in net.modules()] == modes
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()] == hooks
    assert torch.equal(next(net.parameters()).grad, torch.ones_like(next(net.parameters())))
    with pytest.raises(RuntimeError, match="boom"):
        depth(net, TRAIN[:2], TEST[:1], draws=2, build=lambda: (_ for _ in ()).throw(RuntimeError("boom")))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


class Own(nn.Module):
    """A block with a parameter and no way to draw it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, h: Tensor) -> Tensor:
        return self.scale * h


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"draws": 1}, "draws to be a whole number >= 2"),
        ({"train": []}, "one of them is empty"),
        ({"test": []}, "one of them is empty"),
        ({"test": [(TEST[0][0][:1], TEST[0][1][:1])]}, "two or more test samples"),
    ],
)
def test_a_wrong_call_is_a_clear_error(trained: nn.Module, change: dict, words: str) -> None:
    with pytest.raises(wb.InputError, match=words):
        depth(trained, **{"train": TRAIN[:1], "test": TEST[:1], **change})


def test_a_block_that_can_not_be_drawn_asks_for_build(trained: nn.Module) -> None:
    net = copy.deepcopy(trained)
    net.blocks[1] = Own()
    with pytest.raises(wb.InputError, match="Own has parameters of its own and none"):
        depth(net, TRAIN[:1], TEST[:1])
    with pytest.raises(wb.InputError, match="to make 2 blocks, but it makes 3"):
        depth(net, TRAIN[:1], TEST[:1], build=lambda: wb.nets.build("resmlp", (8,), CLASSES, width=16, depth=3))


@pytest.mark.parametrize("seed", [0, 5], ids=["of the network itself", "of every draw"])
def test_a_build_that_sets_its_own_seed_draws_nothing_and_is_refused(seed: int) -> None:
    with pytest.raises(wb.InputError, match="drawn anew every time, but they have the same values twice"):
        depth(network(0), TRAIN[:1], TEST[:1], draws=2, build=lambda: network(seed))


def test_a_weight_that_no_reset_reaches_asks_for_build(trained: nn.Module) -> None:
    """A normed weight is made of two others: torch's reset writes to the product, and the network uses the two."""
    net = copy.deepcopy(trained)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(net.blocks[0].w1)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(wb.InputError, match=r"Linear has parameters of its own and writes no numbers to its weight_g"):
        depth(net, TRAIN[:1], TEST[:1])
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


class Drawing(nn.Module):
    """A block that draws its layer in its own way, once the layer is there."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.inner.weight, 0.5)

    def forward(self, h: Tensor) -> Tensor:
        return self.inner(h)


def test_what_holds_a_layer_draws_it_last_as_when_it_was_built() -> None:
    block = Drawing()
    nn.init.zeros_(block.inner.weight)
    randomise(block, [block], None, None, set())
    assert torch.equal(block.inner.weight, torch.full((16, 16), 0.5))


def test_torchs_own_attention_is_drawn_as_it_is_built() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    before = copy.deepcopy(layer.state_dict())
    randomise(layer, [layer], None, None, set())
    attention = layer.self_attn
    assert not torch.equal(attention.in_proj_weight, before["self_attn.in_proj_weight"])
    assert float(attention.in_proj_weight.detach().abs().max()) <= np.sqrt(6 / (16 + 48)), "Xavier's bound"
    assert not attention.out_proj.bias.any()


# -- readouts ------------------------------------------------------------------------------------------------------


def test_features_in_a_file_give_the_same_readout_as_those_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 5, generator=generator)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    whole = fit(x, y, 1e-3)(x)
    monkeypatch.setattr(readout, "RESIDENT", 1000)
    monkeypatch.setattr(readout, "PART", 350)
    rows = readout.Rows()
    for part in x.split(100):
        rows.add(part)
    stored = rows.whole()
    assert torch.equal(stored, x)
    assert rows._file is not None
    assert (fit(stored, y, 1e-3)(stored) == whole).float().mean() > 0.995


def test_the_fit_is_at_its_optimum_whatever_the_scale_of_features() -> None:
    """The gradient of the plain problem, written out in NumPy, vanishes at the solution; features differ by 1e8."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 5)) * np.array([1e-4, 1.0, 1e4, 1.0, 1.0]) + np.array([0, 0, 1e5, 3.0, 0])
    x[:, 4] = x[:, 3] + 1e-3 * x[:, 4]  # nearly the same feature twice
    y = (x[:, 1] > 0).astype(int) + (x[:, 2] > 1e5)
    predicts = fit(torch.tensor(x), torch.tensor(y), 1e-2)(torch.tensor(x)).numpy()
    assert (predicts == softmax_regression(x, y, 1e-2)(x)).mean() > 0.99


@pytest.mark.parametrize("wide", [False, True])
def test_large_features_are_fitted_in_float32_to_the_optimum_of_float64(
    monkeypatch: pytest.MonkeyPatch, wide: bool
) -> None:
    """SciPy's own minimiser on the plain problem, of correlated features; with and without their covariance."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3000, 12)) @ rng.normal(size=(12, 12)) + 5
    y = np.argmax(x @ rng.normal(size=(12, CLASSES)) + 4 * rng.normal(size=(3000, CLASSES)), 1)
    monkeypatch.setattr(readout, "LARGE", 1000)
    monkeypatch.setattr(readout, "PART", 5000)
    if wide:
        monkeypatch.setattr(readout.ReadoutFit, "spread", lambda _self, _fitted: None)
    found = fit(torch.tensor(x), torch.tensor(y), 1e-4)
    assert readout.ReadoutFit(torch.tensor(x), torch.tensor(y), CLASSES).kind == torch.float32
    expected = by_scipy(x, y, 1e-4)(x)
    logits = found.logits(torch.tensor(x)).numpy()
    losses = [np.mean(logsumexp(z, 1) - z[np.arange(len(y)), y]) for z in (logits, expected)]
    rows = (x - x.mean(0)) / x.std(0, ddof=1)
    inverse = np.linalg.pinv(rows)  # the weights behind the logits, for their ridge
    ridges = [1e-4 * ((inverse @ (z - z.mean(0))) ** 2).sum() for z in (logits, expected)]
    assert losses[0] + ridges[0] - losses[1] - ridges[1] < 2e-5, "nats above the minimum"
    assert np.mean(logits.argmax(1) == expected.argmax(1)) > 0.995


def test_a_stem_of_torchs_own_modules_is_run_once_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of the answer depends on it; a stem with a forward of its own runs in every pass."""
    torch.manual_seed(0)
    net = wb.nets.build("resmlp", (64,), CLASSES, width=16, depth=2)
    x = torch.randn(256, 64)
    batches = [(x[i : i + 64], torch.arange(64) % CLASSES) for i in range(0, 256, 64)]
    calls: list[int] = []
    forward = nn.Linear.forward

    def counted(self: nn.Linear, x: Tensor) -> Tensor:
        calls.append(len(x)) if self.in_features == 64 else None
        return forward(self, x)

    monkeypatch.setattr(nn.Linear, "forward", counted)
    monkeypatch.setattr(counted, "__module__", "torch.nn.modules.linear")
    found, once = depth(net, batches, batches, draws=2), len(calls)
    assert "forward" not in vars(net.embed)
    calls.clear()
    monkeypatch.setattr("walkback.measures.depth.REMEMBERED", 0)
    assert depth(net, batches, batches, draws=2) == found
    assert once < len(calls) / 2


def test_states_that_are_not_finite_are_refused(trained: nn.Module) -> None:
    net = copy.deepcopy(trained)
    with torch.no_grad():
        net.blocks[1].w2.bias.fill_(float("inf"))
    with pytest.raises(wb.WalkbackError, match="finite"):
        depth(net, TRAIN[:1], TEST[:1])


class Classifier(nn.Module):
    """A stack with a readout of choice behind it."""

    def __init__(self, *readout: nn.Module, after: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh()) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(16), nn.Sequential(*readout)
        self.after = after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.after(self.head(self.norm(h)))


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (lambda: Classifier(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), r"norm \+ nn.Linear"),
        (lambda: Classifier(nn.Linear(16, 4), after=nn.Softmax(1)), "nothing behind it"),
        (lambda: Classifier(nn.Bilinear(16, 16, 4)), r"norm \+ nn.Linear"),
    ],
)
def test_a_readout_that_is_not_norm_and_linear_gets_a_clear_word(net, words: str) -> None:
    torch.manual_seed(0)
    model = net()
    if isinstance(model.head[0], nn.Bilinear):
        model.head.forward = lambda h: model.head[0](h, h)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(wb.WalkbackError, match=words):
        depth(model, TRAIN[:1], TEST[:1])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_a_readout_of_norm_dropout_and_linear_is_one() -> None:
    torch.manual_seed(0)
    found = depth(Classifier(nn.Dropout(0.5), nn.Linear(16, 4)), TRAIN[:2], TEST[:1], draws=2)
    assert len(found.by_depth["trained"]) == 3


def test_a_loader_that_shuffles_is_refused(trained: nn.Module) -> None:
    own = torch.Generator().manual_seed(0)  # torch's global random state is put back after every pass

    class Shuffling(list):
        def __iter__(self):
            x, y = self[0]
            order = torch.randperm(len(x), generator=own)
            return iter([(x[order], y[order])])

    with pytest.raises(wb.InputError, match="does not shuffle"):
        depth(trained, TRAIN[:1], Shuffling(TEST[:1]))


def test_generators_are_taken_once(trained: nn.Module) -> None:
    found = depth(trained, iter(TRAIN[:1]), (pair for pair in TEST[:1]), draws=2)
    assert found.samples == {"train": 256, "test": 256}


def test_a_class_that_is_named_by_its_anatomy_is_drawn_from_the_same_paths(trained: nn.Module) -> None:
    named = wb.Anatomy.of(trained)
    found = depth(trained, TRAIN[:1], TEST[:1], draws=2, anatomy=named, build=drawn_network)
    assert found.drawn_by == "build"
    with pytest.raises(wb.InputError, match="to make 2 blocks, but it makes 0"):
        depth(trained, TRAIN[:1], TEST[:1], draws=2, anatomy=named, build=lambda: nn.Linear(2, 2))
    with pytest.raises(wb.InputError, match=r"return a torch\.nn\.Module"):
        depth(trained, TRAIN[:1], TEST[:1], draws=2, build=lambda: 3)


# -- Hugging Face --------------------------------------------------------------------------------------------------


class Logits(nn.Module):
    def __init__(self, inner: nn.Module, keyword: str) -> None:
        super().__init__()
        self.inner, self.keyword = inner, keyword

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(**{self.keyword: x}).logits


def hugging_face(kind: str) -> nn.Module:
    transformers = needed("transformers")
    if kind == "vit":
        sizes = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 3, "intermediate_size": 16}
        config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, **sizes)
        return Logits(transformers.ViTForImageClassification(config), "pixel_values").eval()
    config = transformers.GPT2Config(vocab_size=9, n_positions=6, n_embd=16, n_layer=2, n_head=2, num_labels=3,
                                     pad_token_id=8, bos_token_id=7, eos_token_id=7)  # fmt: skip
    made = transformers.GPT2ForSequenceClassification if kind == "gpt2" else transformers.GPT2LMHeadModel
    return Logits(made(config), "input_ids").eval()


@pytest.mark.parametrize("kind", ["vit", "gpt2"])
def test_networks_of_hugging_face(kind: str) -> None:
    torch.manual_seed(0)
    net, generator = hugging_face(kind), torch.Generator().manual_seed(0)
    x = torch.randn(120, 1, 8, 8, generator=generator)
    if kind == "gpt2":
        x = torch.randint(8, (120, 6), generator=generator)
        with pytest.raises(wb.InputError, match="Conv1D has parameters of its own"):
            depth(net, [(x, x[:, 0] % 3)], [(x, x[:, 0] % 3)])
    y = torch.randint(3, (120,), generator=generator)
    found = depth(net, [(x[:80], y[:80])], [(x[80:], y[80:])], draws=2, build=lambda: hugging_face(kind))
    assert len(found.by_depth["trained"]) == 3
    assert found.without_all is not None
    assert (found.pixels is None) is (kind == "gpt2")


def test_a_language_model_gets_a_clear_word() -> None:
    x = torch.randint(8, (20, 6))
    with pytest.raises(wb.WalkbackError, match=r"one class per sample|norm"):
        depth(hugging_face("lm"), [(x, x)], [(x, x)], build=lambda: hugging_face("lm"))
