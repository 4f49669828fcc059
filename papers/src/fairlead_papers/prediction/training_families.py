"""Families of trainings of the first list: how each is built, and the names of its trainings. The predictor was developed with
them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fairlead.prediction.training_step import allow_torchvision
from fairlead_papers.prediction import training_models as own

Parts = Mapping[str, Any]
"""Fields of a `Training`: model, inputs, targets, loss."""
Build = Callable[[str, int, int], Parts]
"""Builds a model with a batch from the model's name, the size of an input and the batch size."""

# Vision


def image_training(model: str, pixels: int, batch: int) -> Parts:
    timm = library("timm")
    sizes = {"img_size": pixels} if model.startswith(("swin", "vit", "mixer")) else {}
    made = timm.create_model(model, num_classes=1000, **sizes)
    return {"model": made, "inputs": torch.randn(batch, 3, pixels, pixels), "targets": torch.randint(1000, (batch,))}


def _segmentation(model: str, pixels: int, batch: int) -> Parts:
    made = own.SegmentationUNet(int(model.split("-")[1]))
    return {
        "model": made,
        "inputs": torch.randn(batch, 3, pixels, pixels),
        "targets": torch.randint(own.CLASSES, (batch, pixels, pixels)),
    }


def _detection(model: str, pixels: int, batch: int) -> Parts:
    backbone = library("timm").create_model(model.split("-")[1], features_only=True, out_indices=(4,))
    return {
        "model": own.Detector(backbone, backbone.feature_info.channels()[-1]),
        "inputs": torch.randn(batch, 3, pixels, pixels),
        "targets": (torch.randint(own.OBJECTS, (batch, own.QUERIES)), torch.rand(batch, own.QUERIES, 4)),
        "loss": own.detection_loss,
    }


# Language

_LANGUAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base": ("BertForMaskedLM", {}),
    "bert-large": ("BertForMaskedLM", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}),
    "roberta-base": ("RobertaForMaskedLM", {"vocab_size": 50265, "max_position_embeddings": 514}),
    "roberta-large": (
        "RobertaForMaskedLM",
        {
            "vocab_size": 50265,
            "max_position_embeddings": 514,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
    ),
    "gpt2": ("GPT2LMHeadModel", {}),
    "gpt2-medium": ("GPT2LMHeadModel", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "llama-60m": ("LlamaForCausalLM", own.decoder_sizes(512, 8, 8, 8, 1376, 32000)),
    "llama-150m": ("LlamaForCausalLM", own.decoder_sizes(768, 12, 12, 4, 2048, 32000)),
    "llama-350m": ("LlamaForCausalLM", own.decoder_sizes(1024, 24, 16, 8, 2816, 32000)),
    "llama-1b": ("LlamaForCausalLM", own.decoder_sizes(2048, 16, 32, 8, 8192, 32000)),
    "qwen3-100m": ("Qwen3ForCausalLM", own.decoder_sizes(512, 12, 8, 4, 1536, 64000) | {"head_dim": 64}),
    "qwen3-600m": (
        "Qwen3ForCausalLM",
        own.decoder_sizes(1024, 28, 16, 8, 3072, 151936) | {"head_dim": 128, "tie_word_embeddings": True},
    ),
    "mixtral-200m": (
        "MixtralForCausalLM",
        own.decoder_sizes(512, 8, 8, 4, 1024, 32000) | {"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "mixtral-800m": (
        "MixtralForCausalLM",
        own.decoder_sizes(1024, 12, 16, 4, 2048, 32000) | {"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "t5-small": ("T5ForConditionalGeneration", {"decoder_start_token_id": 0, "pad_token_id": 0}),
    "t5-base": (
        "T5ForConditionalGeneration",
        {
            "d_model": 768,
            "d_ff": 3072,
            "num_layers": 12,
            "num_decoder_layers": 12,
            "num_heads": 12,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
    ),
}


def _language(model: str, tokens: int, batch: int) -> Parts:
    made = transformers_model(*_LANGUAGE[model])
    words = torch.randint(4, 30000, (batch, tokens))
    return {"model": made, "inputs": {"input_ids": words, "labels": words}}


def _deberta(model: str, tokens: int, batch: int) -> Parts:
    layers = {"deberta-small": 6, "deberta-base": 12}[model]
    made = transformers_model(
        "DebertaV2ForSequenceClassification",
        {
            "vocab_size": 128100,
            "hidden_size": 768,
            "num_hidden_layers": layers,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "relative_attention": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "max_relative_positions": -1,
            "position_biased_input": False,
            "num_labels": 3,
        },
        attention="eager",  # it has no other
    )
    words = torch.randint(4, 30000, (batch, tokens))
    return {"model": made, "inputs": words, "targets": torch.randint(3, (batch,))}  # its own loss selects labels by value


def _lora(model: str, tokens: int, batch: int) -> Parts:
    peft = library("peft")
    parts = dict(_language(model.removeprefix("lora-"), tokens, batch))
    layers = ["c_attn"] if "gpt2" in model else ["q_proj", "k_proj", "v_proj", "o_proj"]
    parts["model"] = peft.get_peft_model(parts["model"], peft.LoraConfig(r=16, lora_alpha=32, target_modules=layers))
    return parts


def _switch(model: str, tokens: int, batch: int) -> Parts:
    width, layers, experts = (int(word) for word in model.split("-")[1].split("x"))
    return next_word_training(own.SwitchTransformer(width, layers, experts), tokens, batch)


def _mamba(model: str, tokens: int, batch: int) -> Parts:
    width, layers = (int(word) for word in model.split("-")[1].split("x"))
    return next_word_training(own.StateSpaceModel(width, layers), tokens, batch)


def _recurrent(model: str, tokens: int, batch: int) -> Parts:
    kind, sizes = model.split("-")
    width, layers = (int(word) for word in sizes.split("x"))
    return next_word_training(own.RecurrentModel(nn.LSTM if kind == "lstm" else nn.GRU, width, layers), tokens, batch)


def next_word_training(made: nn.Module, tokens: int, batch: int) -> Parts:
    words = torch.randint(own.VOCABULARY, (batch, tokens))
    return {"model": made, "inputs": words, "targets": words, "loss": own.next_word_loss}


# Diffusion


def _denoising_unet(model: str, pixels: int, batch: int) -> Parts:
    widths, context = {"sdunet-small": ((128, 256, 256), 256), "sdunet-sd15": ((320, 640, 1280, 1280), 768)}[model]
    levels = len(widths)
    made = library("diffusers").UNet2DConditionModel(
        sample_size=pixels,
        block_out_channels=widths,
        cross_attention_dim=context,
        down_block_types=("CrossAttnDownBlock2D",) * (levels - 1) + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (levels - 1),
    )
    noise = torch.randn(batch, 4, pixels, pixels)
    inputs = {
        "sample": noise,
        "timestep": torch.randint(1000, (batch,)),
        "encoder_hidden_states": torch.randn(batch, 77, context),
    }
    return {"model": made, "inputs": inputs, "targets": torch.randn_like(noise), "loss": own.noise_loss}


def _diffusion_transformer(model: str, pixels: int, batch: int) -> Parts:
    heads, layers = {"dit-s2": (6, 12), "dit-b2": (12, 12), "dit-l2": (16, 24)}[model]
    made = library("diffusers").DiTTransformer2DModel(
        num_attention_heads=heads, attention_head_dim=64, in_channels=4, out_channels=4, num_layers=layers, sample_size=pixels
    )
    noise = torch.randn(batch, 4, pixels, pixels)
    inputs = {
        "hidden_states": noise,
        "timestep": torch.randint(1000, (batch,)),
        "class_labels": torch.randint(1000, (batch,)),
    }
    return {"model": made, "inputs": inputs, "targets": torch.randn_like(noise), "loss": own.noise_loss}


def _autoencoder(model: str, pixels: int, batch: int) -> Parts:
    widths = {"vae-small": (64, 128, 256), "vae-sd": (128, 256, 512, 512)}[model]
    made = library("diffusers").AutoencoderKL(
        block_out_channels=widths,
        down_block_types=("DownEncoderBlock2D",) * len(widths),
        up_block_types=("UpDecoderBlock2D",) * len(widths),
        latent_channels=4,
        layers_per_block=2,
    )
    images = torch.randn(batch, 3, pixels, pixels)
    return {"model": made, "inputs": images, "targets": images, "loss": own.noise_loss}


# Speech, pictures with words


def _whisper(model: str, tokens: int, batch: int) -> Parts:
    width, layers, heads = {"whisper-tiny": (384, 4, 6), "whisper-base": (512, 6, 8), "whisper-small": (768, 12, 12)}[model]
    sides = {
        f"{side}_{what}": value
        for side in ("encoder", "decoder")
        for what, value in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))
    }
    made = transformers_model("WhisperForConditionalGeneration", {"d_model": width, **sides})
    sound = torch.randn(batch, 80, 3000)
    words = torch.randint(50000, (batch, tokens))
    return {"model": made, "inputs": {"input_features": sound, "decoder_input_ids": words, "labels": words}}


def _speech(model: str, samples: int, batch: int) -> Parts:
    kind = {"wav2vec2": "Wav2Vec2ForSequenceClassification", "hubert": "HubertForSequenceClassification"}[model.split("-")[0]]
    layers = {"small": 6, "base": 12}[model.split("-")[1]]
    fixed = {"apply_spec_augment": False, "layerdrop": 0.0}  # both draw random numbers on the host
    made = transformers_model(kind, {"num_hidden_layers": layers, "num_labels": 12, **fixed})
    return {"model": made, "inputs": {"input_values": torch.randn(batch, samples), "labels": torch.randint(12, (batch,))}}


def _clip(model: str, tokens: int, batch: int) -> Parts:
    patch = {"clip-b32": 32, "clip-b16": 16}[model]
    made = transformers_model("CLIPModel", {"vision_config": {"patch_size": patch}, "text_config": {}})
    words = torch.randint(1, 49000, (batch, tokens))
    words[:, -1] = 49407  # the end of a text
    return {
        "model": made,
        "inputs": {"input_ids": words, "pixel_values": torch.randn(batch, 3, 224, 224), "return_loss": True},
    }


# Graphs, recommendation, fully connected


def _graph(model: str, nodes: int, batch: int) -> Parts:
    kind, sizes = model.split("-")
    width, layers = (int(word) for word in sizes.split("x"))
    edges = torch.randint(nodes, (2, 16 * nodes))
    made = {"gcn": own.GraphConvolutions, "gat": own.GraphAttention}[kind](width, layers)
    return {
        "model": made,
        "inputs": (torch.randn(nodes, own.NODE_FEATURES), edges),
        "targets": torch.randint(own.CLASSES, (nodes,)),
        "loss": functional.cross_entropy,
    }


def _recommendation(model: str, tables: int, batch: int) -> Parts:
    rows, width = (int(word) for word in model.split("-")[1].split("x"))
    return {
        "model": own.Recommender(tables, 1000 * rows, width),
        "inputs": (torch.randn(batch, 13), torch.randint(1000 * rows, (batch, tables, own.HOT))),
        "targets": torch.rand(batch).round(),
        "loss": functional.binary_cross_entropy_with_logits,
    }


def _fully_connected(model: str, features: int, batch: int) -> Parts:
    width = int(model.split("-")[1])
    layers = [features, *[width] * 4]
    hidden = [part for into, out in pairwise(layers) for part in (nn.Linear(into, out), nn.ReLU())]
    made = nn.Sequential(*hidden, nn.Linear(width, 1000))
    return {"model": made, "inputs": torch.randn(batch, features), "targets": torch.randint(1000, (batch,))}


def transformers_model(kind: str, sizes: Mapping[str, Any], attention: str = "sdpa") -> Any:
    """A model of `transformers` with random weights."""
    made = getattr(library("transformers"), kind)
    config = made.config_class(**sizes)
    config.use_cache = False
    config._attn_implementation = attention
    if kind.startswith(("Mixtral", "Olmoe", "Qwen2Moe")):
        config._experts_implementation = "grouped_mm"  # the default loops over the experts that were hit
    return made(config)


def library(name: str) -> Any:
    if name == "timm":
        allow_torchvision()
    return importlib.import_module(name)


FIRST: dict[str, tuple[Build, tuple[str, ...]]] = {
    "resnet": (
        image_training,
        ("resnet50@224:64/bf16", "resnet50@224:32/fp32", "resnet18@224:16/bf16", "resnet101@224:128/bf16"),
    ),
    "bert": (
        _language,
        ("bert-base@128:32/bf16", "bert-base@128:8/fp32", "bert-large@256:16/bf16+accumulate2", "bert-base@512:32/bf16"),
    ),
    "lstm": (_recurrent, ("lstm-650x2@128:64/bf16", "lstm-650x2@128:64/fp32", "lstm-256x1@128:16/bf16")),
    "llama": (
        _language,
        (
            "llama-150m@512:8/bf16",
            "llama-60m@256:4/fp32",
            "llama-1b@1024:4/bf16+clip",
            "llama-350m@2048:4/bf16+checkpointing",
            "llama-350m@1024:4/pure+adafactor",
        ),
    ),
    "sdunet": (_denoising_unet, ("sdunet-small@32:16/bf16", "sdunet-small@32:4/fp32", "sdunet-sd15@64:4/bf16")),
    "gcn": (_graph, ("gcn-256x3@50000:1/bf16", "gcn-64x3@10000:1/fp32")),
    "dlrm": (_recommendation, ("dlrm-100x64@26:4096/bf16", "dlrm-100x64@26:1024/fp32", "dlrm-20x32@26:2048/bf16")),
    "whisper": (
        _whisper,
        ("whisper-base@128:16/bf16", "whisper-tiny@64:4/fp32", "whisper-small@128:8/fp16", "whisper-tiny@64:8/bf16"),
    ),
    "convnext": (
        image_training,
        ("convnext_tiny@224:64/bf16", "convnext_tiny@224:16/fp32", "convnext_base@224:64/bf16+checkpointing"),
    ),
    "gpt2": (_language, ("gpt2@512:8/bf16", "gpt2@256:4/fp32", "gpt2-medium@1024:4/bf16+checkpointing", "gpt2@1024:8/fp16")),
    "mixtral": (_language, ("mixtral-200m@512:4/pure", "mixtral-200m@256:4/pure+sgd", "mixtral-800m@512:8/pure")),
    "gru": (_recurrent, ("gru-1024x2@128:64/bf16", "gru-512x2@64:32/fp32")),
    "vit": (
        image_training,
        (
            "vit_base_patch16_224@224:64/bf16",
            "vit_small_patch16_224@224:32/fp32",
            "vit_large_patch16_224@224:64/bf16+checkpointing",
            "vit_tiny_patch16_224@224:16/bf16",
        ),
    ),
    "t5": (_language, ("t5-small@256:16/bf16", "t5-small@128:8/fp32", "t5-base@512:8/bf16+adafactor")),
    "dit": (_diffusion_transformer, ("dit-b2@32:64/bf16", "dit-s2@32:16/fp32", "dit-l2@32:32/bf16")),
    "clip": (_clip, ("clip-b32@77:64/bf16", "clip-b32@77:16/fp32", "clip-b16@77:64/bf16+checkpointing")),
    "mamba": (_mamba, ("mamba-512x6@256:4/bf16", "mamba-256x4@128:4/fp32")),
    "swin": (
        image_training,
        (
            "swin_tiny_patch4_window7_224@224:64/bf16",
            "swin_tiny_patch4_window7_224@224:16/fp32",
            "swin_base_patch4_window7_224@224:32/bf16",
        ),
    ),
    "qwen3": (_language, ("qwen3-100m@512:8/bf16", "qwen3-100m@256:4/fp32", "qwen3-600m@1024:4/bf16")),
    "wav2vec2": (_speech, ("wav2vec2-base@80000:8/bf16", "wav2vec2-small@32000:4/fp32", "hubert-base@160000:16/bf16")),
    "switch": (_switch, ("switch-512x6x8@512:8/bf16", "switch-256x4x8@256:8/fp32")),
    "efficientnet": (
        image_training,
        ("tf_efficientnetv2_s@300:32/bf16", "tf_efficientnetv2_s@224:16/fp32", "tf_efficientnetv2_m@384:32/bf16"),
    ),
    "lora": (
        _lora,
        ("lora-llama-1b@512:8/bf16", "lora-gpt2@256:8/fp32", "lora-llama-1b@1024:4/pure+checkpointing"),
    ),
    "unet": (_segmentation, ("unet-32@256:16/bf16", "unet-16@256:8/fp32", "unet-64@512:8/fp16")),
    "roberta": (
        _language,
        ("roberta-base@256:16/bf16+clip", "roberta-base@128:4/fp32", "roberta-large@512:16/bf16+checkpointing"),
    ),
    "detr": (_detection, ("detr-resnet50@384:8/bf16", "detr-resnet18@256:4/fp32")),
    "regnet": (image_training, ("regnety_016@224:64/bf16", "regnety_016@224:32/fp32", "regnety_080@224:64/bf16+sgd")),
    "gat": (_graph, ("gat-64x3@20000:1/bf16", "gat-32x2@10000:1/fp32")),
    "vae": (_autoencoder, ("vae-small@128:8/bf16", "vae-small@64:8/fp32", "vae-sd@256:4/bf16")),
    "mixer": (image_training, ("mixer_b16_224@224:64/bf16", "mixer_s32_224@224:64/fp32")),
    "deberta": (_deberta, ("deberta-base@256:16/bf16", "deberta-small@128:8/fp32")),
    "mobilenet": (
        image_training,
        ("mobilenetv3_large_100@224:64/bf16", "mobilenetv3_large_100@224:256/fp32", "mobilenetv3_small_100@224:32/bf16"),
    ),
    "mlp": (_fully_connected, ("mlp-4096@784:4096/bf16", "mlp-1024@784:512/fp32")),
}
"""By family: how its trainings are built, and their names: first in bf16, then in fp32, then others."""
SIZED = ("lstm", "gru", "switch", "mamba", "gcn", "gat", "dlrm", "unet", "mlp")
