"""Arrays of any framework: the same numbers as from the network, whatever they come in, and errors that teach."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import walkback as wb

NET, BATCHES = wb.selftest.network(gain=3.0), wb.selftest.batches(8)
CREDIT_SEED = 3
diagnose_arrays = partial(wb.diagnose_arrays, reduction="sum")


def credit(trace):
    draw = torch.Generator().manual_seed(CREDIT_SEED)
    return [g + torch.randn(g.shape[1:], generator=draw) * g.norm(dim=1, keepdim=True) for g in trace.grads]


def traced(kind="numpy", net=NET, batches=BATCHES, **left_out):
    """One dict per batch, as a user of another framework has them."""
    with wb.Tracer(net) as tracer:
        for x, y in batches:
            t = tracer.trace(x, y, credit=credit)
            of = {"states": t.states, "grads": t.grads, "credits": t.credits}
            of |= {"losses": t.losses, "logits": t.logits, "labels": t.labels, "inputs": t.inputs}
            of = {k: v for k, v in of.items() if left_out.get(k, True)}
            if kind == "numpy":
                of = {k: [a.numpy() for a in v] if isinstance(v, tuple) else v.numpy() for k, v in of.items()}
            yield of


def numbers(report):
    return {**report.values, **report.per_layer, "aggregates": report.aggregates}


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_arrays_give_the_report_of_the_network(kind):
    claim = wb.Claim(accuracy=0.4, frozen=0.3)
    ours = wb.diagnose(NET, BATCHES, credit=credit, claim=claim, method="noisy")
    report = diagnose_arrays(traced(kind), claim=claim, method="noisy")
    assert numbers(report) == numbers(ours)
    assert (report.verdict, report.failed, report.method) == (ours.verdict, ours.failed, "noisy")
    assert report.notes == ours.notes
    assert report.conditions["probe_hash"] == ours.conditions["probe_hash"]
    assert report.conditions["probe_accuracy"] == ours.conditions["probe_accuracy"]
    assert report.conditions["reference"] == "arrays, as given"
    assert wb.Report.from_dict(report.to_dict()) == report
    assert "cosine" in str(report)


def test_norms_and_cosines_are_those_of_numpy_in_float64():
    """A second derivation that shares no code with the accumulators."""
    given = list(traced())
    report = diagnose_arrays(given)
    for site in range(5):
        h, g, a = (
            np.concatenate([b[k][site].astype(np.float64) for b in given]) for k in ("states", "grads", "credits")
        )
        norm = np.linalg.norm
        assert report.per_layer["h_norm"][site] == pytest.approx(norm(h, axis=1).mean())
        assert report.per_layer["g_norm"][site] == pytest.approx(norm(g, axis=1).mean() / 128)
        cosine = ((a * g).sum(1) / (norm(a, axis=1) * norm(g, axis=1))).mean()
        assert report.per_layer["cosine"][site] == pytest.approx(cosine)
        low, high = report.per_layer["null_low"][site], report.per_layer["null_high"][site]
        assert low < 0 < high


def test_gradients_of_a_mean_loss_are_those_of_the_sum():
    summed = list(traced())
    averaged = [{**b, "grads": [g / 128 for g in b["grads"]]} for b in summed]
    report = wb.diagnose_arrays(averaged, reduction="mean")
    assert report.per_layer["g_norm"] == pytest.approx(diagnose_arrays(summed).per_layer["g_norm"], rel=1e-6)
    assert report.conditions["reduction"] == "mean"


def test_one_array_with_the_sites_first_is_a_list_of_sites():
    stacked = [{k: np.stack(v) if isinstance(v, list) else v for k, v in b.items()} for b in traced()]
    assert numbers(diagnose_arrays(stacked)) == numbers(diagnose_arrays(traced()))


def test_what_is_not_known_is_not_told():
    report = diagnose_arrays(traced(losses=False, logits=False, labels=False, inputs=False, credits=False), 0.4, 0.3)
    assert report.per_layer["cosine"] is None
    assert report.reasons["cosine"] == "no credit was given"
    assert report.conditions["probe_accuracy"] is None
    assert (report.conditions["loss"], report.conditions["samples_by"]) == ("unknown", "states")
    assert report.conditions["samples"] == report.conditions["distinct_samples"] == 1024
    assert "gradients are taken as given" in report.reasons["backward_error"]
    assert report.values["growth"] == wb.diagnose(NET, BATCHES).values["growth"]


def test_batches_are_streamed():
    alive = []

    class Counted(dict):
        def __init__(self, of):
            super().__init__(of)
            alive.append(1)

        def __del__(self):
            alive.pop()

    seen = []

    def stream():
        for one in traced():
            seen.append(len(alive))
            yield Counted(one)

    diagnose_arrays(stream())
    assert max(seen) <= 1


def test_repeated_and_sorted_samples_are_told():
    codes = {n.code for n in diagnose_arrays(list(traced(inputs=False)) * 2).notes}
    assert "repeated-samples" in codes
    x, y = torch.cat([x for x, _ in BATCHES]), torch.cat([y for _, y in BATCHES])
    order = y.argsort(stable=True)  # walkback: ignore[P14]
    in_order = list(zip(x[order].split(128), y[order].split(128)))
    assert "sorted-classes" in {n.code for n in diagnose_arrays(traced(batches=in_order)).notes}


def test_a_loss_of_another_scale_is_told():
    scaled = [{**b, "losses": 5 * b["losses"]} for b in traced()]
    note = next(n for n in diagnose_arrays(scaled).notes if n.code == "loss-scaled")
    assert note.values["factor"] == pytest.approx(5.0)


def test_gradients_that_finite_differences_contradict_are_told():
    wrong = [{**b, "backward_error": [0.0, 0.4, 0.0, 0.0, 0.0]} for b in traced()]
    report = diagnose_arrays(wrong)
    assert report.altered is not None
    assert report.altered["sites"] == [1]
    right = [{**b, "backward_error": [1e-4] * 5} for b in traced()]
    assert diagnose_arrays(right).altered is None


def test_tokens_are_read_where_the_gradient_shows():
    draw = np.random.default_rng(0)
    states = draw.normal(size=(3, 128, 6, 8)).astype(np.float32)
    grads = np.zeros_like(states)
    grads[:, :, 2] = draw.normal(size=(3, 128, 8))
    report = diagnose_arrays([{"states": states, "grads": grads}])
    assert report.conditions["pool"] == 2
    assert report.per_layer["h_norm"][1] == pytest.approx(np.linalg.norm(states[1, :, 2], axis=-1).mean(), rel=1e-6)
    assert diagnose_arrays([{"states": states, "grads": grads}], pool="mean").conditions["pool"] == "mean"


H = [np.zeros((4, 3), np.float32)] * 2


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "at least one batch of arrays"),
        ({"states": H, "grads": H}, "Wrap a single batch in a list"),
        ([H], "batch 0 to be a dict of arrays"),
        ([{"states": H}], "it has no grads"),
        ([{"states": H, "grads": H, "credit": H}], r"it has \['credit'\] too"),
        ([{"states": H[:1], "grads": H[:1]}], "at least 2 arrays"),
        ([{"states": H, "grads": [H[0], H[0][:, :2]]}], "to have the shapes of its states"),
        ([{"states": H, "grads": H, "credits": H[:1]}], "credits of batch 0 to have the shapes"),
        ([{"states": [np.zeros((4, 3), int)] * 2, "grads": H}], r"states\[0\] of batch 0 to be floating point"),
        ([{"states": H, "grads": H, "labels": np.zeros(3)}], "one row for each of 4 samples"),
        ([{"states": H, "grads": H, "losses": np.zeros((4, 1))}], r"losses of batch 0 to be \(B,\)"),
        ([{"states": ["a", "b"], "grads": H}], "to be an array"),
        ([{"states": H, "grads": H, "backward_error": [0.1]}], "one number per site"),
        ([{"states": H, "grads": H}, {"states": H, "grads": H, "credits": H}], "credits is not in all of them"),
        ([{"states": H, "grads": H}, {"states": H * 2, "grads": H * 2}], "the widths of batch 0"),
    ],
)
def test_wrong_arrays_say_what_is_expected(batches, message):
    with pytest.raises(wb.InputError, match=message):
        diagnose_arrays(batches)


def test_wrong_options_say_what_is_expected():
    with pytest.raises(wb.InputError, match="reduction to be one of sum, mean"):
        wb.diagnose_arrays(traced(), reduction="average")
    with pytest.raises(wb.InputError, match="edition"):
        diagnose_arrays(traced(), edition="none")


def test_whose_gradients_they_are_has_to_be_said():
    with pytest.raises(
        wb.InputError, match=r'grads of batch 0 are.*nothing says it.*reduction="sum" or reduction="mean"'
    ):
        wb.diagnose_arrays(traced())
    stated = [{**b, "reduction": "sum"} for b in traced()]
    assert wb.diagnose_arrays(stated).conditions["reduction"] == "sum"
    with pytest.raises(wb.InputError, match="batch 0 says sum and the call mean"):
        wb.diagnose_arrays(stated, reduction="mean")
    with pytest.raises(wb.InputError, match="reduction to be one of sum, mean"):
        wb.diagnose_arrays([{**stated[0], "reduction": "none"}])


def linear_readout(reduction):
    """Arrays of a linear readout, whose gradient is known in closed form."""
    draw = np.random.default_rng(1)
    h, w, y = draw.normal(size=(64, 6)), draw.normal(size=(6, 4)), draw.integers(4, size=64)
    z = h @ w + 0.3
    p = np.exp(z - z.max(1, keepdims=True))
    g = (p / p.sum(1, keepdims=True) - np.eye(4)[y]) @ w.T / (64 if reduction == "mean" else 1)
    return [{"states": [h, h], "grads": [g, g], "logits": z, "labels": y}]


@pytest.mark.parametrize(("given", "said"), [("mean", "sum"), ("sum", "mean")])
def test_a_linear_readout_shows_whose_gradients_they_are(given, said):
    with pytest.raises(wb.InputError, match=f"show those of the {given}"):
        wb.diagnose_arrays(linear_readout(given), reduction=said)
    right = wb.diagnose_arrays(linear_readout(given), reduction=given)
    assert right.per_layer["g_norm"] == pytest.approx(
        wb.diagnose_arrays(linear_readout("sum"), reduction="sum").per_layer["g_norm"]
    )
