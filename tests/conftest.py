"""Shared by all tests: the harness fixture, and where the public data lies."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from logging.handlers import QueueHandler
from pathlib import Path

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import HealthCheck, settings

from postgres_server import PostgresServer
from slurm_bed import SlurmBed

# The same examples in every run, however slow the machine is, except for constants of loaded modules, which Hypothesis tries
# too. `pytest --hypothesis-profile=searching` looks for new ones.
_slowly = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **_slowly)
settings.register_profile("searching", max_examples=1000, **_slowly)
settings.load_profile("repeatable")

# A shell has what it runs in its background ignore Ctrl-C, `nohup` the end of a terminal; so would all that is started here
# and tested for it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

DEFAULT_TIMEOUT_CONFIG.read = DEFAULT_TIMEOUT_CONFIG.write = 60.0  # not 5 s, which an answer can take on a busy machine

# Tests run beside each other. Threads of matrix libraries, which wait for each other actively, would take their cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

os.environ.pop("PYTHONUNBUFFERED", None)  # users rarely set it; it hides errors of buffered output

pytest_plugins = ["fairlead.testing.fixtures"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are cores: tests of real processes mostly wait."""
    return len(os.sched_getaffinity(0)) + 2


@pytest.fixture(autouse=True)
def logging_of_this_test() -> Iterator[None]:
    """A command that a test runs in this process logs to a standard error that ends with the test."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)
    for handler in [one for one in logging.root.handlers if isinstance(one, QueueHandler)]:
        logging.root.removeHandler(handler)


SHARED = Path(__file__).resolve().parents[1] / ".." / "shared"


@pytest.fixture(scope="session")
def public_data() -> Path:
    """The folder of public traces beside the project; tests that need it are skipped where it is absent."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("the public traces (../shared/data) are not here")
    return folder


@pytest.fixture(scope="session")
def expected_results() -> Path:
    """What the original programs computed on the public traces."""
    folder = SHARED / "expected"
    if not folder.is_dir():
        pytest.skip("the published results (../shared/expected) are not here")
    return folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test process alone."""
    if (missing := PostgresServer.missing()) is not None:
        pytest.skip(missing)
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmBed]:
    """A Slurm cluster of this test process alone: 4 nodes with 4 GPUs each."""
    if (missing := SlurmBed.missing()) is not None:
        pytest.skip(missing)
    with SlurmBed() as bed:
        yield bed
