"""Which two do better on one accelerator than in turns. Whoever builds a program with company begins with these."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints

PAYS = 1e-9
"""Two on one accelerator must do so much more together than they would in turns."""


def paying(beside: Floats, alone: Floats, workers: Ints) -> Bools:
    """Classes × classes × types, the same both ways: whether two of one size, who both make progress, keep more than one whole
    of what they do alone. `beside[g, h, j]` is what g does beside h, in the units of `alone`."""
    part = np.divide(beside, alone[:, None, :], out=np.zeros_like(beside), where=alone[:, None, :] > 0)
    turned = part.transpose(1, 0, 2)
    pays: Bools = (part > 0) & (turned > 0) & (part + turned > 1.0 + PAYS)
    pays &= (workers[:, None] == workers[None, :])[:, :, None]
    return pays
