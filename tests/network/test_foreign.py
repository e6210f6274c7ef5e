"""Networks from elsewhere, with no help: what is found, and that the numbers are those of plain code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PatchTSMixerConfig,
    PatchTSMixerForTimeSeriesClassification,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

import walkback as wb
from walkback.notes import coded

logging.getLogger("transformers").setLevel(logging.ERROR)

SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
IMAGES = {"image_size": 8, "patch_size": 4, "num_labels": 5}
WORDS, PAD = 30, 0
GPT = {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 2}


def gpt2(**more: Any) -> GPT2Config:
    return GPT2Config(**GPT, vocab_size=WORDS, pad_token_id=PAD, **more)


def llama(**more: Any) -> LlamaConfig:
    return LlamaConfig(**SMALL, vocab_size=WORDS, num_key_value_heads=1, pad_token_id=PAD, **more)


def bert(**more: Any) -> BertConfig:
    return BertConfig(**SMALL, vocab_size=WORDS, **more)


def resnet(**more: Any) -> ResNetConfig:
    return ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[2, 2], num_labels=5, **more)


def made(build: Callable[[], nn.Module], seed: int = 0) -> Any:
    """The network in float64 and eval mode, without weights that start at zero: a cls token has no norm then."""
    torch.manual_seed(seed)
    model = build().double().eval()
    with torch.no_grad():
        for p in model.parameters():
            if not p.any():
                p.normal_(std=0.1)
    return model


def pixels(n: int = 6) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(n, 3, 8, 8, dtype=torch.float64)}


def tokens(n: int = 6, length: int = 7, padded: bool = True) -> dict[str, Tensor]:
    """Sequences of different lengths, padded on the right."""
    ids = torch.randint(3, WORDS, (n, length))
    mask = torch.ones(n, length, dtype=torch.long)
    for i in range(n if padded else 0):
        mask[i, length - i % 4 :] = 0
    return {"input_ids": ids.masked_fill(mask == 0, PAD), "attention_mask": mask}


# -- a second derivation: Hugging Face's own hidden states and retain_grad ---------------------------------


def by_hand(
    model: nn.Module, x: Mapping[str, Tensor], top: str, loss: Callable[[Tensor], Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """States and gradients of the summed loss; the last state is what the module `top` receives."""
    kept: list[Tensor] = []
    hook = model.get_submodule(top).register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    out = model(**x, output_hidden_states=True)
    hook.remove()
    states = [*out.hidden_states[:-1], kept[0]]
    for h in states:
        h.retain_grad()
    loss(out.logits).sum().backward()
    grads = [h.grad for h in states]
    model.zero_grad()
    return states, grads


def token(at: int | Tensor) -> Callable[[Tensor], Tensor]:
    """Norms at one token: (B, T, d) -> (B,)."""
    return lambda h: h[torch.arange(len(h)), at].norm(dim=1)


def averaged(mask: Tensor) -> Callable[[Tensor], Tensor]:
    """Mean of the token norms over the tokens of a mask, sample by sample."""
    return lambda h: torch.stack([row[keep.bool()].norm(dim=1).mean() for row, keep in zip(h, mask)])


def flat(h: Tensor) -> Tensor:
    return h.flatten(1).norm(dim=1)


def agrees(
    m: wb.Measurements, parts: Sequence[tuple[list[Tensor], list[Tensor]]], norms: Sequence[Callable], rel: float = 1e-9
) -> None:
    """Measured norms against per-sample norms of every batch, averaged over all samples."""
    for got, which, scale in ((m.h_norm, 0, 1), (m.g_norm, 1, 128)):
        sites = len(parts[0][which])
        want = [
            float(torch.cat([norm(p[which][site].detach()) for p, norm in zip(parts, norms)]).mean()) / scale
            for site in range(sites)
        ]
        assert got == pytest.approx(want, rel=rel)
        assert min(want) > 0


CLASSIFIERS = {
    "vit": (lambda: ViTForImageClassification(ViTConfig(**SMALL, **IMAGES)), pixels, "vit.layernorm", "vit.layers", 0),
    "deit": (
        lambda: DeiTForImageClassification(DeiTConfig(**SMALL, **IMAGES)),
        pixels,
        "deit.layernorm",
        "deit.layers",
        0,
    ),
    "bert": (
        lambda: BertForSequenceClassification(bert(num_labels=5)),
        tokens,
        "bert.pooler",
        "bert.encoder.layer",
        0,
    ),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_hugging_face_classifiers_with_a_cls_token(name: str) -> None:
    build, inputs, top, blocks, pool = CLASSIFIERS[name]
    model = made(build)
    found = wb.Anatomy.of(model)
    assert found.blocks == tuple(model.get_submodule(blocks))
    assert found.readout[-1] is model.classifier
    assert "guessed: the blocks" not in str(found)
    batches = [(inputs(), torch.randint(5, (6,))) for _ in range(2)]
    report = wb.diagnose(model, [{**x, "labels": y} for x, y in batches])
    assert report.conditions["pool"] == pool
    assert report.conditions["guessed"] == []
    assert not coded(report.notes, "guessed")
    m = wb.measure(model, batches)
    assert report.per_layer["h_norm"] == m.h_norm, "a dict with labels is the same batch"
    parts = [by_hand(model, x, top, lambda z, y=y: F.cross_entropy(z, y, reduction="none")) for x, y in batches]
    agrees(m, parts, [token(0)] * 2)


def test_two_tokens_that_are_read_are_the_ones_averaged() -> None:
    """DeiT with its teacher reads the cls and the distillation token; the others say nothing of the readout."""
    config = DeiTConfig(**SMALL, image_size=16, patch_size=4, num_labels=5)
    model = made(lambda: DeiTForImageClassificationWithTeacher(config))
    x, y = {"pixel_values": torch.randn(6, 3, 16, 16, dtype=torch.float64)}, torch.randint(5, (6,))
    m = wb.measure(model, [(x, y)])
    parts = by_hand(model, x, "deit.layernorm", lambda z: F.cross_entropy(z, y, reduction="none"))
    both = torch.zeros(6, 18)
    both[:, :2] = 1
    agrees(m, [parts], [averaged(both)])
    assert (m.conditions["pool"], m.conditions["tokens_read"]) == ("mean", [0, 1])


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_hugging_face_resnet_has_stages_that_change_width(kind: str) -> None:
    model = made(lambda: ResNetForImageClassification(resnet(layer_type=kind)))
    x, y = pixels(), torch.randint(5, (6,))
    found = wb.Anatomy.of(model)
    assert found.names[1:5] == tuple(f"resnet.encoder.stages.{s}.layers.{i}" for s in (0, 1) for i in (0, 1))
    m = wb.measure(model, [(x["pixel_values"], y)])
    blocks = [b for stage in model.resnet.encoder.stages for b in stage.layers]
    states = [model.resnet.embedder(x["pixel_values"])]
    for block in blocks:
        states.append(block(states[-1]))
    logits = model.classifier(model.resnet.pooler(states[-1]))
    grads = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), states)
    agrees(m, [(states, list(grads))], [flat])
    shapes = [list(h.shape[1:]) for h in states]
    assert m.conditions["state_shapes"] == shapes
    assert shapes[2] != shapes[3]
    within = [m.h_norm[i + 1] / m.h_norm[i] for i in range(4) if shapes[i] == shapes[i + 1]]
    assert m.growth == pytest.approx(max(within))
    assert m.growth_total is None


def next_token(y: Tensor) -> Callable[[Tensor], Tensor]:
    """Each sample's mean loss over the tokens it predicts, one sample and one token at a time."""

    def loss(logits: Tensor) -> Tensor:
        rows = []
        for z, labels in zip(logits, y):
            terms = [-z[t].log_softmax(0)[labels[t + 1]] for t in range(len(labels) - 1) if labels[t + 1] != -100]
            rows.append(torch.stack(terms).mean())
        return torch.stack(rows)

    return loss


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("padded", [True, False])
def test_language_models_learn_the_next_token(name: str, padded: bool) -> None:
    model = made(lambda: GPT2LMHeadModel(gpt2()) if name == "gpt2" else LlamaForCausalLM(llama()))
    top, blocks = ("transformer.ln_f", "transformer.h") if name == "gpt2" else ("model.norm", "model.layers")
    assert wb.Anatomy.of(model).blocks == tuple(model.get_submodule(blocks))
    batches = []
    for length in (7, 6):
        x = tokens(length=length, padded=padded)
        batches.append({**x, "labels": x["input_ids"].masked_fill(x["attention_mask"] == 0, -100)})
    m = wb.measure(model, batches)
    inputs = [{k: v for k, v in b.items() if k != "labels"} for b in batches]
    parts = [by_hand(model, x, top, next_token(b["labels"])) for x, b in zip(inputs, batches)]
    # Llama's norm computes in float32 inside, in another order after a backward.
    agrees(m, parts, [averaged(x["attention_mask"]) for x in inputs], rel=1e-9 if name == "gpt2" else 1e-5)
    assert m.conditions["loss"] == "cross-entropy of the next token"
    assert m.conditions["token_averages"] == "over the tokens that count"
    if not padded:
        plain = [(b["input_ids"], b["labels"]) for b in batches]
        assert wb.measure(model, plain).g_norm == pytest.approx(m.g_norm, rel=1e-5), "inputs may be a tensor too"
        # All samples have as many tokens here, so the model's own loss is the mean of ours.
        own = torch.stack([model(**b).loss for b in batches])
        ours = torch.stack([next_token(b["labels"])(model(**x).logits).mean() for b, x in zip(batches, inputs)])
        assert torch.allclose(own.double(), ours, rtol=1e-5)


