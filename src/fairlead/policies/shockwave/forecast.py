"""What a job will be (Shockwave §5). A job trains in regimes, one after the other, each with a batch size and a share of
its epochs. Which regimes may still come is known from its declared mode; how long each lasts is not, and is forecast as the
mean of a Dirichlet posterior over their shares. The prior is even, or the shares that the job's owner has declared
(`core/schedule.py`). Never the job's true course, which is nobody's to see here.

Columns: one row for each job, one column for each regime. `lived` has the epochs that were trained in each regime so far;
regime `ongoing` is the present one; `prior` has the weight of each regime that is expected, past ones included, and 0 behind
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError

Rule: TypeAlias = Callable[[Floats, Floats, Ints, Floats], Floats]
"""(epochs declared, lived, ongoing, prior) → the epochs that each regime is expected to have in the end."""


ADAPTIVE = ("accordion", "gns")
"""Modes of which it is known what they may bring."""


def to_come(mode: str, batch_size: int, limit: int) -> tuple[int, ...]:
    """The batch sizes of the regimes that a mode may still bring behind the present one. GNS doubles up to its limit; Accordion
    goes to its large size, and whoever is there is expected to stay; a static job stays as it is."""
    if batch_size < 1 or limit < 1:
        field, value = ("batch_size", batch_size) if batch_size < 1 else ("limit", limit)
        raise InputError("forecast", "a whole number from 1 on", field=field, value=value)
    match mode:
        case "static":
            return ()
        case "accordion":
            return (limit,) if batch_size < limit else ()
        case "gns":
            ladder = []
            while batch_size < limit:
                batch_size = min(2 * batch_size, limit)
                ladder.append(batch_size)
            return tuple(ladder)
    raise InputError("forecast", "static, accordion or gns", field="mode", value=mode)


def evenly(count: Ints, width: int) -> Floats:
    """The prior of so many regimes of which nothing else is known."""
    return np.where(np.arange(width) < count[:, None], 1.0, 0.0)


def restated(epochs: Floats, lived: Floats, ongoing: Ints, prior: Floats) -> Floats:
    """The restatement rule: what is past is known, and the present and coming regimes share the rest of the epochs by their
    prior, Dir(m_1, …, m_k, S, …, S) where that is even. A present regime that has outlived its part keeps what it has, and
    those to come share what is left."""
    regime = np.arange(lived.shape[1])
    past, here = regime < ongoing[:, None], regime == ongoing[:, None]
    later = np.where(past | here, 0.0, prior)
    now, then = (prior * here).sum(axis=1), later.sum(axis=1)
    left = np.maximum(epochs - (lived * past).sum(axis=1), 0.0)
    present = np.maximum((lived * here).sum(axis=1), left * now / (now + then))
    each = np.maximum(left - present, 0.0) / np.where(then > 0, then, 1.0)
    return np.where(past, lived, np.where(here, present[:, None], later * each[:, None]))


def standard(epochs: Floats, lived: Floats, ongoing: Ints, prior: Floats) -> Floats:
    """The standard posterior, Dir(N/K + m_1, …, N/K + m_K), or with N times the declared shares for N/K, which takes epochs
    for independent draws."""
    posterior = epochs[:, None] * prior / prior.sum(axis=1)[:, None] + lived
    mean: Floats = posterior * (epochs / posterior.sum(axis=1))[:, None]
    return mean


def greedy(epochs: Floats, lived: Floats, ongoing: Ints, prior: Floats) -> Floats:
    """As it is now it will stay: what schedulers do that only react."""
    return restated(epochs, lived, ongoing, np.where(np.arange(lived.shape[1]) <= ongoing[:, None], prior, 0.0))


RULES: dict[str, Rule] = {"restatement": restated, "standard": standard, "greedy": greedy}


def ahead(expected: Floats, epochs: Floats, lived: Floats, ongoing: Ints) -> Floats:
    """The epochs still to be trained in each regime, in order. They add up to what the job declared and has not done, whatever
    an expectation says of the past; a job that has overrun its epochs has none ahead."""
    coming = np.where(np.arange(lived.shape[1]) >= ongoing[:, None], np.maximum(expected - lived, 0.0), 0.0)
    left = np.maximum(epochs - lived.sum(axis=1), 0.0)
    total = coming.sum(axis=1)
    here = np.arange(lived.shape[1]) == ongoing[:, None]
    coming = np.where((total > 0)[:, None], coming, here)
    scaled: Floats = coming * (left / np.where(total > 0, total, 1.0))[:, None]
    return scaled


def run_time(epochs_by_regime: Floats, epoch_s: Floats) -> Floats:
    """Seconds for so many epochs in each regime, alone on all the job asked for."""
    seconds: Floats = (epochs_by_regime * epoch_s).sum(axis=1)
    return seconds


def noised(seconds: Floats, noise: float, rng: np.random.Generator) -> Floats:
    """Run times off by up to ± `noise` of themselves, evenly drawn (§8.10)."""
    if not 0 <= noise <= 1:
        raise InputError("forecast", "a number from 0 to 1", field="noise", value=noise)
    return seconds * (1.0 + noise * rng.uniform(-1.0, 1.0, len(seconds)))
