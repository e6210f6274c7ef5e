"""A watch as a callback of Lightning (both names of it) and of the Hugging Face Trainer, on tiny networks."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import walkback as wb
from patience import PATIENCE
from test_watch import BATCHES, Net, fresh, same
from walkback.integrations import LightningWatch, TransformersWatch, lightning_callback, trainer_callback

SAMPLES = [
    (x, y)
    for xs, ys in wb.selftest.batches(4, size=16, seed=5)
    for x, y in zip(xs, ys)
]  # fmt: skip

pytestmark = [
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.* argument is set as true but no accelerator is found"),
]


def explode(net: nn.Module) -> None:
    with torch.no_grad():
        for p in list(net.blocks[1].children())[-1].parameters():  # type: ignore[union-attr, index]
            p.mul_(1e9)


# -- Lightning -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def lightning(request, monkeypatch):
    """The one namespace, as if the other had never been imported."""
    module = import_module(request.param)
    other = {"lightning.pytorch": "pytorch_lightning", "pytorch_lightning": "lightning.pytorch"}[request.param]
    monkeypatch.delitem(sys.modules, other, raising=False)
    return module


def module_of(L, explode_at: int | None = None):
    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = fresh()

        def training_step(self, batch, index):
            x, y = batch
            if explode_at is not None and self.trainer.global_step == explode_at:
                explode(self.net)
            logits = self.net(x)
            self.log("train_acc", (logits.argmax(1) == y).float().mean())
            return nn.functional.cross_entropy(logits, y)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Module()


class Kept:
    """A logger's ear."""

    def __init__(self, logger_class):
        class Logger(logger_class):
            name, version, seen = "kept", "0", []

            def log_metrics(self, metrics, step=None):
                if any(key.startswith("walkback/") for key in metrics):
                    self.seen.append((step, metrics))

            def log_hyperparams(self, *args, **kwargs):
                pass

        self.logger = Logger()


def fit(L, module, callbacks, **options):
    loader = torch.utils.data.DataLoader(SAMPLES, batch_size=16, shuffle=True)
    trainer = L.Trainer(
        callbacks=callbacks,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 2, "logger": False, **options},
    )
    trainer.fit(module, loader)
    return trainer, [*(t.clone() for t in module.state_dict().values()), torch.get_rng_state()]


