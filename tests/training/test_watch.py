"""A watch inside a loop: what it measures, how often, what it says first, and that nobody notices it was there."""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import walkback as wb
from patience import PATIENCE
from places import HELPERS
from walkback import cli
from walkback.training.watch import Fired, Watch, scalars
from walkback.training.watch.gauge import moved
from walkback.training.watch.schedule import UNHEARD, Schedule

BATCHES = wb.selftest.batches(3, size=64)
DATA = wb.selftest.batches(6, size=16, seed=5)


class Net(nn.Module):
    """Dropout draws and batch norm counts while it trains: a forward pass too many would show."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 12)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 12), nn.GELU(), nn.Dropout(0.2), nn.Linear(12, 12))
            for _ in range(3)
        )
        self.out_ln, self.out_head = nn.LayerNorm(12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


def fresh() -> Net:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return Net().train()


def norms_by_hand(net: nn.Module) -> tuple[list[float], list[float]]:
    """‖h_l‖ and ‖g_l‖ of a copy in eval mode, one sample at a time: nothing of walkback is used."""
    net = copy.deepcopy(net).float().eval()
    h_sum, g_sum, n = np.zeros(4), np.zeros(4), 0
    for x, y in BATCHES:
        h = [net.embed(x)]
        for block in net.blocks:
            h.append(h[-1] + block(h[-1]))
        loss = nn.functional.cross_entropy(net.out_head(net.out_ln(h[-1])), y, reduction="sum")
        g = torch.autograd.grad(loss, h)
        h_sum += [float(v.detach().double().norm(dim=1).sum()) for v in h]
        g_sum += [float(v.double().norm(dim=1).sum()) for v in g]
        n += len(x)
    return list(h_sum / n), list(g_sum / n / 128)


def state(net: nn.Module, optimiser: torch.optim.Optimizer) -> list[Tensor]:
    """Everything that training leaves: weights, buffers, gradients, optimiser, and the three random states."""
    grads = [torch.zeros(()) if p.grad is None else p.grad.clone() for p in net.parameters()]
    moments = [v.clone() for s in optimiser.state.values() for v in s.values()]
    draws = [torch.get_rng_state(), torch.tensor(np.random.get_state()[1].astype(np.int64))]
    python = torch.tensor(random.getstate()[1])
    return [*(t.clone() for t in net.state_dict().values()), *grads, *moments, *draws, python]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(u, v) for u, v in zip(a, b))


# -- loops as people write them ------------------------------------------------------------------------------------


def plain(net, optimiser, watch):
    for x, y in DATA:
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
        watch.step()


def accumulated(net, optimiser, watch):
    for i, (x, y) in enumerate(DATA):
        (nn.functional.cross_entropy(net(x), y) / 2).backward()
        if i % 2:
            optimiser.step()
            optimiser.zero_grad()
        watch.step()  # also where half of a gradient is waiting


def clipped(net, optimiser, watch):
    for x, y in DATA:
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        watch.step()
        optimiser.step()


def scaled(net, optimiser, watch):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for x, y in DATA:
        optimiser.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        watch.step()  # while `.grad` is 4096 times too large
        scaler.step(optimiser)
        scaler.update()


def averaged(net, optimiser, watch):
    ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for x, y in DATA:
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
        ema.update_parameters(net)
        watch.step()
    net.average = [p.detach().clone() for p in ema.module.parameters()]


LOOPS = {"plain": plain, "accumulated": accumulated, "clipped": clipped, "scaled": scaled, "averaged": averaged}


class Nobody:
    """Training without a watch."""

    def __init__(self, *args, **kwargs):
        self.seen = []

    def step(self):
        pass


class Checked(Nobody):
    """A watch whose every row is compared with a slow second derivation, and with what was there before."""

    def __init__(self, net, optimiser):
        super().__init__()
        self.net, self.optimiser = net, optimiser
        self.watch = Watch(net, BATCHES, every=1, credit=lambda trace: [torch.randn_like(h) for h in trace.states])

    def step(self):
        before = state(self.net, self.optimiser)
        hand = norms_by_hand(self.net)
        row = self.watch.step()
        assert row is not None
        assert same(before, state(self.net, self.optimiser))
        assert self.net.training
        assert row["per_layer"]["h_norm"] == pytest.approx(hand[0], rel=1e-5)
        assert row["per_layer"]["g_norm"] == pytest.approx(hand[1], rel=1e-4)


@pytest.mark.parametrize("loop", LOOPS)
def test_training_is_bit_identical_to_never_having_had_a_watch(loop):
    ends = []
    for watcher in (Nobody, Checked):
        net = fresh()
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
        watch = watcher(net, optimiser)
        LOOPS[loop](net, optimiser, watch)
        ends.append([*state(net, optimiser), *getattr(net, "average", [])])
    assert same(*ends)
    assert [row["step"] for row in watch.watch.history] == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]


def test_the_comparison_would_see_one_forward_pass_too_many():
    ends = []
    for extra in (False, True):
        net = fresh()
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
        if extra:
            net(BATCHES[0][0])
        plain(net, optimiser, Nobody())
        ends.append(state(net, optimiser))
    assert not same(*ends)


def test_under_autocast_the_networks_own_precision_is_recorded():
    net = fresh()
    watch = Watch(net, BATCHES, every=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = watch.step()
    assert inside is not None
    assert inside["conditions"]["autocast"] is True
    assert watch.measure()["conditions"]["autocast"] is False


def test_an_averaged_network_is_watched_by_its_own_weights():
    net = fresh()
    ema = torch.optim.swa_utils.AveragedModel(net)
    with torch.no_grad():
        net.embed.weight.mul_(100.0)
    h, g = norms_by_hand(ema.module)
    row = Watch(ema.module, BATCHES).measure()
    assert row["per_layer"]["h_norm"] == pytest.approx(h, rel=1e-5)
    assert row["per_layer"]["g_norm"] == pytest.approx(g, rel=1e-4)
    assert Watch(net, BATCHES).measure()["per_layer"]["h_norm"][0] > 50 * h[0]


@pytest.mark.parametrize("when", ["first", "later"])
def test_a_measurement_that_raises_leaves_training_as_it_was(when):
    ends = []
    for raises in (False, True):
        net = fresh()
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
        calls = []

        def credit(trace, calls=calls, net=net):
            calls.append(trace.index)
            if len(calls) > (1 if when == "first" else 5):
                torch.randn(3)
                net.blocks[0].train()
                next(net.parameters()).grad = torch.ones_like(next(net.parameters()))
                raise RuntimeError("in the middle")
            return trace.grads

        watch = Watch(net, BATCHES, every=1, credit=credit) if raises else None
        for x, y in DATA:
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
            if watch is not None and len(watch.history) < (0 if when == "first" else 1):
                watch.step()
            elif watch is not None:
                with pytest.raises(RuntimeError, match="in the middle"):
                    watch.step()
        ends.append(state(net, optimiser))
    assert same(*ends)


def test_a_loader_draws_nothing_from_the_random_state():
    loader = torch.utils.data.DataLoader(
        [(x, y) for xs, ys in BATCHES for x, y in zip(xs, ys)], batch_size=64, shuffle=True
    )
    ends = []
    for batches in (None, loader, iter(loader)):
        net = fresh()
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
        plain(net, optimiser, Nobody() if batches is None else Watch(net, batches, every=2))
        ends.append(state(net, optimiser))
    assert same(ends[0], ends[1])
    assert same(ends[0], ends[2])


def test_a_generator_serves_every_measurement():
    watch = Watch(fresh(), (batch for batch in BATCHES), every=1)
    rows = [watch.step() for _ in range(3)]
    assert len({row["conditions"]["probe_hash"] for row in rows if row}) == 1
    assert [row["conditions"]["samples"] for row in rows if row] == [192] * 3


def test_batches_are_moved_to_the_models_device_whatever_holds_them():
    batch = {"x": torch.ones(2), "mask": [torch.ones(2), None]}, torch.zeros(2)
    inputs, labels = moved(batch, torch.device("meta"))
    assert inputs["x"].device.type == inputs["mask"][0].device.type == labels.device.type == "meta"
    assert inputs["mask"][1] is None


# -- how often -----------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def positions(watch: Watch) -> list[tuple[int, int]]:
    return [(row["epoch"], row["step"]) for row in watch.history]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("epoch", [(1, 4), (2, 8), (3, 12), (4, 16)]),
        ("2 epochs", [(2, 8), (4, 16)]),
        (5, [(1, 5), (2, 10), (3, 15)]),
        ("8 steps", [(1, 8), (3, 16)]),
    ],
)
def test_fixed_cadences(every, expected):
    watch = Watch(fresh(), BATCHES[:1], every)
    for _ in range(4):
        for _ in range(4):
            watch.step()
        watch.epoch()
    assert positions(watch) == expected


def test_counts_may_be_given_and_may_jump():
    watch = Watch(fresh(), BATCHES[:1], 10)
    for step in (98, 99, 102, 108, 130):
        watch.step(step)
    assert positions(watch) == [(0, 98), (0, 102), (0, 130)]


class Clock:
    """Time that passes only where the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now


