"""Prints the digests of allocations where all jobs differ, with the roundings of another machine: `per_job_digests.py sums`.

In the second half, many jobs differ in their weights and sizes alone. Each policy decides twice, and must not remember."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "golden")]

if sys.argv[1]:
    import perturbation

    perturbation.install(sys.argv[1])

from fairlead.config.registry import Registry  # noqa: E402 - after the perturbation
from fairlead.config.schedulers import make, parse_part  # noqa: E402
from policies.instances import moment  # noqa: E402

POLICIES = (
    "max-min-fairness-perf",
    "finish-time-fairness-perf",
    "min-total-duration-perf",
    "min-cost-slo",
    "max-min-fairness-water-filling-perf",
)

for seed, noise in ((0, 0.01), (1, 0.01), (0, 0.0), (1, 0.0)):
    rng = np.random.default_rng(seed)
    jobs = 300
    kinds = rng.uniform(0.1, 1.0, (26, 3))[rng.integers(26, size=jobs)]
    rates = kinds * rng.uniform(1.0 - noise, 1.0 + noise, (jobs, 3))
    steps = rates.max(axis=1) * rng.uniform(3600.0, 48 * 3600.0, jobs)
    deadlines = steps / rates.max(axis=1) * rng.choice([1.2, 3.0, 20.0], jobs) * 8
    view = moment(
        rates.tolist(),
        "v100:48,p100:48,k80:48",
        workers=rng.choice([1, 1, 2, 4], jobs).tolist(),
        steps=steps.tolist(),
        deadlines=deadlines.tolist(),
        weights=rng.uniform(0.5, 2.0, jobs).tolist(),
    ).view
    for policy in POLICIES:
        allocator = make("policy", parse_part(policy), Registry.installed())
        for _ in range(2):
            found = allocator.allocate(view, None)[0]
            digest = hashlib.sha256(found.first.tobytes() + found.types.tobytes() + found.share.tobytes())
            print(policy, digest.hexdigest()[:16])
