"""Normalization that an exporter has folded into the convolution before it. Files are made for inference as a rule, where it
costs nothing that way; in a training it is an operator with two parameters a channel, and what goes into it is kept for the way
back. PyTorch's exporters leave a mark where they fold: the older one a weight and a bias that have both lost their names (a
weight alone has where it was computed from others), the newer one the name of its rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Shape = tuple[int, ...]

_NAMELESS = "onnx::Conv_"
_RULE, _FOLDED = "rewriter.rule_name", "FuseBatchNormInto"


def unfolded(
    nodes: Sequence[Any], shapes: Mapping[str, Shape | None], weights: frozenset[str]
) -> tuple[list[Any], dict[str, Shape | None], frozenset[str]]:
    """Nodes, shapes and weights as they are in a training."""
    same = {node.output[0]: node.input[0] for node in nodes if node.op_type == "Identity" and node.input and node.output}
    made, known, learned, gone = list[Any](), dict(shapes), set(weights), set[str]()
    for node in nodes:
        if not _is_folded(node):
            made.append(node)
            continue
        bare, then, after = type(node)(), type(node)(), node.output[0]
        bare.CopyFrom(node)
        gone.update(same.get(name, name) for name in node.input[2:3])  # it stands for what normalization adds
        del bare.input[2:]
        bare.output[0] = f"{after} before normalization"
        scale, bias, mean, variance = (f"{after} {what}" for what in ("scale", "bias", "mean", "variance"))
        then.op_type = "BatchNormalization"
        then.input.extend((bare.output[0], scale, bias, mean, variance))
        then.output.append(after)
        shape = known.get(after)
        channels = shape[1:2] if shape is not None else None
        known |= {bare.output[0]: shape, **dict.fromkeys((scale, bias, mean, variance), channels)}
        learned |= {scale, bias, mean, variance}
        made += (bare, then)
    return made, known, frozenset(learned - gone)


def _is_folded(node: Any) -> bool:
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(node.input) < 2 or not node.output:
        return False
    if len(node.input) > 2 and all(name.startswith(_NAMELESS) for name in node.input[1:3]):
        return True
    return any(each.key.endswith(_RULE) and _FOLDED in each.value for each in node.metadata_props)
