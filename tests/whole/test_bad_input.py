"""Everything a user can get wrong: each mistake has its own words, and what only looks like one is measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import walkback as wb
from walkback.network.values import refuse_weights, return_hidden
from walkback.notes import coded
from walkback.selftest import ResidualNet

NAN, INF = float("nan"), float("inf")
BATCHES = wb.selftest.batches(3, 16)


def net(forward=None, depth: int = 3) -> ResidualNet:
    """The same small network every time, with another forward pass if given."""
    model = wb.selftest.network(depth=depth, seed=5)
    if forward is not None:
        model.__class__ = type("Net", (ResidualNet,), {"forward": forward})
    return model


def through(step):
    """A forward pass whose residual step is `step(h, block)`."""

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = step(h, block)
        return self.out_head(self.out_ln(h))

    return forward


def numbers(report: wb.Report) -> tuple[dict, dict]:
    return report.values, report.per_layer


def expected(depth: int = 3) -> tuple[dict, dict]:
    return numbers(wb.diagnose(net(depth=depth), BATCHES))


def refused(error: type[Exception], words: str, model=None, batches=BATCHES, **more) -> pytest.ExceptionInfo:
    with pytest.raises(error, match=words) as info:
        wb.diagnose(net() if model is None else model, batches, **more)
    assert isinstance(info.value, wb.WalkbackError)
    return info


# -- NaN and Inf ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_inputs_that_are_not_finite_name_batch_and_position(value):
    batches = [(x.clone(), y) for x, y in BATCHES]
    batches[1][0][5, 3] = batches[1][0][7, 0] = value
    refused(
        wb.InputError,
        r"Expected finite inputs, but batch 1 has 2 NaN or infinite values, the first at \(5, 3\)\. Clean the data",
        batches=batches,
    )


def test_large_inputs_whose_sum_overflows_are_finite():
    batches = [(x * 0 + 3e38, y) for x, y in BATCHES]
    report = wb.diagnose(net(), batches)
    assert report.conditions["samples"] == 48


class Poison(nn.Module):
    """Turns what its block returns into NaN from the given call on."""

    def __init__(self, inner: nn.Module, after: int = 0, value: float = NAN) -> None:
        super().__init__()
        self.inner, self.after, self.value, self.calls = inner, after, value, 0

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(h) * (self.value if self.calls > self.after else 1.0)


@pytest.mark.parametrize("value", [NAN, INF])
def test_states_that_become_nan_are_a_finding_that_names_site_and_batch(value):
    model = net()
    model.blocks[1] = Poison(model.blocks[1], after=2, value=value)
    report = wb.diagnose(model, BATCHES, 0.6, 0.3, credit=lambda t: [torch.ones_like(h) for h in t.states])
    assert (report.verdict, report.failed, report.measurement_valid) == ("walked back", ("D1", "D2"), False)
    assert {"kind": "state", "site": 2, "batch": 2} in report.nonfinite
    assert {"kind": "state", "site": 1, "batch": 2} not in report.nonfinite
    assert "state not finite at site 2, first in batch 2" in report.advisories
    assert report.findings[0]["cause"] == "nonfinite"
    assert report.findings[0]["reason"] == "state not finite at site 2, first in batch 2"
    assert report.per_layer["h_norm"][:2] == wb.diagnose(net(), BATCHES).per_layer["h_norm"][:2]
    assert report.per_layer["h_norm"][2:] == [None, None]
    for name in ("growth", "growth_total", "stability", "g_norm_deepest"):
        assert report.values[name] is None
        assert report.reasons[name]
    assert "state not finite at site 2, first in batch 2" in report.reasons["h_norm"]
    json.loads(report.to_json(), parse_constant=pytest.fail)
    assert "nan" not in str(report).lower().split()


class BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * INF


class BadGradient(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, h: Tensor) -> Tensor:
        return BadBackward.apply(self.inner(h))


def test_gradients_alone_that_become_infinite_are_a_finding():
    model = net()
    model.blocks[1] = BadGradient(model.blocks[1])
    report = wb.diagnose(model, BATCHES, 0.6, 0.3)
    assert (report.verdict, report.failed, report.measurement_valid) == ("walked back", ("D2",), False)
    assert report.nonfinite == tuple({"kind": "gradient", "site": site, "batch": 0} for site in (0, 1))
    assert report.per_layer["g_norm"][:2] == [None, None]
    assert report.per_layer["h_norm"] == wb.diagnose(net(), BATCHES).per_layer["h_norm"]
    assert "gradient not finite at site 0, first in batch 0" in report.reasons["g_norm"]
    json.loads(report.to_json(), parse_constant=pytest.fail)


def test_a_network_that_is_nan_throughout_is_still_reported():
    model = net()
    with torch.no_grad():
        model.embed.weight[0, 0] = NAN
    report = wb.diagnose(model, BATCHES)
    assert report.failed == ("D1", "D2")
    assert report.conditions["blocks_return"] == "unknown"
    assert {"kind": "state", "site": 0, "batch": 0} in report.nonfinite


def test_a_nan_loss_is_a_finding():
    report = wb.diagnose(net(), BATCHES, loss=lambda z, y: F.cross_entropy(z, y, reduction="none") * NAN)
    assert report.failed == ("D2",)


# -- batches -------------------------------------------------------------------------------------------------------


def test_a_single_batch_is_measured_without_stability():
    report = wb.diagnose(net(), BATCHES[:1])
    assert report.values["stability"] is None
    assert report.reasons["stability"] == "needs at least 2 disjoint batches, got 1"
    assert report.values["growth"] is not None


def used_up():
    generator = iter(BATCHES)
    list(generator)
    return generator


@pytest.mark.parametrize("batches", [list, used_up, lambda: DataLoader([])], ids=["list", "generator", "loader"])
def test_no_batches_at_all(batches):
    refused(
        wb.InputError,
        "Expected at least one batch, but eval_batches is empty. A generator that was used up",
        batches=batches(),
    )


def test_a_generator_and_a_loader_are_as_good_as_a_list():
    x, y = (torch.cat(parts) for parts in zip(*BATCHES))
    assert numbers(wb.diagnose(net(), (b for b in BATCHES))) == expected()
    assert numbers(wb.diagnose(net(), DataLoader(TensorDataset(x, y), batch_size=16))) == expected()


def test_batches_of_different_sizes_count_every_sample_once():
    x, y = (torch.cat(parts) for parts in zip(*BATCHES))
    whole = wb.measure(net(), [(x, y)])
    uneven = wb.measure(net(), list(zip(x.split([16, 1, 30, 1]), y.split([16, 1, 30, 1]))))
    assert uneven.h_norm == pytest.approx(whole.h_norm, rel=1e-6)
    assert uneven.g_norm == pytest.approx(whole.g_norm, rel=1e-5)
    assert uneven.conditions["batch_size"] == [1, 16, 30]


def test_a_batch_that_repeats_is_named():
    big = wb.selftest.batches(3)
    report = wb.diagnose(net(), [big[0], big[1], big[0]])
    assert report.reasons["stability"] == "needs disjoint batches, but batch 2 repeats batch 0"
    shuffled = (big[0][0].flip(0), big[0][1].flip(0))
    assert "batch 2 repeats batch 0" in wb.diagnose(net(), [big[0], big[1], shuffled]).reasons["stability"]


def test_samples_that_repeat_are_counted():
    big = wb.selftest.batches(2)
    mixed = (torch.cat([big[0][0][:64], big[1][0][:64]]), big[0][1])
    report = wb.diagnose(net(), [big[0], mixed, big[1]])
    assert report.reasons["stability"] == "needs disjoint batches, but 33% of the samples occur more than once"
    assert report.conditions["distinct_samples"] == 256


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        (None, r"Expected eval_batches to be an iterable of \(inputs, labels\) pairs, but got NoneType"),
        (BATCHES[0][0], r"but got Tensor\. Wrap a single batch in a list: \[\(x, y\)\]"),
        ("batches.pt", "but got str"),
        (lambda: BATCHES, "but got function"),
        (TensorDataset(*BATCHES[0]), "but got TensorDataset"),
        (BATCHES[0], r"Expected batch 0 to be a pair \(inputs, labels\), but got a Tensor"),
        ([x for x, _ in BATCHES], r"Expected batch 0 to be a pair \(inputs, labels\), but got a Tensor"),
        ([(x, y, y) for x, y in BATCHES], r"Expected batch 0 to be a pair \(inputs, labels\), but got a tuple of 3"),
        ([BATCHES[0], {"x": 1, "y": 2}], "Expected batch 1 to have 'labels', but the dict has x, y"),
        (["ab"], "Expected batch 0 to be a pair .* but got a str"),
        ([(x.numpy(), y) for x, y in BATCHES], "Expected the inputs of batch 0 to be a tensor .* but got ndarray"),
        ([(x, y.tolist()) for x, y in BATCHES], "Expected the labels of batch 0 to be a tensor .* but got list"),
        (
            [BATCHES[0], (BATCHES[1][0][0], BATCHES[1][1][0])],
            "Expected the labels of batch 1 .* but got a scalar tensor",
        ),
        ([(x[:0], y[:0]) for x, y in BATCHES], "at least one, but batch 0 has 0 inputs and 0 labels"),
        ([BATCHES[0], (BATCHES[1][0], BATCHES[1][1][:-1])], "but batch 1 has 16 inputs and 15 labels"),
    ],
)
def test_batches_that_are_no_batches(batches, words):
    refused(wb.InputError, words, batches=batches)


def test_a_loader_that_fails_says_so_itself():
    def loader():
        yield BATCHES[0]
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        wb.diagnose(net(), loader())


def test_errors_say_which_batch_was_measured():
    info = refused(wb.InputError, "labels", batches=[BATCHES[0], (BATCHES[1][0], BATCHES[1][1] + 5)])
    assert info.value.__notes__ == ["(while measuring batch 1)"]


# -- labels --------------------------------------------------------------------------------------------------------


def labelled(change) -> list[tuple[Tensor, Tensor]]:
    return [(x, change(y)) for x, y in BATCHES]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda y: y + 1,
            r"labels between 0 and 9, since the network has 10 outputs, but got \d…10\. Labels that count from 1",
        ),
        (
            lambda y: y.float(),
            r"Expected integer class labels of shape \(16,\) .* but got torch\.float32 of shape \(16,\)\. Use y\.long",
        ),
        (
            lambda y: y[:, None],
            r"Expected labels of shape \(16,\) to go with logits of shape \(16, 10\), but got \(16, 1\)",
        ),
        (lambda y: F.one_hot(y, 10), r"Expected labels of shape \(16,\) .* but got \(16, 10\)"),
        (
            lambda y: F.one_hot(y, 10) - 0.1,
            "Expected soft labels to be probabilities, but some are negative or not finite",
        ),
        (
            lambda y: F.one_hot(y, 10) * NAN,
            "Expected soft labels to be probabilities, but some are negative or not finite",
        ),
        (
            lambda y: 1e6 * F.one_hot(y, 10).float(),
            r"whose rows sum to 1 \(within 0\.001\), but they sum to 1e\+06…1e\+06\. Divide them by y\.sum\(1",
        ),
        (
            lambda y: (F.one_hot(y, 10) + F.one_hot((y + 1) % 10, 10)).float(),
            r"but they sum to 2…2\. .*for several labels per sample pass loss=",
        ),
        (lambda y: F.one_hot(y, 10) * (y > y.min())[:, None].float(), r"but they sum to 0…1\."),
        (lambda y: 1.002 * F.one_hot(y, 10).double(), r"within 0\.001\), but they sum to 1\.002…1\.002"),
        (lambda y: 1.05 * F.one_hot(y, 10).bfloat16(), r"within 0\.031\), but they sum to 1\.04688…1\.04688"),
        (lambda y: F.one_hot(y, 10) * INF, "but some are negative or not finite"),
        (
            lambda y: F.one_hot(y, 11).float(),
            r"probabilities of shape \(16, 10\), but got torch\.float32 of shape \(16, 11\)",
        ),
    ],
    ids=[
        *("from 1", "float", "column", "one-hot integers", "negative", "nan", "millions", "several labels", "none"),
        *("a little over", "bfloat16", "infinite", "too wide"),
    ],
)
def test_labels_that_do_not_fit(change, words):
    refused(wb.InputError, words, batches=labelled(change))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_soft_labels_may_be_as_coarse_as_their_dtype(dtype):
    torch.manual_seed(0)
    soft = [(x, (3 * torch.randn(len(y), 10)).softmax(1).to(dtype)) for x, y in BATCHES]
    smooth = labelled(lambda y: 0.9 * F.one_hot(y, 10).to(dtype) + torch.tensor(0.01, dtype=dtype))
    for batches in (soft, smooth):
        assert None not in wb.diagnose(net(), batches).per_layer["g_norm"]


def test_several_labels_per_sample_are_measured_with_a_loss_of_their_own():
    several = labelled(lambda y: (F.one_hot(y, 10) + F.one_hot((y + 1) % 10, 10)).float())
    loss = lambda z, y: F.binary_cross_entropy_with_logits(z, y, reduction="none").sum(1)  # noqa: E731
    assert coded(wb.diagnose(net(), several, loss=loss).notes, "loss-not-cross-entropy")


def test_soft_labels_that_are_one_hot_are_the_classes():
    soft = wb.diagnose(net(), labelled(lambda y: F.one_hot(y, 10).float()))
    assert soft.per_layer["g_norm"] == pytest.approx(expected()[1]["g_norm"], rel=1e-5)


def test_byte_labels_are_classes():
    assert numbers(wb.diagnose(net(), labelled(lambda y: y.to(torch.uint8)))) == expected()


def test_other_losses_bring_their_own_labels():
    report = wb.diagnose(net(), labelled(lambda y: y.float()), loss=lambda z, y: (z.mean(1) - y) ** 2)
    assert report.values["g_norm_deepest"] > 0


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            lambda z, y: F.cross_entropy(z, y).item(),
            r"one loss per sample, shape \(16,\), or their mean, shape \(\), but got float",
        ),
        (lambda z, y: z, r"one loss per sample, shape \(16,\), .* but got \(16, 10\)"),
        (
            lambda z, y: F.cross_entropy(z, y).detach(),
            "Expected a loss that depends on the network, but it carries no gradient",
        ),
        (lambda z, y: None, "but got NoneType"),
    ],
)
def test_losses_that_can_not_be_used(loss, words):
    refused(wb.InputError, words, loss=loss)


def test_a_loss_that_returns_its_mean_gives_the_same_gradients():
    assert wb.diagnose(net(), BATCHES, loss=nn.CrossEntropyLoss()).per_layer["g_norm"] == pytest.approx(
        expected()[1]["g_norm"], rel=1e-5
    )


# -- what the network returns and is -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [None, ResidualNet, "resmlp", lambda x: x])
def test_models_that_are_no_models(model):
    with pytest.raises(wb.InputError, match=r"Expected model to be a torch\.nn\.Module, but got "):
        wb.diagnose(model, BATCHES)


def without_head(output):
    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return output(self.out_head(self.out_ln(h)))

    return forward


@pytest.mark.parametrize(
    ("output", "error", "words"),
    [
        (lambda z: None, wb.AnatomyError, "Expected the network to return logits, .* but got NoneType"),
        (lambda z: {"loss": z}, wb.AnatomyError, "Expected the network to return logits, .* but got dict"),
        (
            lambda z: z[:, 0],
            wb.InputError,
            r"Expected logits of shape \(B, C\) or \(B, T, C\), but .* \(16,\)\. Pass loss=",
        ),
        (lambda z: z[:3], wb.InputError, r"Expected labels of shape \(3,\) .* but got \(16,\)"),
        (lambda z: torch.zeros(16, 10), wb.InputError, "it carries no gradient"),
    ],
    ids=["none", "dict", "one column", "too few", "constant"],
)
def test_networks_that_return_no_logits(output, error, words):
    refused(error, words, net(without_head(output)))


@pytest.mark.parametrize("output", [lambda z: (z, None), lambda z: [z], lambda z: {"logits": z}])
def test_logits_are_found_in_what_a_network_returns(output):
    assert numbers(wb.diagnose(net(without_head(output)), BATCHES)) == expected()


def test_states_that_change_shape_are_compared_within_their_stages():
    class Stage(nn.Module):
        def __init__(self, width: int, out: int, gain: float) -> None:
            super().__init__()
            self.width, self.out, self.gain = width, out, gain

        def forward(self, h: Tensor) -> Tensor:
            return self.gain * (h if self.width == self.out else h.repeat(1, self.out // self.width))

    model = nn.Module()
    model.embed, model.head = nn.Linear(16, 4), nn.Linear(16, 10)
    model.blocks = nn.ModuleList([Stage(4, 4, 3.0), Stage(4, 16, 70.0), Stage(16, 16, 5.0)])
    model.forward = lambda x: model.head(model.blocks[2](model.blocks[1](model.blocks[0](model.embed(x)))))
    report = wb.diagnose(model, BATCHES)
    assert report.values["growth"] == pytest.approx(5.0)
    assert report.values["growth_total"] is None
    assert report.reasons["growth_total"] == "the stream changes shape; growth is taken within stages"
    assert report.findings[0]["flagged"] is False


# -- blocks --------------------------------------------------------------------------------------------------------


def calls(*order: int):
    def forward(self, x):
        h = self.embed(x)
        for i in order:
            h = h + self.blocks[i](h)
        return self.out_head(self.out_ln(h))

    return forward


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ((0, 2), r"but block 2 \(blocks\.1\) was never called in this forward pass\. Leave it out"),
        ((1, 0, 2), r"Expected the blocks to be called in their order 1…3, but they ran as 2, 1, 3"),
        ((), r"block 1 \(blocks\.0\) was never called"),
    ],
    ids=["never", "out of order", "none"],
)
def test_blocks_are_called_in_their_order(order, words):
    info = refused(wb.AnatomyError, words, net(calls(*order)))
    assert info.value.__notes__ == ["(while measuring batch 0)"]


def test_a_block_whose_forward_is_called_directly_is_read():
    model = net(through(lambda h, b: h + b.forward(h)))
    assert wb.measure(model, BATCHES).h_norm == pytest.approx(wb.measure(net(), BATCHES).h_norm)


def test_the_same_module_twice_in_the_list_is_two_sites():
    model = net()
    model.blocks[2] = model.blocks[0]
    names = [row for row in wb.measure(model, BATCHES).conditions["anatomy"] if "#" in row]
    assert [row.split()[2] for row in names] == ["blocks.0#1", "blocks.0#2"]


def test_a_block_that_gets_no_stream_or_returns_none():
    class Keys(nn.Module):
        def forward(self, h):
            return {"h": "text"}

    class Lists(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, hs):
            return self.inner(hs[0])

    model = net(through(lambda h, b: b(h)["h"]))
    model.blocks[0] = Keys()
    refused(wb.AnatomyError, r"Expected block 1 \(blocks\.0\) to return a tensor .* but it returned dict", model)
    model = net(through(lambda h, b: h + b([h])))
    model.blocks = nn.ModuleList(Lists(b) for b in model.blocks)
    refused(
        wb.AnatomyError,
        r"Expected block 1 \(blocks\.0\) to receive the stream as a tensor of real numbers, but it got list",
        model,
    )


def test_a_block_that_raises_keeps_its_own_error():
    class Boom(nn.Module):
        def forward(self, h):
            raise RuntimeError("boom in block")

    model = net()
    model.blocks[1] = Boom()
    with pytest.raises(RuntimeError, match="boom in block") as info:
        wb.diagnose(model, BATCHES)
    assert info.value.__notes__ == ["(while measuring batch 0)"]


def test_a_single_block_that_is_given_a_copy_of_the_stream_is_refused():
    words = (
        r"block 1 \(blocks\.0\) to receive the stream itself, but it receives a copy.*Call block\(h\) with the same h"
    )
    refused(wb.AnatomyError, words, net(through(lambda h, b: h + b(h.clone())), 1))


def test_blocks_that_are_given_copies_of_the_stream_are_read_at_the_sums():
    copies, plain = (
        wb.measure(net(through(f), 3), BATCHES) for f in (lambda h, b: h + b(h.clone()), lambda h, b: h + b(h))
    )
    assert "stepped-sites" in {note.code for note in copies.notes}
    assert copies.h_norm == pytest.approx(plain.h_norm)
    assert copies.g_norm == pytest.approx(plain.g_norm)


@pytest.mark.parametrize(
    "step", [lambda h, b: h.detach() + b(h.detach()), lambda h, b: (h + b(h)).detach()], ids=["inside", "between"]
)
def test_a_stream_that_is_detached_between_blocks(step):
    refused(
        wb.AnatomyError,
        r"depend on every site, but no gradient reaches site 0.*: the network detaches it on the way",
        net(through(step)),
        reference="own",
    )


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_forward_pass_that_turns_gradients_off(mode):
    words = r"block 1 \(blocks\.0\) to run with gradients on, but the network turned them off.*Remove the decorator"
    refused(wb.AnatomyError, words, net(mode()(ResidualNet.forward)))


def test_a_forward_pass_that_turns_gradients_off_around_later_blocks():
    def forward(self, x):
        h = self.embed(x)
        h = h + self.blocks[0](h)
        with torch.no_grad():
            h = h + self.blocks[1](h)
        h = h + self.blocks[2](h)
        return self.out_head(self.out_ln(h))

    refused(wb.AnatomyError, r"Expected block 2 \(blocks\.1\) to run with gradients on", net(forward))


def test_checkpointed_blocks_are_measured_without_reentry():
    model = net(through(lambda h, b: h + checkpoint(b, h, use_reentrant=False)))
    assert numbers(wb.diagnose(model, BATCHES)) == expected()


def test_reentrant_checkpoints_are_refused_with_the_way_out():
    model = net(through(lambda h, b: h + checkpoint(b, h, use_reentrant=True)))
    refused(wb.AnatomyError, r"use_reentrant=True.*checkpoint with use_reentrant=False", model)


class InPlace(nn.Module):
    """A branch that may be overwritten: it works on copies and in place wherever autograd allows it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, h: Tensor) -> Tensor:
        return self.inner(h * 1.0).mul_(1.0)


