"""Who can wait no longer without being the last to end. A place is an accelerator for one of those who share it, and

    c_i = run time left alone, on the fastest type  ×  how much slower company usually makes it
    V   = Σ c_i · workers_i / places,  over all who run or wait: all that is left, if it could be dealt out evenly

A waiting job with c_i ≥ V is *critical*: everybody else can be done by the time it ends. It goes by the steps that jobs say
they make and by predictions, and knows nothing of accelerators by number. Horus' own algorithm leaves time out (§4.2.3)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.policies.horus.company import Judge, Look


def critical(view: Snapshot, judge: Judge, looks: Mapping[int, Look]) -> list[int]:
    """By number, the longest first."""
    jobs, rates = view.jobs, view.rates
    fastest, most = rates.fastest, judge.limits.jobs
    alone_s = np.divide(jobs.steps_left, fastest, out=np.zeros(len(jobs)), where=fastest > 0)
    kind = rates.alone.argmax(axis=1)[rates.row]
    shares = judge.has_company[rates.row, kind]
    shares &= ~np.fromiter((judge.refuses(looks[number]) for number in jobs.number.tolist()), np.bool_, len(jobs))
    lasts_s = alone_s * np.where(shares, judge.usually[rates.row, kind], 1.0)
    taken = (lasts_s * jobs.workers * np.where(shares, 1, most)).sum()
    places = most * int(view.capacity.sum())
    if not (places and np.isfinite(taken)):
        return []
    late = np.flatnonzero(~jobs.running & (lasts_s > 0) & (lasts_s >= taken / places))
    chosen: list[int] = jobs.number[late[np.lexsort((jobs.number[late], -lasts_s[late]))]].tolist()
    return chosen
