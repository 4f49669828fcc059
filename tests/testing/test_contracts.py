"""Every built-in part passes the contract that is shipped for plug-ins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Backend, Stages
from fairlead.engine.journal import Journal, MemoryJournal
from fairlead.estimators.fitted import Fitted
from fairlead.estimators.online import Online
from fairlead.estimators.oracle import Oracle
from fairlead.estimators.predicted import Predicted
from fairlead.estimators.profiled import Profiled
from fairlead.journal.jsonl import JsonlJournal
from fairlead.journal.postgres import PostgresJournal
from fairlead.journal.sqlite import SqliteJournal
from fairlead.placement.bandwidth_aware import BandwidthAware
from fairlead.placement.basic import Consolidated, FirstFree, SpreadPlacement
from fairlead.placement.least_network import LeastNetwork
from fairlead.placement.resource_aware import ResourceAware
from fairlead.placement.tiresias_placement import TiresiasPlacement, TiresiasPlusPlacement
from fairlead.policies.colocation.horus import Horus
from fairlead.policies.colocation.packers import OpportunisticPacking, PerformanceAwarePacking
from fairlead.policies.elastic.optimus import Optimus
from fairlead.policies.elastic.pollux import Pollux
from fairlead.policies.elastic.sia import Sia
from fairlead.policies.ranking.fifo import Fifo, FifoPriority
from fairlead.policies.ranking.job_size import LargestFirst, ShortestJobFirst, ShortestRemainingTimeFirst
from fairlead.policies.ranking.las import LeastAttainedService
from fairlead.policies.ranking.tiresias import Gittins, Tiresias
from fairlead.policies.serving.nexus import Nexus, SessionSpec
from fairlead.policies.shockwave.policy import Shockwave
from fairlead.simulator.backend import SimulatedBackend
from fairlead.testing import BackendContract, EstimatorContract, JournalContract, PlacementContract, PolicyContract
from fairlead.workloads.throughput_tables import ThroughputTable
from postgres_server import PostgresServer


class TestFifo(PolicyContract):
    make = Fifo


class TestFifoBackfilling(PolicyContract):
    make = staticmethod(lambda: Fifo(backfill=True))


class TestFifoPreempting(PolicyContract):
    make = staticmethod(lambda: Fifo(backfill=True, preempt=True))


class TestFifoPriority(PolicyContract):
    make = FifoPriority


class TestShortestJobFirst(PolicyContract):
    make = ShortestJobFirst


class TestShortestJobFirstStrict(PolicyContract):
    make = staticmethod(lambda: ShortestJobFirst(backfill=False, preempt=True))


class TestShortestRemainingTimeFirst(PolicyContract):
    make = ShortestRemainingTimeFirst


class TestShortestRemainingServiceStrict(PolicyContract):
    make = staticmethod(lambda: ShortestRemainingTimeFirst(by_accelerator_time=True, backfill=False))


class TestLargestFirst(PolicyContract):
    make = LargestFirst


class TestLeastAttainedService(PolicyContract):
    make = LeastAttainedService


class TestLeastAttainedTime(PolicyContract):
    make = staticmethod(lambda: LeastAttainedService(by="time", backfill=False))


class TestTiresias(PolicyContract):
    make = staticmethod(lambda: Tiresias(thresholds=(300.0, 1500.0)))


class TestTiresiasPromoting(PolicyContract):
    make = staticmethod(lambda: Tiresias(thresholds=(300.0, 1500.0), promote_after=1.5))


class TestGittins(PolicyContract):
    make = staticmethod(lambda: Gittins(thresholds=(300.0, 1500.0), min_history=5))


class TestNexusWithoutSessions(PolicyContract):
    make = staticmethod(lambda: Nexus(training="las"))


class TestNexus(PolicyContract):
    """Some of the jobs are sessions with accelerators of their own."""

    asked = SessionSpec(slo_ms=100, batches=(1, 32), latency_ms=dict.fromkeys(("v100", "p100", "k80"), (9, 40)), rate=700)
    make = staticmethod(lambda: Nexus(dict.fromkeys(("job-1", "job-4", "job-9"), TestNexus.asked)))


class TestNexusSharing(PolicyContract):
    """Sessions that share accelerators, and together need more than half of the cluster."""

    asked = SessionSpec(slo_ms=100, batches=(1, 32), latency_ms=dict.fromkeys(("v100", "p100", "k80"), (9, 40)), rate=300)
    make = staticmethod(lambda: Nexus(dict.fromkeys((f"job-{n}" for n in range(2, 24, 3)), TestNexusSharing.asked)))


class TestTiresiasBySubmission(PolicyContract):
    make = staticmethod(lambda: Tiresias(thresholds=(300.0, 1500.0), first="submitted"))


class TestOptimus(PolicyContract):
    make = staticmethod(lambda: Optimus(resizes_all=True))
    resizes_all = True


class TestPollux(PolicyContract):
    make = Pollux


class TestSia(PolicyContract):
    make = Sia


class TestShockwave(PolicyContract):
    make = staticmethod(lambda: Shockwave(rounds=8, round_s=300.0))


class TestShockwaveAsPublished(PolicyContract):
    make = staticmethod(lambda: Shockwave(rounds=5, round_s=200.0, program="published", makespan=10.0, nodes=0, reactive=False))


class TestHorus(PolicyContract):
    make = Horus
    residents = 2


class TestHorusParting(PolicyContract):
    """Company makes everybody 1.5 times slower, which is more than is allowed and more than was predicted."""

    make = staticmethod(lambda: Horus(queues=3, slo=1.4, starving_s=1000.0, local_from=2))
    residents = 2

    def stages(self, table: ThroughputTable, round_s: float = 300.0) -> Stages:
        harmless = Predicted(table, dict.fromkeys(table.kinds, (10.0, 1.0)))
        return replace(super().stages(table, round_s), estimator=harmless)


class TestHorusMatchingAndUnpacking(PolicyContract):
    make = staticmethod(lambda: Horus(match=True, unpack=1.2))
    residents = 2


class TestOpportunisticPacking(PolicyContract):
    make = OpportunisticPacking
    residents = 2


class TestPerformanceAwarePacking(PolicyContract):
    make = staticmethod(lambda: PerformanceAwarePacking(drop=0.3, warm_up_s=400.0))
    residents = 2


class TestFirstFree(PlacementContract):
    make = FirstFree


class TestConsolidated(PlacementContract):
    make = Consolidated


class TestConsolidatedWaiting(PlacementContract):
    make = staticmethod(lambda: Consolidated(wait=True))


class TestSpread(PlacementContract):
    make = SpreadPlacement


class TestTiresiasPlacement(PlacementContract):
    make = staticmethod(lambda: TiresiasPlacement(skews={"kind-0": 0.6, "kind-2": 0.9}))


class TestTiresiasPlacementWaiting(PlacementContract):
    make = staticmethod(lambda: TiresiasPlacement(otherwise=1.0, wait=True))


class TestTiresiasPlus(PlacementContract):
    make = TiresiasPlusPlacement


class TestLeastNetwork(PlacementContract):
    make = LeastNetwork


class TestLeastNetworkWaiting(PlacementContract):
    make = staticmethod(lambda: LeastNetwork(wait=True))


class TestBandwidthAware(PlacementContract):
    make = BandwidthAware


class TestResourceAware(PlacementContract):
    make = ResourceAware
    counts_hosts = True


class TestOracle(EstimatorContract):
    make = Oracle


class TestOnline(EstimatorContract):
    make = Online


class TestOnlineNoisy(EstimatorContract):
    make = staticmethod(lambda table: Online(table, noise=0.1, measurements=3, speeds={"v100": 2.0}, colocated=0.55))


class TestProfiled(EstimatorContract):
    make = Profiled


class TestProfiledAlone(EstimatorContract):
    make = staticmethod(
        lambda table: Profiled(
            table, alone="profiled", leave_out=True, share=0.4, noise=0.05, measurements=2, profile_s=500.0, references=0.7
        )
    )


class TestPredicted(EstimatorContract):
    make = staticmethod(
        lambda table: Predicted(table, {"kind-0": (20, 3), "kind-1": (70, 5), "kind-2": (95, 9), "kind-3": (40, 1)})
    )


class TestFitted(EstimatorContract):
    make = Fitted


class TestMemoryJournal(JournalContract):
    keeps = False

    @pytest.fixture(autouse=True)
    def _one_per_test(self) -> None:
        self._journal = MemoryJournal()

    def open(self, folder: Path) -> Journal:
        return self._journal


class TestJsonlJournal(JournalContract):
    durable = False

    def open(self, folder: Path) -> Journal:
        return JsonlJournal(folder / "events.jsonl")


class TestDurableJsonlJournal(JournalContract):
    def open(self, folder: Path) -> Journal:
        return JsonlJournal(folder / "events.jsonl", durable=True)


class TestSqliteJournal(JournalContract):
    def open(self, folder: Path) -> Journal:
        return SqliteJournal(folder / "events.sqlite")


class TestPostgresJournal(JournalContract):
    @pytest.fixture(autouse=True)
    def _databases(self, postgres: PostgresServer) -> None:
        self._server = postgres

    def open(self, folder: Path) -> Journal:
        place = folder / "url"
        if not place.exists():
            place.write_text(self._server.database())
        return PostgresJournal(place.read_text())


class TestSimulated(BackendContract):
    def open(self, machine: Cluster, table: ThroughputTable, jobs: list[Job]) -> Backend:
        return SimulatedBackend(machine, table, jobs)


class Restless:
    """Its answer depends on how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def select(self, view: Snapshot, memo: ev.Memo) -> tuple[Selection, ev.Memo]:
        selection, memo = Fifo().select(view, memo)
        types = (selection.types + self.asked) % len(view.capacity)
        self.asked += 1
        return replace(selection, types=types), memo


def test_types_that_depend_on_more_than_the_snapshot_are_found_out() -> None:
    class Tried(PolicyContract):
        make = Restless

    with pytest.raises(AssertionError, match="other types"):
        Tried().test_a_selection_fits_and_is_a_function_of_the_snapshot()
