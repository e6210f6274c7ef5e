"""Every pitfall shows the wrong and the right number, and both are derived a second time in numpy float64."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import erf
from torch import Tensor, nn

import nets
import walkback as wb
from places import ROOT
from walkback import cli, pitfalls
from walkback.pitfalls import (
    p01_negative_norm,
    p02_cosine_epsilon,
    p03_half_precision,
    p04_fresh_feedback,
    p05_averaging_order,
    p06_one_layer,
    p08_two_passes,
    p09_unmatched_control,
    p10_training_mode,
    p11_renormalised,
    p12_missing_null,
    p13_batch_size,
    p14_sorted_batches,
    p15_off_by_one,
)
from walkback.pitfalls.trained import Trained, train

Array = np.ndarray


@pytest.fixture(scope="module")
def shown() -> dict[str, pitfalls.Pitfall]:
    return {p.name: p for p in pitfalls.run_all()}


# -- second derivations ------------------------------------------------------------------------------------------


def rows(t: Tensor) -> Array:
    return t.detach().double().numpy()


def cosines(a: Array, g: Array) -> Array:
    return np.sum(a * g, 1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(g, axis=1))


def gradients(net: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[list[Array], Array]:
    """g_0…g_L per sample in float64, without hooks or Tracer, and the error softmax − onehot."""
    net = copy.deepcopy(net).double().eval()
    x, y = (torch.cat(part) for part in zip(*batches))
    logits, hidden = net(x.double(), return_hidden=True)
    found = torch.autograd.grad(nn.functional.cross_entropy(logits, y, reduction="sum"), hidden)
    z = rows(logits)
    p = np.exp(z - z.max(1, keepdims=True))
    return [rows(g) for g in found], p / p.sum(1, keepdims=True) - np.eye(z.shape[1])[y.numpy()]


def dfa_cosines(run: Trained) -> list[float]:
    """Per site, from the saved B."""
    grads, error = gradients(run.net, run.batches)
    matrices = [rows(run.rule.get_buffer(f"B{site}")) for site in range(len(grads))]
    return [float(cosines(error @ b, g).mean()) for b, g in zip(matrices, grads)]


def accuracy(run: Trained) -> float:
    right = [np.argmax(rows(run.net(x)), 1) == y.numpy() for x, y in run.batches]
    return float(np.concatenate(right).mean())


# -- all of them ---------------------------------------------------------------------------------------------------


def test_they_are_numbered_with_a_page_each() -> None:
    assert [e.number for e in pitfalls.CATALOGUE] == list(range(1, len(pitfalls.CATALOGUE) + 1))
    assert len({e.name for e in pitfalls.CATALOGUE}) == len(pitfalls.CATALOGUE) >= 15
    files = {p.name for p in (ROOT / "src/walkback/pitfalls").glob("p[0-9]*.py")}
    assert files == {f"p{e.number:02}_{e.name.replace('-', '_')}.py" for e in pitfalls.CATALOGUE}
    for entry in pitfalls.CATALOGUE:
        assert (ROOT / entry.page).is_file(), entry.page


def test_what_the_catalogue_says_lint_finds_is_what_lint_finds() -> None:
    from walkback.pitfalls import DETECTORS

    assert {e.code for e in pitfalls.CATALOGUE if "lint" in e.detector} == set(DETECTORS)


def test_factors_are_wrong_over_right_and_every_pitfall_matters(shown: dict[str, pitfalls.Pitfall]) -> None:
    assert list(shown) == [e.name for e in pitfalls.CATALOGUE]
    for p in shown.values():
        assert p.factor == pytest.approx(p.wrong / p.right)
        assert not 0.75 < p.factor < 1.33, f"{p.name} shows no effect"
        assert p.explanation


def test_a_run_changes_nothing_of_the_process() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    assert pitfalls.run("two-passes") == pitfalls.run("two-passes")
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert pitfalls.run("two-passes", seed=1) != pitfalls.run("two-passes")


def test_an_unknown_pitfall_is_an_input_error() -> None:
    with pytest.raises(wb.InputError, match=r"by name, number or code, but got 'norms'. There are: negative-norm"):
        pitfalls.run("norms")


# -- one by one ----------------------------------------------------------------------------------------------------


def test_p01_is_the_harmonic_sum_of_everything(shown: dict[str, pitfalls.Pitfall]) -> None:
    h, p = rows(p01_negative_norm.states(0)), shown["negative-norm"]
    assert p.wrong == pytest.approx(1 / np.sum(1 / np.abs(h)), rel=1e-4)
    assert p.right == pytest.approx(np.mean(np.linalg.norm(h, axis=1)), rel=1e-6)


def test_p02_shrinks_by_the_norm_over_epsilon(shown: dict[str, pitfalls.Pitfall]) -> None:
    (a, g), p = map(rows, p02_cosine_epsilon.vectors(0)), shown["cosine-epsilon"]
    assert p.right == pytest.approx(cosines(a, g).mean(), rel=1e-9)
    held = np.sum(a * g, 1) / (
        np.linalg.norm(a, axis=1) * np.maximum(np.linalg.norm(g, axis=1), 1e-8)
    )  # walkback: ignore[P02]
    assert p.wrong == pytest.approx(held.mean(), rel=1e-4)
    assert p.factor == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_p02_measures_the_installed_epsilon(dtype: torch.dtype) -> None:
    """A second way: the smallest norm at which parallel vectors still have a cosine of 1."""
    norms = np.logspace(-10, -6, 401)
    unit = torch.eye(1, 8, dtype=dtype)
    said = [float(nn.functional.cosine_similarity(unit, float(n) * unit)) for n in norms]
    smallest = next(n for n, c in zip(norms, said) if c > 0.999)
    found = p02_cosine_epsilon.measured_epsilon(dtype)
    assert found.value == pytest.approx(smallest, rel=0.03)
    scaled = float(nn.functional.cosine_similarity(1e4 * unit, 1e-12 * unit))
    assert found.each_norm is (scaled < 1e-3)


def test_p03_is_zero_in_fp16_and_not_in_bf16(shown: dict[str, pitfalls.Pitfall]) -> None:
    g, p = p03_half_precision.gradient(0).numpy(), shown["half-precision"]
    assert p.right == pytest.approx(np.linalg.norm(g.astype(np.float64), axis=1).mean(), rel=1e-9)
    assert 1e-11 < p.right < 1e-9
    half = g.astype(np.float16)  # walkback: ignore[P03]
    assert p.wrong == np.linalg.norm(half.astype(np.float64), axis=1).mean() == 0.0
    cut = (g.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)  # bf16, rounded towards 0
    assert np.linalg.norm(cut, axis=1).mean() == pytest.approx(p.right, rel=0.01)


def test_p04_fresh_feedback_has_no_alignment(shown: dict[str, pitfalls.Pitfall]) -> None:
    run, p = p04_fresh_feedback.trained(0), shown["fresh-feedback"]
    assert p.right == pytest.approx(np.mean(dfa_cosines(run)[1:]), abs=1e-4)
    grads, error = gradients(run.net, run.batches)
    rng = np.random.default_rng(0)
    draws = [[cosines(error @ rng.normal(size=(8, 64)), g).mean() for g in grads[1:]] for _ in range(20)]
    fresh = [np.mean(draw) for draw in draws]
    noise = np.std(fresh, ddof=1)
    assert abs(p.wrong) < 4 * noise / math.sqrt(p04_fresh_feedback.DRAWS)
    assert p.right > 5 * noise


def test_p05_four_orders_are_four_numbers(shown: dict[str, pitfalls.Pitfall]) -> None:
    run, p = p05_averaging_order.trained(0), shown["averaging-order"]
    grads, _ = gradients(run.net, run.batches)
    credits = [grads[-1]]
    for site in reversed(range(len(grads) - 1)):
        credits.insert(0, credits[0] @ rows(run.rule.get_buffer(f"B{site}")))
    pairs = list(zip(credits, grads))[:-1]
    assert p.right == pytest.approx(np.mean([cosines(a, g).mean() for a, g in pairs]), abs=1e-4)
    a, g = (np.concatenate([part.ravel() for part in side]) for side in zip(*pairs))
    assert p.wrong == pytest.approx(nets.cos(a, g), abs=1e-4)
    assert 2 < p.right / p.wrong < 5


def test_p06_site_zero_carries_the_mean(shown: dict[str, pitfalls.Pitfall]) -> None:
    found, p = dfa_cosines(p06_one_layer.trained(0)), shown["one-layer"]
    assert p.wrong == pytest.approx(np.mean(found[:-1]), abs=1e-3)
    assert p.right == pytest.approx(np.mean(found[1:]), abs=1e-3)
    assert found[0] > 0.1 > 1.5 * max(abs(c) for c in found[1:])


def test_p07_compares_the_gradient_with_itself(shown: dict[str, pitfalls.Pitfall]) -> None:
    p = shown["lost-auxiliaries"]
    assert p.wrong == pytest.approx(1.0, abs=1e-12)
    assert p.right == pytest.approx(np.mean(dfa_cosines(p04_fresh_feedback.trained(0))[:-1]), abs=1e-4)


def test_p07_walkback_refuses_a_bundle_without_its_feedback() -> None:
    bundle = wb.load_bundle(ROOT / "src/walkback/bundles/dfa")
    with pytest.raises(wb.FormatError, match="Without them the credit can't be measured"):
        replace(bundle, auxiliaries={}).rule(bundle.model())


def test_p08_two_dropout_masks_are_two_gradients(shown: dict[str, pitfalls.Pitfall]) -> None:
    p, net = shown["two-passes"], p08_two_passes.with_dropout(0).train()
    x, y = wb.selftest.batches(1, 512, seed=1)[0]
    torch.manual_seed(0)
    first, second = (rows(p08_two_passes.gradients(net, x, y)) for _ in range(2))
    assert p.wrong == pytest.approx(cosines(first, second).mean(), rel=1e-9)
    assert p.wrong < 0.8
    assert p.right == pytest.approx(1.0, abs=1e-12)
    calm = net.eval()
    assert cosines(*(rows(p08_two_passes.gradients(calm, x, y)) for _ in range(2))).mean() == pytest.approx(1.0)


def test_p09_a_shorter_control_turns_the_verdict(shown: dict[str, pitfalls.Pitfall]) -> None:
    p = shown["unmatched-control"]
    runs = [train("dfa", epochs=6, seed=0), train("dfa", "frozen", epochs=6, seed=0)]
    runs += [train("dfa", "frozen", epochs=1, seed=0)]  # walkback: ignore[P09]
    ours, matched, short = map(accuracy, runs)
    assert p09_unmatched_control.accuracies(0) == pytest.approx((ours, matched, short))
    assert (p.wrong, p.right) == pytest.approx((100 * (ours - short), 100 * (ours - matched)))
    said = [wb.judge({"headline_acc": ours, "frozen_baseline_acc": c}).depth_used for c in (short, matched)]
    assert said == [True, False]


def numpy_stream(net: nn.Module, x: Array, keep: float, rng: np.random.Generator) -> Array:
    """h_L of a selftest network, written out, with dropout drawn by numpy."""
    w = {name: rows(p) for name, p in net.named_parameters()}
    h = x @ w["embed.weight"].T + w["embed.bias"]
    for i in range(len(net.blocks)):
        z = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-5)
        z = z * w[f"blocks.{i}.0.weight"] + w[f"blocks.{i}.0.bias"]
        z = z @ w[f"blocks.{i}.1.weight"].T + w[f"blocks.{i}.1.bias"]
        z = z * (1 + erf(z / math.sqrt(2))) / 2
        f = z @ w[f"blocks.{i}.3.weight"].T + w[f"blocks.{i}.3.bias"]
        h = h + f * (rng.random(f.shape) < keep) / keep
    return h


def test_p10_dropout_lengthens_the_stream(shown: dict[str, pitfalls.Pitfall]) -> None:
    p, net = shown["training-mode"], p10_training_mode.exploding_with_dropout(0)
    x, rng = rows(wb.selftest.batches(1, 1024, seed=1)[0][0]), np.random.default_rng(0)
    wet, dry = (np.linalg.norm(numpy_stream(net, x, keep, rng), axis=1).mean() for keep in (1 - p10_training_mode.P, 1))
    assert p.right == pytest.approx(dry, rel=1e-4)
    assert p.wrong == pytest.approx(wet, rel=0.05)
    assert p.wrong > 2 * p.right


def test_p11_every_normalised_norm_is_one(shown: dict[str, pitfalls.Pitfall]) -> None:
    p, norms = shown["renormalised"], [np.linalg.norm(rows(h), axis=1).mean() for h in p11_renormalised.stream(0)]
    assert p.wrong == pytest.approx(1.0, abs=1e-9)
    assert p.right == pytest.approx(max(b / a for a, b in pairwise(norms)), rel=1e-9)
    assert p.right > 100


def test_p12_the_penalty_takes_what_credit_was_blamed_for(shown: dict[str, pitfalls.Pitfall]) -> None:
    p = shown["missing-null"]
    runs = train("dfa", penalty=1.0, seed=0), train("bp", seed=0), train("bp", penalty=1.0, seed=0)
    dfa, bp, null = map(accuracy, runs)
    assert p12_missing_null.accuracies(0) == pytest.approx((dfa, bp, null))
    assert (p.wrong, p.right) == pytest.approx((100 * (bp - dfa), 100 * (null - dfa)))
    assert p.wrong > 20 > 5 > p.right


def test_p13_is_the_ratio_of_the_batches(shown: dict[str, pitfalls.Pitfall]) -> None:
    p = shown["batch-size"]
    grads, _ = gradients(wb.selftest.healthy(), wb.selftest.batches(1, 1024, seed=1))
    per_sample = np.linalg.norm(grads[-1], axis=1).mean()
    assert p.wrong == pytest.approx(per_sample / p13_batch_size.BATCH, rel=1e-4)
    assert p.right == pytest.approx(per_sample / p13_batch_size.PUBLISHED, rel=1e-4)


def test_p14_one_class_is_one_direction(shown: dict[str, pitfalls.Pitfall]) -> None:
    p, (x, y) = shown["sorted-batches"], p14_sorted_batches.samples(0)
    order = np.argsort(y.numpy(), kind="stable")  # walkback: ignore[P14]

    def stability(chosen: Array) -> float:
        grads, _ = gradients(wb.selftest.noisy(), [(x[chosen], y[chosen])])
        return nets.mean_pairwise(nets.groups(grads[-1]))

    assert p.wrong == pytest.approx(stability(order[:1024]), rel=1e-3)
    assert p.right == pytest.approx(stability(np.arange(1024)), abs=1e-3)
    assert p.wrong > 0.9 > 0.3 > abs(p.right)


def test_p15_ends_in_the_cosine_of_two_gradients(shown: dict[str, pitfalls.Pitfall]) -> None:
    p, run = shown["off-by-one"], p15_off_by_one.trained(0)
    grads, _ = gradients(run.net, run.batches)
    credits = [grads[-1]]
    for site in reversed(range(len(grads) - 1)):
        credits.insert(0, credits[0] @ rows(run.rule.get_buffer(f"B{site}")))
    right = [cosines(a, g).mean() for a, g in zip(credits[:-1], grads[:-1])]
    wrong = [cosines(credits[site + 1], grads[site]).mean() for site in range(len(grads) - 1)]
    assert p.wrong == pytest.approx(np.mean(wrong), abs=1e-4)
    assert p.right == pytest.approx(np.mean(right), abs=1e-4)
    assert wrong[-1] == cosines(grads[-1], grads[-2]).mean() > 0.9, "no feedback in it at all"
    assert p.wrong > 0.25 > 0.2 > p.right
    assert max(map(abs, right)) < 0.3
    m = run.measure()
    assert m.gamma == pytest.approx(p.right, abs=1e-6), "what Walkback measures is the right one"
    assert [m.cosine_below[site + 1] for site in range(4)] == pytest.approx(wrong, abs=1e-4)


def test_p15_needs_no_training() -> None:
    wrong, right = p15_off_by_one.pairings(train("fa", epochs=0, seed=0))
    assert wrong[-1] > 0.98
    assert max(map(abs, right)) < 0.15


# -- the command line ----------------------------------------------------------------------------------------------


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["pitfalls"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{e.code}  {e.name}" in printed and e.title in printed for e in pitfalls.CATALOGUE)
    assert cli.run(["pitfalls", "--json"]) == 0
    assert [p["name"] for p in json.loads(capsys.readouterr().out)["pitfalls"]] == [e.name for e in pitfalls.CATALOGUE]


def test_the_command_runs_all_in_one_table(
    shown: dict[str, pitfalls.Pitfall], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pitfalls, "run", lambda name, seed: shown[name])  # they ran once already
    assert cli.run(["pitfalls", "run", "all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 17
    assert lines[3].split()[:2] == ["2", "cosine-epsilon"]
    assert lines[3].endswith("÷100")
    assert cli.run(["pitfalls", "run", "all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pitfalls"] == [p.to_dict() for p in shown.values()]


def test_the_command_explains_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["pitfalls", "run", "P03"]) == 0
    printed = capsys.readouterr().out
    assert "lost" in printed
    assert "walkback pitfalls show P03" in printed


@pytest.mark.parametrize(("words", "said"), [(["run"], "but got none"), (["run", "norms"], "but got 'norms'")])
def test_a_wrong_call_is_exit_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["pitfalls", *words]) == 2
    assert said in capsys.readouterr().err


# -- the pages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", pitfalls.CATALOGUE, ids=lambda e: e.code)
def test_a_page_says_what_is_wrong_and_right_and_its_example_runs(entry: pitfalls.Entry) -> None:
    text = (ROOT / entry.page).read_text(encoding="utf-8")
    assert text.startswith(f"# {entry.code}: ")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["How to do it right", "How Walkback avoids it", "What lint finds"]
    assert ("Nothing: " in text) == ("lint" not in entry.detector)
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "assert" in example
    with torch.random.fork_rng(devices=[]):
        exec(compile(example, entry.page, "exec"), {"__name__": "docs"})


def test_the_index_lists_every_page_and_shows_what_is_printed(shown: dict[str, pitfalls.Pitfall]) -> None:
    text = (ROOT / "docs/pitfalls/index.md").read_text(encoding="utf-8")
    for e in pitfalls.CATALOGUE:
        assert f"| {e.code} | [{e.title}]({Path(e.page).name}) | {e.detector} |" in text
    (printed,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    ours = pitfalls.table(list(shown.values())).splitlines()
    # Last digits of trained networks may differ between machines; names and quantities may not.
    words = [re.sub(r"[-+×÷]?\d[\d.e+-]*|, and the sign changes|\s+|-{2,}", "", line) for line in printed.splitlines()]
    assert words == [re.sub(r"[-+×÷]?\d[\d.e+-]*|, and the sign changes|\s+|-{2,}", "", line) for line in ours]


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in (ROOT / "docs/pitfalls").glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