def test_labels_on_padding_count_as_in_the_models_own_loss_and_that_is_said() -> None:
    model = made(lambda: GPT2LMHeadModel(gpt2()))
    x = tokens()
    counted = wb.diagnose(model, [{**x, "labels": x["input_ids"]}])
    left_out = wb.diagnose(model, [{**x, "labels": x["input_ids"].masked_fill(x["attention_mask"] == 0, -100)}])
    assert coded(counted.notes, "padding-labels")
    assert not coded(left_out.notes, "padding-labels")
    assert counted.per_layer["g_norm"] != left_out.per_layer["g_norm"]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_last_token_readouts_read_the_last_real_token_of_each_sample(name: str) -> None:
    model = made(
        lambda: (
            GPT2ForSequenceClassification(gpt2(num_labels=5))
            if name == "gpt2"
            else LlamaForSequenceClassification(llama(num_labels=5))
        )
    )
    top = "transformer.ln_f" if name == "gpt2" else "model.norm"
    # The first batch has no padding: only the second shows that the token depends on the sample.
    batches = [(tokens(padded=False), torch.randint(5, (6,))), (tokens(), torch.randint(5, (6,)))]
    m = wb.measure(model, batches)
    parts = [by_hand(model, x, top, lambda z, y=y: F.cross_entropy(z, y, reduction="none")) for x, y in batches]
    last = [token(x["attention_mask"].sum(1) - 1) for x, _ in batches]
    agrees(m, parts, last, rel=1e-9 if name == "gpt2" else 1e-5)
    assert m.conditions["pool"] == "readout"
    assert m.conditions["loss"] == "cross-entropy"