class InPlaceState(InPlace):
    def forward(self, h: Tensor) -> Tensor:
        return h.add_(super().forward(h))


def adds(h, block):
    h += block(h)
    return h


@pytest.mark.parametrize(
    ("kind", "step"),
    [(InPlace, adds), (InPlace, lambda h, b: h + b(h)), (InPlaceState, lambda h, b: b(h))],
    ids=["model adds in place", "branch in place", "block adds in place"],
)
def test_blocks_that_write_in_place_are_measured_as_if_they_did_not(kind, step):
    model = net(through(step))
    model.blocks = nn.ModuleList(kind(b) for b in model.blocks)
    values, per_layer = numbers(wb.diagnose(model, BATCHES))
    assert per_layer["h_norm"] == pytest.approx(expected()[1]["h_norm"], rel=1e-6)
    assert per_layer["g_norm"] == pytest.approx(expected()[1]["g_norm"], rel=1e-5)
    assert values["growth"] == pytest.approx(expected()[0]["growth"], rel=1e-6)


# -- devices, modes, compilers -------------------------------------------------------------------------------------


def test_model_and_data_on_different_devices():
    refused(
        wb.InputError,
        r"model's device, cpu, but batch 0 is on meta\. A meta tensor has no values: load the data",
        batches=[(x.to("meta"), y) for x, y in BATCHES],
    )


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_a_network_without_values_is_told_to_be_loaded(where):
    refused(
        wb.InputError,
        r'parameters are on the device "meta", which holds shapes only\. Load them: model\.to_empty\(device="cpu"\)',
        net().to("meta"),
        [(x.to(where), y.to(where)) for x, y in BATCHES],
    )


