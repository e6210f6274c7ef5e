"""Networks of Hugging Face transformers at tiny sizes, randomly initialised."""

# ruff: noqa: E501  # a network is a line of its table

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import transformers
from case import Case, next_token, outputs
from torch import Tensor, nn

WORDS = 40
SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {**SMALL, "vocab_size": WORDS, "max_position_embeddings": 32, "pad_token_id": 1, "num_labels": 5}
IMAGE = {**SMALL, "image_size": 8, "patch_size": 4, "num_channels": 3, "num_labels": 5}
KV = {"num_key_value_heads": 2, "head_dim": 8}


def ids(labels: bool = False) -> Any:
    """A batch of token ids."""
    g = torch.Generator().manual_seed(1)
    x = torch.randint(4, WORDS, (6, 7), generator=g)
    return {"input_ids": x}, x if labels else torch.arange(6) % 5


def language() -> Any:
    """A batch whose labels are its inputs."""
    return ids(labels=True)


def both() -> Any:
    """A batch for an encoder and a decoder of as many tokens, padded in the encoder."""
    x = ids()[0]["input_ids"]
    mask = torch.ones_like(x)
    mask[:, 5:] = 0
    return {"input_ids": x, "attention_mask": mask, "decoder_input_ids": x.flip(1)}, x


def pixels() -> Any:
    """A batch of images."""
    g = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(6, 3, 8, 8, generator=g, dtype=torch.float64)}, torch.arange(6) % 5


def large() -> Any:
    """A batch of larger images, for networks with several stages."""
    g = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(4, 3, 32, 32, generator=g, dtype=torch.float64)}, torch.arange(4) % 5


def sound() -> Any:
    """A batch of waves."""
    g = torch.Generator().manual_seed(1)
    return {"input_values": torch.randn(4, 400, generator=g, dtype=torch.float64)}, torch.arange(4) % 5


def model_of(name: str, config: dict[str, Any]) -> Any:
    """Return a function that builds a model by the name of its class."""

    def build() -> nn.Module:
        cls = getattr(transformers, name)
        return cls._from_config(cls.config_class(**config), attn_implementation="eager")

    return build


