"""Models of `unseen_families` that no library has: as users write them, in plain PyTorch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fairlead_papers.prediction.training_models import CLASSES, NODE_FEATURES, VOCABULARY

TISSUES, ITEMS = 4, 20000


def first_output(output: tuple[Tensor, ...], wanted: Tensor) -> Tensor:
    """The loss that the model computed itself."""
    return output[0]


def dice_loss(output: Tensor, wanted: Tensor) -> Tensor:
    """Cross entropy and overlap of each tissue."""
    share = output.float().softmax(1)
    truth = functional.one_hot(wanted, TISSUES).movedim(-1, 1).float()
    overlap = 2 * (share * truth).sum((2, 3, 4)) / (share + truth).sum((2, 3, 4)).clamp(min=1)
    return functional.cross_entropy(output.float(), wanted) + 1 - overlap.mean()


class PlainTransformer(nn.Module):  # type: ignore[misc]
    """A decoder of PyTorch's own layers, with a causal mask."""

    def __init__(self, width: int, layers: int, tokens: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens))

    def forward(self, words: Tensor) -> Tensor:
        """Logits of the next words."""
        states = self.embedding(words) + self.places(torch.arange(words.shape[1], device=words.device))
        return self.head(self.layers(states, mask=self.mask, is_causal=True))


class Translator(nn.Module):  # type: ignore[misc]
    """PyTorch's transformer for pairs of sentences."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.transformer = nn.Transformer(width, width // 64, 6, 6, 4 * width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the next words of the translation."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.head(self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask))


class CellsWithAttention(nn.Module):  # type: ignore[misc]
    """A loop of cells in Python that looks back at its own states: many small kernels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.embedding, self.cell = nn.Embedding(VOCABULARY, width), nn.LSTMCell(2 * width, width)
        self.question, self.head = nn.Linear(width, width), nn.Linear(2 * width, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        """Logits of the next words."""
        inputs = self.embedding(words)
        state = cell = found = inputs.new_zeros(words.shape[0], self.width)
        past: list[Tensor] = []
        outputs: list[Tensor] = []
        for place in range(words.shape[1]):
            state, cell = self.cell(torch.cat([inputs[:, place], found], 1), (state, cell))
            past.append(state)
            keys = torch.stack(past, 1)
            weights = torch.bmm(keys, self.question(state).unsqueeze(2)).softmax(1)
            found = (weights * keys).sum(1)
            outputs.append(torch.cat([state, found], 1))
        return self.head(torch.stack(outputs, 1))


class ResidualFilm(nn.Module):  # type: ignore[misc]
    """A small residual network of three-dimensional convolutions, for films."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        self.stem = nn.Sequential(
            nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(width), nn.ReLU(inplace=True)
        )
        self.blocks = nn.ModuleList(self._block(into, out) for into, out in itertools.pairwise(sizes))
        self.shortcuts = nn.ModuleList(
            nn.Conv3d(into, out, 1, 1 if into == out else 2, bias=False) for into, out in itertools.pairwise(sizes)
        )
        self.head = nn.Linear(sizes[-1], CLASSES)

    @staticmethod
    def _block(into: int, out: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv3d(into, out, 3, 1 if into == out else 2, 1, bias=False),
            nn.BatchNorm3d(out),
            nn.ReLU(inplace=True),
            nn.Conv3d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm3d(out),
        )

    def forward(self, frames: Tensor) -> Tensor:
        """Logits of the film's class."""
        states = self.stem(frames)
        for block, shortcut in zip(self.blocks, self.shortcuts):
            states = functional.relu(block(states) + shortcut(states))
        return self.head(states.mean((2, 3, 4)))


class VolumeUNet(nn.Module):  # type: ignore[misc]
    """A U-Net of volumes with three levels, instance normalization and leaky units."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(self._double(into, out) for into, out in zip([1, *sizes], sizes))
        self.rise = nn.ModuleList(nn.ConvTranspose3d(2 * one, one, 2, stride=2) for one in reversed(sizes[:-1]))
        self.up = nn.ModuleList(self._double(2 * one, one) for one in reversed(sizes[:-1]))
        self.head = nn.Conv3d(width, TISSUES, 1)

    @staticmethod
    def _double(into: int, out: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for number in (into, out):
            layers += [nn.Conv3d(number, out, 3, padding=1), nn.InstanceNorm3d(out, affine=True), nn.LeakyReLU(0.01)]
        return nn.Sequential(*layers)

    def forward(self, volumes: Tensor) -> Tensor:
        """Logits of each voxel's tissue."""
        kept: list[Tensor] = []
        states = volumes
        for level in self.down:
            states = level(functional.max_pool3d(states, 2) if kept else states)
            kept.append(states)
        for rise, level, same in zip(self.rise, self.up, reversed(kept[:-1])):
            states = level(torch.cat([same, rise(states)], 1))
        return self.head(states)


class Adversaries(nn.Module):  # type: ignore[misc]
    """A generator and a discriminator, trained with one sum of losses."""

    def __init__(self, width: int, pixels: int) -> None:
        super().__init__()
        levels = int(math.log2(pixels)) - 2
        sizes = [width * 2 ** max(0, levels - 1 - level) for level in range(levels)]
        layers: list[nn.Module] = [nn.ConvTranspose2d(128, sizes[0], 4, bias=False)]
        for into, out in itertools.pairwise(sizes):
            layers += [nn.BatchNorm2d(into), nn.ReLU(), nn.ConvTranspose2d(into, out, 4, 2, 1, bias=False)]
        layers += [nn.BatchNorm2d(sizes[-1]), nn.ReLU(), nn.ConvTranspose2d(sizes[-1], 3, 4, 2, 1), nn.Tanh()]
        self.generator = nn.Sequential(*layers)
        judged: list[nn.Module] = []
        for into, out in itertools.pairwise([3, *reversed(sizes)]):
            judged += [nn.utils.parametrizations.spectral_norm(nn.Conv2d(into, out, 4, 2, 1)), nn.LeakyReLU(0.2)]
        self.discriminator = nn.Sequential(*judged, nn.Flatten(), nn.Linear(16 * sizes[0], 1))

    def forward(self, noise: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of both losses, and the generated images."""
        made = self.generator(noise[:, :, None, None])
        true, false = self.discriminator(images), self.discriminator(made)
        return functional.softplus(-true).mean() + functional.softplus(false).mean() - made.float().var(), made


class DilatedWaves(nn.Module):  # type: ignore[misc]
    """WaveNet: gated convolutions of growing reach over samples of sound."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        reaches = [2**level for level in range(10)] * 2
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=reach) for reach in reaches)
        self.mixers = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in reaches)
        self.reaches = reaches
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 256, 1), nn.ReLU(), nn.Conv1d(256, 256, 1))

    def forward(self, samples: Tensor) -> Tensor:
        """Logits of the next samples."""
        states = self.embedding(samples).transpose(1, 2)
        total: Any = 0
        for gate, mixer, reach in zip(self.gates, self.mixers, self.reaches):
            content, opened = gate(functional.pad(states, (reach, 0))).chunk(2, 1)
            rest, kept = mixer(content.tanh() * opened.sigmoid()).chunk(2, 1)
            states, total = states + rest, total + kept
        return self.head(total).transpose(1, 2)


