"""What agents see of CPU, memory and disk: samples, the way to the control plane, and versions that do not know them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from fairlead.runtime.agent.devices import HOST_PERIOD_S, HostMeter
from fairlead.runtime.protocol.messages import (
    BadMessage,
    Heartbeat,
    Hello,
    HostUsage,
    LaunchUsage,
    Welcome,
    decode_message,
    encode_message,
)


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def stat(busy: int, idle: int) -> str:
    return f"cpu  {busy} 0 0 {idle} 0 0 0 0 900 900\ncpu0 1 2 3 4\n"


MEMORY = "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  2097152 kB\nHugePages_Total:  0\n"


def launch(group: Path | None, job: int = 7) -> Any:
    record = SimpleNamespace(cgroup=str(group / "0") if group else "")
    return SimpleNamespace(key=(job, 2), workers=[SimpleNamespace(record=record)])


def test_a_sample_is_what_was_used_since_the_one_before(tmp_path: Path):
    proc = write(tmp_path / "proc", stat=stat(100, 300), loadavg="2.50 1 1 3/99 7\n", meminfo=MEMORY)
    meter = HostMeter(tmp_path, proc)
    first = meter.sample([], 0.0)
    assert (first.cpu, first.load, first.memory_gb, first.memory_total_gb) == (None, 2.5, 6.0, 8.0)
    assert first.disk_gb is not None
    assert first.disk_total_gb is not None
    assert 0 < first.disk_gb < first.disk_total_gb
    write(proc, stat=stat(130, 310))
    assert meter.sample([], 15.0).cpu == 0.75


@pytest.mark.parametrize(
    "files", [{}, {"stat": "cpu\n", "loadavg": "\n", "meminfo": "MemTotal: 8 kB\n"}, {"stat": "x", "meminfo": "a\n"}]
)
def test_what_cannot_be_read_is_missing(tmp_path: Path, files: dict[str, str]):
    meter = HostMeter(tmp_path / "gone", write(tmp_path / "proc", **files))
    assert meter.sample([], 0.0) == meter.sample([], 15.0) == HostUsage()


def test_launches_with_control_groups_have_their_own_use(tmp_path: Path):
    group = write(tmp_path / "7-2", **{"memory.current": f"{3 << 30}\n", "cpu.stat": "usage_usec 5000000\nuser_usec 1\n"})
    meter = HostMeter(tmp_path, tmp_path)
    assert meter.sample([launch(group), launch(None, 8)], 10.0).launches == (LaunchUsage(7, 2, None, 3.0),)
    write(group, **{"cpu.stat": "usage_usec 35000000\n"})
    assert meter.sample([launch(group)], 25.0).launches == (LaunchUsage(7, 2, 2.0, 3.0),)
    os.remove(group / "memory.current")
    os.remove(group / "cpu.stat")
    assert meter.sample([launch(group)], 40.0).launches == (LaunchUsage(7, 2, None, None),)


def test_a_heartbeat_has_a_new_sample_only_now_and_then_and_if_asked(tmp_path: Path):
    accelerators = SimpleNamespace(samples=lambda: [(0.5, 3.0)])
    supervisor: Any = SimpleNamespace(accelerators=accelerators, limits="none", running=list)
    meter = HostMeter(tmp_path, write(tmp_path / "proc", loadavg="1 1 1\n"))
    assert meter.heartbeat(supervisor, 0.0, with_host=False) == Heartbeat((0.5,), (3.0,), "none")
    beats = [meter.heartbeat(supervisor, now, with_host=True) for now in (0.0, 5.0, HOST_PERIOD_S)]
    assert [beat.host is not None for beat in beats] == [True, False, True]
    assert beats[1].after(beats[0]).host == beats[0].host
    assert beats[1].after(None).host is None
    assert beats[2].after(beats[0]).host is beats[2].host


def test_agents_and_control_planes_of_former_versions_get_nothing_that_they_do_not_know():
    beat, usage = Heartbeat((0.5,), (3.0,), "none"), HostUsage(0.5, 1.0, 2.0, 4.0, 9.0, 10.0, (LaunchUsage(1, 1, 0.5, 2.0),))
    assert "host" not in orjson.loads(encode_message(beat))
    assert "wants_host" not in orjson.loads(encode_message(Welcome(15.0)))
    for message in (replace(beat, host=usage), beat, Welcome(15.0, wants_host=True)):
        assert decode_message(encode_message(message)) == message
    with pytest.raises(BadMessage):
        decode_message(encode_message(beat).replace(b"[0.5]", b'[0.5],"host":{"cpu":-1}'))
    former = orjson.loads(encode_message(Hello("n", "v100", 1, 0)))
    del former["reports_host"]
    hello = decode_message(orjson.dumps(former))
    assert isinstance(hello, Hello)
    assert not hello.reports_host


def test_a_disk_or_a_memory_without_room_is_nearly_full():
    assert HostUsage(memory_gb=95.0, memory_total_gb=100.0, disk_gb=94.0, disk_total_gb=100.0).nearly_full == {"memory": 0.95}
    assert HostUsage(disk_gb=99.0, disk_total_gb=100.0).nearly_full == {"disk": 0.99}
    assert HostUsage(disk_gb=99.0).nearly_full == {} == HostUsage(disk_gb=0.0, disk_total_gb=0.0).nearly_full