class Slow(list):
    """Batches that take `cost` seconds in all."""

    def __init__(self, clock: Clock, cost: float) -> None:
        super().__init__(BATCHES)
        self.clock, self.cost = clock, cost

    def __iter__(self):
        for batch in super().__iter__():
            self.clock.now += self.cost / len(self)
            yield batch


@pytest.mark.parametrize(("limit", "given"), [(0.02, {}), (0.10, {"max_overhead": 0.10})])
def test_the_adaptive_cadence_keeps_to_its_share_and_uses_it(limit, given):
    clock = Clock()
    watch = Watch(fresh(), Slow(clock, 1.2), "auto", clock=clock, **given)
    shares = []
    for _ in range(4000):
        clock.now += 0.25
        row = watch.step()
        if row is not None:
            assert row["overhead"] <= limit
            assert row["overhead"] == pytest.approx(watch.overhead)
            shares.append(row["overhead"])
    spent = 0.8 + 1.2 * len(shares)  # one batch of three, twice, at the start
    assert clock.now == pytest.approx(4000 * 0.25 + spent)
    assert watch.overhead == pytest.approx(spent / clock.now)
    assert 0.8 * limit < watch.overhead <= limit
    assert clock.reads < 1500, "the clock is not asked at every step"
    assert f"measuring took {watch.overhead:.1%} of the time" in str(watch)


def test_what_was_saved_is_not_spent_on_many_measurements_in_a_row():
    clock = Clock()
    batches = Slow(clock, 6.0)
    watch = Watch(fresh(), batches, "auto", clock=clock)
    for step in range(4000):
        batches.cost = 0.6 if step < 2500 else 0.3  # both cheaper than it seemed before
        clock.now += 0.25
        watch.step()
    gaps = np.diff([row["step"] for row in watch.history])
    assert len(gaps) > 10
    assert gaps.min() >= 0.9 * 0.3 / 0.02 / 0.25
    assert watch.overhead <= 0.02