def offloaded(module: nn.Module) -> None:
    """Parameters that are there only while the module runs, as libraries for large models do it."""
    kept = dict(module._parameters)
    away = {name: nn.Parameter(p.to("meta")) for name, p in kept.items() if p is not None}
    module._parameters.update(away)
    module.register_forward_pre_hook(lambda *_: module._parameters.update(kept))
    module.register_forward_hook(lambda *_: module._parameters.update(away))


def test_weights_that_are_offloaded_until_a_block_runs_are_measured():
    model = net()
    for module in model.blocks.modules():
        offloaded(module)
    assert all(p.is_meta for p in model.blocks.parameters())
    assert numbers(wb.diagnose(model, BATCHES)) == expected()


def buffers(tensor: Tensor) -> dict[str, Tensor]:
    return {"embed.weight": net().embed.weight, "norm.running_mean": tensor}


def test_buffers_that_are_lazy_are_refused():
    with pytest.raises(wb.InputError, match=r"norm\.running_mean is lazy\. Run the network once"):
        refuse_weights(buffers(nn.UninitializedBuffer()))
    refuse_weights(buffers(torch.zeros(3)))
    refuse_weights(buffers(torch.zeros(3, device="meta")))  # may be offloaded


@pytest.mark.parametrize("made", ["lazy", "inference"])
def test_a_network_with_such_buffers_is_refused(made):
    model = net()
    model.out_ln = nn.LazyBatchNorm1d(affine=False) if made == "lazy" else nn.BatchNorm1d(32, affine=False)
    if made == "inference":
        with torch.inference_mode():
            model.out_ln.running_mean = torch.zeros(32)
    refused(wb.InputError, rf"out_ln\.running_mean (is|was made) .*{made}", model)