class Broken:
    """A credit that raises in the middle of the second measurement."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, trace):
        self.calls += 1
        if self.calls > 5:
            torch.randn(3)
            raise RuntimeError("in the middle")
        return trace.grads


MORE = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}


@pytest.mark.parametrize("options", [{}, MORE, {"precision": "bf16-mixed"}], ids=["plain", "accumulated", "mixed"])
def test_lightning_is_bit_identical_with_and_without(lightning, options):
    _, without = fit(lightning, module_of(lightning), [], **options)
    callback = lightning_callback(BATCHES, every=1, network="net")
    trainer, watched = fit(lightning, module_of(lightning), [callback], **options)
    assert same(without, watched)
    steps = trainer.global_step
    assert [row["step"] for row in callback.watch.history] == list(range(1, steps + 1))
    assert steps == (4 if options == MORE else 8), "steps are those of the optimiser"
    assert callback.watch.history[-1]["total_steps"] == steps
    assert callback.watch.fired == ()


def test_who_loaded_both_namespaces_gets_a_callback_of_both():
    both = [import_module(name) for name in ("lightning.pytorch", "pytorch_lightning")]
    for L in both:
        callback = lightning_callback(BATCHES, network="net")
        assert all(isinstance(callback, other.Callback) for other in both)
        fit(L, module_of(L), [callback])
        assert len(callback.watch.history) == 2


def test_lightning_stops_when_trust_is_lost(lightning):
    ear = Kept(sys.modules[f"{lightning.__name__}.loggers"].Logger).logger
    callback = lightning_callback(BATCHES, network="net", accuracy="train_acc", stop=True)
    trainer, _ = fit(lightning, module_of(lightning, explode_at=9), [callback], max_epochs=20, logger=ear)
    assert trainer.current_epoch == 3
    assert [row["epoch"] for row in callback.watch.history] == [1, 2, 3]
    assert [(f.check, f.epoch, f.step, f.layer) for f in callback.watch.fired] == [("D1", 3, 12, 2), ("D2", 3, 12, 3)]
    assert 0 <= callback.watch.history[-1]["acc"] <= 1
    assert [step for step, _ in ear.seen] == [4, 8, 12]
    assert [metrics["walkback/flagged/D1"] for _, metrics in ear.seen] == [0, 0, 1]
    report = callback.watch.report(frozen_baseline_acc=0.5)
    assert "trust lost at epoch 3: 17 of 20 epochs were left, 85% of the compute" in str(report)


def test_lightning_after_a_measurement_that_raised(lightning):
    _, without = fit(lightning, module_of(lightning), [], max_epochs=1)
    module = module_of(lightning)
    with pytest.raises(RuntimeError, match="in the middle"):
        fit(lightning, module, [lightning_callback(BATCHES, every=2, network="net", credit=Broken())])
    assert same([*module.state_dict().values(), torch.get_rng_state()], without)
    assert all(m.training for m in module.modules())


def test_lightning_wrong_names(lightning):
    with pytest.raises(wb.AnatomyError, match="dotted path of a module inside Module, which holds net, but got 'nett'"):
        fit(lightning, module_of(lightning), [lightning_callback(BATCHES, network="nett")])
    with pytest.warns(
        UserWarning, match="Expected accuracy to name a logged metric, but 'val_acc' is not among: train"
    ):
        fit(lightning, module_of(lightning), [lightning_callback(BATCHES, network="net", accuracy="val_acc")])


@pytest.mark.parametrize(("every", "steps"), [("epoch", [4, 8, 12, 16, 18]), (3, [3, 6, 9, 12, 15, 18])])
@pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers")
def test_lightning_accuracy_belongs_to_its_epoch(lightning, every, steps, tmp_path):
    """Validation after epochs 2 and 4; the fifth ends early, and has none of its own."""
    logged = []

    class Module(type(module_of(lightning))):
        def validation_step(self, batch, index):
            pass

        def val_dataloader(self):
            return torch.utils.data.DataLoader(SAMPLES, batch_size=16)

        def on_validation_epoch_end(self):
            logged.append(0.1 * (len(logged) + 1))
            self.log("val_acc", logged[-1])

    callback = lightning_callback(BATCHES[:1], every, network="net", accuracy="val_acc", log=tmp_path / "log.jsonl")
    fit(lightning, Module(), [callback], max_steps=18, max_epochs=5, check_val_every_n_epoch=2, num_sanity_val_steps=0)
    assert len(logged) == 2
    rows = {row["step"]: row.get("acc") for row in callback.watch.history}
    assert list(rows) == steps
    wanted = {8: 0.1, 16: 0.2} if every == "epoch" else {6: 0.1, 15: 0.2}
    assert {step: acc for step, acc in rows.items() if acc is not None} == pytest.approx(wanted)


def test_lightning_the_last_accuracy_is_in_the_last_row(lightning, tmp_path):
    callback = lightning_callback(BATCHES[:1], 5, network="net", accuracy="train_acc", log=tmp_path / "log.jsonl")
    trainer, _ = fit(lightning, module_of(lightning), [callback])
    rows = callback.watch.history
    assert [row["step"] for row in rows] == [5, 8]
    assert rows[-1]["acc"] == pytest.approx(float(trainer.callback_metrics["train_acc"]))
    assert wb.judge(tmp_path / "log.jsonl").headline_acc == rows[-1]["acc"]


@pytest.mark.parametrize("make", [lightning_callback, trainer_callback])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": "sometimes"}, "Expected every to be .*, but got 'sometimes'"),
        ({"editon": "three-check"}, "Expected options to be keywords of Watch, .*edition.*, but got editon"),
        ({"edition": "five"}, "Expected edition to be one of"),
        ({"max_overhead": 2}, "Expected max_overhead as a share"),
        ({"log": "history.json"}, r"Expected log to end in \.jsonl"),
    ],
)
def test_options_are_checked_when_the_callback_is_made(make, options, words):
    with pytest.raises(wb.InputError, match=words):
        make(BATCHES, **options)


# -- Hugging Face --------------------------------------------------------------------------------------------------


class ForTrainer(nn.Module):
    """What the Trainer wants of a model: named inputs, a loss and logits."""

    def __init__(self, explode_after: int | None = None) -> None:
        super().__init__()
        self.net = Net()
        self.seen, self.explode_after = 0, explode_after

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        if self.training:
            self.seen += 1
            if self.seen == self.explode_after:
                explode(self.net)
        logits = self.net(x)
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


def hf_train(tmp_path, callbacks, explode_after=None, raises=False, **options):
    transformers = import_module("transformers")
    fresh()
    model = ForTrainer(explode_after)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        learning_rate=1e-2,
        seed=1,
        **{"num_train_epochs": 2, **options},
    )
    trainer = transformers.Trainer(
        model, args, train_dataset=[{"x": x, "labels": y} for x, y in SAMPLES], callbacks=callbacks
    )
    if raises:
        with pytest.raises(RuntimeError, match="in the middle"):
            trainer.train()
    else:
        trainer.train()
    draws = torch.get_rng_state(), torch.tensor(np.random.get_state()[1].astype(np.int64))
    return trainer, [*(t.clone() for t in model.state_dict().values()), *draws]


HF_MORE = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1}


@pytest.mark.parametrize("options", [{}, HF_MORE, {"bf16": True}], ids=["plain", "accumulated", "mixed"])
def test_the_trainer_is_bit_identical_with_and_without(tmp_path, options):
    _, without = hf_train(tmp_path, [], **options)
    callback = trainer_callback(BATCHES, every=1, network="net")
    trainer, watched = hf_train(tmp_path, [callback], **options)
    assert same(without, watched)
    steps = 4 if options == HF_MORE else 8
    assert trainer.state.global_step == steps
    assert [row["step"] for row in callback.watch.history] == list(range(1, steps + 1))
    assert callback.watch.history[-1]["total_steps"] == steps


def test_the_trainer_stops_when_trust_is_lost(tmp_path):
    log = tmp_path / "history.jsonl"
    callback = trainer_callback(BATCHES, network="net", stop=True, log=log)
    trainer, _ = hf_train(tmp_path, [callback], explode_after=10, num_train_epochs=20)
    assert trainer.state.global_step == 12
    assert [(f.check, f.epoch, f.step, f.layer) for f in callback.watch.fired] == [("D1", 3, 12, 2), ("D2", 3, 12, 3)]
    assert "17 of 20 epochs were left" in str(wb.judge(log))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_steps": 6}, [(1, 4), (1, 6)]),
        ({"max_steps": 10}, [(1, 4), (2, 8), (2, 10)]),
        ({"num_train_epochs": 2.5}, [(1, 4), (2, 8), (2, 10)]),
        ({"max_steps": 2}, [(0, 2)]),
        ({"max_steps": 8}, [(1, 4), (2, 8)]),
        ({"max_steps": 5, "every": 2}, [(0, 2), (0, 4), (1, 5)]),
    ],
)
def test_the_trainers_finished_epochs_and_its_last_step(tmp_path, options, expected):
    callback = trainer_callback(BATCHES[:1], options.get("every", "epoch"), network="net")
    hf_train(tmp_path, [callback], **{name: value for name, value in options.items() if name != "every"})
    assert [(row["epoch"], row["step"]) for row in callback.watch.history] == expected


def test_the_trainer_after_a_measurement_that_raised(tmp_path):
    _, without = hf_train(tmp_path, [], num_train_epochs=1, lr_scheduler_type="constant")
    callback = trainer_callback(BATCHES, every=2, network="net", credit=Broken())
    trainer, watched = hf_train(tmp_path, [callback], raises=True, lr_scheduler_type="constant")
    assert trainer.state.global_step == 4
    assert same(without, watched)


def test_a_hugging_face_model_is_watched_as_it_is(tmp_path):
    transformers = import_module("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=10,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(64, 3, 8, 8, generator=generator)
    labels = torch.arange(64) % 10
    blocks = max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=len)
    anatomy = {"blocks": tuple(blocks), "readout": (model.classifier,), "branch": False}
    callback = trainer_callback([(images, labels)], every=1, anatomy=anatomy)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=32, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, use_cpu=True, max_steps=2,
    )  # fmt: skip
    data = [{"pixel_values": x, "labels": y} for x, y in zip(images, labels)]
    transformers.Trainer(model, args, train_dataset=data, callbacks=[callback]).train()
    assert [len(row["per_layer"]["g_norm"]) for row in callback.watch.history] == [3, 3]


# -- pickled, and resumed ------------------------------------------------------------------------------------------


def own_credit(trace):
    """A credit that pickle finds by its name."""
    return [h * 1e-3 for h in trace.states]


def shown_rows(rows) -> list[dict]:
    """Rows without what a clock says."""
    return [{k: v for k, v in row.items() if k not in ("seconds", "elapsed", "overhead")} for row in rows]


@pytest.mark.parametrize("kind", [LightningWatch, TransformersWatch])
def test_the_classes_are_importable_and_their_instances_are_callbacks(kind):
    callback = kind(BATCHES, 3, network="net", credit=own_credit, log="history.jsonl")
    assert isinstance(callback, kind)
    base = {"Callback": "lightning.pytorch", "TrainerCallback": "transformers"}[kind.base]
    assert isinstance(callback, getattr(import_module(base), kind.base))
    for copied in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert type(copied) is type(callback)
        assert (copied.every, copied.network, copied.options) == (3, "net", callback.options)
        assert copied.state_key == callback.state_key
        assert copied.state_dict() == {}
    others = [kind(BATCHES, 4, network="net"), kind(BATCHES[1:], 3, network="net", credit=own_credit)]
    assert len({c.state_key for c in (callback, *others)}) == 3


def test_importing_them_needs_no_library():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('lightning', 'pytorch_lightning', 'transformers')))\n"
        "import walkback as wb\nfrom walkback.integrations import LightningWatch, TransformersWatch\n"
        "for kind in (LightningWatch, TransformersWatch):\n"
        "    try: kind([])\n    except wb.InputError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.count("to be installed, but it is not: pip install 'walkback[") == 2


class Through(LightningWatch):
    """Becomes a pickle and comes back at every step: nothing but what it holds may be needed."""

    def on_train_batch_end(self, trainer, pl_module, *args):
        super().on_train_batch_end(trainer, pl_module, *args)
        self.pickles = [*getattr(self, "pickles", []), pickle.dumps(self)]


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks.*ModelCheckpoint")
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize(("every", "at"), [(3, 2), (3, 5), ("epoch", 4), ("epoch", 6)])
def test_lightning_goes_on_from_a_checkpoint_as_if_nothing_had_happened(lightning, every, at, tmp_path):
    """Stopped after `at` of 12 steps, four to an epoch: rows, accuracies and what fired are those of one training."""

    module = module_of(lightning, explode_at=9)
    for dropout in (m for m in module.modules() if isinstance(m, nn.Dropout)):
        dropout.p = (
            0.0  # a checkpoint of Lightning holds no random state, and a loader starts anew: all batches are one
        )

    def run(log=None, saving=(), **options):
        watching = LightningWatch(BATCHES[:1], every, network="net", accuracy="train_acc", log=log, credit=own_credit)
        trainer = lightning.Trainer(
            callbacks=[watching, *saving], accelerator="cpu", logger=False, max_epochs=3, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=bool(saving),
        )  # fmt: skip
        loader = torch.utils.data.DataLoader(4 * SAMPLES[:16], batch_size=16)
        trainer.fit(copy.deepcopy(module), loader, **options)
        return watching.watch

    def rows(watch):
        """Logged metrics are not in a checkpoint of the last step of an epoch either."""
        return [row | ({"acc": None} if at == row["step"] else {}) for row in shown_rows(watch.history)]

    kept = lightning.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=at, save_top_k=-1, filename="{step}")
    whole = run(tmp_path / "log.jsonl", [kept])
    assert whole.should_stop
    for log in (None, tmp_path / "log.jsonl"):
        again = run(log, ckpt_path=tmp_path / f"step={at}.ckpt", weights_only=True)
        assert rows(again) == rows(whole)
        assert (again.fired, again.lost) == (whole.fired, whole.lost)
    assert rows(wb.Watch(fresh(), BATCHES[:1], log=tmp_path / "log.jsonl")) == rows(whole)


def test_lightning_a_pickle_from_the_middle_of_a_training_goes_on(lightning, tmp_path):
    callback = Through(BATCHES[:1], 3, network="net", accuracy="train_acc")
    fit(lightning, module_of(lightning), [callback])
    middle = pickle.loads(callback.pickles[4])  # after 5 of 8 steps
    assert [row["step"] for row in middle.state_dict()["rows"]] == [3]
    assert middle.state_dict()["schedule"]["steps"] == 5
    assert "watch" not in vars(middle)
    trainer = SimpleNamespace(max_epochs=2, estimated_stepping_batches=8, global_step=5, current_epoch=1, loggers=[])
    trainer.callback_metrics = {"train_acc": torch.tensor(0.25)}
    middle.on_train_start(trainer, module_of(lightning))
    for trainer.global_step in (6, 7, 8):
        middle.on_train_batch_end(trainer, None)
    middle.on_train_epoch_end(trainer, None)
    middle.on_train_end(trainer, None)
    assert [row["step"] for row in middle.watch.history] == [3, 6, 8]
    assert [row.get("acc") is not None for row in middle.watch.history] == [True, True, True]


@pytest.mark.parametrize(("every", "at"), [(3, 2), (3, 5), ("epoch", 4), ("epoch", 6)])
def test_the_trainer_goes_on_from_a_checkpoint_as_if_nothing_had_happened(every, at, tmp_path):
    transformers = import_module("transformers")

    def run(**resumed):
        fresh()
        model = ForTrainer(None)
        callback = TransformersWatch(BATCHES[:1], every, network="net")
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=16, report_to=[], save_strategy="steps",
            save_steps=at, logging_strategy="no", disable_tqdm=True, use_cpu=True, num_train_epochs=3, seed=1,
            restore_callback_states_from_checkpoint=True,
        )  # fmt: skip
        data = [{"x": x, "labels": y} for x, y in SAMPLES]
        trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[callback])
        trainer.train(**resumed)
        return callback

    whole = run()
    again = run(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    assert len(whole.watch.history) == (4 if every == 3 else 3)
    assert shown_rows(again.watch.history) == shown_rows(whole.watch.history)
    # By hand, too: what state_dict returns is what the checkpoint holds.
    by_hand = TransformersWatch(BATCHES[:1], every, network="net")
    by_hand.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    state = SimpleNamespace(max_steps=12, num_train_epochs=3, global_step=12, epoch=3.0)
    model = ForTrainer(None)
    by_hand.on_train_begin(SimpleNamespace(max_steps=-1), state, None, model=model)
    assert list(by_hand.watch.history) == list(whole.watch.history)


# -- not installed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "names", "extra"),
    [
        (lightning_callback, ["lightning", "pytorch_lightning", "lightning.pytorch"], "lightning"),
        (trainer_callback, ["transformers"], "hf"),
    ],
)
def test_a_library_that_is_not_there_is_named_with_its_extra(make, names, extra, monkeypatch):
    import walkback.integrations.lightning as ours

    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(ours, "_NAMESPACES", ("lightning",))
    with pytest.raises(
        wb.InputError, match=rf"Expected {names[0]} to be installed, .*pip install 'walkback\[{extra}\]'"
    ):
        make(BATCHES)
