"""Models of `trainings` that no library has in a form with fixed shapes: graphs, recommendation, mixture of experts with a
fixed capacity, state spaces, recurrent language models, segmentation, detection; and losses."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, CLASSES, NODE_FEATURES = 32000, 19, 128
OBJECTS, QUERIES = 92, 100
HOT = 4  # values of each categorical feature of a recommendation


def decoder_sizes(width: int, layers: int, heads: int, groups: int, hidden: int, vocabulary: int) -> dict[str, Any]:
    """The configuration of a decoder as Llama has it."""
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": hidden,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
    }


def next_word_loss(output: Tensor, words: Tensor) -> Tensor:
    """The cross entropy of each next word."""
    return functional.cross_entropy(output[:, :-1].reshape(-1, output.shape[-1]).float(), words[:, 1:].reshape(-1))


def noise_loss(output: Any, wanted: Tensor) -> Tensor:
    """The squared error of an output of `diffusers`."""
    return functional.mse_loss(output.sample.float(), wanted)


def detection_loss(output: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> Tensor:
    """Classes and boxes of a fixed matching: the first query has the first object."""
    (classes, boxes), (objects, places) = output, wanted
    return functional.cross_entropy(classes.flatten(0, 1).float(), objects.flatten()) + functional.l1_loss(
        boxes.float(), places
    )


class RecurrentModel(nn.Module):  # type: ignore[misc]
    """A recurrent language model."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.cells = kind(width, width, layers, batch_first=True, dropout=0.1 if layers > 1 else 0.0)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        """Logits of the next words."""
        return self.head(self.cells(self.embedding(words))[0])


class SwitchLayer(nn.Module):  # type: ignore[misc]
    """Feed-forward experts, one for each token, with a fixed capacity: tokens beyond it are passed on unchanged."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.first = nn.Parameter(0.02 * torch.randn(experts, width, 4 * width))
        self.second = nn.Parameter(0.02 * torch.randn(experts, 4 * width, width))

    def forward(self, states: Tensor) -> Tensor:
        """The states after the experts."""
        flat = states.flatten(0, 1)
        experts, capacity = self.first.shape[0], 5 * flat.shape[0] // (4 * self.first.shape[0])
        gate, chosen = self.router(flat).float().softmax(-1).max(-1)
        hits = functional.one_hot(chosen, experts)
        place = ((hits.cumsum(0) - 1) * hits).sum(-1)
        kept = place < capacity
        slot = torch.where(kept, chosen * capacity + place, experts * capacity)  # the last slot is for the others
        queue = flat.new_zeros(experts * capacity + 1, flat.shape[1]).index_copy(0, slot, flat)
        hidden = functional.gelu(torch.bmm(queue[:-1].view(experts, capacity, -1), self.first))
        done = functional.pad(torch.bmm(hidden, self.second).flatten(0, 1), (0, 0, 0, 1))
        return (flat + done[slot] * (gate * kept).unsqueeze(-1).to(done.dtype)).view_as(states)


class SwitchBlock(nn.Module):  # type: ignore[misc]
    """Causal attention, then experts."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.split, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.experts = SwitchLayer(width, experts)

    def forward(self, states: Tensor) -> Tensor:
        """The next states."""
        batch, tokens, width = states.shape
        parts = self.split(self.before(states)).view(batch, tokens, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        states = states + self.merge(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return self.experts(self.between(states))


class SwitchTransformer(nn.Module):  # type: ignore[misc]
    """A decoder with a mixture of experts in each block."""

    def __init__(self, width: int, layers: int, experts: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(*(SwitchBlock(width, experts) for _ in range(layers)))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """Logits of the next words."""
        return self.head(self.blocks(self.embedding(words)))


class StateSpaceBlock(nn.Module):  # type: ignore[misc]
    """A selective state space as in Mamba, scanned in a logarithmic number of passes."""

    STATES = 8

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.mixing = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.selection = nn.Linear(width, width + 2 * self.STATES)
        self.decay = nn.Parameter(torch.log(torch.arange(1.0, self.STATES + 1.0).repeat(width, 1)))
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, states: Tensor) -> Tensor:
        """The next states."""
        tokens, width = states.shape[1:]
        inner, gate = self.into(self.norm(states)).chunk(2, -1)
        inner = functional.silu(self.mixing(inner.transpose(1, 2))[..., :tokens].transpose(1, 2))
        step, enter, leave = self.selection(inner).float().split([width, self.STATES, self.STATES], -1)
        step = functional.softplus(step).unsqueeze(-1)
        keep = torch.exp(-step * self.decay.exp())
        total = step * enter.unsqueeze(2) * inner.unsqueeze(-1).float()
        reach = 1
        while reach < tokens:  # total[t] covers the last `reach` tokens
            total = torch.cat([total[:, :reach], total[:, reach:] + keep[:, reach:] * total[:, :-reach]], 1)
            keep = torch.cat([keep[:, :reach], keep[:, reach:] * keep[:, :-reach]], 1)
            reach *= 2
        mixed = (total * leave.unsqueeze(2)).sum(-1) + self.skip * inner
        return states + self.out(mixed * functional.silu(gate))


class StateSpaceModel(nn.Module):  # type: ignore[misc]
    """A language model of state spaces."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(*(StateSpaceBlock(width) for _ in range(layers)))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """Logits of the next words."""
        return self.head(self.blocks(self.embedding(words)))


class GraphConvolutions(nn.Module):  # type: ignore[misc]
    """Graph convolutions: the mean of the neighbours of each node."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        sizes = [NODE_FEATURES, *[width] * (layers - 1), CLASSES]
        self.layers = nn.ModuleList(nn.Linear(into, out) for into, out in itertools.pairwise(sizes))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Logits of each node's class."""
        source, target = edges
        ones = torch.ones_like(source, dtype=torch.float32)
        degree = nodes.new_ones(nodes.shape[0], dtype=torch.float32).index_add(0, target, ones)
        weight = (degree.rsqrt()[source] * degree.rsqrt()[target]).unsqueeze(1)
        for number, layer in enumerate(self.layers):
            states = layer(nodes)
            nodes = states.index_add(0, target, states[source] * weight.to(states.dtype))
            if number < len(self.layers) - 1:
                nodes = functional.dropout(functional.relu(nodes), 0.5, self.training)
        return nodes


