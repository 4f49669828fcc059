"""Families of trainings that were new to the predictor when they were first measured: the second list. The trace was mended
with what they showed, and since then the speed of a step is fitted to them, too."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from fairlead_papers.prediction import training_models as own
from fairlead_papers.prediction import unseen_models as new
from fairlead_papers.prediction.training_families import (
    Build,
    Parts,
    image_training,
    library,
    next_word_training,
    transformers_model,
)

# Language

_SMALL = own.decoder_sizes(768, 12, 12, 4, 2048, 32000)
_LANGUAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "opt-125m": ("OPTForCausalLM", {"layerdrop": 0.0}),
    "pythia-160m": (
        "GPTNeoXForCausalLM",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "gemma2-150m": ("Gemma2ForCausalLM", {**_SMALL, "head_dim": 64, "sliding_window": 256}),
    "bloom-150m": ("BloomForCausalLM", {"hidden_size": 768, "n_layer": 12, "n_head": 12, "vocab_size": 32000}),
    "phi3-150m": ("Phi3ForCausalLM", {**_SMALL, "pad_token_id": 0}),
    "olmoe-150m": (
        "OlmoeForCausalLM",
        {**own.decoder_sizes(512, 8, 8, 8, 512, 32000), "num_experts": 16, "num_experts_per_tok": 4},
    ),
    "electra-base": (
        "ElectraForMaskedLM",
        {"hidden_size": 768, "embedding_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "albert-base": (
        "AlbertForMaskedLM",
        {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "distilbert": ("DistilBertForMaskedLM", {}),
    "bart-base": (
        "BartForConditionalGeneration",
        {
            "d_model": 768,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072,
        },
    ),
}


def _language(model: str, tokens: int, batch: int) -> Parts:
    kind, sizes = _LANGUAGE[model]
    attention = "eager" if model.startswith(("bloom", "gemma2")) else "sdpa"  # their scores have no other form
    words = torch.randint(4, 30000, (batch, tokens))
    made = transformers_model(kind, sizes, attention)
    return {"model": made, "inputs": {"input_ids": words, "labels": words}}


def _plain_transformer(model: str, tokens: int, batch: int) -> Parts:
    width, layers = (int(word) for word in model.split("-")[1].split("x"))
    return next_word_training(new.PlainTransformer(width, layers, tokens), tokens, batch)


def _translation(model: str, tokens: int, batch: int) -> Parts:
    made = new.Translator(int(model.split("-")[1]))
    source, target = (torch.randint(own.VOCABULARY, (batch, tokens)) for _ in range(2))
    return {"model": made, "inputs": (source, target), "targets": target, "loss": own.next_word_loss}


def _cells(model: str, tokens: int, batch: int) -> Parts:
    return next_word_training(new.CellsWithAttention(int(model.split("-")[1])), tokens, batch)


# Pictures and films


def _transformers_image(model: str, pixels: int, batch: int) -> Parts:
    kind = {"beit-base": "Beit", "dinov2-small": "Dinov2"}[model]
    width, heads = (768, 12) if "base" in model else (384, 6)
    sizes = {"hidden_size": width, "num_attention_heads": heads, "image_size": pixels, "num_labels": 1000}
    if kind != "Dinov2":
        sizes["intermediate_size"] = 4 * width
    made = transformers_model(f"{kind}ForImageClassification", sizes)
    return {"model": made, "inputs": torch.randn(batch, 3, pixels, pixels), "targets": torch.randint(1000, (batch,))}


def _segformer(model: str, pixels: int, batch: int) -> Parts:
    sizes = {"b0": [32, 64, 160, 256], "b2": [64, 128, 320, 512]}[model.split("-")[1]]
    depths = {"b0": [2, 2, 2, 2], "b2": [3, 4, 6, 3]}[model.split("-")[1]]
    made = transformers_model(
        "SegformerForSemanticSegmentation", {"hidden_sizes": sizes, "depths": depths, "num_labels": own.CLASSES}, "eager"
    )
    truth = torch.randint(own.CLASSES, (batch, pixels // 4, pixels // 4))
    return {"model": made, "inputs": torch.randn(batch, 3, pixels, pixels), "targets": truth}


def _film(model: str, pixels: int, batch: int) -> Parts:
    made = transformers_model(
        "VideoMAEForVideoClassification",
        {"image_size": pixels, "num_frames": 16, "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
    )
    frames = torch.randn(batch, 16, 3, pixels, pixels)
    return {"model": made, "inputs": frames, "targets": torch.randint(2, (batch,))}


def _residual_film(model: str, pixels: int, batch: int) -> Parts:
    made = new.ResidualFilm(int(model.split("-")[1]))
    return {
        "model": made,
        "inputs": torch.randn(batch, 3, 16, pixels, pixels),
        "targets": torch.randint(own.CLASSES, (batch,)),
    }


def _volume(model: str, voxels: int, batch: int) -> Parts:
    made = new.VolumeUNet(int(model.split("-")[1]))
    shape = (batch, voxels, voxels, voxels)
    return {
        "model": made,
        "inputs": torch.randn(batch, 1, *shape[1:]),
        "targets": torch.randint(new.TISSUES, shape),
        "loss": new.dice_loss,
    }


def _generator(model: str, pixels: int, batch: int) -> Parts:
    made = new.Adversaries(int(model.split("-")[1]), pixels)
    images = torch.randn(batch, 3, pixels, pixels)
    return {"model": made, "inputs": (torch.randn(batch, 128), images), "targets": images, "loss": new.first_output}


# Diffusion


def _denoising(model: str, pixels: int, batch: int) -> Parts:
    width = int(model.split("-")[1])
    made = library("diffusers").UNet2DModel(
        sample_size=pixels,
        block_out_channels=(width, 2 * width, 2 * width),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )
    noise = torch.randn(batch, 3, pixels, pixels)
    inputs = {"sample": noise, "timestep": torch.randint(1000, (batch,))}
    return {"model": made, "inputs": inputs, "targets": torch.randn_like(noise), "loss": own.noise_loss}


def _joint_diffusion(model: str, pixels: int, batch: int) -> Parts:
    layers = int(model.split("-")[1])
    made = library("diffusers").SD3Transformer2DModel(
        sample_size=pixels,
        in_channels=4,
        out_channels=4,
        num_layers=layers,
        num_attention_heads=8,
        joint_attention_dim=512,
        caption_projection_dim=512,
        pooled_projection_dim=512,
        pos_embed_max_size=pixels,
    )
    noise = torch.randn(batch, 4, pixels, pixels)
    inputs = {
        "hidden_states": noise,
        "timestep": torch.randint(1000, (batch,)),
        "encoder_hidden_states": torch.randn(batch, 77, 512),
        "pooled_projections": torch.randn(batch, 512),
    }
    return {"model": made, "inputs": inputs, "targets": torch.randn_like(noise), "loss": own.noise_loss}


# Speech, time series, points, games


def _spectrogram(model: str, frames: int, batch: int) -> Parts:
    made = transformers_model("ASTForAudioClassification", {"max_length": frames, "num_labels": 35})
    return {"model": made, "inputs": torch.randn(batch, frames, 128), "targets": torch.randint(35, (batch,))}


def _conformer(model: str, samples: int, batch: int) -> Parts:
    fixed = {"apply_spec_augment": False, "layerdrop": 0.0}  # both draw random numbers on the host
    sizes = {"hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6, "intermediate_size": 1536}
    made = transformers_model("Wav2Vec2ConformerForSequenceClassification", {**sizes, "num_labels": 12, **fixed}, "eager")
    return {"model": made, "inputs": torch.randn(batch, samples), "targets": torch.randint(12, (batch,))}


def _waves(model: str, samples: int, batch: int) -> Parts:
    made = new.DilatedWaves(int(model.split("-")[1]))
    sound = torch.randint(256, (batch, samples))
    return {"model": made, "inputs": sound, "targets": sound, "loss": own.next_word_loss}


def _patches(model: str, hours: int, batch: int) -> Parts:
    made = transformers_model(
        "PatchTSTForPrediction",
        {
            "num_input_channels": 21,
            "context_length": hours,
            "patch_length": 16,
            "patch_stride": 8,
            "prediction_length": 96,
            "d_model": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "ffn_dim": 256,
        },
    )
    return {
        "model": made,
        "inputs": {"past_values": torch.randn(batch, hours, 21), "future_values": torch.randn(batch, 96, 21)},
    }


def _points(model: str, points: int, batch: int) -> Parts:
    made = new.PointNetwork(int(model.split("-")[1]))
    return {"model": made, "inputs": torch.randn(batch, 3, points), "targets": torch.randint(own.CLASSES, (batch,))}


def _rays(model: str, samples: int, batch: int) -> Parts:
    made = new.RadianceField(int(model.split("-")[1]))
    return {
        "model": made,
        "inputs": torch.randn(batch, samples, 3),
        "targets": torch.rand(batch, 3),
        "loss": functional.mse_loss,
    }


def _neighbours(model: str, nodes: int, batch: int) -> Parts:
    width, layers = (int(word) for word in model.split("-")[1].split("x"))
    return {
        "model": new.NeighbourMeans(width, layers),
        "inputs": (torch.randn(nodes, own.NODE_FEATURES), torch.randint(nodes, (2, 16 * nodes))),
        "targets": torch.randint(own.CLASSES, (nodes,)),
        "loss": functional.cross_entropy,
    }


def _sessions(model: str, items: int, batch: int) -> Parts:
    made = new.SessionRecommender(int(model.split("-")[1]))
    seen = torch.randint(new.ITEMS, (batch, items))
    return {"model": made, "inputs": seen, "targets": seen, "loss": own.next_word_loss}


UNSEEN: dict[str, tuple[Build, tuple[str, ...]]] = {
    "vgg": (image_training, ("vgg16@224:32/bf16", "vgg11_bn@224:16/fp32")),
    "densenet": (image_training, ("densenet121@224:32/bf16", "densenet169@224:16/fp32")),
    "opt": (_language, ("opt-125m@512:8/bf16", "opt-125m@256:4/fp32")),
    "plain-transformer": (
        _plain_transformer,
        ("plain-512x6@256:32/bf16", "plain-768x12@512:8/fp16", "plain-256x4@128:16/fp32"),
    ),
    "volume-unet": (_volume, ("volume-16@96:2/bf16", "volume-8@64:4/fp32")),
    "waves": (_waves, ("waves-64@8000:4/bf16", "waves-32@4000:4/fp32")),
    "coatnet": (image_training, ("coatnet_0_rw_224@224:32/bf16", "coatnet_0_rw_224@224:16/fp32+adamw")),
    "pythia": (_language, ("pythia-160m@512:8/bf16+clip", "pythia-160m@1024:8/bf16+checkpointing")),
    "gemma2": (_language, ("gemma2-150m@512:8/bf16", "gemma2-150m@256:4/fp32")),
    "segformer": (_segformer, ("segformer-b0@512:8/bf16", "segformer-b2@512:4/fp32+adamw")),
    "points": (_points, ("points-64@2048:32/bf16", "points-64@1024:32/fp32")),
    "denoising": (_denoising, ("denoising-128@32:32/bf16", "denoising-64@64:8/fp32")),
    "poolformer": (image_training, ("poolformer_s12@224:64/bf16", "poolformer_s12@224:16/fp32")),
    "bloom": (_language, ("bloom-150m@512:8/bf16", "bloom-150m@256:4/fp32+adamw")),
    "bart": (_language, ("bart-base@256:16/bf16", "bart-base@128:8/fp32")),
    "film": (_film, ("videomae-small@112:8/bf16", "videomae-small@112:4/fp32")),
    "rays": (_rays, ("rays-256@64:1024/bf16", "rays-256@64:1024/fp32+adamw")),
    "cells": (_cells, ("cells-512@64:64/bf16", "cells-256@32:32/fp32")),
    "inception": (image_training, ("inception_v3@299:32/bf16", "inception_v3@299:16/fp32")),
    "phi3": (_language, ("phi3-150m@1024:4/bf16", "phi3-150m@512:4/pure+adafactor")),
    "albert": (_language, ("albert-base@256:16/bf16", "albert-base@128:8/fp32+adamw")),
    "dino": (_transformers_image, ("dinov2-small@224:64/bf16", "dinov2-small@224:32/fp32")),
    "adversaries": (_generator, ("adversaries-64@64:64/bf16", "adversaries-32@64:32/fp32+adamw")),
    "spectrogram": (_spectrogram, ("ast-base@512:8/bf16", "ast-base@256:4/fp32")),
    "mobilevit": (image_training, ("mobilevit_s@256:32/bf16", "mobilevit_s@256:16/fp32")),
    "olmoe": (_language, ("olmoe-150m@512:8/pure", "olmoe-150m@256:8/pure")),
    "electra": (_language, ("electra-base@256:16/bf16+accumulate2", "electra-base@128:8/fp32")),
    "beit": (_transformers_image, ("beit-base@224:32/bf16", "beit-base@224:16/fp32+adamw")),
    "translation": (_translation, ("translation-512@64:64/bf16", "translation-256@32:32/fp32+adamw")),
    "patches": (_patches, ("patchtst@512:64/bf16", "patchtst@336:32/fp32+adamw")),
    "hrnet": (image_training, ("hrnet_w18@224:32/bf16", "hrnet_w18@224:16/fp32")),
    "joint-diffusion": (_joint_diffusion, ("joint-8@32:16/bf16", "joint-4@32:8/fp32+adamw")),
    "distilbert": (_language, ("distilbert@512:16/bf16", "distilbert@128:16/fp32+adamw")),
    "conformer": (_conformer, ("conformer@64000:8/bf16", "conformer@32000:4/fp32")),
    "residual-film": (_residual_film, ("film-64@112:4/bf16", "film-32@112:4/fp32")),
    "neighbours": (_neighbours, ("neighbours-256x3@50000:1/bf16", "neighbours-128x2@20000:1/fp32")),
    "sessions": (_sessions, ("sessions-64@50:256/bf16", "sessions-128@100:128/fp32+adamw")),
    "pvt": (image_training, ("pvt_v2_b1@224:32/bf16", "pvt_v2_b1@224:16/fp32")),
    "xcit": (image_training, ("xcit_tiny_12_p16_224@224:64/bf16", "xcit_tiny_12_p16_224@224:32/fp32")),
}
"""By family: how its trainings are built, and their names."""
