"""Strategy-proof shares: no job gains by reporting other rates than the true ones. The partial allocation mechanism (Cole,
Gkatzelis and Goel, EC'13) over proportional fairness: with X* of maximal Nash welfare, and X⁻ᵐ the same without job m,

    X_m = f_m · X*_m,   f_m = ( Π_{i≠m} (throughput(i, X*) / throughput(i, X⁻ᵐ))^w_i )^(1/w_m)

that is, as much less as its presence harms the others. The result is Π_i throughput(i, X*)^w_i over a term in which the job has
no part, and X* of the true rates maximises it. 1/e ≤ f_m ≤ 1, since Σ_i w_i·throughput(i, X) / throughput(i, X*) ≤ Σ_i w_i.

The price is Pareto efficiency: the time cut off is left idle. No mechanism has both with a sharing incentive (Gavel §4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.job_classes import JobClasses, classes_of, no_allocation

# Proportional fairness, or the most Nash welfare (Eisenberg and Gale):
#
# max Σ_g n_g·w_g·log(Σ_j rate_gj·x_gj)   s.t.  Σ_j x_gj ≤ 1,   Σ_g n_g·s_g·x_gj ≤ N_j,   x ≥ 0
#
# for members of classes g. By a primal-dual interior-point method: Newton's step comes apart into one small system for each
# class and one for the types' prices. Many markets, which differ in how many there are of each class, are solved at once as
# arrays with one more axis.

GAP = 1e-11
"""How far from the optimum the welfare may be, per weight of a job."""

_STEPS = 300

_SHARES = 1e6
"""Shares are rounded down to this part of the time. Finer ones would show where on the way to the optimum the method ended."""


def nash(rates: Floats, count: Floats, weight: Floats, workers: Ints, capacity: Ints) -> Floats:
    """Markets × classes × types: the time of a member. `count` is markets × classes; it may be 0."""
    there = capacity > 0
    found = np.zeros((len(count), *rates.shape))
    room = capacity[there].astype(np.float64)
    try:
        found[:, :, there] = _interior(rates[:, there], count, weight, workers.astype(np.float64), room)
    except np.linalg.LinAlgError as error:
        raise SolverError("Nash welfare", "a singular step") from error
    return np.where(rates > 0, found, 0.0)  # time on a useless type is time spent idle


def _interior(rates: Floats, count: Floats, weight: Floats, workers: Floats, room: Floats) -> Floats:
    """A primal-dual interior-point method. Duals of a class are relative to its worth, so that all classes have one scale."""
    (kinds, types), markets = rates.shape, len(count)
    gain = np.column_stack((rates / rates.max(axis=1, keepdims=True), np.zeros(kinds)))  # the last one: time spent idle
    load, worth = count * workers, count * weight
    usual = worth.sum(axis=1, keepdims=True) / np.maximum((count > 0).sum(axis=1, keepdims=True), 1)
    worth = np.where(count > 0, worth, np.where(usual > 0, usual, 1.0))
    total = worth.sum(axis=1)[:, None]
    # From the inside: half of a division by weight, at prices that go with it.
    even = 0.5 * np.minimum(1.0 / types, (weight / workers)[:, None] * room / total[:, :, None])
    x = np.concatenate((even, 1.0 - even.sum(axis=2, keepdims=True)), axis=2)
    left, price = room - (load[..., None] * even).sum(axis=1), total / (types * room)
    time, slack = np.zeros((markets, kinds)), 1.0 / x  # the duals of Σ x = 1 and of x ≥ 0
    system = np.zeros((markets, kinds, types + 2, types + 2))
    system[..., :-1, -1] = system[..., -1, :-1] = 1.0
    wanted = np.zeros((markets, kinds, types + 2, types + 1))
    wanted[..., np.arange(types), np.arange(types)] = (load / worth)[..., None]
    diagonal, far = np.arange(types + 1), np.full(markets, 0.5)
    for _ in range(_STEPS):
        value = (x * gain).sum(axis=2)
        off = time[..., None] - slack - gain / value[..., None]
        off[..., :-1] += (load / worth)[..., None] * price[:, None, :]
        gap = ((worth * (x * slack).sum(axis=2)).sum(axis=1)[:, None] + (left * price).sum(axis=1)[:, None]) / total
        if gap.max() <= GAP and (np.abs(off) / (1.0 + slack)).max() <= 1e-8:
            return x[..., :-1]
        # After a short step, aim closer to the central path; finished markets wait for the others.
        aim = np.maximum((1.0 - far).clip(0.1, 1.0)[:, None] * gap, 0.01 * GAP) / (types + 2)
        # Of each class: what its time does by itself, and in answer to each price.
        system[..., :-1, :-1] = (gain[:, :, None] * gain[:, None, :]) / (value**2)[..., None, None]
        system[..., diagonal, diagonal] += slack / x
        wanted[..., :-1, -1] = aim[..., None] / x - slack - off
        wanted[..., -1, -1] = 1.0 - x.sum(axis=2)  # rounding, no more
        answer = np.linalg.solve(system, wanted)
        # Prices such that no more is taken than there is.
        taken = (load[..., None, None] * answer[..., :types, :]).sum(axis=1)
        stiff = taken[..., :-1] + (left / price)[..., None] * np.eye(types)
        stiff += 1e-14 * np.trace(stiff, axis1=1, axis2=2)[:, None, None] * np.eye(types)  # types may be exchangeable
        aimed = aim * total / types / price - left
        over = (load[..., None] * x[..., :-1]).sum(axis=1) + left - room  # rounding again
        rise = np.linalg.solve(stiff, (taken[..., -1] + aimed + over)[..., None])[..., 0]
        step = answer[..., -1] - (answer[..., :-1] * rise[:, None, None, :]).sum(axis=3)
        dx = step[..., :-1]
        dslack = aim[..., None] / x - slack - slack / x * dx
        dleft = aimed - left / price * rise
        pairs = ((x, dx), (slack, dslack), (price, rise), (left, dleft))
        # By market, the step length that keeps everything above 0, at most 1.
        ratios = [np.divide(-change, now).reshape(markets, -1).max(axis=1) for now, change in pairs]
        far = np.minimum.reduce([0.995 / np.maximum(ratio, 0.995) for ratio in ratios])
        x = x + far[:, None, None] * dx
        slack = slack + far[:, None, None] * dslack
        time = time + far[:, None] * step[..., -1]
        price = price + far[:, None] * rise
        left = left + far[:, None] * dleft
    raise SolverError("Nash welfare", f"no convergence in {_STEPS} steps")


_AT_ONCE = 64
"""Markets solved together; more would only need more memory."""


@dataclass(frozen=True)
class StrategyProofPerf:
    """Proportionally fair progress, minus what a job costs the others, so that no user gains by misreporting rates.

    Not work conserving: up to 1 − 1/e of a job's time is left idle. A round mechanism that backfills (`leftovers`, on by
    default) uses this time, and voids the guarantee."""

    paper: ClassVar[str] = "Gavel §4.4 (OSDI'20); Cole, Gkatzelis and Goel (EC'13)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        if not len(classes):
            return no_allocation(view), memo
        time, kept = partial(classes, view.capacity)
        return classes.each(view, np.floor(time * kept[:, None] * _SHARES + 0.01) / _SHARES), memo


def partial(classes: JobClasses, capacity: Ints) -> tuple[Floats, Floats]:
    """By class: a member's time by type under proportional fairness, and the part of it that it keeps."""
    count = classes.count.astype(np.float64)
    kinds = len(classes)
    rates, weight, workers = classes.rates, classes.weight, classes.workers
    equal_time = nash(rates, count[None, :], weight, workers, capacity)[0]
    kept = np.empty(kinds)
    value = (classes.rates * equal_time).sum(axis=1)
    for begin in range(0, kinds, _AT_ONCE):
        absent = np.arange(begin, min(begin + _AT_ONCE, kinds))
        others = np.repeat(count[None, :], len(absent), axis=0)
        others[np.arange(len(absent)), absent] -= 1.0
        better = (rates * nash(rates, others, weight, workers, capacity)).sum(axis=2)
        harm = (others * weight * np.log(value / better)).sum(axis=1) / weight[absent]
        kept[absent] = np.exp(np.minimum(harm, 0.0))
    return equal_time, kept