def test_torchscript_is_told_to_be_measured_before_it_was_traced():
    model = net()
    with pytest.warns(DeprecationWarning, match="jit.trace"):
        traced = torch.jit.trace(model.eval(), BATCHES[0][0])
    refused(
        wb.InputError,
        r"Expected a network that runs in Python, but got a \w+ of TorchScript, .* Measure the nn\.Module that it was",
        traced,
    )


def test_a_forward_without_a_signature_takes_no_return_hidden():
    model = net()
    model.forward = type  # type: ignore[assignment]  # as other compiled code, without a signature
    assert return_hidden(model) is None
    assert return_hidden(net()) == "optional"


def test_labels_on_another_device():
    refused(
        wb.InputError,
        "Expected labels on cpu with the logits, but they are on meta",
        batches=labelled(lambda y: y.to("meta")),
    )


@pytest.fixture
def clean_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled_whole() -> nn.Module:
    return torch.compile(net(), backend="eager")


def compiled_in_place() -> nn.Module:
    model = net()
    model.compile(backend="eager")
    return model


def compiled_blocks() -> nn.Module:
    model = net()
    for block in model.blocks:
        block.compile(backend="eager")
    return model


def wrapped_blocks() -> nn.Module:
    model = net()
    model.blocks = nn.ModuleList(torch.compile(b, backend="eager") for b in model.blocks)
    return model


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("make", [compiled_whole, compiled_in_place, compiled_blocks, wrapped_blocks])
def test_compiled_networks_are_measured_as_their_eager_selves(clean_compiler, make, warm):
    model = make()
    if warm:
        with torch.no_grad():
            model(BATCHES[0][0])
    assert numbers(wb.diagnose(model, BATCHES)) == expected()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_callers_grad_mode_does_not_matter(mode):
    model, want = net(), expected()
    with mode():
        got = numbers(wb.diagnose(model, BATCHES, credit=lambda t: t.grads, probes=("nudging",)))
        assert torch.is_grad_enabled() is (mode is torch.enable_grad)
    assert got[1]["h_norm"] == want[1]["h_norm"]
    assert got[1]["g_norm"] == want[1]["g_norm"]
    assert got[1]["cosine"] == pytest.approx([1.0] * 4)


