"""The models of `configurations` in PyTorch: those of torchvision and timm, and small ones of our own. Imported only where
something is trained."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from fairlead.profiling.configurations import Configuration

CLASSES, VOCABULARY = 1000, 10_000
_TIMM = {"dpn68": "dpn68", "dpn92": "dpn92", "mobilenet_v1": "mobilenetv1_100"}
_VIT = {"vit-tiny": (192, 3), "vit-small": (384, 6), "vit-base": (768, 12)}
_GPT = {"gpt2-small": (768, 12), "gpt2-medium": (1024, 24)}


def build_model(configuration: Configuration, device: str) -> tuple[nn.Module, Any, Any]:
    """The model, and one batch of inputs and targets of the right shape, on the device."""
    model = _model(configuration).to(device)
    inputs, targets = _batch(configuration)
    return model, inputs.to(device), targets.to(device)


def _batch(configuration: Configuration) -> tuple[Any, Any]:
    size, length, family = configuration.batch_size, configuration.input, configuration.family
    if family in ("lstm", "gru", "transformer", "bert", "gpt2"):
        tokens = torch.randint(VOCABULARY, (size, length + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if family == "fully-connected":
        return torch.randn(size, length), torch.randint(CLASSES, (size,))
    pixels = torch.randn(size, 3, length, length)
    return pixels, torch.randint(CLASSES if family != "unet" else 2, (size, length, length) if family == "unet" else (size,))


def _model(configuration: Configuration) -> nn.Module:
    name, family = configuration.model, configuration.family
    if family in ("lstm", "gru"):
        hidden, layers = map(int, name.partition("-")[2].split("x"))
        return Recurrent(nn.LSTM if family == "lstm" else nn.GRU, hidden, layers)
    if family == "fully-connected":
        return _perceptron(configuration.input, int(name.partition("-")[2]))
    if family == "transformer":
        width, layers = map(int, name.partition("-")[2].split("x"))
        return Attending(width, layers, configuration.input, causal=name.startswith("decoder"))
    if family == "bert":
        return Attending(768, 12, configuration.input, causal=False)
    if family == "gpt2":
        return Attending(*_GPT[name], configuration.input, causal=True)
    if family == "vit":
        return Patches(*_VIT[name], configuration.input)
    if family == "unet":
        return UNet(int(name.partition("-")[2]))
    if name == "proxyless":
        return Inverted()
    if name == "pyramidnet":
        return Pyramid()
    if name in _TIMM:
        timm: Any = importlib.import_module("timm")
        made: nn.Module = timm.create_model(_TIMM[name], num_classes=CLASSES)
        return made
    models: Any = importlib.import_module("torchvision.models")
    extra = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    found: nn.Module = getattr(models, name)(weights=None, num_classes=CLASSES, **extra)
    return found


def _perceptron(features: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES))


class Recurrent(nn.Module):
    """A word-level language model."""

    def __init__(self, kind: Any, hidden: int, layers: int) -> None:
        super().__init__()
        self.words, self.cells = nn.Embedding(VOCABULARY, hidden), kind(hidden, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, VOCABULARY)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.cells(self.words(tokens))[0]).transpose(1, 2)


class Attending(nn.Module):
    """A Transformer over tokens, causal or not."""

    def __init__(self, width: int, layers: int, length: int, *, causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Parameter(torch.zeros(1, length, width))
        block = nn.TransformerEncoderLayer(width, max(width // 64, 1), 4 * width, batch_first=True, norm_first=True)
        self.blocks, self.out = nn.TransformerEncoder(block, layers, enable_nested_tensor=False), nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length) if causal else None)
        self.causal = causal

    def forward(self, tokens: Any) -> Any:
        hidden = self.blocks(self.words(tokens) + self.places, mask=self.mask, is_causal=self.causal)
        return self.out(hidden).transpose(1, 2)


class Patches(nn.Module):
    """A vision Transformer on patches of 16 pixels."""

    def __init__(self, width: int, heads: int, pixels: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, (pixels // 16) ** 2, width))
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
        self.blocks, self.out = nn.TransformerEncoder(block, 12, enable_nested_tensor=False), nn.Linear(width, CLASSES)

    def forward(self, images: Any) -> Any:
        return self.out(self.blocks(self.cut(images).flatten(2).transpose(1, 2) + self.places).mean(1))


def _convolution(before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    padding = kernel // 2
    return [nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(after)]


class _Residual(nn.Module):
    """A block whose input is added to what it makes of it, padded with zeros where it grew."""

    def __init__(self, *parts: nn.Module, stride: int = 1) -> None:
        super().__init__()
        self.parts, self.stride = nn.Sequential(*parts), stride

    def forward(self, x: Any) -> Any:
        made = self.parts(x)
        kept = x if self.stride == 1 else nn.functional.avg_pool2d(x, 2, ceil_mode=True)
        grown = made.shape[1] - kept.shape[1]
        return made + (nn.functional.pad(kept, (0, 0, 0, 0, 0, grown)) if grown else kept)


class Pyramid(nn.Module):
    """PyramidNet: channels grow a little with every block (Han et al., 2017), here 3 × 6 blocks up to 64 + 84."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [*_convolution(3, 64)]
        channels = 64
        for index in range(18):
            grown, stride = 64 + round(84 * (index + 1) / 18), 2 if index in (6, 12) else 1
            parts = [
                nn.BatchNorm2d(channels),
                *_convolution(channels, grown, 3, stride),
                nn.ReLU(),
                *_convolution(grown, grown),
            ]
            blocks.append(_Residual(*parts, stride=stride))
            channels = grown
        self.body, self.out = (
            nn.Sequential(*blocks, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            nn.Linear(channels, CLASSES),
        )

    def forward(self, images: Any) -> Any:
        return self.out(self.body(images))


class Inverted(nn.Module):
    """Inverted bottlenecks of mixed kernels, as ProxylessNAS finds them (Cai et al., 2019); the list is ours."""

    STAGES = (
        (24, 4, 2, (5, 3)),
        (40, 4, 2, (7, 3, 3)),
        (80, 5, 2, (7, 5, 5)),
        (96, 5, 1, (5, 5)),
        (192, 6, 2, (7, 7, 5)),
        (320, 6, 1, (7,)),
    )

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [*_convolution(3, 32, 3, 2), nn.ReLU6()]
        channels = 32
        for after, expansion, first, kernels in self.STAGES:
            for index, kernel in enumerate(kernels):
                stride, wide = first if index == 0 else 1, expansion * channels
                block: list[nn.Module] = [
                    *_convolution(channels, wide, 1),
                    nn.ReLU6(),
                    *_convolution(wide, wide, kernel, stride, wide),
                    nn.ReLU6(),
                    *_convolution(wide, after, 1),
                ]
                parts += [_Residual(*block)] if stride == 1 and channels == after else block
                channels = after
        parts += [*_convolution(channels, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.body, self.out = nn.Sequential(*parts), nn.Linear(1280, CLASSES)

    def forward(self, images: Any) -> Any:
        return self.out(self.body(images))


class UNet(nn.Module):
    """Four levels down and up again, for segmentation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(self._level(before, after) for before, after in zip([3, *sizes], sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * size, size, 2, 2) for size in sizes[-2::-1])
        self.joined = nn.ModuleList(self._level(2 * size, size) for size in sizes[-2::-1])
        self.out = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _level(before: int, after: int) -> nn.Module:
        return nn.Sequential(*_convolution(before, after), nn.ReLU(), *_convolution(after, after), nn.ReLU())

    def forward(self, images: Any) -> Any:
        kept: list[Any] = []
        x = images
        for level in self.down:
            x = level(x if not kept else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, joined, skipped in zip(self.up, self.joined, kept[-2::-1]):
            x = joined(torch.cat((skipped, up(x)), 1))
        return self.out(x)