def test_where_measuring_becomes_dearer_it_becomes_rarer():
    clock = Clock()
    batches = Slow(clock, 0.3)
    watch = Watch(fresh(), batches, "auto", clock=clock)
    for step in range(6000):
        batches.cost = 0.3 if step < 3000 else 3.0
        clock.now += 0.25
        watch.step()
    at = [step for _, step in positions(watch)]
    early, late = [s for s in at if s <= 3000], [s for s in at if s > 3000]
    assert len(early) > 5 * len(late) > 0
    assert watch.overhead <= 0.025, "one measurement may come as a surprise, the next does not"


def test_a_fixed_cadence_is_kept_whatever_it_costs_unless_a_limit_is_given():
    for given, expected in (({}, 30), ({"max_overhead": 0.05}, 3)):
        clock = Clock()
        watch = Watch(fresh(), Slow(clock, 6.0), "epoch", clock=clock, **given)
        for _ in range(30):
            clock.now += 15.0
            watch.epoch()
        assert len(watch.history) == expected
        assert (watch.overhead <= 0.05) == bool(given)


def test_auto_with_epochs_alone():
    clock = Clock()
    watch = Watch(fresh(), Slow(clock, 3.0), "auto", clock=clock)
    for _ in range(20):
        clock.now += 60.0
        watch.epoch()
    assert watch.overhead <= 0.02
    assert 0 < len(watch.history) < 20


def test_a_schedule_needs_neither_a_clock_nor_a_network():
    """The budget in closed form: the k-th measurement of c seconds is affordable from k·c/share − c on."""
    share, cost, now, at = 0.1, 2.0, 0.0, []
    schedule = Schedule("auto", share=share, cost=cost)
    for _ in range(300):
        now += 0.5
        if schedule.step():
            due, schedule.look = schedule.affordable(now)
            if due:
                at.append(now)
                now += cost
                schedule.spent, schedule.last = schedule.spent + cost, now
    assert at == [k * cost / share - cost for k in range(1, len(at) + 1)]
    assert len(at) == 8
    assert schedule.overhead(now) == 8 * cost / now < share


def test_a_state_makes_another_schedule_the_same_whatever_the_time():
    first = Schedule.of("auto", 0.05, now=100.0)
    first.cost = 1.0
    for _ in range(7):
        first.step()
    first.epoch()
    second = Schedule.of("auto", 0.05, now=0.0)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(130.0))), 7.0)
    assert (second.steps, second.epochs, second.calls) == (7, 1, {"steps": 7, "epochs": 1})
    for later in (0.0, 3.0, 20.0):
        assert second.affordable(7.0 + later) == first.affordable(130.0 + later)


@pytest.mark.parametrize(("every", "called", "needed"), [("epoch", "step", "epoch"), (5, "epoch", "step")])
def test_a_watch_that_never_hears_what_it_measures_at_says_so_once(every, called, needed):
    words = rf"measures when {needed}\(\) is called, but it was never called in 3 calls of {called}\(\)"
    for end in ("finish", "gone"):
        watch = Watch(fresh(), BATCHES[:1], every)
        for _ in range(3):
            getattr(watch, called)()
        assert re.search(words, str(watch))
        with pytest.raises(wb.InputError, match=words):
            watch.report()
        with pytest.warns(UserWarning, match=words) as heard:  # noqa: PT031
            if end == "finish":
                watch.finish()
            del watch
            gc.collect()
        assert len(heard) == 1


@pytest.mark.parametrize(("every", "epochs", "told"), [("epoch", 0, 1), ("epoch", 1, 0), ("5000 steps", 0, 0)])
def test_steps_that_measure_nothing_are_told_while_they_are_taken(capsys, every, epochs, told):
    schedule = Schedule.of(every)
    for _ in range(epochs):
        schedule.epoch()
    for _ in range(UNHEARD + 5):
        schedule.step()
    err = " ".join(capsys.readouterr().err.split())
    words = 'note: 1,000 steps, and nothing measured yet: every="epoch" measures when epoch() is called, but it was'
    assert err.count(words) == told
    assert bool(err) is bool(told)


@pytest.mark.parametrize("every", ["epoch", "4 steps", "auto"])
def test_a_watch_that_hears_what_it_needs_is_quiet(every):
    watch = Watch(fresh(), BATCHES[:1], every)
    assert "never called" not in str(watch)
    watch.step()
    watch.epoch()
    assert "never called" not in str(watch)
    watch.finish()
    del watch
    gc.collect()


def test_a_watch_goes_on_from_a_state(tmp_path):
    """A loop of one's own: stopped after 5 of 9 steps, with a number that waits for the next row."""

    def steps(watch, numbers):
        for n in numbers:
            scale(watch.model.blocks[1], 3e3 if n == 4 else 1.0)
            watch.step(acc=0.1 * n)

    whole = Watch(wb.selftest.network(depth=3), BATCHES[:1], 3)
    steps(whole, range(1, 10))
    first = Watch(wb.selftest.network(depth=3), BATCHES[:1], 3)
    steps(first, range(1, 6))
    state = json.loads(json.dumps(first.state_dict()))
    second = Watch(first.model, BATCHES[:1], 3, log=tmp_path / "log.jsonl")
    second.load_state_dict(state)
    steps(second, range(6, 10))
    told = ("epoch", "step", "acc", "per_layer", "values", "flagged", "walked_back")
    assert [[row[k] for k in told] for row in second.history] == [[row[k] for k in told] for row in whole.history]
    assert second.fired == whole.fired != ()
    assert [row["step"] for row in lines_of(tmp_path / "log.jsonl")] == [6, 9]
    with pytest.raises(wb.InputError, match="to be the history of this network"):
        Watch(wb.selftest.network(depth=2), BATCHES[:1]).load_state_dict(state)
    with pytest.raises(wb.InputError, match=r"Expected a state that Watch\.state_dict\(\) returned, but got"):
        second.load_state_dict({"rows": []})


