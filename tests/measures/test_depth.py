"""What trained blocks are worth: known answers, exact readouts, intervals that cover, and a model left as found."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import walkback as wb
from walkback.measures.depth import STRENGTHS, _fit, _strength, _worth, depth

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
    found = depth(network(5), TRAIN, TEST, draws=4)
    low, high = found.interval
    assert low < 0 < high or abs(found.worth_pp) < 8, str(found)


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
        assert np.mean(softmax_regression(x, y, found.strength)(other) == labels) == pytest.approx(expected, abs=2e-3)


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
    found = _fit(torch.tensor(x), torch.tensor(y), 1e-2)(torch.tensor(x)).numpy()
    assert (found == softmax_regression(x, y, 1e-2)(x)).mean() > 0.995


def test_the_ridge_is_chosen_on_held_out_samples_and_noise_gets_the_strongest() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(400, 60, dtype=torch.float64, generator=generator), torch.randint(2, (400,), generator=generator)
    assert _strength(x, y, 0) in STRENGTHS
    assert _strength(torch.zeros(400, 3, dtype=torch.float64), y, 0) == max(STRENGTHS)


def test_the_interval_covers() -> None:
    """95 % intervals of a known worth, over test samples and draws: 90 to 98 % hold it."""
    rng, held, worth = np.random.default_rng(0), 0, 0.10
    for _ in range(400):
        n, k = 500, 3
        easy = rng.uniform(size=n)
        right = torch.tensor(easy < 0.6)
        levels = 0.5 + rng.normal(scale=0.02, size=k)
        rivals = [torch.tensor((easy < level) ^ (rng.uniform(size=n) < 0.0)) for level in levels]
        low, high = _worth(right, rivals)[1]
        held += low <= 100 * worth <= high
    assert 0.90 <= held / 400 <= 0.98, held / 400


def test_the_two_parts_of_the_error_are_those_of_their_sources() -> None:
    right = torch.tensor([True, True, False, True] * 25)
    same = [right.clone(), right.clone()]
    assert _worth(right, same)[2] == {"samples": 0.0, "draws": 0.0}
    rivals = [torch.zeros(100, dtype=torch.bool), torch.tensor([True, False] * 50)]
    parts = _worth(right, rivals)[2]
    assert parts["draws"] == pytest.approx(100 * np.std([0.0, 0.5], ddof=1) / 2**0.5)
    differences = right.double().numpy() - np.mean([r.numpy() for r in rivals], 0)
    assert parts["samples"] == pytest.approx(100 * np.std(differences, ddof=1) / 10)


# -- other networks ------------------------------------------------------------------------------------------------


def test_batch_norms_of_random_blocks_take_the_statistics_of_the_samples() -> None:
    torch.manual_seed(0)
    net = wb.nets.build("small-cnn", (3, 8, 8), 3, width=8, depth=2)
    x = torch.randn(256, 3, 8, 8)
    batches = [(x[:128], torch.randint(3, (128,))), (x[128:], torch.randint(3, (128,)))]
    seen = []
    norm = net.blocks[0].norm1
    norm.register_forward_hook(lambda m, _a, _o: seen.append(m.running_var.clone()))
    before = norm.running_var.clone()
    found = depth(net, batches, batches, draws=2)
    assert torch.equal(norm.running_var, before)
    assert not torch.equal(seen[-1], seen[0]) or len({tuple(s.tolist()) for s in seen}) > 1
    assert found.pixels is not None


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
        ({"draws": 1}, "draws >= 2"),
        ({"train": []}, "one of them is empty"),
        ({"test": []}, "one of them is empty"),
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