def test_inputs_made_under_inference_mode_are_measured():
    with torch.inference_mode():
        batches = [(x * 1.0, None) for x, _ in BATCHES]
    assert batches[0][0].is_inference()
    assert numbers(wb.diagnose(net(), [(x, y) for (x, _), (_, y) in zip(batches, BATCHES)])) == expected()


def test_weights_made_under_inference_mode_are_refused():
    with torch.inference_mode():
        model = net()
    refused(
        wb.InputError,
        r"Expected weights that can carry gradients, but embed\.weight was made under torch\.inference_mode",
        model,
    )


def test_frozen_parameters_are_measured():
    assert numbers(wb.diagnose(net().requires_grad_(False), BATCHES)) == expected()


def test_integer_tokens_are_measured():
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm, self.head = nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 10)
            self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for block in self.blocks:
                h = h + block(h)
            return self.head(self.norm(h)[:, -1])

    torch.manual_seed(0)
    model = Tokens()
    batches = [(torch.randint(9, (16, 5)), torch.randint(10, (16,))) for _ in range(3)]
    m = wb.measure(model, batches, credit=lambda t: t.grads)
    with torch.no_grad():
        x = torch.cat([x for x, _ in batches])
        stem = model.embed(x)[:, -1].double().norm(dim=1).mean()
    assert m.h_norm[0] == pytest.approx(float(stem), rel=1e-6)
    assert m.conditions["pool"] == -1
    assert m.cosine == pytest.approx([1.0] * 3)
    per_token = [(x, torch.randint(10, (16, 5))) for x, _ in batches]
    model.forward = lambda x: model.head(model.norm(model.blocks[1](model.blocks[0](model.embed(x)))))
    assert wb.measure(model, per_token, anatomy={"branch": False}).g_norm[-1] > 0