# -- what is said first --------------------------------------------------------------------------------------------


def scale(block: nn.Module, factor: float) -> None:
    with torch.no_grad():
        for p in list(block.children())[-1].parameters():
            p.mul_(factor)


def losing(watch_options=None, **more) -> Watch:
    """Trust goes in two steps: block 2 explodes at step 3, and at step 5 the stream is so large that g_L is gone."""
    net = wb.selftest.network(depth=3)
    watch = Watch(net, wb.selftest.batches(2), every=1, **more)
    for step in range(1, 7):
        if step == 3:
            scale(net.blocks[1], 3e3)
        if step == 5:
            scale(net.blocks[1], 1e4)
        watch.step(acc=0.1 * step)
        if step == 2:
            assert watch.fired == ()
            assert not watch.should_stop
    return watch


def test_fired_names_check_step_and_layer():
    watch = losing()
    assert [(f.check, f.step, f.layer) for f in watch.fired] == [("D1", 3, 2), ("D2", 5, 3)]
    first = watch.fired[0]
    assert first.value == watch.history[2]["values"]["growth"] > 50
    assert str(first).startswith("D1 fired at step 3, layer 2: ")
    assert str(first).endswith(" > 50")
    assert watch.should_stop


def test_trust_is_lost_when_the_edition_says_so():
    assert [row["walked_back"] for row in losing().history] == [False] * 4 + [True] * 2
    four = losing(edition="four-diagnostic")
    assert [row["walked_back"] for row in four.history] == [False] * 2 + [True] * 4
    assert [f.check for f in four.fired] == ["a", "b"]
    patient = losing(thresholds=wb.DiagnosticThresholds(h_norm_explosion_ratio=1e12, g_norm_floor=1e-20))
    assert patient.fired == ()
    assert not patient.should_stop


def test_a_network_that_is_trusted_fires_nothing():
    watch = Watch(wb.selftest.healthy(), wb.selftest.batches(2), every=1)
    watch.step()
    assert (watch.fired, watch.should_stop) == ((), False)
    assert "no check has fired" in str(watch)


def test_what_is_not_finite_names_its_site():
    net = wb.selftest.network(depth=3)
    watch = Watch(net, wb.selftest.batches(2))
    with torch.no_grad():
        list(net.blocks[1].children())[-1].bias.fill_(float("nan"))
    watch.epoch()
    assert [(f.check, f.layer) for f in watch.fired] == [("D1", 2), ("D2", 0)]
    assert "state not finite at site 2" in str(watch.fired[0])
    assert wb.judge(list(watch.history)).failed == ("D1", "D2")
    json.loads(json.dumps(watch.history[0], allow_nan=False))


def test_the_intrinsic_edition_measures_what_it_judges():
    """Far under the published floor and exact: nothing fires. A reference that float32 loses: D2, at once."""
    exploded, absorbing = (
        Watch(net, wb.selftest.batches(2), edition="intrinsic")
        for net in (wb.selftest.exploded(), wb.selftest.absorbing())
    )
    for watch in (exploded, absorbing):
        watch.epoch()
    assert not any(f.check == "D2" for f in exploded.fired)
    assert exploded.history[-1]["per_layer"]["float64_disagreement"][-1] < 1e-6
    assert [f.check for f in absorbing.fired if f.check == "D2"] == ["D2"]
    assert absorbing.should_stop


def test_the_same_numbers_as_diagnose():
    net, batches = wb.selftest.healthy(), wb.selftest.batches(4)
    watch = Watch(net, batches, credit=lambda trace: trace.grads)
    watch.epoch(acc=0.6)
    ours, theirs = watch.report(frozen_baseline_acc=0.3), wb.diagnose(net, batches, 0.6, 0.3, lambda t: t.grads)
    assert ours.values == theirs.values
    assert ours.per_layer == theirs.per_layer
    assert (ours.verdict, ours.notes) == (theirs.verdict, theirs.notes)
    assert "512 samples in 4 batches, eval mode, float32 on cpu" in ours.details()


def test_a_rule_gives_cosines():
    net = wb.selftest.network(depth=2)
    rule = wb.rules.make("dfa")
    wb.rules.rule.set_up(rule, net, torch.randn(2, 16), 10, torch.Generator().manual_seed(0))
    watch = Watch(net, wb.selftest.batches(2), every=1, credit=rule)
    row = watch.step()
    assert row is not None
    assert row["per_layer"]["cosine"] == wb.measure(net, wb.selftest.batches(2), credit=rule).cosine
    assert {"Γ", "deep cos"} <= set(str(watch.history).split("\n")[0].replace("deep cos", "deep_cos").split()) | {
        "deep cos"
    }
    assert "walkback/cosine/1" in scalars(row)


# -- what is kept --------------------------------------------------------------------------------------------------


