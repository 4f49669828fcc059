"""`fairlead nodes --host` on a real cluster."""

from __future__ import annotations

import os
from pathlib import Path

from cluster_up import cluster_up, until
from command import answer, fairlead


def test_the_used_part_of_cpu_memory_and_disk_is_shown_on_request(tmp_path: Path):
    with cluster_up(tmp_path, cluster="2xv100:2"):
        until(lambda: answer("nodes", "--json", cwd=tmp_path)["nodes"][0]["host"], tmp_path)
        host = answer("nodes", "--json", cwd=tmp_path)["nodes"][0]["host"]
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        assert abs(host["memory_total_gb"] - pages) < 0.02 * pages + 0.01
        assert 0 < host["memory_gb"] < host["memory_total_gb"]
        assert 0 < host["disk_gb"] < host["disk_total_gb"]
        head, *_ = (line for line in fairlead("nodes", "--host", cwd=tmp_path).stdout.splitlines() if "name" in line)
        assert head.split() == ["name", "type", "GPUs", "free", "CPU", "memory", "disk", "up", "agent", "jobs"]

        def told_as_measured() -> bool:
            host = answer("nodes", "--json", cwd=tmp_path)["nodes"][0]["host"]
            row = next(line for line in fairlead("nodes", "--host", cwd=tmp_path).stdout.splitlines() if "v100-0" in line)
            return f"{100 * host['disk_gb'] / host['disk_total_gb']:.0f} %" in row

        until(told_as_measured, tmp_path)  # others write to the disk between the two
        plain = fairlead("nodes", cwd=tmp_path).stdout
        assert "CPU" not in plain.splitlines()[0]