# -- credit --------------------------------------------------------------------------------------------------------

KEPT = [torch.randn(16, 32, generator=torch.Generator().manual_seed(s)) for s in range(4)]


@pytest.mark.parametrize(
    ("credit", "words"),
    [
        (lambda t: t.grads[1:], r"Expected 4 credits, one per site 0…3, but got 3\. Site 0 is what the stem writes"),
        (lambda t: [*t.grads, t.grads[-1]], "Expected 4 credits, one per site 0…3, but got 5"),
        (lambda t: [g[:, :5] for g in t.grads], r"site 0 to have the shape of its state, .* but got \(16, 5\)\.$"),
        (lambda t: [g.mean(0) for g in t.grads], r"site 0 .* \(16, 32\), but got \(32,\)"),
        (lambda t: [g[:7] for g in t.grads], r"\(7, 32\)\. It has another batch size: was it taken on another batch\?"),
        (lambda t: [*t.grads[:3], t.grads[3].to("meta")], "credit of site 3 on cpu with its state, but it is on meta"),
        (lambda t: [g.numpy() for g in t.grads], "the credit of site 0 .* but got ndarray"),
        (lambda t: [t.grads[0], None, *t.grads[2:]], "the credit of site 1 .* but got NoneType"),
        (lambda t: None, "return a sequence of 4 tensors, one per site 0…3, but got NoneType"),
        (lambda t: torch.stack(t.grads), "return a sequence of 4 tensors, .* but got Tensor"),
        (lambda t: dict(enumerate(t.grads)), "return a sequence of 4 tensors, .* but got dict"),
        (lambda t: (g for g in t.grads), "return a sequence of 4 tensors, .* but got generator"),
        (lambda t: KEPT, "the same credit came back for two different batches: it was taken on another batch"),
        (KEPT, "Expected credit to be a callable .* but got list"),
        ("dfa", "Expected credit to be a callable .* but got str"),
    ],
    ids=[
        "short", "long", "narrow", "averaged", "other batch size", "other device", "numpy", "none inside", "none",
        "stacked", "dict", "generator", "kept from another batch", "list", "name",
    ],
)  # fmt: skip
def test_credits_that_do_not_belong_to_the_pass(credit, words):
    refused(wb.CreditError, words, credit=credit)