def test_the_table():
    lines = str(losing().history).splitlines()
    assert lines[0].split() == ["step", "acc", "‖h_0‖", "‖h_L‖", "growth", "‖g_L‖", "flagged"]
    assert len(lines) == 7
    assert lines[2].split()[:2] == ["2", "0.2"]
    assert lines[3].split()[-1] == "D1"
    assert lines[6].split()[-2:] == ["D1", "D2"]
    assert str(wb.Watch(wb.selftest.healthy(), BATCHES).history) == "nothing measured yet"


def test_numbers_wait_for_the_next_row():
    watch = Watch(fresh(), BATCHES[:1], 2)
    watch.step(loss=3.0)
    watch.epoch(acc=torch.tensor(0.5))
    row = watch.step(loss=2.0)
    assert row is not None
    assert (row["loss"], row["acc"]) == (2.0, 0.5)
    row = watch.measure()
    assert "loss" not in row


def test_live_rows_come_as_they_are_measured(capsys):
    watch = Watch(wb.selftest.exploded(), BATCHES, every=1, live=True)
    assert capsys.readouterr().err == ""
    watch.step(acc=0.5)
    first = capsys.readouterr().err.splitlines()
    assert first[0].split() == ["step", "acc", "‖h_0‖", "‖h_L‖", "growth", "‖g_L‖", "flagged"]
    assert first[1].split()[:2] == ["1", "0.5"]
    assert first[1].endswith("D1 D2")
    watch.step(acc=0.6)
    assert len(capsys.readouterr().err.splitlines()) == 1
    Watch(wb.selftest.healthy(), BATCHES).measure()
    assert capsys.readouterr().err == ""


def test_every_row_is_on_disk_when_the_process_dies(tmp_path):
    code = (
        "import os, walkback as wb\n"
        "watch = wb.Watch(wb.selftest.exploded(), wb.selftest.batches(2), every=1, log='runs/history.jsonl')\n"
        "for step in range(3): watch.step()\n"
        "os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, timeout=PATIENCE)
    assert done.returncode == 9
    assert [row["step"] for row in lines_of(tmp_path / "runs/history.jsonl")] == [1, 2, 3]


def test_a_history_is_continued_and_half_a_line_is_cut(tmp_path):
    path = tmp_path / "history.jsonl"
    net = wb.selftest.network(depth=3, gain=200.0)
    first = Watch(net, BATCHES, every=10, log=path)
    for step in (10, 20, 30):
        first.step(step)
    with path.open("ab") as file:
        file.write(b'{"schema": "walkback.w')
    again = Watch(wb.selftest.network(depth=3), BATCHES, every=10, log=path)
    assert path.read_bytes().endswith(b"}\n")
    assert [row["step"] for row in again.history] == [10, 20, 30]
    again.step(20)  # resumed from a checkpoint before the last rows: these are measured anew
    again.step(40)
    assert [row["step"] for row in again.history] == [10, 20, 40]
    assert [(f.check, f.step) for f in again.fired] == [("D1", 10), ("D2", 10)]
    assert [row["step"] for row in lines_of(path)] == [10, 20, 30, 20, 40]
    replayed = wb.judge(path)
    assert (replayed.run["epochs"], replayed.run["fired"], replayed.failed) == (3, {"D1": 10, "D2": 10}, ())
    assert [row["step"] for row in Watch(net, BATCHES, log=path).history] == [10, 20, 40]


def test_a_plain_loop_that_is_resumed_counts_on(tmp_path):
    path, net = tmp_path / "res.jsonl", fresh()
    for _ in range(2):
        watch = Watch(net, BATCHES, every=1, log=path)
        for _ in range(3):
            watch.step()
        watch.epoch()
    assert positions(watch) == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6)]
    assert [row["step"] for row in lines_of(path)] == [1, 2, 3, 4, 5, 6]
    path = tmp_path / "epochs.jsonl"
    for _ in range(2):
        watch = Watch(net, BATCHES, log=path)
        for _ in range(2):
            watch.epoch()
    assert positions(watch) == [(1, 0), (2, 0), (3, 0), (4, 0)]


def test_the_log_of_another_network_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "log.jsonl"
    Watch(wb.selftest.network(depth=3), BATCHES, log=path).epoch()
    path.write_bytes(before := path.read_bytes() + b'{"schema')
    for other in (wb.selftest.network(depth=2), fresh()):  # other sites; other widths
        with pytest.raises(wb.InputError, match=r"to be the history of this network, .*sites\. Give log another name"):
            Watch(other, BATCHES, log=path)
        assert path.read_bytes() == before


