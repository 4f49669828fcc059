"""Randomness is keyed: one stream per purpose from one seed, so that adding a draw in one place moves nothing elsewhere."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """The generator for a purpose, such as `stream(7, "arrivals")`; the same key gives the same numbers everywhere."""
    digest = hashlib.blake2b("\x1f".join(map(str, purpose)).encode(), digest_size=16).digest()
    words = np.frombuffer(digest, dtype="<u4")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *map(int, words)])))
