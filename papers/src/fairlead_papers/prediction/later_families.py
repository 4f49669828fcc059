"""Families of trainings that were new to the predictor after it had been mended with `unseen_families`: the third list. Since
then the trace was mended with what they showed, too, and the speed of a step is fitted to them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from fairlead_papers.prediction import later_models as new
from fairlead_papers.prediction import training_models as own
from fairlead_papers.prediction.training_families import Build, Parts, image_training, transformers_model

_LARGE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
_LANGUAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "gptj-150m": ("GPTJForCausalLM", {"n_embd": 768, "n_layer": 12, "n_head": 12, "rotary_dim": 32, "vocab_size": 32000}),
    "falcon-150m": ("FalconForCausalLM", {**_LARGE, "vocab_size": 32000}),
    "modernbert-base": ("ModernBertForMaskedLM", {}),
    "mpnet-base": ("MPNetForMaskedLM", {}),
    "convbert-base": ("ConvBertForMaskedLM", {}),
    "mbart-base": (
        "MBartForConditionalGeneration",
        {
            **{f"{side}_layers": 6 for side in ("encoder", "decoder")},
            **{f"{side}_attention_heads": 12 for side in ("encoder", "decoder")},
            **{f"{side}_ffn_dim": 3072 for side in ("encoder", "decoder")},
            "d_model": 768,
            "vocab_size": 64000,
        },
    ),
    "qwen2moe-200m": (
        "Qwen2MoeForCausalLM",
        {
            **own.decoder_sizes(512, 8, 8, 8, 1024, 32000),
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
    ),
}


def _language(model: str, tokens: int, batch: int) -> Parts:
    attention = "eager" if model.startswith(("mpnet", "convbert", "gptj")) else "sdpa"
    words = torch.randint(4, 30000, (batch, tokens))
    made = transformers_model(*_LANGUAGE[model], attention)
    mask = torch.ones(batch, tokens, dtype=torch.int64)
    return {"model": made, "inputs": {"input_ids": words, "attention_mask": mask, "labels": words}}


def _answers(model: str, tokens: int, batch: int) -> Parts:
    made = transformers_model("BertForQuestionAnswering", _LARGE)
    places = {f"{end}_positions": torch.randint(tokens, (batch,)) for end in ("start", "end")}
    mask = torch.ones(batch, tokens, dtype=torch.int64)
    return {"model": made, "inputs": {"input_ids": torch.randint(4, 30000, (batch, tokens)), "attention_mask": mask, **places}}


def _siglip(model: str, tokens: int, batch: int) -> Parts:
    made = transformers_model("SiglipModel", {})
    words = torch.randint(1, 30000, (batch, tokens))
    images = torch.randn(batch, 3, 224, 224)
    return {"model": made, "inputs": {"input_ids": words, "pixel_values": images, "return_loss": True}}


def _masked_images(model: str, pixels: int, batch: int) -> Parts:
    made = transformers_model("ViTMAEForPreTraining", {"image_size": pixels})
    return {"model": made, "inputs": {"pixel_values": torch.randn(batch, 3, pixels, pixels)}}


def _depth(model: str, pixels: int, batch: int) -> Parts:
    made = transformers_model("DPTForDepthEstimation", {"image_size": pixels})
    truth = torch.rand(batch, pixels, pixels)
    return {"model": made, "inputs": torch.randn(batch, 3, pixels, pixels), "targets": truth, "loss": new.depth_loss}


def _time_mixer(model: str, hours: int, batch: int) -> Parts:
    sizes = {"context_length": hours, "patch_length": 16, "patch_stride": 8, "num_input_channels": 21, "prediction_length": 96}
    made = transformers_model("PatchTSMixerForPrediction", {**sizes, "d_model": 128, "num_layers": 6}, "eager")
    values = {"past_values": torch.randn(batch, hours, 21), "future_values": torch.randn(batch, 96, 21)}
    return {"model": made, "inputs": values}


def _spoken(model: str, samples: int, batch: int) -> Parts:
    fixed = {"apply_spec_augment": False, "layerdrop": 0.0}  # both draw random numbers on the host
    made = transformers_model("WavLMForSequenceClassification", {"num_hidden_layers": 6, "num_labels": 12, **fixed}, "eager")
    return {"model": made, "inputs": {"input_values": torch.randn(batch, samples), "labels": torch.randint(12, (batch,))}}


def _lines(model: str, pixels: int, batch: int) -> Parts:
    made = new.LineReader(int(model.split("-")[1]))
    targets = (torch.randint(1, new.LETTERS, (batch, 16)), pixels // 4)
    return {"model": made, "inputs": torch.randn(batch, 1, 32, pixels), "targets": targets, "loss": new.reading_loss}


def _sharper(model: str, pixels: int, batch: int) -> Parts:
    made = new.SuperResolution(int(model.split("-")[1]))
    large = torch.rand(batch, 3, 2 * pixels, 2 * pixels)
    small = torch.rand(batch, 3, pixels, pixels)
    return {"model": made, "inputs": small, "targets": large, "loss": functional.l1_loss}


def _clicks(model: str, fields: int, batch: int) -> Parts:
    made = new.FactorizedClicks(fields, int(model.split("-")[1]))
    inputs = torch.randint(new.VALUES, (batch, fields))
    loss = functional.binary_cross_entropy_with_logits
    return {"model": made, "inputs": inputs, "targets": torch.rand(batch).round(), "loss": loss}


def _letters(model: str, letters: int, batch: int) -> Parts:
    made = new.LetterConvolutions(int(model.split("-")[1]))
    inputs = torch.randint(new.LETTERS, (batch, letters))
    return {"model": made, "inputs": inputs, "targets": torch.randint(own.CLASSES, (batch,))}


def _scene(model: str, pixels: int, batch: int) -> Parts:
    made = new.DilatedSegmentation(int(model.split("-")[1]))
    truth = torch.randint(own.CLASSES, (batch, pixels, pixels))
    return {"model": made, "inputs": torch.randn(batch, 3, pixels, pixels), "targets": truth}


def _separation(model: str, samples: int, batch: int) -> Parts:
    made = new.SourceSeparation(int(model.split("-")[1]))
    truth = torch.randn(batch, 2, samples)
    return {"model": made, "inputs": torch.randn(batch, 1, samples), "targets": truth, "loss": functional.mse_loss}


def _latent(model: str, features: int, batch: int) -> Parts:
    made = new.LatentModel(features, int(model.split("-")[1]))
    return {"model": made, "inputs": torch.rand(batch, features), "targets": None, "loss": new.own_loss}


def _tags(model: str, tokens: int, batch: int) -> Parts:
    made = new.Tagger(int(model.split("-")[1]))
    words = torch.randint(own.VOCABULARY, (batch, tokens))
    return {"model": made, "inputs": words, "targets": torch.randint(new.TAGS, (batch, tokens)), "loss": new.tag_loss}


LATER: dict[str, tuple[Build, tuple[str, ...]]] = {
    "gptj": (_language, ("gptj-150m@512:8/bf16", "gptj-150m@256:4/fp32+adamw")),
    "repvgg": (image_training, ("repvgg_a2@224:32/bf16", "repvgg_a2@224:16/fp32")),
    "line-reader": (_lines, ("lines-64@256:64/bf16", "lines-64@128:32/fp32+adamw")),
    "falcon": (_language, ("falcon-150m@512:8/bf16", "falcon-150m@256:4/fp32")),
    "mvit": (image_training, ("mvitv2_tiny@224:32/bf16", "mvitv2_tiny@224:16/fp32")),
    "super-resolution": (_sharper, ("sharper-64@64:16/bf16", "sharper-64@48:16/fp32+adamw")),
    "modernbert": (_language, ("modernbert-base@512:8/bf16", "modernbert-base@256:8/fp32+adamw")),
    "resnest": (image_training, ("resnest50d@224:32/bf16", "resnest50d@224:16/fp32")),
    "clicks": (_clicks, ("clicks-64@39:4096/bf16", "clicks-32@39:4096/fp32+adamw")),
    "mpnet": (_language, ("mpnet-base@256:16/bf16", "mpnet-base@128:8/fp32")),
    "edgenext": (image_training, ("edgenext_small@256:32/bf16", "edgenext_small@256:16/fp32")),
    "letters": (_letters, ("letters-256@1014:128/bf16", "letters-256@1014:64/fp32")),
    "convbert": (_language, ("convbert-base@128:16/bf16", "convbert-base@128:8/fp32")),
    "focalnet": (image_training, ("focalnet_tiny_srf@224:32/bf16", "focalnet_tiny_srf@224:16/fp32+adamw")),
    "dilated-segmentation": (_scene, ("scene-64@256:16/bf16", "scene-64@256:8/fp32")),
    "mbart": (_language, ("mbart-base@128:16/bf16+clip", "mbart-base@128:8/fp32+adamw")),
    "volo": (image_training, ("volo_d1_224@224:32/bf16", "volo_d1_224@224:8/fp32")),
    "separation": (_separation, ("separation-256@16000:8/bf16", "separation-128@16000:4/fp32+adamw")),
    "qwen2moe": (_language, ("qwen2moe-200m@256:8/pure", "qwen2moe-200m@512:4/pure+sgd")),
    "cait": (image_training, ("cait_xxs24_224@224:32/bf16", "cait_xxs24_224@224:16/fp32")),
    "latent": (_latent, ("latent-2048@784:1024/bf16", "latent-512@784:256/fp32+adamw")),
    "bert": (_answers, ("answers-base@384:16/bf16", "answers-base@384:8/fp32+adamw")),
    "nfnet": (image_training, ("nf_resnet50@224:32/bf16", "nf_resnet50@224:16/fp32")),
    "tagger": (_tags, ("tagger-512@64:128/bf16", "tagger-256@64:64/fp32+adamw")),
    "siglip": (_siglip, ("siglip-base@64:32/bf16", "siglip-base@64:16/fp32+adamw")),
    "res2net": (image_training, ("res2net50_26w_4s@224:32/bf16", "res2net50_26w_4s@224:16/fp32")),
    "masked-images": (_masked_images, ("vitmae-base@224:64/bf16", "vitmae-base@224:32/fp32+adamw")),
    "ghostnet": (image_training, ("ghostnet_100@224:64/bf16", "ghostnet_100@224:32/fp32")),
    "depth": (_depth, ("dpt-base@384:4/bf16", "dpt-base@384:2/fp32")),
    "time-mixer": (_time_mixer, ("tsmixer@512:64/bf16", "tsmixer@512:32/fp32+adamw")),
    "wavlm": (_spoken, ("wavlm-small@48000:8/bf16", "wavlm-small@32000:4/fp32")),
    "twins": (image_training, ("twins_svt_small@224:32/bf16", "twins_svt_small@224:16/fp32")),
}
"""By family: how its trainings are built, and their names."""
