"""Models of `later_families` that no library has: as users write them, in plain PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fairlead_papers.prediction.training_models import CLASSES, VOCABULARY

LETTERS, VALUES, TAGS = 70, 100_000, 17


def own_loss(output: Tensor, wanted: Any) -> Tensor:
    """The loss that the model computed itself."""
    return output


def depth_loss(output: Any, wanted: Tensor) -> Tensor:
    """The mean error of the depth of each pixel."""
    return (output.predicted_depth.float() - wanted).abs().mean()


def tag_loss(output: Tensor, wanted: Tensor) -> Tensor:
    """Cross entropy of each word's tag; of words with tag 0 it does not count."""
    return functional.cross_entropy(output.flatten(0, 1).float(), wanted.flatten(), ignore_index=0)


def reading_loss(output: Tensor, wanted: tuple[Tensor, int]) -> Tensor:
    """Connectionist temporal classification."""
    letters, steps = wanted
    batch, length = letters.shape
    times = torch.full((batch,), steps, dtype=torch.int64)
    lengths = torch.full((batch,), length, dtype=torch.int64)
    return functional.ctc_loss(output.float().log_softmax(-1).transpose(0, 1), letters, times, lengths)


class LineReader(nn.Module):  # type: ignore[misc]
    """Reads a line of text: convolutions, then a recurrent net in both directions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [1, width, 2 * width, 4 * width]
        layers: list[nn.Module] = []
        for number, (into, out) in enumerate(itertools.pairwise(sizes)):
            layers += [nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
            layers.append(nn.MaxPool2d((2, 2) if number < 2 else (2, 1)))
        self.convolutions = nn.Sequential(*layers)
        self.recurrent = nn.LSTM(16 * width, 256, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(512, LETTERS)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the letter at each place."""
        states = self.convolutions(images).flatten(1, 2).transpose(1, 2)
        return self.head(self.recurrent(states)[0])


class SuperResolution(nn.Module):  # type: ignore[misc]
    """EDSR: residual blocks, then twice as many pixels in each direction."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(True), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(16)
        )
        self.last = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, images: Tensor) -> Tensor:
        """The larger images."""
        first = states = self.first(images)
        for block in self.blocks:
            states = states + 0.1 * block(states)
        return self.last(states + first)


class FactorizedClicks(nn.Module):  # type: ignore[misc]
    """DeepFM: products of pairs of embeddings, and a network of all."""

    def __init__(self, fields: int, width: int) -> None:
        super().__init__()
        self.shift = fields
        self.embedding, self.linear = nn.Embedding(VALUES * fields, width), nn.Embedding(VALUES * fields, 1)
        sizes = [fields * width, 400, 400, 400]
        layers = [
            part for into, out in itertools.pairwise(sizes) for part in (nn.Linear(into, out), nn.ReLU(), nn.Dropout(0.2))
        ]
        self.deep = nn.Sequential(*layers, nn.Linear(400, 1))

    def forward(self, values: Tensor) -> Tensor:
        """The logit of a click."""
        places = values + VALUES * torch.arange(self.shift, device=values.device)
        found = self.embedding(places)
        pairs = 0.5 * (found.sum(1).square() - found.square().sum(1)).sum(1)
        return pairs + self.linear(places).sum((1, 2)) + self.deep(found.flatten(1)).squeeze(1)


class LetterConvolutions(nn.Module):  # type: ignore[misc]
    """A classifier of texts by convolutions over letters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for into, kernel, pool in (
            (LETTERS, 7, True),
            (width, 7, True),
            (width, 3, False),
            (width, 3, False),
            (width, 3, True),
        ):
            layers += [nn.Conv1d(into, width, kernel), nn.ReLU()]
            layers += [nn.MaxPool1d(3)] if pool else []
        self.layers = nn.Sequential(*layers, nn.AdaptiveMaxPool1d(32), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(32 * width, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, CLASSES))

    def forward(self, letters: Tensor) -> Tensor:
        """Logits of the text's class."""
        return self.head(self.layers(functional.one_hot(letters, LETTERS).transpose(1, 2).float()))


class DilatedSegmentation(nn.Module):  # type: ignore[misc]
    """As DeepLab: convolutions of several reaches over coarse features, then their pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        self.down = nn.Sequential(*(self._layer(into, out, stride=2) for into, out in itertools.pairwise(sizes)))
        self.reaches = nn.ModuleList(self._layer(4 * width, width, reach=reach) for reach in (1, 6, 12, 18))
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4 * width, width, 1), nn.ReLU())
        self.head = nn.Sequential(self._layer(5 * width, 4 * width), nn.Conv2d(4 * width, CLASSES, 1))

    @staticmethod
    def _layer(into: int, out: int, stride: int = 1, reach: int = 1) -> nn.Sequential:
        convolution = nn.Conv2d(into, out, 3, stride, reach, reach, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of each pixel's class."""
        states = self.down(images)
        whole = self.whole(states).expand(-1, -1, *states.shape[2:])
        found = self.head(torch.cat([*(reach(states) for reach in self.reaches), whole], 1))
        return functional.interpolate(found, size=images.shape[2:], mode="bilinear", align_corners=False)


class SourceSeparation(nn.Module):  # type: ignore[misc]
    """Conv-TasNet: two sources of a sound by masks over learned filters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv1d(1, width, 16, 8), nn.ConvTranspose1d(width, 1, 16, 8)
        self.blocks = nn.ModuleList(self._block(width, 2**level) for _ in range(2) for level in range(8))
        self.masks = nn.Conv1d(width, 2 * width, 1)

    @staticmethod
    def _block(width: int, reach: int) -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv1d(width, 2 * width, 1), nn.PReLU(), nn.GroupNorm(1, 2 * width)),
            nn.Conv1d(2 * width, 2 * width, 3, padding=reach, dilation=reach, groups=2 * width),
            *(nn.PReLU(), nn.GroupNorm(1, 2 * width), nn.Conv1d(2 * width, width, 1)),
        )

    def forward(self, sound: Tensor) -> Tensor:
        """Both sources."""
        states = filters = self.encoder(sound)
        for block in self.blocks:
            states = states + block(states)
        masks = self.masks(states).unflatten(1, (2, -1)).sigmoid()
        found = self.decoder((masks * filters.unsqueeze(1)).flatten(0, 1))
        return found.unflatten(0, (-1, 2)).squeeze(2)


class LatentModel(nn.Module):  # type: ignore[misc]
    """A variational autoencoder of vectors, which computes its own loss."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.mean, self.spread = nn.Linear(width, 64), nn.Linear(width, 64)
        self.decoder = nn.Sequential(
            nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, features)
        )

    def forward(self, values: Tensor) -> Tensor:
        """The loss: reconstruction and divergence."""
        states = self.encoder(values)
        mean, spread = self.mean(states).float(), self.spread(states).float()
        made = self.decoder(mean + torch.randn_like(mean) * (0.5 * spread).exp())
        likeness = functional.binary_cross_entropy_with_logits(made.float(), values, reduction="sum")
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum()
        return (likeness + divergence) / values.shape[0]


class Tagger(nn.Module):  # type: ignore[misc]
    """A tag for each word, by a recurrent net in both directions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.recurrent = nn.GRU(width, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, TAGS)

    def forward(self, words: Tensor) -> Tensor:
        """Logits of each word's tag."""
        return self.head(self.recurrent(self.embedding(words))[0])
