"""The training configurations that are measured: model families, input sizes, batch sizes. Names and numbers only; `networks`
builds the models.

Families are those of Horus' Table 2 and, from "transformer" on, current ones. A name is model@input:batch, such as
"resnet18@224:64"; the input is pixels, tokens or features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from fairlead.core.errors import InputError, near_or_all


@dataclass(frozen=True, order=True)
class Configuration:
    """One training configuration."""

    family: str
    model: str
    input: int  # pixels on a side, tokens in a sequence, or features
    batch_size: int

    @property
    def name(self) -> str:
        """Such as "resnet18@224:64"."""
        return f"{self.model}@{self.input}:{self.batch_size}"


SMALL, LARGE = 32, 224  # pixels: CIFAR's and ImageNet's
BATCHES_SMALL, BATCHES_LARGE = (16, 64, 128, 256), (8, 32, 64, 128)

CONVOLUTIONAL_MODELS: dict[str, tuple[str, ...]] = {
    "mobilenet-v1": ("mobilenet_v1",),
    "mobilenet-v2": ("mobilenet_v2",),
    "mobilenet-v3": ("mobilenet_v3_small", "mobilenet_v3_large"),
    "googlenet": ("googlenet",),
    "resnet": ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    "vgg": ("vgg11", "vgg13", "vgg16", "vgg19"),
    "squeezenet": ("squeezenet1_0", "squeezenet1_1"),
    "densenet": ("densenet121", "densenet169", "densenet201"),
    "shufflenet-v2": ("shufflenet_v2_x0_5", "shufflenet_v2_x1_0"),
    "mnasnet": ("mnasnet0_5", "mnasnet1_0"),
    "dpn": ("dpn68", "dpn92"),
    "proxyless": ("proxyless",),
    "pyramidnet": ("pyramidnet",),
    "resnext": ("resnext50_32x4d", "resnext101_32x8d"),
}
_LARGE_INPUT_ONLY = ("squeezenet1_0", "googlenet")
"""Models whose strides are too large for 32 pixels."""

# By family: model, input size, batch sizes.
OTHER_MODELS: dict[str, tuple[tuple[str, int, tuple[int, ...]], ...]] = {
    "lstm": tuple((f"lstm-{size}", 128, (16, 64, 256, 512)) for size in ("256x1", "650x2", "1500x2")),
    "gru": tuple((f"gru-{size}", 128, (16, 64, 256, 512)) for size in ("256x1", "650x2", "1500x2")),
    "fully-connected": tuple((f"mlp-{width}", 784, (64, 512, 4096)) for width in (512, 2048, 8192)),
    "transformer": tuple(
        (f"{part}-{size}", 128, (8, 32, 128)) for part in ("encoder", "decoder") for size in ("256x4", "512x6")
    ),
    "bert": (("bert-base", 128, (4, 16, 64)), ("bert-base", 512, (4, 16))),
    "gpt2": (("gpt2-small", 512, (2, 8, 16)), ("gpt2-medium", 512, (2, 8))),
    "vit": tuple((model, LARGE, (8, 32, 128)) for model in ("vit-tiny", "vit-small", "vit-base")),
    "unet": tuple((f"unet-{width}", pixels, (4, 16)) for width in (16, 64) for pixels in (128, 256)),
}


def configurations() -> tuple[Configuration, ...]:
    """All configurations; families alternate, so that an interrupted measurement is a fair sample."""
    by_family: dict[str, list[Configuration]] = {}
    for one in _all():
        by_family.setdefault(one.family, []).append(one)
    return tuple(one for turn in zip_longest(*by_family.values()) for one in turn if one is not None)


def configuration(name: str) -> Configuration:
    """The configuration with a name."""
    by_name = {one.name: one for one in configurations()}
    if name not in by_name:
        raise InputError("configurations", f"one that can be measured ({near_or_all(name, by_name)})", field="name", value=name)
    return by_name[name]


def _all() -> Iterator[Configuration]:
    for family, models in CONVOLUTIONAL_MODELS.items():
        for model in models:
            if model not in _LARGE_INPUT_ONLY:
                yield from (Configuration(family, model, SMALL, size) for size in BATCHES_SMALL)
            yield from (Configuration(family, model, LARGE, size) for size in BATCHES_LARGE)
    for family, sizes in OTHER_MODELS.items():
        for model, input_size, batches in sizes:
            yield from (Configuration(family, model, input_size, size) for size in batches)