@pytest.mark.parametrize("end", ["", "\n", "\n\0\0"])
@pytest.mark.parametrize("rows", [0, 2])
def test_a_torn_end_is_repaired(tmp_path, capsys, rows, end):
    path, net = tmp_path / "log.jsonl", fresh()
    watch = Watch(net, BATCHES, every=1, log=path)
    for _ in range(3):
        watch.step()
    whole = path.read_bytes().splitlines(keepends=True)
    for cut in (5, 60, len(whole[rows]) - 2):
        path.write_bytes(b"".join(whole[:rows]) + whole[rows][:cut] + end.encode())
        again = Watch(net, BATCHES, every=1, log=path)
        assert "log.jsonl ended in half a line" in capsys.readouterr().err
        again.step()
        assert [row["step"] for row in lines_of(path)] == list(range(1, rows + 2))
    path.write_bytes(b"".join(whole).rstrip())  # only the newline is missing: the row is whole
    assert [row["step"] for row in Watch(net, BATCHES, log=path).history] == [1, 2, 3]
    assert path.read_bytes() == b"".join(whole)
    path.write_bytes(broken := whole[0] + whole[1][:60] + b"\n" + whole[2])
    with pytest.raises(wb.FormatError, match="line 2"):
        Watch(net, BATCHES, log=path)
    assert path.read_bytes() == broken


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: row.pop("conditions"), "conditions: Field required"),
        (lambda row: row["conditions"].pop("state_shapes"), r"conditions\.state_shapes: Field required"),
        (lambda row: row.update(per_layer=5), "per_layer: "),
        (lambda row: row.update(flagged=None), "flagged: "),
        (lambda row: row.update(step="3"), "step: "),
        (lambda row: row["per_layer"].update(h_norm=[1.0, "x"]), r"per_layer\.h_norm\.1: "),
        (lambda row: row.update(mine={"a": 1}), "'mine' in row 1 of .* to be a number"),
    ],
)
def test_a_history_whose_rows_are_damaged_is_not_gone_on_with(change, words, tmp_path):
    log = tmp_path / "log.jsonl"
    watch = Watch(wb.selftest.healthy(), wb.selftest.batches(2), every=1, log=log)
    watch.step()
    row = json.loads(log.read_text())
    change(row)
    log.write_text(json.dumps(row) + "\n")
    with pytest.raises(wb.FormatError, match=words):
        Watch(wb.selftest.healthy(), wb.selftest.batches(2), every=1, log=log)