# class, configuration, path of the blocks, how many
LANGUAGE = [
    (
        "GPT2LMHeadModel",
        {"vocab_size": WORDS, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32},
        "transformer.h",
    ),
    (
        "OpenAIGPTLMHeadModel",
        {"vocab_size": WORDS, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32},
        "transformer.h",
    ),
    (
        "GPTNeoForCausalLM",
        {
            "vocab_size": WORDS,
            "hidden_size": 16,
            "num_layers": 3,
            "num_heads": 2,
            "attention_types": [[["global"], 3]],
            "max_position_embeddings": 32,
        },
        "transformer.h",
    ),
    ("GPTNeoXForCausalLM", TEXT, "gpt_neox.layers"),
    (
        "GPTJForCausalLM",
        {"vocab_size": WORDS, "n_embd": 16, "n_layer": 3, "n_head": 2, "rotary_dim": 4, "n_positions": 32},
        "transformer.h",
    ),
    ("LlamaForCausalLM", {**TEXT, **KV}, "model.layers"),
    ("MistralForCausalLM", {**TEXT, **KV}, "model.layers"),
    ("Qwen2ForCausalLM", {**TEXT, **KV}, "model.layers"),
    ("Qwen3ForCausalLM", {**TEXT, **KV}, "model.layers"),
    ("GemmaForCausalLM", {**TEXT, **KV}, "model.layers"),
    ("Gemma2ForCausalLM", {**TEXT, **KV}, "model.layers"),
    ("Gemma3ForCausalLM", {**TEXT, **KV}, "model.layers"),
    ("PhiForCausalLM", TEXT, "model.layers"),
    ("Phi3ForCausalLM", TEXT, "model.layers"),
    ("OlmoForCausalLM", TEXT, "model.layers"),
    ("Olmo2ForCausalLM", TEXT, "model.layers"),
    ("CohereForCausalLM", TEXT, "model.layers"),
    ("Starcoder2ForCausalLM", {**TEXT, **KV}, "model.layers"),
    ("GraniteForCausalLM", TEXT, "model.layers"),
    ("GlmForCausalLM", {**TEXT, **KV}, "model.layers"),
    ("NemotronForCausalLM", {**TEXT, **KV}, "model.layers"),
    ("BloomForCausalLM", {"vocab_size": WORDS, "hidden_size": 16, "n_layer": 3, "n_head": 2}, "transformer.h"),
    (
        "FalconForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2},
        "transformer.h",
    ),
    (
        "MptForCausalLM",
        {"vocab_size": WORDS, "d_model": 16, "n_layers": 3, "n_heads": 2, "max_seq_len": 32},
        "transformer.blocks",
    ),
    (
        "OPTForCausalLM",
        {
            "vocab_size": WORDS,
            "hidden_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "ffn_dim": 32,
            "max_position_embeddings": 32,
            "word_embed_proj_dim": 16,
        },
        "model.decoder.layers",
    ),
    ("BioGptForCausalLM", TEXT, "biogpt.layers"),
    (
        "CodeGenForCausalLM",
        {"vocab_size": WORDS, "n_embd": 16, "n_layer": 3, "n_head": 4, "rotary_dim": 4, "n_positions": 32},
        "transformer.h",
    ),
    (
        "CTRLLMHeadModel",
        {"vocab_size": WORDS, "n_embd": 16, "n_layer": 3, "n_head": 2, "dff": 32, "n_positions": 32},
        "transformer.h",
    ),
    (
        "MambaForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 3, "state_size": 4},
        "backbone.layers",
    ),
    ("BertLMHeadModel", {**TEXT, "is_decoder": True}, "bert.encoder.layer"),
    ("RobertaForCausalLM", {**TEXT, "is_decoder": True}, "roberta.encoder.layer"),
]
MASKED = [
    ("BertForMaskedLM", TEXT, "bert.encoder.layer"),
    ("RobertaForMaskedLM", TEXT, "roberta.encoder.layer"),
    ("ElectraForMaskedLM", {**TEXT, "embedding_size": 16}, "electra.encoder.layer"),
    (
        "DistilBertForMaskedLM",
        {"vocab_size": WORDS, "dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 32},
        "distilbert.transformer.layer",
    ),
    ("ModernBertForMaskedLM", {**TEXT, "cls_token_id": 2, "sep_token_id": 3}, "model.layers"),
    ("MPNetForMaskedLM", TEXT, "mpnet.encoder.layer"),
    (
        "XLMWithLMHeadModel",
        {"vocab_size": WORDS, "emb_dim": 16, "n_layers": 3, "n_heads": 2, "max_position_embeddings": 32},
        None,
    ),
    (
        "XLNetLMHeadModel",
        {"vocab_size": WORDS, "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 32},
        "transformer.layer",
    ),
    ("BertForTokenClassification", {**TEXT, "num_labels": WORDS}, "bert.encoder.layer"),
]
# … and at which token the readout reads
CLASSIFIERS = [
    ("BertForSequenceClassification", TEXT, "bert.encoder.layer", 0),
    ("RobertaForSequenceClassification", TEXT, "roberta.encoder.layer", 0),
    ("XLMRobertaForSequenceClassification", TEXT, "roberta.encoder.layer", 0),
    ("CamembertForSequenceClassification", TEXT, "roberta.encoder.layer", 0),
    ("ElectraForSequenceClassification", {**TEXT, "embedding_size": 16}, "electra.encoder.layer", 0),
    (
        "DistilBertForSequenceClassification",
        {
            "vocab_size": WORDS,
            "dim": 16,
            "n_layers": 3,
            "n_heads": 2,
            "hidden_dim": 32,
            "max_position_embeddings": 32,
            "num_labels": 5,
        },
        "distilbert.transformer.layer",
        0,
    ),
    ("MPNetForSequenceClassification", TEXT, "mpnet.encoder.layer", 0),
    ("ConvBertForSequenceClassification", {**TEXT, "embedding_size": 16, "num_groups": 1}, "convbert.encoder.layer", 0),
    ("FNetForSequenceClassification", TEXT, "fnet.encoder.layer", 0),
    ("RoFormerForSequenceClassification", {**TEXT, "embedding_size": 16}, "roformer.encoder.layer", 0),
    (
        "NystromformerForSequenceClassification",
        {**TEXT, "num_landmarks": 7, "segment_means_seq_len": 7},
        "nystromformer.encoder.layer",
        0,
    ),
    ("MegatronBertForSequenceClassification", TEXT, "bert.encoder.layer", 0),
    ("LayoutLMForSequenceClassification", TEXT, "layoutlm.encoder.layer", 0),
    ("AlbertForSequenceClassification", {**TEXT, "embedding_size": 16, "num_hidden_layers": 3}, None, 0),
    (
        "GPT2ForSequenceClassification",
        {
            "vocab_size": WORDS,
            "n_embd": 16,
            "n_layer": 3,
            "n_head": 2,
            "n_positions": 32,
            "num_labels": 5,
            "pad_token_id": 1,
        },
        "transformer.h",
        -1,
    ),
    ("LlamaForSequenceClassification", {**TEXT, **KV}, "model.layers", -1),
    (
        "FunnelForSequenceClassification",
        {
            "vocab_size": WORDS,
            "block_sizes": [2, 2],
            "d_model": 16,
            "n_head": 2,
            "d_head": 8,
            "d_inner": 32,
            "num_decoder_layers": 1,
            "num_labels": 5,
        },
        "funnel",
        "stages",
    ),
]
VISION = [
    ("ViTForImageClassification", IMAGE, "vit.layers", 0),
    ("DeiTForImageClassification", IMAGE, "deit.layers", 0),
    ("DeiTForImageClassificationWithTeacher", IMAGE, "deit.layers", [0, 1]),
    ("BeitForImageClassification", IMAGE, "beit.layers", [1, 2, 3, 4]),
    ("Data2VecVisionForImageClassification", IMAGE, "data2vec_vision.encoder.layer", [1, 2, 3, 4]),
    ("Dinov2ForImageClassification", IMAGE, "dinov2.encoder.layer", "mean"),
    (
        "Dinov2WithRegistersForImageClassification",
        {**IMAGE, "num_register_tokens": 2},
        "dinov2_with_registers.encoder.layer",
        None,
    ),
    ("ViTMSNForImageClassification", IMAGE, "vit.layers", 0),
    (
        "SiglipForImageClassification",
        {"vision_config": {**IMAGE}, "num_labels": 5},
        "vision_model.encoder.layers",
        "mean",
    ),
    (
        "CLIPForImageClassification",
        {"vision_config": {**IMAGE}, "num_labels": 5},
        "vision_model.encoder.layers",
        [1, 2, 3, 4],
    ),
    ("IJepaForImageClassification", IMAGE, "ijepa.layers", "mean"),
    (
        "HieraForImageClassification",
        {
            "embed_dim": 8,
            "image_size": [32, 32],
            "patch_size": [7, 7],
            "patch_stride": [4, 4],
            "patch_padding": [3, 3],
            "depths": [1, 1, 1, 1],
            "num_heads": [1, 1, 1, 1],
            "masked_unit_size": [8, 8],
            "num_labels": 5,
        },
        None,
        None,
    ),
]
STAGES = [
    (
        "ResNetForImageClassification",
        {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [2, 2], "num_labels": 5, "layer_type": "basic"},
        "resnet.encoder.stages.{}.layers.{}",
        (2, 2),
    ),
    (
        "RegNetForImageClassification",
        {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [2, 2], "groups_width": 2, "num_labels": 5},
        "regnet.encoder.stages.{}.layers.{}",
        (2, 2),
    ),
    (
        "ConvNextForImageClassification",
        {"hidden_sizes": [4, 8], "depths": [2, 2], "num_stages": 2, "num_labels": 5, "layer_scale_init_value": 1.0},
        "convnext.encoder.stages.{}.layers.{}",
        (2, 2),
    ),
    (
        "ConvNextV2ForImageClassification",
        {"hidden_sizes": [4, 8], "depths": [2, 2], "num_stages": 2, "num_labels": 5},
        "convnextv2.encoder.stages.{}.layers.{}",
        (2, 2),
    ),
    (
        "PoolFormerForImageClassification",
        {
            "hidden_sizes": [4, 8],
            "depths": [2, 2],
            "num_encoder_blocks": 2,
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "padding": [2, 1],
            "num_labels": 5,
        },
        "poolformer.encoder.block.{}.{}",
        (2, 2),
    ),
    (
        "SwinForImageClassification",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": 4,
            "num_labels": 5,
        },
        "swin.encoder.layers.{}.blocks.{}",
        (2, 2),
    ),
    (
        "Swinv2ForImageClassification",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": 4,
            "num_labels": 5,
        },
        "swinv2.encoder.layers.{}.blocks.{}",
        (2, 2),
    ),
    (
        "PvtForImageClassification",
        {
            "image_size": 32,
            "num_encoder_blocks": 2,
            "depths": [2, 2],
            "sequence_reduction_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [4, 2],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "num_labels": 5,
        },
        "pvt.encoder.block.{}.{}",
        (2, 2),
    ),
    (
        "SegformerForImageClassification",
        {
            "num_encoder_blocks": 2,
            "depths": [2, 2],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "num_labels": 5,
        },
        "segformer.stages.{}.blocks.{}",
        (2, 2),
    ),
    (
        "BitForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "num_groups": 2, "num_labels": 5},
        "bit.encoder.stages.{}.layers.{}",
        (2, 2),
    ),
    (
        "CvtForImageClassification",
        {
            "patch_sizes": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [2, 1],
            "embed_dim": [8, 16],
            "num_heads": [1, 2],
            "depth": [2, 2],
            "mlp_ratio": [2.0, 2.0],
            "attention_drop_rate": [0.0, 0.0],
            "drop_rate": [0.0, 0.0],
            "drop_path_rate": [0.0, 0.0],
            "qkv_bias": [True, True],
            "cls_token": [False, True],
            "qkv_projection_method": ["dw_bn", "dw_bn"],
            "kernel_qkv": [3, 3],
            "padding_kv": [1, 1],
            "stride_kv": [2, 2],
            "padding_q": [1, 1],
            "stride_q": [1, 1],
            "num_labels": 5,
        },
        "cvt.encoder.stages.{}.layers.{}",
        (2, 2),
    ),
]
SEQ2SEQ = [
    (
        "T5ForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 2,
            "num_decoder_layers": 3,
            "num_heads": 2,
            "pad_token_id": 1,
            "decoder_start_token_id": 1,
        },
        "decoder.block",
    ),
    (
        "BartForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "max_position_embeddings": 32,
        },
        "model.decoder.layers",
    ),
    (
        "MarianMTModel",
        {
            "vocab_size": WORDS,
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "max_position_embeddings": 32,
            "pad_token_id": 1,
            "decoder_start_token_id": 1,
        },
        "model.decoder.layers",
    ),
    (
        "PegasusForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "max_position_embeddings": 32,
        },
        "model.decoder.layers",
    ),
]
AUDIO = [
    (f"{name}ForSequenceClassification",
     {**SMALL, "conv_dim": [8, 8], "conv_stride": [5, 4], "conv_kernel": [10, 4], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
      "num_conv_pos_embedding_groups": 2, "num_labels": 5, "classifier_proj_size": 8, **more}, f"{path}.encoder.layers")
    for name, path, more in (("Wav2Vec2", "wav2vec2", {}), ("Hubert", "hubert", {}), ("WavLM", "wavlm", {}), ("UniSpeech", "unispeech", {}),
                             ("Data2VecAudio", "data2vec_audio", {"conv_pos_kernel_size": 3}))
]  # fmt: skip


