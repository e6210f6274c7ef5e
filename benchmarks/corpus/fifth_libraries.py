"""More networks of installable libraries; their sites were written down from the source before a first reading."""

# ruff: noqa: E501  # a network is a line of its table

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import timm
import torch
import torch_geometric.nn as gnn
from case import Case, mark, next_token, outputs
from of_geometric import graph
from of_timm import images, layered, staged
from of_transformers import IMAGE, KV, SMALL, TEXT, WORDS, both, ids, language, large, model_of, sound
from of_vit_pytorch import VIT, build, pairs, series
from of_vit_pytorch import images as small_images
from of_x_transformers import ids as xids
from of_x_transformers import shifted
from of_x_transformers import sites as xsites
from timm import models
from torch import nn
from torchvision import models as vision
from transformers.models.squeezebert.modeling_squeezebert import SqueezeBertModule
from x_transformers import Decoder, Encoder, TransformerWrapper

ROWS = "more of libraries"
GQA = {**SMALL, "vocab_size": WORDS, "max_position_embeddings": 32, "pad_token_id": 1, **KV}
LM = [  # class, configuration, path of the blocks
    ("MixtralForCausalLM", {**GQA, "num_local_experts": 3, "num_experts_per_tok": 2}, "model.layers"),
    ("Qwen2MoeForCausalLM", {**GQA, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}, "model.layers"),
    ("StableLmForCausalLM", GQA, "model.layers"),
    ("PersimmonForCausalLM", GQA, "model.layers"),
    ("Glm4ForCausalLM", GQA, "model.layers"),
    ("HeliumForCausalLM", GQA, "model.layers"),
    ("SmolLM3ForCausalLM", GQA, "model.layers"),
    ("ArceeForCausalLM", GQA, "model.layers"),
    ("Cohere2ForCausalLM", GQA, "model.layers"),
    ("GPTBigCodeForCausalLM", {"vocab_size": WORDS, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32}, "transformer.h"),
    ("GPTNeoXJapaneseForCausalLM", {**SMALL, "vocab_size": WORDS, "max_position_embeddings": 32}, "gpt_neox_japanese.layers"),
    ("FalconMambaForCausalLM", {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 3, "state_size": 4}, "backbone.layers"),
    ("Mamba2ForCausalLM", {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 3, "state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4}, "backbone.layers"),
    ("DiffLlamaForCausalLM", {**SMALL, "vocab_size": WORDS, "max_position_embeddings": 32, "num_key_value_heads": 2}, "model.layers"),
]  # fmt: skip
CLASSES = [  # class, configuration, path, token
    ("ErnieForSequenceClassification", TEXT, "ernie.encoder.layer", 0),
    ("IBertForSequenceClassification", TEXT, "ibert.encoder.layer", 0),
    ("RemBertForSequenceClassification", {**TEXT, "input_embedding_size": 16, "output_embedding_size": 16}, "rembert.encoder.layer", 0),
    ("DebertaV2ForSequenceClassification", {**TEXT, "type_vocab_size": 0}, "deberta.encoder.layer", 0),
    ("EsmForSequenceClassification", {**TEXT, "mask_token_id": 2}, "esm.encoder.layer", 0),
    ("MobileBertForSequenceClassification", {**TEXT, "embedding_size": 16, "true_hidden_size": 8, "intra_bottleneck_size": 8, "num_feedforward_networks": 2}, "mobilebert.encoder.layer", 0),
    ("DistilBertForTokenClassification", {"vocab_size": WORDS, "dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 32, "num_labels": WORDS}, "distilbert.transformer.layer", "mean"),
]  # fmt: skip
SEEN = [  # class, configuration, sites, reads, batch
    ("VideoMAEForVideoClassification", {**IMAGE, "num_frames": 4, "tubelet_size": 2}, outputs("videomae.encoder.layer", 3), "mean", None),
    ("TimesformerForVideoClassification", {**IMAGE, "num_frames": 2}, outputs("timesformer.encoder.layer", 3), 0, None),
    ("VivitForVideoClassification", {**IMAGE, "num_frames": 4, "tubelet_size": [2, 4, 4]}, outputs("vivit.layers", 3), 0, None),
    ("ASTForAudioClassification", {**SMALL, "num_labels": 5, "patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": 16, "num_mel_bins": 8}, outputs("audio_spectrogram_transformer.layers", 3), [0, 1], None),
    ("MobileNetV2ForImageClassification", {"num_labels": 5, "depth_multiplier": 0.25, "image_size": 32, "finegrained_output": True}, ("in:mobilenet_v2.layer.0", *(f"mobilenet_v2.layer.{i}" for i in range(16))), None, large),
    ("PvtV2ForImageClassification", {"num_labels": 5, "image_size": 32, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "mlp_ratios": [2, 2, 2, 2]},
     ("in:pvt_v2.encoder.layers.0.blocks.0", *(f"pvt_v2.encoder.layers.{i}.blocks.0" for i in range(4))), "mean", large),
]  # fmt: skip


def clips(frames: int) -> Any:
    """Return a function that makes a batch of short videos."""

    def batch() -> Any:
        g = torch.Generator().manual_seed(1)
        return {"pixel_values": torch.randn(4, frames, 3, 8, 8, generator=g, dtype=torch.float64)}, torch.arange(4)

    return batch


def spectra() -> Any:
    """Return a batch of spectrograms."""
    g = torch.Generator().manual_seed(1)
    return {"input_values": torch.randn(4, 16, 8, generator=g, dtype=torch.float64)}, torch.arange(4)


def eager(make: Any) -> Any:
    """Return what builds the network with experts that are plain products: grouped ones know no float64."""

    def build() -> nn.Module:
        net = make()
        net.set_experts_implementation("eager") if hasattr(net, "set_experts_implementation") else None
        return net

    return build


def _transformers() -> Iterator[Case]:
    for name, config, path in LM:
        yield Case(name, ROWS, eager(model_of(name, config)), language, outputs(path, 3), "mean", next_token)
    for name, config, path, reads in CLASSES:
        sites = outputs(path, 3)
        token = name.endswith("TokenClassification")
        yield Case(name, ROWS, model_of(name, config), language if token else ids, sites, reads)
    for name, config, where, reads, batch in SEEN:
        if config is not None:
            frames = config.get("num_frames")
            given = batch or (clips(frames) if frames else spectra)  # type: ignore[arg-type]
            yield Case(name, ROWS, model_of(name, config), given, where, reads)
    yield Case("SqueezeBertForSequenceClassification", ROWS, _squeezed, ids, (), lambda h: h[:, :, 0].norm(dim=1))
    wide = {"vocab_size": WORDS, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32}  # fmt: skip
    yield Case(
        "MBartForConditionalGeneration",
        ROWS,
        model_of("MBartForConditionalGeneration", wide),
        both,
        outputs("model.decoder.layers", 3),
        "mean",
    )
    t5 = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 2, "pad_token_id": 1, "decoder_start_token_id": 1}  # fmt: skip
    yield Case(
        "UMT5ForConditionalGeneration",
        ROWS,
        model_of("UMT5ForConditionalGeneration", t5),
        both,
        outputs("decoder.block", 3),
        "mean",
    )
    sew = {**SMALL, "squeeze_factor": 1, "conv_dim": [8, 8], "conv_stride": [5, 4], "conv_kernel": [10, 4], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_labels": 5, "classifier_proj_size": 8}  # fmt: skip
    yield Case(
        "SEWForSequenceClassification",
        ROWS,
        model_of("SEWForSequenceClassification", sew),
        sound,
        outputs("sew.encoder.layers", 3),
        "mean",
    )


def _timm() -> Iterator[Case]:
    vit = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}

    def of(name: str, make: Any, sites: Any, reads: Any = None, size: int = 16) -> Case:
        return Case(f"timm {name}", ROWS, make, images(size), sites, reads)

    rel = models.vision_transformer_relpos.VisionTransformerRelPos
    yield of(
        "ViT with relative positions",
        partial(rel, **vit, class_token=False, global_pool="avg"),
        outputs("blocks", 3),
        "mean",
    )
    yield of(
        "ConViT",
        partial(models.convit.ConVit, **vit, local_up_to_layer=2),
        ("in:blocks.0", "blocks.0", "blocks.1", "blocks.2"),
        lambda h: h[:, -17].norm(dim=1) if h.shape[1] == 17 else h.norm(dim=2).mean(1),
    )
    yield of(
        "gMLP",
        partial(
            models.mlp_mixer.MlpMixer,
            img_size=16,
            patch_size=4,
            embed_dim=16,
            num_blocks=3,
            num_classes=5,
            mlp_ratio=4,
            block_layer=models.mlp_mixer.SpatialGatingBlock,
            mlp_layer=timm.layers.GatedMlp,
        ),
        outputs("blocks", 3),
        "mean",
    )
    yield of(
        "ResMLP",
        partial(
            models.mlp_mixer.MlpMixer,
            img_size=16,
            patch_size=4,
            embed_dim=16,
            num_blocks=3,
            num_classes=5,
            mlp_ratio=4,
            block_layer=models.mlp_mixer.ResBlock,
            norm_layer=models.mlp_mixer.Affine,
        ),
        outputs("blocks", 3),
        "mean",
    )
    yield of(
        "ConvNeXt V2",
        partial(
            models.convnext.ConvNeXt,
            depths=(1, 2, 1, 1),
            dims=(8, 8, 16, 16),
            num_classes=5,
            use_grn=True,
            ls_init_value=None,
        ),
        staged("stages.{}.blocks.{}", (1, 2, 1, 1)),
        None,
        32,
    )
    yield of(
        "ECA-ResNet",
        partial(
            models.resnet.ResNet,
            models.resnet.Bottleneck,
            (1, 1, 2, 1),
            num_classes=5,
            block_args={"attn_layer": "eca"},
        ),
        layered((1, 1, 2, 1)),
        None,
        32,
    )
    yield of("GhostNet", partial(timm.create_model, "ghostnet_050", num_classes=5), ghost(), None, 32)
    yield of(
        "CAFormer",
        partial(
            models.metaformer.MetaFormer,
            depths=(1, 2),
            dims=(8, 32),
            num_classes=5,
            token_mixers=[models.metaformer.SepConv, models.metaformer.Attention],
            norm_layers=[models.metaformer.LayerNorm2dNoBias, models.metaformer.LayerNormNoBias],
        ),
        staged("stages.{}.blocks.{}", (1, 2)),
        lambda h: h.norm(dim=2).mean(1) if h.ndim == 3 else h.flatten(1).norm(dim=1),
        32,
    )
    yield of("RegNet Z", partial(timm.create_model, "regnetx_002", num_classes=5), (
        "in:s1.b1", "s1.b1", "s2.b1", *(f"s3.b{i + 1}" for i in range(4)), *(f"s4.b{i + 1}" for i in range(7))), None, 32)  # fmt: skip
    yield of(
        "DaViT",
        partial(
            models.davit.DaVit,
            depths=(1, 1, 1, 1),
            embed_dims=(8, 8, 16, 16),
            num_heads=(1, 1, 2, 2),
            window_size=4,
            num_classes=5,
        ),
        staged("stages.{}.blocks.{}", (1, 1, 1, 1)),
        None,
        32,
    )


def ghost() -> tuple[str, ...]:
    """Return the sites of a GhostNet: its stages are Sequentials, the last holds a convolution alone."""
    net = importlib.import_module("timm").create_model("ghostnet_050", num_classes=5)
    counts = [len(stage) for stage in net.blocks]
    return (*staged("blocks.{}.{}", tuple(counts)),)


def efficient(nets: Any) -> tuple[str, ...]:
    """Return the sites of MONAI's EfficientNet: what its blocks return, by the numbers the library gives them."""
    net = nets.EfficientNetBN("efficientnet-b0", pretrained=False, spatial_dims=2, in_channels=3, num_classes=5)
    paths = [path for path, m in net.named_modules() if type(m).__name__ == "MBConvBlock"]
    return (f"in:{paths[0]}", *paths)


class _Squeezed(SqueezeBertModule):
    """A layer that marks its states: the encoder calls its `forward`, past all hooks."""

    first = False

    def forward(self, hidden_states: Any, *more: Any) -> Any:
        """Return what the layer returns."""
        if self.first:
            mark(hidden_states)
        found = super().forward(hidden_states, *more)
        mark(found["feature_map"])
        return found


def _squeezed() -> nn.Module:
    groups = dict.fromkeys(("q_groups", "k_groups", "v_groups", "intermediate_groups", "output_groups"), 2)
    net = model_of(
        "SqueezeBertForSequenceClassification", {**TEXT, "embedding_size": 16, "post_attention_groups": 1, **groups}
    )()
    for i, layer in enumerate(net.transformer.encoder.layers):
        layer.__class__, layer.first = _Squeezed, i == 0
    return net


def _vit_pytorch() -> Iterator[Case]:
    def of(module: str, name: str, sites: Any, reads: Any, batch: Any = small_images, **config: Any) -> Case:
        return Case(f"{module}.{name}", ROWS, build(module, name, **config), batch, sites, reads)

    small = dict(VIT)
    yield of("simple_flash_attn_vit", "SimpleViT", (*pairs()[:4], "transformer"), "mean", **small)
    yield of("simple_vit_attn_residual", "SimpleViTAttnResidual", (), "mean", **small)
    every = [f"transformer.layers.{i}.{j}" for i in (0, 1) for j in (0, 1)]
    yield of("simple_vit_orthog_residual_update", "SimpleViT", (f"in:{every[0]}", *every), "mean", **small)
    yield of("simple_vit_with_sparse_gating", "SimpleViTWithSparseGating", pairs(), [4, 5, 6, 7], **small)


def _x_transformers() -> Iterator[Case]:
    for name, kind, options in (
        ("QK norm", Decoder, {"attn_qk_norm": True}),
        ("relu squared, no bias", Encoder, {"ff_relu_squared": True, "ff_no_bias": True}),
        ("T5 bias", Encoder, {"rel_pos_bias": True}),
        ("simple RMSNorm", Decoder, {"use_simple_rmsnorm": True}),
        ("shift tokens", Decoder, {"shift_tokens": 1}),
    ):

        def make(kind: Any = kind, options: Any = options) -> nn.Module:
            return TransformerWrapper(
                num_tokens=20, max_seq_len=16, attn_layers=kind(dim=16, depth=2, heads=2, attn_dim_head=8, **options)
            )

        yield Case(f"{kind.__name__}, {name}", ROWS, make, xids, xsites(options, True), "mean", shifted)


class Gnn(nn.Module):
    """Layers of a graph network in a Sequential of PyTorch Geometric, one after the other."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        conv = {
            "GCN": gnn.GCNConv,
            "SAGE": gnn.SAGEConv,
            "GAT": gnn.GATv2Conv,
            "Cheb": partial(gnn.ChebConv, K=2),
            "TAG": gnn.TAGConv,
        }[kind]
        self.conv1, self.conv2, self.conv3 = conv(6, 12), conv(12, 10), conv(10, 5)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Return logits of every node."""
        h = self.conv1(x, edge_index)
        mark(h)
        h = self.conv2(torch.relu(h), edge_index)
        mark(h)
        return self.conv3(torch.dropout(torch.relu(h), 0.5, self.training), edge_index)


def _others() -> Iterator[Case]:
    def of(name: str, make: Any, sites: Any, batch: Any, reads: Any = None) -> Case:
        return Case(name, ROWS, make, batch, sites, reads)

    big = images(64, 3)
    yield of(
        "torchvision AlexNet",
        partial(vision.AlexNet, num_classes=5),
        (*(f"features.{i}" for i in (0, 3, 6, 8, 10)), "classifier.1", "classifier.4"),
        big,
    )
    yield of(
        "torchvision VGG features", lambda: nn.Sequential(vision.vgg.make_layers([4, "M", 8, "M", 8, 8, "M"], batch_norm=True), nn.Flatten(), nn.Linear(128, 5)), ("0.0", "0.4", "0.8", "0.11"), images(32, 3))  # fmt: skip
    fire = [
        f"features.{i}.{part}" for i in (3, 4, 6, 7, 9, 10, 11, 12) for part in ("squeeze", "expand1x1", "expand3x3")
    ]
    yield of("torchvision SqueezeNet", partial(vision.SqueezeNet, "1_1", num_classes=5), ("features.0", *fire), big)
    yield of(
        "torchvision MNASNet",
        partial(vision.MNASNet, 0.35, num_classes=5),
        ("in:layers.8.0", *(f"layers.{i}.{j}" for i, n in zip(range(8, 14), (3, 3, 3, 2, 4, 1)) for j in range(n))),
        images(32, 3),
    )
    yield of(
        "torchvision R3D",
        lambda: vision.video.r3d_18(num_classes=5),
        ("in:layer1.0", *(f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1))),
        lambda: (
            torch.randn(2, 3, 4, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
            torch.arange(2),
        ),
    )
    nets = importlib.import_module("monai.networks.nets")
    yield of("monai FullyConnectedNet", partial(nets.FullyConnectedNet, 6, 5, [10, 12, 8], 0.1), (
        "hidden_0.0", "hidden_1.0", "hidden_2.0"), lambda: (torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(6) % 5))  # fmt: skip
    yield of("monai EfficientNet", partial(nets.EfficientNetBN, "efficientnet-b0", pretrained=False, spatial_dims=2, in_channels=3, num_classes=5),
             efficient(nets), images(32, 3))  # fmt: skip
    for kind in ("GCN", "SAGE", "GAT", "Cheb", "TAG"):
        yield of(f"PyG plain {kind}", partial(Gnn, kind), (), graph)
    yield of("PyG basic GCN", lambda: gnn.models.GCN(6, 12, 3, 5), ("convs.0", "convs.1"), graph)
    yield of(
        "PyG basic GIN",
        lambda: gnn.models.GIN(6, 12, 3, 5),
        (*(f"convs.{i}.nn.lins.{j}" for i in range(3) for j in range(2) if (i, j) != (2, 1)),),
        graph,
    )
    yield of(
        "PyG MLP",
        lambda: gnn.models.MLP([6, 12, 10, 5]),
        ("lins.0", "lins.1"),
        lambda: (
            torch.randn(8, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
            torch.arange(8) % 5,
        ),
    )
    yield Case(
        "vit-pytorch simple_vit_1d, longer",
        ROWS,
        build(
            "simple_vit_1d", "SimpleViT", seq_len=16, patch_size=2, num_classes=5, dim=8, depth=3, heads=2, mlp_dim=16
        ),
        series,
        pairs(3),
        "mean",
    )


def cases() -> Iterator[Case]:
    """Yield the networks."""
    for part in (_transformers, _timm, _vit_pytorch, _x_transformers, _others):
        yield from part()
