"""The names of accelerator types. Without numpy, so that `fairlead submit` starts quickly."""

from __future__ import annotations

import re

_BRANDS = ("nvidia", "tesla", "geforce", "quadro")
_FORM_FACTOR = re.compile(r"(sxm\d*|pcie|nvl\d*|\d+gb)\Z")
_MODEL = re.compile(r"[a-z]+\d+[a-z]*\Z")


def accelerator_type_of(product: str) -> str:
    """The type name of a product: 'Tesla V100-SXM2-16GB' is a v100, 'NVIDIA GeForce RTX 3090' an rtx3090."""
    words = [word for word in re.split(r"[\s\-]+", product.lower()) if word not in _BRANDS and not _FORM_FACTOR.match(word)]
    models = [word for word in words if _MODEL.match(word)]
    return models[0] if models else "".join(words[:2]) or "gpu"