def test_a_row_that_does_not_fit_on_the_disk_leaves_no_half_line(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    watch = Watch(fresh(), BATCHES[:1], every=1, log=path)
    watch.step()
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(wb.FormatError, match="No space left on device"):
        watch.step()
    assert path.read_bytes() == before


def test_a_late_number_goes_into_the_last_row_and_is_read_back_once(tmp_path):
    path, seen = tmp_path / "log.jsonl", []
    watch = Watch(fresh(), BATCHES[:1], every=2, log=path, to=[seen.append])
    for _ in range(5):
        watch.step()
    assert watch.amend(since=4, acc=0.5) is None
    assert "acc" not in watch.history[-1]
    row = watch.amend(since=3, acc=0.25)
    assert row is watch.history[-1] is seen[-1]
    assert (row["acc"], row["step"], len(watch.history)) == (0.25, 4, 2)
    assert scalars(row)["walkback/acc"] == 0.25
    assert wb.judge(path).headline_acc == 0.25
    assert wb.judge(path).run["epochs"] == 2
    last = watch.finish(acc=0.3)
    assert last is not None
    assert (last["step"], last["acc"]) == (5, 0.3)
    assert watch.finish() is None


def test_the_last_step_is_measured_where_as_many_epochs_were():
    watch = Watch(fresh(), BATCHES[:1], every="epoch")
    assert watch.epoch() is not None
    assert watch.step(1) is None
    last = watch.finish()
    assert last is not None
    assert (last["epoch"], last["step"], len(watch.history)) == (1, 1, 2)
    assert watch.finish() is None


def test_an_epoch_that_ends_after_the_last_step_was_measured_is_not_measured_again():
    watch = Watch(fresh(), BATCHES[:1], every=2)
    watch.step()
    assert watch.step() is not None
    watch.epoch()
    assert watch.finish() is None


def test_a_check_that_fired_is_not_yet_trust_that_was_lost():
    net = wb.selftest.network(depth=3)
    watch = Watch(net, wb.selftest.batches(2), every=1)
    assert watch.lost is None
    scale(net.blocks[1], 3e3)
    watch.step()
    assert ([f.check for f in watch.fired], watch.lost, watch.should_stop) == (["D1"], None, False)
    assert "trust is not lost" in str(watch)
    scale(net.blocks[1], 1e4)
    watch.step()
    assert watch.lost is not None
    assert (watch.lost.checks, watch.lost.step, watch.should_stop) == (("D1", "D2"), 2, True)
    scale(net.blocks[1], 1 / 3e7)
    row = watch.step()
    assert row is not None
    assert not row["walked_back"]
    assert watch.should_stop
    assert "trust lost at step 2: D1, D2" in str(watch)


def test_chunk_and_reference_are_those_of_measure():
    net = fresh()
    row = Watch(net, BATCHES, chunk=16, reference="derived").measure()
    assert row["conditions"]["chunk"] == 16
    assert row["conditions"]["reference"] == wb.measure(net, BATCHES, reference="derived").conditions["reference"]
    assert row["per_layer"]["g_norm"] == pytest.approx(norms_by_hand(net)[1], rel=1e-4)
    with pytest.raises(wb.InputError, match="Expected chunk"):
        Watch(net, BATCHES, chunk=0)
    with pytest.raises(wb.InputError, match="Expected reference to be"):
        Watch(net, BATCHES, reference="other")


def test_advisories_are_shown_once(capsys):
    batch = BATCHES[0][0], torch.zeros_like(BATCHES[0][1])  # one class
    watch = Watch(fresh(), [batch, batch], every=1, live=True)
    watch.step()
    watch.step()
    notes = watch.history[-1]["advisories"]
    assert notes == [note["text"] for note in watch.history[-1]["notes"]]
    assert {note["code"] for note in watch.history[-1]["notes"]} >= {"one-class", "repeated-samples"}
    err = capsys.readouterr().err
    for text in notes:
        assert err.count(f"note: {text}") == str(watch).count(f"note: {text}") == 1


# -- replay --------------------------------------------------------------------------------------------------------


def test_judge_replays_what_the_watch_said(tmp_path, capsys):
    path = tmp_path / "history.jsonl"
    watch = losing(log=path, total_steps=20)
    report = wb.judge(path)
    assert report.run["fired"] == {f.check: f.step for f in watch.fired} == {"D1": 3, "D2": 5}
    assert report.run["layer"] == {f.check: f.layer for f in watch.fired}
    assert (report.run["unit"], report.run["total"]) == ("step", 20)
    assert report.run["left"] == {"D1": 17, "D2": 15}
    assert report.headline_acc == pytest.approx(0.6)
    assert cli.run(["judge", str(path), "--frozen-acc", "0.3"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "first flagged: D1 at step 3 in layer 2 (85% left), D2 at step 5 in layer 3 (75% left); 20 steps" in out
    assert "trust lost at step 5: 15 of 20 steps were left, 75% of the compute" in out


def test_judge_replays_the_trajectory_of_a_run(capsys):
    bundles = Path(wb.__file__).parent / "bundles"
    report = wb.judge(bundles / "dfa" / "trajectory.jsonl")
    rows = lines_of(bundles / "dfa" / "trajectory.jsonl")
    first = next(r["epoch"] for r in rows if r["values"]["growth"] > 50 and r["per_layer"]["g_norm"][-1] < 1e-7)
    total = rows[-1]["epoch"]
    assert (report.run["lost"], report.run["lost_left"], report.run["total"]) == (first, total - first, total)
    healthy = wb.judge(bundles / "bp" / "trajectory.jsonl")
    assert (healthy.run["lost"], healthy.run["fired"]) == (None, {"D1": None, "D2": None})
    assert "trust lost" not in str(healthy)
    assert cli.run(["judge", str(bundles / "dfa" / "trajectory.jsonl")]) == 1
    assert f"trust lost at epoch {first}: {total - first} of {total} epochs were left" in capsys.readouterr().out


def test_a_trajectory_that_ends_in_nan_fires():
    rows = [
        {"epoch": 1, "per_layer": {"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-3]}},
        {
            "epoch": 2,
            "per_layer": {"h_norm": [1.0, None], "g_norm": [None, None]},
            "reasons": {"h_norm": "state not finite at site 1, first in batch 0", "g_norm": "gradient not finite at "
                        "site 0, first in batch 0; gradient not finite at site 1, first in batch 0"},
        },
    ]  # fmt: skip
    report = wb.judge(rows)
    assert report.failed == ("D1", "D2")
    assert (report.run["fired"], report.run["layer"]) == ({"D1": 2, "D2": 2}, {"D1": 1, "D2": 0})
    # As rows say it since it is data, and the words beside it are for the reader.
    places = [("state", 1), ("gradient", 0), ("gradient", 1)]
    rows[1] |= {
        "reasons": {"h_norm": "x", "g_norm": "x"},
        "nonfinite": [{"kind": kind, "batch": 0, "site": site} for kind, site in places],
    }
    later = wb.judge(rows)
    assert (later.failed, later.run, later.nonfinite) == (report.failed, report.run, report.nonfinite)


def test_rows_are_judged_by_their_data_and_not_by_their_words(tmp_path):
    net = wb.selftest.network(depth=3)
    watch = Watch(net, wb.selftest.batches(2), credit=lambda trace: trace.grads)
    watch.epoch()
    with torch.no_grad():
        list(net.blocks[1].children())[-1].bias.fill_(float("nan"))
    watch.epoch()
    rows = list(watch.history)
    mute = json.loads(json.dumps(rows))
    for row in mute:
        row["advisories"] = ["x" for _ in row["advisories"]]
        row["notes"] = [{**note, "text": "x"} for note in row["notes"]]
        row["reasons"] = dict.fromkeys(row["reasons"], "x")
    for count in (1, 2):
        spoken, silent = wb.judge(rows[:count]), wb.judge(mute[:count])
        assert replace(silent, reasons=spoken.reasons) == spoken
    assert silent.failed == ("D1", "D2")


@pytest.mark.parametrize(
    ("rows", "unit", "total", "left"),
    [
        ([{"epoch": 1}, {"epoch": 2}, {"epoch": 10}], "epoch", 10, 8),
        ([{"epoch": 1, "step": 5}, {"epoch": 2, "step": 10}, {"epoch": 4, "step": 20}], "epoch", 4, 2),
        ([{"epoch": 0, "step": 5}, {"epoch": 0, "step": 10}, {"epoch": 1, "step": 30}], "step", 30, 20),
        ([{"step": 5}, {"step": 10}, {"step": 40}], "step", 40, 30),
        ([{}, {}, {}], "epoch", 3, 1),
        ([{"epoch": 1}, {"epoch": 2}, {"epoch": 3, "total_epochs": 100}], "epoch", 100, 98),
        ([{"epoch": e, "step": 10 * e, "total_steps": 90} for e in (1, 2, 3)], "step", 90, 70),
        ([{"epoch": 1}, {"epoch": 2}, {"epoch": 2}], "epoch", None, None),
    ],
)
def test_what_was_left_in_epochs_or_steps(rows, unit, total, left, tmp_path):
    norms = [[1.0, 2.0], [1.0, 90.0], [1.0, 91.0]]
    full = [{**row, "h_norm": h} for row, h in zip(rows, norms)]
    run = wb.judge(full).run
    assert (run["unit"], run["total"], run["left"]) == (unit, total, {"D1": left})
    keys = list(dict.fromkeys(k for row in rows for k in row))
    lines = [",".join([*keys, "h_norm_0", "h_norm_1"])]
    lines += [",".join(str(v) for v in [*(row.get(k, "") for k in keys), *h]) for row, h in zip(rows, norms)]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    assert wb.judge(tmp_path / "log.csv").run == run


# -- many processes ------------------------------------------------------------------------------------------------


def test_two_processes_make_one_measurement_and_agree(tmp_path):
    script = HELPERS / "watch_ranks.py"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(tmp_path)], env=env, stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    errors = [rank.communicate(timeout=PATIENCE)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    a, b = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert a["measured"] == a["rows"] + 1  # one batch at the start
    assert b["measured"] == 0
    assert a["history"] == b["history"]
    assert a["auto"] == b["auto"] != []
    assert a["fired"] == b["fired"] != []
    assert a["stop"] is b["stop"] is True
    assert a["late"] == b["late"] == [0.1, 0.5, 1]
    assert a["same"] is b["same"] is True, "training with the watch is bit-identical to training without"
    assert a["h_norm"] == pytest.approx(a["by_hand"][0], rel=1e-5)
    assert a["g_norm"] == pytest.approx(a["by_hand"][1], rel=1e-4)
    assert "RuntimeError: on rank 0" in b["error"]
    assert a["error"] == "on rank 0"
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == a["rows"]
    assert a["sharded"] == b["sharded"] == a["whole"], "with weights spread over the ranks, all of them take part"


# -- wrong calls ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"every": "often"},
            'Expected every to be "epoch", "5 epochs", a number of steps, or "auto", but got \'often\'',
        ),
        ({"every": 0}, "but got 0"),
        ({"every": True}, "but got True"),
        ({"every": 1.5}, r"but got 1\.5"),
        ({"max_overhead": 2}, "Expected max_overhead as a share of wall time, over 0 to 1, but got 2"),
        ({"max_overhead": 0.0}, r"but got 0\.0"),
        ({"max_overhead": "2 %"}, "but got '2 %'"),
        ({"edition": "five"}, "Expected edition to be one of"),
        ({"log": "history.json"}, r"Expected log to end in \.jsonl, one row per line, but got 'history\.json'"),
        ({"anatomy": {"limbs": 4}}, "Expected anatomy to name"),
    ],
)
def test_a_wrong_set_up_is_an_error_before_training(options, words):
    with pytest.raises(wb.InputError, match=words):
        Watch(fresh(), BATCHES, **options)


def test_a_network_or_batches_that_can_not_be_read_are_errors_before_training():
    with pytest.raises(wb.AnatomyError):
        Watch(nn.Linear(16, 10), BATCHES)
    with pytest.raises(wb.InputError, match="Expected at least one batch"):
        Watch(fresh(), [])
    with pytest.raises(wb.InputError, match="Expected batch 0 to be a pair"):
        Watch(fresh(), [BATCHES[0][0]])
    for wrong in (BATCHES[0][0], "batches", 3):
        with pytest.raises(wb.InputError, match="Expected eval_batches to be an iterable of batches, but got"):
            Watch(fresh(), wrong)  # type: ignore[arg-type]
    with pytest.raises(wb.InputError, match=r"Expected model to be a torch\.nn\.Module, but got str"):
        Watch("model", BATCHES)  # type: ignore[arg-type]


def test_another_file_is_not_written_to(tmp_path):
    for text in ('{"epoch": 1}\n', "not json\n"):
        (tmp_path / "log.jsonl").write_text(text)
        with pytest.raises(wb.FormatError, match=r"Expected .*log\.jsonl to be a history to go on with"):
            Watch(fresh(), BATCHES, log=tmp_path / "log.jsonl")
        assert (tmp_path / "log.jsonl").read_text() == text
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(wb.FormatError, match="Is a directory"):
        Watch(fresh(), BATCHES, log=tmp_path / "folder.jsonl")


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"acc": 61.0}, r"Expected acc as a fraction between 0 and 1, but got 61\.0\. It looks like per cent"),
        ({"per_layer": 3.0}, r"Expected numbers under names of your own, but got per_layer=3\.0"),
        ({"name": "run 1"}, "but got name='run 1'"),
    ],
)
def test_numbers_of_a_wrong_kind(numbers, words):
    watch = Watch(fresh(), BATCHES[:1])
    with pytest.raises(wb.InputError, match=words):
        watch.epoch(**numbers)
    watch.step(5)
    with pytest.raises(wb.InputError, match="Expected the number of steps as a whole number from 5 on, but got 3"):
        watch.step(3)
    with pytest.raises(wb.InputError, match="nothing was measured yet"):
        watch.report()


def test_fired_reads_as_a_sentence():
    assert str(Fired("D2", 0, 0, None, 1e-9, "< 1e-07")) == "D2 fired at the start: 1e-09 < 1e-07"


def test_numbers_that_come_late_are_kept_in_a_loop_of_epochs():
    watch = wb.Watch(wb.selftest.healthy(), wb.selftest.batches(2), every="epoch")
    watch.epoch(1)
    assert watch.amend(acc=0.5)["acc"] == 0.5
    assert watch.finish(acc=0.6)["acc"] == 0.6
    assert [row["acc"] for row in watch.history] == [0.6]
    assert watch.finish() is None


def test_a_watched_row_knows_the_width_as_a_report_does():
    net, batches = wb.selftest.healthy(), wb.selftest.batches(2)
    row = wb.Watch(net, batches).measure()
    assert row["conditions"]["state_shape"] == wb.diagnose(net, batches).conditions["state_shape"]