def test_masked_language_models_are_not_shifted() -> None:
    model = made(lambda: BertForMaskedLM(bert()))
    x = tokens()
    y = torch.where(torch.rand(x["input_ids"].shape) < 0.5, x["input_ids"], -100)
    y[:, 0] = x["input_ids"][:, 0]
    y = y.masked_fill(x["attention_mask"] == 0, -100)

    def loss(logits: Tensor) -> Tensor:
        return torch.stack([F.cross_entropy(z[row != -100], row[row != -100]) for z, row in zip(logits, y)])

    m = wb.measure(model, [(x, y)])
    parts = [by_hand(model, x, "cls", loss)]
    agrees(m, parts, [averaged(x["attention_mask"])])
    assert m.conditions["loss"] == "cross-entropy"


def test_a_bare_encoder_is_measured_on_what_it_returns_first() -> None:
    model = made(lambda: BertModel(bert(), add_pooling_layer=False))
    x, y = tokens(padded=False), torch.randint(16, (6, 7))
    m = wb.measure(model, [(x, y)])
    out = model(**x, output_hidden_states=True).hidden_states
    grads = torch.autograd.grad(F.cross_entropy(out[-1].transpose(1, 2), y, reduction="none").mean(1).sum(), out)
    agrees(m, [(list(out), list(grads))], [averaged(x["attention_mask"])])


