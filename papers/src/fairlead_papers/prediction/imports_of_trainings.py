"""Imports all that trainings need, without using CUDA. Processes that measure are forked from one that has imported this."""

from __future__ import annotations

import contextlib
import warnings
from importlib import import_module
from typing import Any
from unittest import mock

import torch

from fairlead.prediction.training_step import allow_torchvision
from fairlead_papers.prediction import trainings

allow_torchvision()
warnings.filterwarnings("ignore")
LAZY = {
    "transformers": (
        "BertForMaskedLM RobertaForMaskedLM DebertaV2ForSequenceClassification GPT2LMHeadModel LlamaForCausalLM"
        " Qwen3ForCausalLM MixtralForCausalLM T5ForConditionalGeneration WhisperForConditionalGeneration"
        " Wav2Vec2ForSequenceClassification HubertForSequenceClassification CLIPModel OPTForCausalLM GPTNeoXForCausalLM"
        " Gemma2ForCausalLM BloomForCausalLM Phi3ForCausalLM OlmoeForCausalLM ElectraForMaskedLM AlbertForMaskedLM"
        " DistilBertForMaskedLM BartForConditionalGeneration BeitForImageClassification Dinov2ForImageClassification"
        " SegformerForSemanticSegmentation VideoMAEForVideoClassification ASTForAudioClassification"
        " Wav2Vec2ConformerForSequenceClassification PatchTSTForPrediction GPTJForCausalLM FalconForCausalLM SiglipModel"
        " ModernBertForMaskedLM MPNetForMaskedLM ConvBertForMaskedLM MBartForConditionalGeneration Qwen2MoeForCausalLM"
        " BertForQuestionAnswering ViTMAEForPreTraining DPTForDepthEstimation PatchTSMixerForPrediction"
        " WavLMForSequenceClassification"
    ),
    "diffusers": "UNet2DConditionModel DiTTransformer2DModel AutoencoderKL UNet2DModel SD3Transformer2DModel",
}
"""Names whose modules a library imports at their first use."""

HIDDEN: dict[Any, dict[str, Any]] = {
    torch.cuda: {"is_available": False, "device_count": 0, "current_device": 0, "get_device_capability": (0, 0)},
    torch.accelerator: {"is_available": False, "device_count": 0, "current_accelerator": None},
    torch._C: {"_cuda_getDeviceCount": 0},
}
"""What libraries ask PyTorch when they are imported. The true answers need CUDA, which does not survive a fork."""

with contextlib.ExitStack() as stack:
    for owner, answers in HIDDEN.items():
        for name, answer in answers.items():
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, lambda *_, answer=answer, **__: answer))
    for library in (*trainings.LIBRARIES, "torch.profiler", "fairlead.profiling.host_probe"):
        with contextlib.suppress(ImportError):
            found = import_module(library)
            for name in LAZY.get(library, "").split():
                with contextlib.suppress(ImportError, RuntimeError, AttributeError):
                    getattr(found, name)
