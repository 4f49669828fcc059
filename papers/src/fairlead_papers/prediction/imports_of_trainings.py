"""Imports all that trainings need, without using CUDA. Processes that measure are forked from one that has imported this."""

from __future__ import annotations

import contextlib
import warnings
from importlib import import_module

from fairlead_papers.prediction import trainings
from fairlead_papers.prediction.training_models import allow_torchvision

allow_torchvision()
warnings.filterwarnings("ignore")
LAZY = {
    "transformers": (
        "BertForMaskedLM RobertaForMaskedLM DebertaV2ForSequenceClassification GPT2LMHeadModel LlamaForCausalLM"
        " Qwen3ForCausalLM MixtralForCausalLM T5ForConditionalGeneration WhisperForConditionalGeneration"
        " Wav2Vec2ForSequenceClassification HubertForSequenceClassification CLIPModel"
    ),
    "diffusers": "UNet2DConditionModel DiTTransformer2DModel AutoencoderKL",
}
"""Names whose modules a library imports at their first use."""

for library in (*trainings.LIBRARIES, "torch.profiler", "fairlead.profiling.host_probe"):
    with contextlib.suppress(ImportError):
        found = import_module(library)
        for name in LAZY.get(library, "").split():
            with contextlib.suppress(ImportError, RuntimeError, AttributeError):
                getattr(found, name)