def test_a_mixer_of_hugging_face() -> None:
    config = PatchTSMixerConfig(
        context_length=16, patch_length=4, patch_stride=4, num_input_channels=2, d_model=8, num_layers=3, num_targets=5
    )
    model = made(lambda: PatchTSMixerForTimeSeriesClassification(config))
    found = wb.Anatomy.of(model)
    assert found.blocks == tuple(model.model.encoder.mlp_mixer_encoder.mixers)
    assert "guessed: the blocks are the longest run of one type, model.encoder.mlp_mixer_encoder.mixers" in str(found)
    x, y = {"past_values": torch.randn(6, 16, 2, dtype=torch.float64)}, torch.randint(5, (6,))
    report = wb.diagnose(model, [(x, y)])
    assert report.conditions["guessed"]
    assert [note.values["what"] for note in coded(report.notes, "guessed")] == report.conditions["guessed"]
    kept: list[Tensor] = []
    encoder = model.model.encoder
    hooks = [m.register_forward_hook(lambda m, a, out: kept.append(out)) for m in (encoder.patcher, *found.blocks)]
    logits = model(**x).prediction_outputs
    for hook in hooks:
        hook.remove()
    grads = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), kept)
    m = wb.measure(model, [(x, y)])
    agrees(m, [(kept, list(grads))], [flat])


# -- torch's own encoder -------------------------------------------------------------------------------------


class Reader(nn.Module):
    """Tokens (B, T) through nn.TransformerEncoder, in either layout, to classes."""

    def __init__(self, norm_first: bool, batch_first: bool, reads: str) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, 0.1, norm_first=norm_first, batch_first=batch_first)
        self.batch_first, self.reads = batch_first, reads
        self.embedding = nn.Embedding(WORDS, 16, padding_idx=PAD)
        self.encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(16), enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids)
        h = h if self.batch_first else h.transpose(0, 1)
        h = self.encoder(h, src_key_padding_mask=ids == PAD)
        h = h if self.batch_first else h.transpose(0, 1)
        last = (ids != PAD).sum(1) - 1
        return self.head({"cls": h[:, 0], "mean": h.mean(1), "last": h[torch.arange(len(h)), last]}[self.reads])


@pytest.mark.parametrize("reads", ["cls", "mean", "last"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-LN", "pre-LN"])
@pytest.mark.parametrize("length", [6, 7], ids=["as many tokens as samples", "more tokens than samples"])
def test_a_transformer_encoder_in_both_layouts(reads: str, norm_first: bool, length: int) -> None:
    """By hand, layer after layer; and (T, B, d) gives the numbers of (B, T, d)."""
    twins = [made(lambda first=first: Reader(norm_first, first, reads)) for first in (True, False)]
    twins[1].load_state_dict(twins[0].state_dict())
    ids, y = tokens(length=length)["input_ids"], torch.randint(5, (6,))
    model = twins[0]
    padding = ids == PAD
    states = [model.embedding(ids)]
    for layer in model.encoder.layers:
        states.append(layer(states[-1], src_key_padding_mask=padding))
    top, last = model.encoder.norm(states[-1]), (~padding).sum(1) - 1
    logits = model.head({"cls": top[:, 0], "mean": top.mean(1), "last": top[torch.arange(6), last]}[reads])
    grads = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), states)
    norm = {"cls": token(0), "mean": averaged(torch.ones(6, length)), "last": token(last)}[reads]
    for twin in twins:
        m = wb.measure(twin, [(ids, y)])
        agrees(m, [(states, list(grads))], [norm], rel=1e-8)
        assert m.conditions["pool"] == {"cls": 0, "mean": "mean", "last": "readout"}[reads]
        assert [part for part in wb.Anatomy.of(twin).names if "layers" in part] == [
            f"encoder.layers.{i}" for i in range(3)
        ]


