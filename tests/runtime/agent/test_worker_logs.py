"""What workers print is kept in pieces, and read by offset."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agent_node import Node, order

from fairlead.runtime.agent.agent_errors import OrderRefused
from fairlead.runtime.agent.settings import AgentSettings
from fairlead.runtime.agent.worker_logs import LogWriter, read_log_files


def test_both_streams_are_in_one_log_in_their_order(node: Node) -> None:
    launch = node.launch(order("import os\nfor n in range(3): os.write(1, b'out\\n'); os.write(2, b'err\\n')"))
    node.ended(launch)
    assert node.printed(launch) == "out\nerr\n" * 3


def test_last_words_are_not_lost(node: Node) -> None:
    script = "import os, signal; os.write(1, b'last words'); os.kill(os.getpid(), signal.SIGKILL)"
    launches = [node.launch(order(script, job=job)) for job in range(1, 21)]
    for launch in launches:
        assert node.ended(launch).code == -9
    assert [node.printed(launch) for launch in launches] == ["last words"] * 20


def test_everything_is_there_when_the_job_has_ended(node: Node) -> None:
    launch = node.launch(order("import os\nfor n in range(20000): os.write(1, b'%07d\\n' % n)"))
    node.ended(launch)
    assert node.printed(launch).splitlines() == [f"{n:07d}" for n in range(20000)]


def test_old_pieces_go_and_offsets_stay_good(make_node) -> None:
    node: Node = make_node(AgentSettings(log_bytes=1000, log_files=3))
    launch = node.launch(order("import os\nfor n in range(1000): os.write(1, b'%07d\\n' % n)"))
    node.ended(launch)
    whole = b"".join(b"%07d\n" % n for n in range(1000))
    pieces = sorted((node.directory(launch) / "0" / "log").iterdir())
    assert [piece.stat().st_size for piece in pieces] == [1000, 1000, 1000]
    first = node.supervisor.read_log(1, 1, 0, 0, 10)
    assert (first.offset, first.data) == (5000, whole[5000:5010])
    rest, offset = b"", first.next
    while part := node.supervisor.read_log(1, 1, 0, offset, 777).data:
        rest += part
        offset += len(part)
    assert rest == whole[5010:]
    assert node.supervisor.read_log(1, 1, 0, 8000).data == b""


@pytest.mark.parametrize("sizes", [[1], [10], [11], [25], [3, 9, 1, 40]])
def test_a_log_reads_as_it_was_written(tmp_path: Path, sizes: list[int]) -> None:
    writer = LogWriter(tmp_path, piece_bytes=10, pieces=100)
    whole = b""
    for number, size in enumerate(sizes):
        writer.write(bytes([65 + number]) * size)
        whole += bytes([65 + number]) * size
    for offset in range(len(whole) + 1):
        for limit in (0, 1, 7, 100):
            excerpt = read_log_files(tmp_path, offset, limit)
            assert (excerpt.offset, excerpt.data) == (offset, whole[offset : offset + limit])
    writer.close()


def test_a_log_that_cannot_be_written_is_counted_and_stops_nobody(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "not-there", piece_bytes=10, pieces=2)
    writer.write(b"x" * 25)
    assert writer.lost == 25
    os.mkdir(tmp_path / "not-there")
    writer.write(b"y")
    assert read_log_files(tmp_path / "not-there", 0, 10).data == b"y"
    writer.close()


def test_logs_of_those_who_never_ran_here_are_refused(node: Node) -> None:
    with pytest.raises(OrderRefused, match="was not launched here"):
        node.supervisor.read_log(3, 1, 0, 0, 10)
