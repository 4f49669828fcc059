"""Which of the accelerators that NVML sees are CUDA's, in CUDA's order. It asks neither."""

from __future__ import annotations

from collections.abc import Mapping


def visible(names: list[str], environment: Mapping[str, str]) -> list[int]:
    """Their places among all, whose UUIDs are given, as far as `CUDA_VISIBLE_DEVICES` lets this process have them."""
    said = environment.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return list(range(len(names)))
    chosen: list[int] = []
    for word in filter(None, (part.strip() for part in said.split(","))):
        places = [int(word)] if word.isdigit() else [place for place, name in enumerate(names) if name.startswith(word)]
        if len(places) != 1 or places[0] >= len(names):  # CUDA too stops at the first that it does not know
            break
        chosen.append(places[0])
    return chosen


def text_of(said: str | bytes) -> str:
    """NVML's texts are bytes in some versions of its library."""
    return said.decode() if isinstance(said, bytes) else said