class PointNetwork(nn.Module):  # type: ignore[misc]
    """PointNet: the same layers for each point, then their maximum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [3, width, width, 2 * width, 16 * width]
        self.points = nn.Sequential(
            *(
                part
                for into, out in itertools.pairwise(sizes)
                for part in (nn.Conv1d(into, out, 1), nn.BatchNorm1d(out), nn.ReLU())
            )
        )
        self.turn = nn.Sequential(nn.Linear(16 * width, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, CLASSES))

    def forward(self, points: Tensor) -> Tensor:
        """Logits of the shape's class."""
        return self.turn(self.points(points).amax(2))


class RadianceField(nn.Module):  # type: ignore[misc]
    """NeRF: a network of positions along rays, and their sum by density."""

    WAVES = 10

    def __init__(self, width: int) -> None:
        super().__init__()
        features = 3 + 6 * self.WAVES
        self.first = nn.ModuleList(nn.Linear(into, width) for into in (features, *[width] * 3))
        self.second = nn.ModuleList(nn.Linear(into, width) for into in (width + features, *[width] * 3))
        self.head = nn.Linear(width, 4)
        self.register_buffer("waves", 2.0 ** torch.arange(self.WAVES))

    def forward(self, places: Tensor) -> Tensor:
        """The colour of each ray."""
        turned = (places[..., None] * self.waves).flatten(2)
        features = torch.cat([places, turned.sin(), turned.cos()], -1)
        states = features
        for layer in self.first:
            states = functional.relu(layer(states))
        states = torch.cat([states, features], -1)
        for layer in self.second:
            states = functional.relu(layer(states))
        colour, density = self.head(states).float().split([3, 1], -1)
        opaque = 1 - torch.exp(-functional.relu(density) * 0.1)
        clear = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-6], 1), 1)[:, :-1]
        return (opaque * clear * colour.sigmoid()).sum(1)


class NeighbourMeans(nn.Module):  # type: ignore[misc]
    """GraphSAGE: each node's own features and the mean of its neighbours'."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        sizes = [NODE_FEATURES, *[width] * (layers - 1), CLASSES]
        self.own = nn.ModuleList(nn.Linear(into, out) for into, out in itertools.pairwise(sizes))
        self.others = nn.ModuleList(nn.Linear(into, out, bias=False) for into, out in itertools.pairwise(sizes))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Logits of each node's class."""
        source, target = edges
        for number, (own, others) in enumerate(zip(self.own, self.others)):
            place = target.unsqueeze(1).expand(-1, nodes.shape[1])
            mean = torch.zeros_like(nodes).scatter_reduce(0, place, nodes[source], "mean", include_self=False)
            nodes = own(nodes) + others(mean)
            if number < len(self.own) - 1:
                nodes = functional.normalize(functional.relu(nodes), dim=1)
        return nodes


class SessionRecommender(nn.Module):  # type: ignore[misc]
    """SASRec: attention over the items of a session; the output scores all items."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(ITEMS, width), nn.Embedding(512, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 2, 0.2, batch_first=True) for _ in range(2))
        self.mixers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width)) for _ in range(2)
        )

    def forward(self, items: Tensor) -> Tensor:
        """Scores of all items at each place."""
        length = items.shape[1]
        states = self.items(items) + self.places(torch.arange(length, device=items.device))
        mask = torch.ones(length, length, dtype=torch.bool, device=items.device).triu(1)
        for norm, attention, mixer in zip(self.norms, self.attention, self.mixers):
            question = norm(states)
            states = states + attention(question, states, states, attn_mask=mask, need_weights=False)[0]
            states = states + mixer(states)
        return functional.linear(states, self.items.weight)