def test_the_credit_of_the_batch_before_is_refused():
    kept: list = []

    def late(trace):
        kept.append(trace.grads)
        return kept[max(0, len(kept) - 2)]

    refused(wb.CreditError, "the same credit came back for two different batches", credit=late)


def test_one_credit_for_every_sample_is_no_stale_credit():
    report = wb.diagnose(net(), BATCHES, credit=lambda t: [torch.ones_like(h) for h in t.states])
    assert report.values["gamma"] is not None


def test_errors_in_a_credit_are_not_swallowed():
    def broken(trace):
        raise RuntimeError("shapes do not match in my rule")

    with pytest.raises(RuntimeError, match="shapes do not match in my rule"):
        wb.diagnose(net(), BATCHES, credit=broken)


def test_a_credit_of_zero_or_nan_has_no_cosine_and_says_so():
    for scale, words in ((0.0, "the credit is zero for every sample"), (NAN, "not finite")):
        report = wb.diagnose(net(), BATCHES, credit=lambda t, s=scale: [g * s for g in t.grads])
        assert report.values["gamma"] is None
        assert words in report.reasons["cosine"]
        assert report.reasons["gamma"]
        json.loads(report.to_json(), parse_constant=pytest.fail)


# -- accuracies, editions, probes, thresholds ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"headline_acc": 98.2},
            r"Expected headline_acc as a fraction between 0 and 1, but got 98\.2\. .* pass 0\.982",
        ),
        ({"headline_acc": 0.9, "frozen_baseline_acc": 34.9}, r"Expected frozen_baseline_acc .* pass 0\.349"),
        ({"bp_acc": 61.5}, r"Expected bp_acc .* pass 0\.615"),
        ({"headline_acc": -0.1}, r"but got -0\.1"),
        ({"headline_acc": [0.5, 0.6], "frozen_baseline_acc": [0.3]}, "but got 2 and 1 accuracies"),
        ({"edition": "five"}, "Expected edition to be one of three-check, four-diagnostic, intrinsic, but got 'five'"),
        ({"probes": ["nudge"]}, "Expected probes among perturbation, nudging, fresh-b, intrinsic, but got 'nudge'"),
        ({"thresholds": {"g_norm_floor": 1e-6}}, "Expected thresholds to be DiagnosticThresholds, but got dict"),
    ],
)
def test_arguments_are_checked_before_anything_runs(more, words):
    model = net(lambda self, x: pytest.fail("ran"))
    refused(wb.InputError, words, model, **more)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: wb.Perturbation(directions="random"), "directions to be one of isotropic, data, but got 'random'"),
        (lambda: wb.Perturbation(count=2), "Expected count to be a whole number >= 3, but got 2"),
        (lambda: wb.Perturbation(step=0.0), r"Expected step to be a finite number > 0, but got 0\.0"),
        (lambda: wb.Nudging(eta=0.0), r"Expected eta to be a finite number > 0, but got 0\.0"),
    ],
)
def test_probes_with_wrong_options(make, words):
    with pytest.raises(wb.InputError, match=words):
        make()


def test_a_probe_may_stand_alone():
    assert "nudging_bp" in wb.diagnose(net(), BATCHES, probes="nudging").controls


# -- rarer mistakes ------------------------------------------------------------------------------------------------


def test_negative_labels():
    refused(wb.InputError, "Expected labels between 0 and 9, .* but got -1…", batches=labelled(lambda y: y - 1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8])
def test_labels_of_any_integer_type_are_classes(dtype):
    assert numbers(wb.diagnose(net(), labelled(lambda y: y.to(dtype)))) == expected()


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
def test_labels_of_a_type_that_is_no_class(dtype):
    refused(wb.InputError, "Expected .*labels", batches=labelled(lambda y: y.to(dtype)))


def test_labels_made_under_inference_mode_are_measured():
    with torch.inference_mode():
        batches = [(x * 1.0, y * 1) for x, y in BATCHES]
    assert numbers(wb.diagnose(net(), batches)) == expected()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_credits_of_a_type_that_is_no_gradient(dtype):
    refused(wb.CreditError, "Expected the credit of site 0 .*floating", credit=lambda t: [g.to(dtype) for g in t.grads])