def staged(h: Tensor) -> Tensor:
    """Norm at the token that Funnel reads in its last stage, averaged over tokens before."""
    return h[:, 0].norm(dim=1) if h.shape[1] == 4 else h.norm(dim=2).mean(1)


def cases() -> Iterator[Case]:
    """Yield the networks by task."""
    where = "transformers"
    for name, config, path in LANGUAGE:
        yield Case(name, where, model_of(name, config), language, outputs(path, 3), "mean", next_token)
    for name, config, path in MASKED:
        sites = (
            outputs(path, 3)
            if path
            else (
                *(f"in:transformer.{part}.{i}" for i in range(3) for part in ("attentions", "ffns")),
                "in:pred_layer",
            )
        )
        yield Case(name, where, model_of(name, config), language, sites, "mean", None)
    for name, config, path, token in CLASSIFIERS:
        if path == "funnel":
            sites = (
                "in:funnel.encoder.blocks.0.0",
                *(f"funnel.encoder.blocks.{i}.{j}" for i in (0, 1) for j in (0, 1)),
            )
            yield Case(name, where, model_of(name, config), ids, sites, staged)
        elif path is None:
            layer = "albert.encoder.albert_layer_groups.0.albert_layers.0"
            yield Case(name, where, model_of(name, config), ids, (f"in:{layer}", layer), token)
        else:
            yield Case(name, where, model_of(name, config), ids, outputs(path, 3), token)
    for name, config, path, token in VISION:
        if path is None:
            sites = ("in:hiera.encoder.stages.0.layers.0", *(f"hiera.encoder.stages.{i}.layers.0" for i in range(4)))
            yield Case(name, where, model_of(name, config), large, sites, "mean")
            continue
        reads = [0, 3, 4, 5, 6] if "Registers" in name else token
        yield Case(name, where, model_of(name, config), pixels, outputs(path, 3), reads)
    for name, config, pattern, counts in STAGES:
        paths = [pattern.format(i, j) for i, n in enumerate(counts) for j in range(n)]
        reads = "mean" if "Swin" in name or "Pvt" in name or "Segformer" in name else None
        if "Cvt" in name:
            reads = lambda h: h[:, 0].norm(dim=1) if h.shape[1] == 17 else h.norm(dim=2).mean(1)  # noqa: E731
        if "Pvt" in name:
            reads = lambda h: h[:, 0].norm(dim=1) if h.shape[1] == 17 else h.norm(dim=2).mean(1)  # noqa: E731
        yield Case(name, where, model_of(name, config), large, (f"in:{paths[0]}", *paths), reads)
    for name, config, path in SEQ2SEQ:
        yield Case(name, where, model_of(name, config), both, outputs(path, 3), "mean", None)
    for name, config, path in AUDIO:
        yield Case(name, where, model_of(name, config), sound, outputs(path, 3), "mean", None)