def test_a_stack_with_the_batch_second_probes_and_credits_in_the_layout_of_the_trace() -> None:
    twins = [made(lambda first=first: Reader(True, first, "cls")) for first in (True, False)]
    twins[1].load_state_dict(twins[0].state_dict())
    batch = (tokens(length=6)["input_ids"], torch.randint(5, (6,)))
    found = [wb.measure(t, [batch], credit=lambda trace: trace.grads, probes=["nudging"]) for t in twins]
    assert found[1].cosine == pytest.approx(found[0].cosine)
    assert found[1].probes["nudging"] == pytest.approx(found[0].probes["nudging"], rel=1e-6)
    assert max(found[0].probes["nudging"]) < 0


def test_a_bare_transformer_encoder() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    model = made(lambda: nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    picture = [line.split() for line in str(wb.Anatomy.of(model)).splitlines()]
    assert " ".join(picture[0]) == "stem (none named) h_0 is what block 1 receives"
    assert picture[-1] == ["blocks", "hold", "100%", "of", "the", "weights"]
    assert picture[1:-1] == [
        ["block", f"{i}", f"layers.{i - 1}", "TransformerEncoderLayer", "writes", f"h_{i}"] for i in (1, 2, 3)
    ]
    x, y = torch.randn(6, 4, 16, dtype=torch.float64), torch.randint(16, (6, 4))
    m = wb.measure(model, [(x, y)])
    states = [x.clone().requires_grad_()]
    for block in model.layers:
        states.append(block(states[-1]))
    losses = F.cross_entropy(states[-1].transpose(1, 2), y, reduction="none").mean(1)
    agrees(m, [(states, list(torch.autograd.grad(losses.sum(), states)))], [averaged(torch.ones(6, 4))])


def test_frozen_weights_do_not_turn_on_the_fused_inference_path() -> None:
    model = made(lambda: Reader(False, True, "cls"))
    batch = (tokens()["input_ids"], torch.randint(5, (6,)))
    want = wb.measure(model, [batch])
    frozen = wb.measure(model.requires_grad_(False), [batch])
    assert frozen.g_norm == pytest.approx(want.g_norm, rel=1e-12)
    assert torch.backends.mha.get_fastpath_enabled()


# -- the structure of torchvision and timm, rebuilt ---------------------------------------------------------


class Residual(nn.Module):
    """A convolutional block that returns the new state, with the names of torchvision's BasicBlock."""

    def __init__(self, inside: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        change = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        self.downsample = None if inside == outside and stride == 1 else change

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class VisionResNet(nn.Module):
    """torchvision's ResNet (and timm's, where maxpool and avgpool have other names): layer1 … layer4."""

    def __init__(self, timm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(2)
        widths = [4, 4, 8, 8, 16]
        for stage, (inside, outside) in enumerate(pairwise(widths), 1):
            first = Residual(inside, outside, 1 if inside == outside else 2)
            setattr(self, f"layer{stage}", nn.Sequential(first, Residual(outside, outside)))
        self.pool_name = "global_pool" if timm else "avgpool"
        setattr(self, self.pool_name, nn.AdaptiveAvgPool2d(1))
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            h = stage(h)
        return self.fc(torch.flatten(getattr(self, self.pool_name)(h), 1))


@pytest.mark.parametrize("timm", [False, True])
def test_resnets_of_torchvision_and_timm(timm: bool) -> None:
    model = made(lambda: VisionResNet(timm))
    found = wb.Anatomy.of(model)
    assert found.stem == (model.conv1, model.bn1)
    assert found.names[2:-1] == tuple(f"layer{s}.{i}" for s in (1, 2, 3, 4) for i in (0, 1))
    assert found.readout == (model.fc,)
    assert "guessed: the blocks" not in str(found)
    x, y = pixels()["pixel_values"], torch.randint(5, (6,))
    m = wb.measure(model, [(x, y)])
    # Built again from clones, since the blocks write in place.
    states = [model.maxpool(model.relu(model.bn1(model.conv1(x))))]
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        for block in stage:
            states.append(block(states[-1]).clone())
    loss = F.cross_entropy(model.fc(states[-1].mean((2, 3))), y, reduction="sum")
    agrees(m, [(states, list(torch.autograd.grad(loss, states)))], [flat])
    assert m.growth is not None
    assert wb.measure(model, [(x, y)], anatomy={"blocks": "layer[1-4].*"}).h_norm == m.h_norm


class Mix(nn.Module):
    """A pre-LN block of tokens that returns the new state."""

    def __init__(self, tokens: int, width: int = 8) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp_tokens, self.mlp_channels = nn.Linear(tokens, tokens), nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.mlp_tokens(self.norm1(h).transpose(1, 2)).transpose(1, 2)
        return h + torch.tanh(self.mlp_channels(self.norm2(h)))


class TorchvisionViT(nn.Module):
    """conv_proj, class_token, encoder.pos_embedding, encoder.layers.encoder_layer_i, encoder.ln, heads.head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, 8, 4, 4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.randn(1, 5, 8))
        self.encoder.dropout = nn.Dropout(0.1)
        self.encoder.layers = nn.Sequential()
        for i in range(3):
            self.encoder.layers.add_module(f"encoder_layer_{i}", Mix(5))
        self.encoder.ln = nn.LayerNorm(8)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(8, 5))

    def begin(self, x: Tensor) -> Tensor:
        h = self.conv_proj(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.class_token.expand(len(h), -1, -1), h], 1)
        return self.encoder.dropout(h + self.encoder.pos_embedding)

    def end(self, h: Tensor) -> Tensor:
        return self.heads(self.encoder.ln(h)[:, 0])

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.encoder.layers(self.begin(x)))


class TimmViT(nn.Module):
    """patch_embed, cls_token, pos_embed, pos_drop, norm_pre, blocks (a Sequential), norm, fc_norm, head_drop, head."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, 8, 4, 4)
        self.patch_embed.forward = lambda x: self.patch_embed.proj(x).flatten(2).transpose(1, 2)
        self.pos_drop, self.norm_pre = nn.Dropout(0.0), nn.Identity()
        self.blocks = nn.Sequential(*(Mix(5) for _ in range(3)))
        self.norm, self.fc_norm, self.head_drop = nn.LayerNorm(8), nn.Identity(), nn.Dropout(0.0)
        self.head = nn.Linear(8, 5)

    def begin(self, x: Tensor) -> Tensor:
        h = torch.cat([self.cls_token.expand(len(x), -1, -1), self.patch_embed(x)], 1)
        return self.norm_pre(self.pos_drop(h + self.pos_embed))

    def end(self, h: Tensor) -> Tensor:
        return self.head(self.head_drop(self.fc_norm(self.norm(h)[:, 0])))

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.blocks(self.begin(x)))


class TimmMixer(nn.Module):
    """stem, blocks, norm, head_drop, head; the mean over tokens is read."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Module()
        self.stem.proj = nn.Conv2d(3, 8, 4, 4)
        self.stem.forward = lambda x: self.stem.proj(x).flatten(2).transpose(1, 2)
        self.blocks = nn.Sequential(*(Mix(4) for _ in range(3)))
        self.norm, self.head_drop, self.head = nn.LayerNorm(8), nn.Dropout(0.0), nn.Linear(8, 5)

    def begin(self, x: Tensor) -> Tensor:
        return self.stem(x)

    def end(self, h: Tensor) -> Tensor:
        return self.head(self.head_drop(self.norm(h).mean(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.blocks(self.begin(x)))


REBUILT = {
    "torchvision ViT": (TorchvisionViT, "encoder.layers", token(0)),
    "timm ViT": (TimmViT, "blocks", token(0)),
    "timm Mixer": (TimmMixer, "blocks", averaged(torch.ones(6, 4))),
}


@pytest.mark.parametrize("name", REBUILT)
def test_vision_models_of_torchvision_and_timm(name: str) -> None:
    build, path, norm = REBUILT[name]
    model = made(build)
    blocks = list(model.get_submodule(path))
    found = wb.Anatomy.of(model)
    assert list(found.blocks) == blocks
    assert "guessed: the blocks" not in str(found)
    x, y = pixels()["pixel_values"], torch.randint(5, (6,))
    states = [model.begin(x)]
    for block in blocks:
        states.append(block(states[-1]))
    grads = torch.autograd.grad(F.cross_entropy(model.end(states[-1]), y, reduction="sum"), states)
    agrees(wb.measure(model, [(x, y)]), [(states, list(grads))], [norm])


# -- plain code ----------------------------------------------------------------------------------------------


class Step(nn.Module):
    def __init__(self, width: int = 8, returns: str = "state") -> None:
        super().__init__()
        self.inner, self.returns = nn.Linear(width, width), returns

    def forward(self, h: Tensor) -> Any:
        f = torch.tanh(self.inner(h))
        return {
            "state": lambda: h + f,
            "branch": lambda: f,
            "tuple": lambda: (h + f, f),
            "dict": lambda: {"hidden": h + f, "aux": f},
            "dataclass": lambda: Made(h + f, f),
        }[self.returns]()


@dataclass(frozen=True)
class Made:
    hidden: Tensor
    aux: Tensor


def linear_by_hand(stem: nn.Module, steps: Sequence[Step], head: nn.Module, x: Tensor, y: Tensor) -> Any:
    states = [stem(x)]
    for step in steps:
        states.append(states[-1] + torch.tanh(step.inner(states[-1])))
    return states, list(torch.autograd.grad(F.cross_entropy(head(states[-1]), y, reduction="sum"), states))


def vectors() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 4, dtype=torch.float64), torch.randint(5, (6,))


def test_a_plain_sequential_of_stem_blocks_and_head() -> None:
    model = made(lambda: nn.Sequential(nn.Linear(4, 8), Step(), Step(), Step(), nn.Linear(8, 5)))
    found = wb.Anatomy.of(model)
    assert (found.stem, found.blocks, found.readout) == (model[0], tuple(model[1:4]), (model[4],))
    said = "guessed: the blocks are the longest run of one type, 1 to 3 (3 x Step). To name them: "
    assert said + "Anatomy.of(model, blocks=['1', '2', '3'])" in str(found)
    x, y = vectors()
    report = wb.diagnose(model, [(x, y)])
    assert any(note.startswith(said) for note in report.advisories)
    agrees(wb.measure(model, [(x, y)]), [linear_by_hand(model[0], model[1:4], model[4], x, y)], [flat])
    told = wb.diagnose(model, [(x, y)], anatomy={"blocks": ["1", "2", "3"]})
    assert told.per_layer == report.per_layer
    assert not coded(told.notes, "guessed")


@pytest.mark.parametrize("returns", ["tuple", "dict", "dataclass"])
@pytest.mark.parametrize("frozen", [False, True])
def test_blocks_may_return_tuples_dicts_and_dataclasses(returns: str, frozen: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.out = nn.Linear(4, 8), nn.Linear(8, 5)
            self.layers = nn.ModuleList(Step(8, returns) for _ in range(3))

        def forward(self, x: Tensor) -> Made:
            h = self.inp(x)
            for layer in self.layers:
                got = layer(other=None, h=h) if returns == "keyword" else layer(h)
                h = got[0] if returns == "tuple" else got["hidden"] if returns == "dict" else got.hidden
            return Made(self.out(h), h)

    model = made(Net)
    x, y = vectors()
    want = linear_by_hand(model.inp, model.layers, model.out, x, y)
    model.requires_grad_(not frozen)
    m = wb.measure(model, [(x, y)], credit=lambda trace: trace.grads, probes=["nudging"])
    agrees(m, [want], [flat])
    assert max(m.probes["nudging"]) < 0


def test_the_stream_may_come_as_a_keyword_after_a_mask() -> None:
    class Masked(Step):
        def forward(self, h: Tensor, mask: Tensor) -> Tensor:
            return super().forward(h) * mask

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.out = nn.Linear(4, 8), nn.Linear(8, 5)
            self.layers = nn.ModuleList(Masked() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            h = self.inp(x)
            for layer in self.layers:
                h = layer(mask=torch.ones_like(h), h=h)
            return self.out(h)

    model = made(Net)
    x, y = vectors()
    agrees(wb.measure(model, [(x, y)]), [linear_by_hand(model.inp, model.layers, model.out, x, y)], [flat])


def test_lists_of_lists_are_unfolded_since_a_list_is_never_called() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.out = nn.Linear(4, 8), nn.Linear(8, 5)
            self.layers = nn.ModuleList(nn.ModuleList([Step(8, "branch"), Step(8, "branch")]) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            h = self.inp(x)
            for attend, feed in self.layers:
                h = h + attend(h)
                h = h + feed(h)
            return self.out(h)

    model = made(Net)
    flat_list = [step for pair in model.layers for step in pair]
    assert list(wb.Anatomy.of(model).blocks) == flat_list
    x, y = vectors()
    agrees(wb.measure(model, [(x, y)]), [linear_by_hand(model.inp, flat_list, model.out, x, y)], [flat])


def test_branches_in_stages_that_change_width_between_blocks() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.out = nn.Linear(4, 8), nn.Linear(6, 5)
            self.stages = nn.ModuleList(nn.Module() for _ in range(2))
            for stage, width in zip(self.stages, (8, 6)):
                stage.blocks = nn.ModuleList(Step(width, "branch") for _ in range(2))
            self.down = nn.Linear(8, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = self.inp(x)
            for i, stage in enumerate(self.stages):
                h = self.down(h) if i else h
                for block in stage.blocks:
                    h = h + block(h)
            return self.out(h)

    model = made(Net)
    found = wb.Anatomy.of(model)
    assert list(found.blocks) == [block for stage in model.stages for block in stage.blocks]
    assert found.stems == (model.inp, model.out), "by registration, which the picture says"
    assert "guessed: stem and readout are what is registered before and after the blocks" in str(found)
    x, y = vectors()
    states = [model.inp(x)]
    for stage in model.stages:
        h = states[-1] if len(states) == 1 else model.down(states[-1])
        for block in stage.blocks:
            h = h + block(h)
            states.append(h)
    grads = torch.autograd.grad(F.cross_entropy(model.out(states[-1]), y, reduction="sum"), states)
    m = wb.measure(model, [(x, y)])
    agrees(m, [(states, list(grads))], [flat])
    assert m.conditions["state_shapes"] == [[8], [8], [8], [6], [6]]
    assert m.growth == pytest.approx(max(m.h_norm[i + 1] / m.h_norm[i] for i in (0, 1, 3)))
    # The run shows better: `out` is called after the blocks, and `down`, registered after them, between them.
    assert m.conditions["anatomy"][0] == "stem inp Linear"
    assert m.conditions["anatomy"][-2:] == ["block 4 stages.1.blocks.1 Step", "readout out Linear"]
    assert m.conditions["guessed"] == []


def test_a_frozen_model_with_adapters() -> None:
    from peft import LoraConfig, get_peft_model

    build = CLASSIFIERS["vit"][0]
    plain = made(build)
    model = get_peft_model(made(build), LoraConfig(target_modules=["q_proj", "v_proj"], r=2)).double().eval()
    found = wb.Anatomy.of(model)
    assert found.names[1] == "base_model.model.vit.layers.0"
    assert len(found.blocks) == 3
    x, y = pixels(), torch.randint(5, (6,))
    assert wb.measure(model, [(x, y)]).g_norm == pytest.approx(wb.measure(plain, [(x, y)]).g_norm), "LoRA starts at 0"
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.3)
    assert not model.base_model.model.vit.embeddings.cls_token.requires_grad
    m = wb.measure(model, [(x, y)])
    model.requires_grad_(True)
    parts = by_hand(model, x, "base_model.model.vit.layernorm", lambda z: F.cross_entropy(z, y, reduction="none"))
    agrees(m, [parts], [token(0)])


def test_a_language_model_with_adapters_still_learns_the_next_token() -> None:
    from peft import LoraConfig, get_peft_model

    plain = made(lambda: GPT2LMHeadModel(gpt2()))
    config = LoraConfig(target_modules=["c_attn"], r=2, task_type="CAUSAL_LM", fan_in_fan_out=True)
    model = get_peft_model(made(lambda: GPT2LMHeadModel(gpt2())), config).double().eval()
    x = tokens(padded=False)
    batch = {**x, "labels": x["input_ids"]}
    m = wb.measure(model, [batch])
    assert m.conditions["loss"] == "cross-entropy of the next token"
    assert m.g_norm == pytest.approx(wb.measure(plain, [batch]).g_norm)