def test_a_credit_kept_from_another_batch_at_deeper_sites_only():
    refused(wb.CreditError, "the same credit came back", credit=lambda t: [t.grads[0], *KEPT[1:]])


@pytest.mark.parametrize("what", ["states", "grads"])
def test_a_credit_that_overwrites_the_trace(what):
    refused(wb.CreditError, "leave the trace as it is", credit=lambda t: [v.mul_(2) for v in getattr(t, what)])


WRITES = {
    "logits": lambda t: t.logits[:, 0].sub_(1),
    "losses": lambda t: t.losses.zero_(),
    "labels": lambda t: t.labels.fill_(0),
    "inputs": lambda t: t.inputs.mul_(0.5),
    "prints": lambda t: t.prints.zero_(),
    "labels by numpy": lambda t: t.labels.numpy().fill(0),  # past the version counter, as all below
    "inputs by .data": lambda t: t.inputs.data.mul_(0.5),
    "inputs by a view": lambda t: t.inputs[3:].data.zero_(),
    "states by .data": lambda t: t.states[1].data.mul_(2),
    "grads by numpy": lambda t: t.grads[0].numpy().fill(1),
    "grads by another memory": lambda t: setattr(t.grads[-1], "data", torch.ones_like(t.grads[-1])),
    "logits by .data": lambda t: t.logits.data.zero_(),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("what", WRITES)
def test_a_credit_that_overwrites_answers_or_data(what, late, inference):
    with torch.inference_mode(inference):
        batches = [(x.clone(), y.clone()) for x, y in BATCHES]

    def credit(trace):
        if trace.index == late:
            WRITES[what](trace)
        return [g + 0 for g in trace.grads]

    refused(wb.CreditError, r"leave the trace as it is.*Work on a copy: t\.clone\(\)", batches=batches, credit=credit)
    for (x, y), (kept_x, kept_y) in zip(batches, BATCHES, strict=True):
        assert torch.equal(x, kept_x)
        assert torch.equal(y, kept_y)


def test_a_credit_that_overwrites_one_of_the_inputs_by_name():
    class Keyed(ResidualNet):
        def forward(self, x, scale):  # type: ignore[override]
            return super().forward(x * scale)

    model = net()
    model.__class__ = Keyed
    scale = torch.ones(())
    batches = [({"x": x, "scale": scale}, y) for x, y in BATCHES]

    def credit(trace):
        trace.inputs["scale"].data.add_(1)
        return trace.grads

    refused(wb.CreditError, "leave the trace as it is", model, batches, credit=credit)
    assert scale == 1
    assert wb.diagnose(model, batches, credit=lambda t: t.grads).verdict


def test_a_nan_credit_is_noted():
    report = wb.diagnose(net(), BATCHES, credit=lambda t: [g * NAN for g in t.grads])
    missing = coded(report.notes, "no-cosine")
    assert [(note.site, note.values["cause"]) for note in missing] == [(site, "nonfinite") for site in range(4)]
    assert "no cosine at site 0: credit or reference is not finite" in report.advisories


@pytest.mark.parametrize("anatomy", ["blocks", 3, {"bocks": "blocks"}])
def test_an_anatomy_of_a_wrong_type_or_with_a_wrong_keyword(anatomy):
    refused(wb.WalkbackError, "Expected anatomy", anatomy=anatomy)


def test_a_loss_that_can_not_be_called():
    refused(wb.InputError, "Expected loss", loss="cross-entropy")


def test_a_branch_that_is_claimed_against_what_is_seen():
    refused(wb.AnatomyError, "branch", net(through(lambda h, b: h + b(h))), anatomy={"branch": False})


def test_a_stream_written_in_place_where_autograd_needs_it():
    refused(wb.AnatomyError, "in place", net(through(adds)))


def test_states_without_an_axis_of_samples():
    class Second(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(4, 8), nn.Linear(8, 10)
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x.view(-1, 4))
            for block in self.blocks:
                h = h + block(h)
            return self.head(h.view(len(x), 4, 8).mean(1))

    refused(wb.AnatomyError, "Expected states of 16 samples", Second())


def test_parameters_that_were_never_initialised():
    model = net()
    model.embed = nn.LazyLinear(32)
    refused(wb.InputError, "Expected weights", model)


def test_bp_acc_is_kept_in_the_report():
    report = wb.diagnose(net(), BATCHES, 0.35, 0.35, bp_acc=0.36)
    assert report.bp_acc == 0.36
    assert wb.judge(report) == report
    assert wb.judge(replace(report, bp_acc=0.9)).failed == ("D3",)


def test_a_loss_that_returns_a_sum():
    refused(wb.InputError, "it returns a sum", loss=lambda z, y: F.cross_entropy(z, y, reduction="sum"))
    mean = wb.diagnose(net(), BATCHES, loss=lambda z, y: F.cross_entropy(z, y))
    assert numbers(mean) == expected()


def test_a_single_pair_gets_the_hint_to_wrap_it():
    refused(wb.InputError, r"Wrap a single batch in a list: \[\(x, y\)\]", batches=BATCHES[0])


@pytest.mark.parametrize("probes", [None, 3])
def test_probes_that_are_no_list(probes):
    from walkback.measures.probes import wanted

    with pytest.raises(Exception, match=r"probes"):
        wanted(probes)
