"""The frozen control of a user's own network and training function."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb

TRAIN, TEST = wb.selftest.batches(4), wb.selftest.batches(1, seed=2)[0]


class Net(nn.Module):
    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(8) if norm else nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh()) for _ in range(2)
        )
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


def fit(model: nn.Module, optimiser: torch.optim.Optimizer | None = None) -> float:
    optimiser = optimiser or torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    model.train()
    for x, y in TRAIN:
        optimiser.zero_grad()
        F.cross_entropy(model(x + 0.01 * torch.randn_like(x)), y).backward()
        optimiser.step()
    model.eval()
    return (model(TEST[0]).argmax(1) == TEST[1]).double().mean().item()


def own_control(seed: int) -> tuple[float, Net]:
    """The same by hand: seed, build, freeze, train."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Net()
        model.blocks.requires_grad_(False)
        return fit(model), model


def test_it_is_the_run_one_would_write_by_hand():
    seen: list[nn.Module] = []
    baseline = wb.frozen_baseline(Net, lambda m: (seen.append(m), fit(m))[1], seed=7)
    accuracy, model = own_control(7)
    (control,) = baseline.controls
    assert baseline.accuracy == control.accuracy == accuracy
    for (name, p), q in zip(seen[0].named_parameters(), model.parameters(), strict=True):
        assert torch.equal(p, q), name
    assert control.seed == 7
    assert control.blocks == "build"
    assert control.frozen == tuple(n for n, _ in model.named_parameters() if n.startswith("blocks."))
    assert control.frozen_parameters == 2 * (16 + 72)
    assert control.trained_parameters == 16 * 8 + 8 + 80 + 10
    assert control.torch == torch.__version__
    assert control.moved_buffers == ()
    assert len(control.frozen_hash) == 64
    assert "seed 7: accuracy 0." in str(baseline)


def test_seeds_give_one_accuracy_each_and_go_into_diagnose():
    baseline = wb.frozen_baseline(build=Net, train=fit, seed=[1, 2, 3])
    assert baseline.accuracy == [own_control(seed)[0] for seed in (1, 2, 3)]
    assert len({c.frozen_hash for c in baseline.controls}) == 3
    again = wb.frozen_baseline(Net, fit, seed=2)
    assert again.controls[0] == baseline.controls[1]
    report = wb.diagnose(
        Net(), wb.selftest.batches(2), headline_acc=[0.5, 0.5, 0.6], frozen_baseline_acc=baseline.accuracy
    )
    assert report.frozen_baseline_acc == baseline.accuracy
    assert report.values["depth_margin_pp"] is not None


def test_details_come_along():
    baseline = wb.frozen_baseline(Net, lambda m: (fit(m), {"epochs": 1}))
    assert baseline.controls[0].details == {"epochs": 1}


def test_running_statistics_may_move_and_are_listed():
    (control,) = wb.frozen_baseline(lambda: Net(norm=True), fit).controls
    assert control.moved_buffers == tuple(
        f"blocks.{i}.0.{name}" for i in range(2) for name in ("running_mean", "running_var", "num_batches_tracked")
    )


def test_random_state_is_as_before_also_after_an_error():
    def numbers() -> tuple:
        return torch.rand(1).item(), random.random(), np.random.rand()

    def state() -> None:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)

    state()
    expected = numbers()
    state()
    wb.frozen_baseline(Net, fit)
    assert numbers() == expected
    state()
    with pytest.raises(ZeroDivisionError):
        wb.frozen_baseline(Net, lambda m: 1 / 0)
    assert numbers() == expected


# -- blocks that did move --------------------------------------------------------------------------------------------


def unfreezes(model: Net) -> float:
    model.requires_grad_(True)
    return fit(model)


def decays_by_hand(model: Net) -> float:
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.999)
    return fit(model)


def flips_a_zero(model: Net) -> float:
    with torch.no_grad():
        model.blocks[0][0].bias[0] = -0.0
    return fit(model)


