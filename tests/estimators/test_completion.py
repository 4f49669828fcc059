"""Low-rank matrix completion and fingerprints."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.rng import stream
from fairlead.estimators.matching import closest_reference, colocated_fractions, complete_matrix, cosine_distances, draw_columns


def low_rank(seed: int, rows: int, columns: int, rank: int) -> np.ndarray:
    rng = stream(seed, "low rank")
    return rng.uniform(0.2, 1.0, (rows, rank)) @ rng.uniform(0.2, 1.0, (rank, columns)) / rank


@pytest.mark.parametrize("seed", range(8))
def test_a_low_rank_matrix_is_recovered_from_half_of_it(seed):
    """At the regularisation that the estimator uses. With a hundredth of it, one start in four ends in a bad local optimum."""
    truth = low_rank(seed, 30, 24, 2)
    known = stream(seed, "mask").random(truth.shape) < 0.5
    found = complete_matrix(truth, known, rank=10, penalty=1e-2, rng=stream(seed, "start"))
    np.testing.assert_array_equal(found[known], truth[known])
    assert np.abs(found - truth)[~known].mean() < 0.02 * truth.mean()


def test_a_new_row_is_completed_from_a_fifth_of_it():
    truth = low_rank(5, 27, 78, 3)
    known = np.ones(truth.shape, dtype=bool)
    known[-1] = stream(5, "mask").random(78) < 0.2
    found = complete_matrix(truth, known, rank=10, penalty=1e-2, rng=stream(5, "start"))
    assert np.abs(found - truth)[-1].mean() < 0.06 * truth[-1].mean()


def test_what_is_not_known_is_not_looked_at():
    truth, known = low_rank(6, 12, 10, 2), stream(6, "mask").random((12, 10)) < 0.6
    other = np.where(known, truth, 1e6)
    first, second = (complete_matrix(m, known, rank=4, penalty=1e-2, rng=stream(6, "start")) for m in (truth, other))
    np.testing.assert_array_equal(first, second)


def test_a_rank_beyond_the_matrix_is_cut_down():
    truth = low_rank(7, 3, 4, 1)
    known = np.ones(truth.shape, dtype=bool)
    known[2, 3] = False
    found = complete_matrix(truth, known, rank=10, penalty=1e-3, rng=stream(7, "start"))
    assert found[2, 3] == pytest.approx(truth[2, 3], rel=0.1)


def test_cosine_distance():
    rows = np.array([[1.0, 0.0], [2.0, 2.0], [0.0, 0.0], [0.0, 3.0]])
    np.testing.assert_allclose(cosine_distances(rows, np.array([5.0, 0.0])), [0.0, 1 - np.sqrt(0.5), 1.0, 1.0], atol=1e-12)


@pytest.mark.parametrize("family", range(4))
def test_a_fingerprint_finds_the_right_family(family):
    """Four families of reference jobs, members a little apart; a new member is measured in a fifth of its columns."""
    rng = stream(8, "families", family)
    heads = rng.uniform(0.1, 1.0, (4, 60))
    references = (heads.repeat(5, axis=0) * rng.uniform(0.97, 1.03, (20, 60))).clip(0, 1)
    row = (heads[family] * rng.uniform(0.97, 1.03, 60)).clip(0, 1)
    measured = np.full(60, np.nan)
    some = draw_columns(60, 0.2, rng)
    measured[some] = row[some]
    match = closest_reference(references, measured, 10, 1e-2, stream(8, "start"))
    assert match.like // 5 == family
    assert match.deviation < 0.1


def test_a_job_measured_in_full_is_like_itself():
    references = low_rank(9, 12, 30, 4)
    match = closest_reference(references, references[7], 10, 1e-2, stream(9, "start"))
    assert (match.like, match.deviation) == (7, 0.0)
    assert match.distance == pytest.approx(0.0, abs=1e-12)


def test_at_least_one_column_is_drawn_and_a_part_of_many():
    assert len(draw_columns(10, 1e-9, stream(0, "draw"))) == 1
    assert len(draw_columns(0, 0.5, stream(0, "draw"))) == 0
    assert len(draw_columns(10, 1.0, stream(0, "draw"))) == 10
    assert 150 < len(draw_columns(1000, 0.2, stream(0, "draw"))) < 250


def test_what_company_leaves_of_a_rate():
    alone = np.array([[2.0, 0.0], [4.0, 1.0]])
    paired = np.array([[[1.0, 0.0], [1.5, 0.0]], [[4.4, 0.5], [0.0, 0.25]]])
    np.testing.assert_allclose(colocated_fractions(alone, paired), [[[0.5, 0.0], [0.75, 0.0]], [[1.0, 0.5], [0.0, 0.25]]])
