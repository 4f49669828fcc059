"""Batch sizes as scripts come to say them: numbers of other libraries, and what is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fairlead


@pytest.mark.parametrize("size", [8, 8.0, np.int32(8), np.float64(8.0)])
def test_whole_numbers_of_any_library_are_batch_sizes(size: object):
    lease = fairlead.lease([1, 2, 3])
    for _ in lease:
        lease.batch_size = size
    assert (lease.batch_size, type(lease.batch_size)) == (8, int)


@pytest.mark.parametrize("size", [0, -1, 8.5, True, 2**63, 10**30, "8", None, math.nan, math.inf])
def test_what_is_no_batch_size_is_told_by_its_name_and_changes_nothing(size: object):
    lease = fairlead.lease([1, 2, 3])
    lease.batch_size = 4
    with pytest.raises(ValueError, match=r"batch_size = .*expected a whole number from 1 to 1,000,000,000"):
        lease.batch_size = size
    assert lease.batch_size == 4