class GraphAttention(nn.Module):  # type: ignore[misc]
    """Graph attention with four heads: a softmax over the edges of each node."""

    HEADS = 4

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        sizes = [NODE_FEATURES, *[width * self.HEADS] * layers]
        self.layers = nn.ModuleList(nn.Linear(into, out, bias=False) for into, out in itertools.pairwise(sizes))
        self.scores = nn.ParameterList(nn.Parameter(0.1 * torch.randn(2, self.HEADS, width)) for _ in range(layers))
        self.head = nn.Linear(width * self.HEADS, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Logits of each node's class."""
        source, target = edges
        for layer, score in zip(self.layers, self.scores):
            states = layer(nodes).view(nodes.shape[0], self.HEADS, -1)
            left, right = (states * score[0]).sum(-1), (states * score[1]).sum(-1)
            weight = functional.leaky_relu(left[source] + right[target], 0.2).float().clamp(max=10.0).exp()
            total = weight.new_full((nodes.shape[0], self.HEADS), 1e-6).index_add(0, target, weight)
            share = (weight / total[target]).to(states.dtype).unsqueeze(-1)
            mixed = torch.zeros_like(states).index_add(0, target, states[source] * share)
            nodes = functional.elu(mixed.flatten(1))
        return self.head(nodes)


class Recommender(nn.Module):  # type: ignore[misc]
    """DLRM: embeddings of categories, a network for numbers, and products of all pairs of both."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = _perceptron(13, 512, 256, width)
        self.top = _perceptron(width + (tables + 1) * tables // 2, 1024, 512, 1)
        pairs = torch.triu_indices(tables + 1, tables + 1, 1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1])

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """The logit of a click."""
        dense = self.bottom(numbers)
        found = [table(categories[:, place]).to(dense.dtype) for place, table in enumerate(self.tables)]
        together = torch.stack([dense, *found], 1)
        products = torch.bmm(together, together.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([dense, products[:, self.pairs]], 1)).squeeze(1)


def _perceptron(*sizes: int) -> nn.Sequential:
    parts = [part for into, out in itertools.pairwise(sizes) for part in (nn.Linear(into, out), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def _double(into: int, out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number in (into, out):
        layers += [nn.Conv2d(number, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class SegmentationUNet(nn.Module):  # type: ignore[misc]
    """A U-Net with four levels; the output has a class for each pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(5)]
        self.down = nn.ModuleList(_double(into, out) for into, out in zip([3, *sizes], sizes))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * one, one, 2, stride=2) for one in reversed(sizes[:-1]))
        self.up = nn.ModuleList(_double(2 * one, one) for one in reversed(sizes[:-1]))
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of each pixel's class."""
        kept: list[Tensor] = []
        states = images
        for level in self.down:
            states = level(functional.max_pool2d(states, 2) if kept else states)
            kept.append(states)
        for rise, level, same in zip(self.rise, self.up, reversed(kept[:-1])):
            states = level(torch.cat([same, rise(states)], 1))
        return self.head(states)


class Detector(nn.Module):  # type: ignore[misc]
    """DETR: a convolutional backbone, a transformer, and a class and a box for each query."""

    def __init__(self, backbone: nn.Module, channels: int, width: int = 256) -> None:
        super().__init__()
        self.backbone, self.project = backbone, nn.Conv2d(channels, width, 1)
        self.transformer = nn.Transformer(width, 8, 4, 4, 1024, batch_first=True)
        self.queries = nn.Parameter(torch.randn(QUERIES, width))
        self.places = nn.Parameter(torch.randn(1024, width))
        self.classes, self.boxes = nn.Linear(width, OBJECTS), _perceptron(width, width, width, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of classes, and boxes."""
        states = self.project(self.backbone(images)[-1]).flatten(2).transpose(1, 2)
        states = states + self.places[: states.shape[1]]
        found = self.transformer(states, self.queries.expand(images.shape[0], -1, -1))
        return self.classes(found), self.boxes(found).sigmoid()