class Pushy(torch.optim.SGD):
    """Decays all it holds, with or without a gradient."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(0.99)


def replaces(model: Net) -> float:
    model.blocks[0] = nn.Identity()  # type: ignore[assignment]
    return fit(model)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (
            unfreezes,
            r"moved 8 of 8 block parameters, the first blocks.0.0.weight: requires_grad is on again for 8",
        ),
        (decays_by_hand, r"requires_grad is still off, so something writes them past it: weight decay"),
        (lambda m: fit(m, Pushy(m.parameters(), lr=0.1)), r"requires_grad is still off"),
        (flips_a_zero, "moved 1 of 8 block parameters, the first blocks.0.0.bias"),
        (replaces, r"afterwards blocks.0.0.weight is gone \(4 of 8 frozen parameters\)"),
    ],
)
def test_blocks_that_moved_are_an_error(train: Callable[[Net], float], words: str):
    with pytest.raises(wb.InputError, match=words):
        wb.frozen_baseline(Net, train)


def attaches(model: Net) -> float:
    block: Any = model.blocks[0]
    block.adapter = nn.Linear(8, 8)
    block[1].register_forward_hook(lambda module, args, made: made + block.adapter(args[0]))
    return fit(model)


def puts_back(model: Net) -> float:
    kept = {n: v.clone() for n, v in model.blocks.state_dict().items()}
    model.requires_grad_(True)
    accuracy = fit(model)
    model.blocks.load_state_dict(kept)
    model.blocks.requires_grad_(False)
    return accuracy


def swallows(model: Net) -> float:
    try:
        return puts_back(model)
    except wb.InputError:
        return 0.5


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.get_buffer("shift")


def shifted() -> Net:
    net = Net()
    net.blocks[0].append(Shift())  # type: ignore[operator]
    return net


def trains_a_buffer(model: Net) -> float:
    shift = model.blocks[0][-1].shift.requires_grad_(True)  # type: ignore[index,union-attr]
    accuracy = fit(model, torch.optim.SGD([shift, *model.head.parameters()], lr=0.1))
    shift.requires_grad_(False)
    return accuracy


@pytest.mark.parametrize(
    ("build", "train", "words"),
    [
        (Net, attaches, r"put 2 new parameters into them, the first adapter.weight of block 1"),
        (Net, puts_back, r"moved 8 of 8 block parameters.* requires_grad is on again for 8"),
        (Net, swallows, r"moved 8 of 8 block parameters"),
        (shifted, trains_a_buffer, "not trained, but 3.shift of block 1 requires a gradient"),
    ],
)
def test_blocks_that_learned_on_the_way_are_an_error(build: Any, train: Any, words: str):
    with pytest.raises(wb.InputError, match=words):
        wb.frozen_baseline(build, train)
    fit(Net())  # nothing of it stays behind on other optimisers


def test_restoring_a_checkpoint_and_steps_of_no_length_are_allowed():
    def train(model: Net) -> float:
        kept = {n: v.clone() for n, v in model.state_dict().items()}
        model.load_state_dict(kept)
        model.requires_grad_(True)
        groups = [{"params": model.blocks.parameters(), "lr": 0.0}, {"params": model.head.parameters()}]
        return fit(model, torch.optim.SGD(groups, lr=0.1))

    assert wb.frozen_baseline(Net, train).controls[0].tied == ()


def test_a_head_tied_to_a_block_is_named():
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.middle = nn.Linear(8, 8)
            self.middle.weight = self.blocks[1][1].weight  # type: ignore[index,union-attr]

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for block in self.blocks:
                h = h + block(h)
            return self.head(self.middle(h))

    baseline = wb.frozen_baseline(Tied, fit)
    assert baseline.controls[0].tied == ("middle.weight",)
    assert "tied to a block and frozen with it: middle.weight" in str(baseline)


def test_gradients_left_over_from_building_do_not_move_blocks():
    """An optimiser made in build, before the freezing, with gradients in place: it would decay and step the blocks."""

    def build() -> Net:
        net = Net()
        net.optimiser = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1)  # type: ignore[assignment]
        F.cross_entropy(net(TRAIN[0][0]), TRAIN[0][1]).backward()
        return net

    def train(model: Net) -> float:
        model.optimiser.step()  # type: ignore[operator,union-attr]
        return fit(model, model.optimiser)  # type: ignore[arg-type]

    assert wb.frozen_baseline(build, train).controls[0].blocks == "build"


def test_training_another_network_is_an_error():
    mine = Net()
    with pytest.raises(wb.InputError, match="but no parameter of it has moved: does it train another network"):
        wb.frozen_baseline(Net, lambda model: fit(mine))


# -- blocks that are not random --------------------------------------------------------------------------------------


def pretrained(kind: type[Net] = Net) -> Callable[[], Net]:
    torch.manual_seed(11)
    trained = kind()
    with torch.no_grad():
        for p in trained.parameters():
            p.add_(torch.randn_like(p))
    weights = {k: v.clone() for k, v in trained.state_dict().items()}

    def build() -> Net:
        net = kind()
        net.load_state_dict(weights)
        return net

    return build


def test_pretrained_blocks_are_initialised_anew():
    build, seen = pretrained(), []
    one, two = wb.frozen_baseline(build, lambda m: (seen.append(m), fit(m))[1], seed=[1, 2]).controls
    assert one.blocks == two.blocks == "reset_parameters"
    assert one.frozen_hash != two.frozen_hash
    for net in seen:
        assert torch.equal(net.blocks[0][0].weight, torch.ones(8))
        assert float(net.blocks[0][1].weight.detach().abs().max()) <= 8**-0.5, "torch's own initialisation of a Linear"
    other = build()
    assert not torch.equal(seen[0].blocks[0][1].weight, other.blocks[0][1].weight)


def test_a_build_with_a_seed_of_its_own_is_initialised_anew():
    def build() -> Net:
        torch.manual_seed(0)
        return Net()

    one, two = wb.frozen_baseline(build, fit, seed=[1, 2]).controls
    assert one.blocks == "reset_parameters"
    assert one.frozen_hash != two.frozen_hash


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(8))

    def forward(self, h: Tensor) -> Tensor:
        return self.gain * h


class OwnParameters(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks.append(Gain())


def test_parameters_that_can_not_be_drawn_anew_are_an_error():
    build = pretrained(OwnParameters)
    with pytest.raises(wb.InputError, match=r"build\(\) gives blocks.2.gain the same values under two seeds \(1 such"):
        wb.frozen_baseline(build, fit)

    def reinit(block: nn.Module) -> None:
        for p in block.parameters():
            nn.init.normal_(p, std=0.02)

    one, two = wb.frozen_baseline(build, fit, reinit=reinit, seed=[1, 2]).controls
    assert one.blocks == "reinit"
    assert one.frozen_hash != two.frozen_hash
    assert wb.frozen_baseline(OwnParameters, fit).controls[0].blocks == "build"


def test_attention_blocks_are_initialised_anew():
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(4, 8)
            self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, dropout=0.0)])
            self.head = nn.Linear(8, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.blocks[0](self.embed(x.view(-1, 4, 4)))[:, 0])

    def build() -> nn.Module:
        torch.manual_seed(0)
        return Attends()

    assert wb.frozen_baseline(build, fit).controls[0].blocks == "reset_parameters"


# -- arguments -------------------------------------------------------------------------------------------------------


def test_parts_can_be_named():
    class Tower(Net):
        def __init__(self) -> None:
            super().__init__()
            self.tower = self.blocks
            del self.blocks

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for block in self.tower:
                h = h + block(h)
            return self.head(h)

    parts = {"stem": "embed", "blocks": "tower", "readout": "head"}
    assert wb.frozen_baseline(Tower, fit, seed=7, anatomy=parts).accuracy == own_control(7)[0]
    anatomy = wb.Anatomy(stem="embed", blocks="tower", readout=("head",))
    assert wb.frozen_baseline(Tower, fit, seed=7, anatomy=anatomy).accuracy == own_control(7)[0]


SAME = Net()


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((SAME, fit), {}, "Expected build to be a function that makes a new network, but got a network, Net"),
        ((3, fit), {}, "Expected build to be a function, but got a int"),
        ((lambda: 3, fit), {}, r"Expected build\(\) to return a torch.nn.Module, but got a int"),
        ((lambda: SAME, fit), {}, r"Expected build\(\) to make a new network .* share parameters"),
        ((Net, fit), {"seed": "a"}, "Expected seed to be an integer"),
        ((Net, fit), {"seed": []}, "Expected seed to be an integer"),
        ((Net, fit), {"seed": [1, 1]}, "Expected different seeds"),
        ((Net, lambda m: None), {}, r"Expected train\(model\) to return the test accuracy .* got None"),
        ((Net, lambda m: 37.0), {}, r"Expected the accuracy that train\(model\) returns as a fraction .* per cent"),
        ((Net, fit), {"anatomy": {"blocks": "head"}}, None),
        ((lambda: Net().requires_grad_(False), fit), {}, "something beside them to train, but there are 8 and 0"),
        ((Net,), {}, r"Expected a RunSpec, .*frozen_baseline\(build, train\)"),
    ],
)
def test_what_it_takes(arguments: tuple, options: dict, words: str | None):
    if words is None:
        assert wb.frozen_baseline(*arguments, **options).controls[0].frozen == ("head.weight", "head.bias")
        return
    with pytest.raises(wb.InputError, match=words):
        wb.frozen_baseline(*arguments, **options)
    assert all(p.requires_grad for p in SAME.parameters())


def test_a_seed_may_come_from_numpy_and_must_be_whole():
    found = [wb.frozen_baseline(healthy_small, moved_a_little, seed=s) for s in (3, np.int64(3))]
    assert found[0].accuracy == found[1].accuracy == 0.5
    with pytest.raises(wb.InputError, match="Expected seed to be an integer"):
        wb.frozen_baseline(healthy_small, moved_a_little, seed=1.5)


def healthy_small():
    return wb.nets.build("resmlp", (8,), 3, width=8, depth=1)


def moved_a_little(net: nn.Module) -> float:
    with torch.no_grad():
        net.out_head.bias.add_(1.0)
    return 0.5
