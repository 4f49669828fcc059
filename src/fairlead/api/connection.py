"""The functions of the public API that talk to a running cluster: `connect`, and jobs as handles."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.core.errors import check_number, require

if TYPE_CHECKING:
    from fairlead.runtime.http_client import ControlPlaneClient

MIN_REQUEST_S = 1.0  # what a request may take though `timeout_s` is shorter


def connect(url: str | None = None, token: str | None = None, *, authority: str = "") -> ClusterConnection:
    """Connect to a control plane.

    Args:
        url: Its address, or several with commas between them; default: FAIRLEAD_URL, or the cluster that `fairlead up` started
            in this folder or one above.
        token: An API token; default: FAIRLEAD_TOKEN, or that of `fairlead up`.
        authority: File of the certificate authority for an https address; default: the system's.

    Returns:
        A connection, with `submit`, `job`, `jobs` and `nodes`. Nothing is sent before the first call.

    Raises:
        FairleadError: No control plane is known.
    """
    import os

    from fairlead.runtime.http_client import TOKEN, ControlPlaneClient

    require(isinstance(url, str | None), "connect", "an address, as in 'http://localhost:8080'", "url", url)
    if url is None:
        client = ControlPlaneClient.from_environment()
    else:
        client = ControlPlaneClient(url.rstrip("/"), os.environ.get(TOKEN, ""), authority=authority)
    return ClusterConnection(replace(client, token=token) if token is not None else client)


@dataclass(frozen=True)
class ClusterConnection:
    """A connection to a control plane; `client` has every call of the HTTP API."""

    client: ControlPlaneClient

    def submit(self, run: str | Sequence[str] | Mapping[str, Any], **fields: Any) -> JobHandle:
        """Submit a job. It is in the journal, and will not be lost, when this returns.

        Args:
            run: The command, or a whole task as a mapping.
            fields: Further fields of the task file, e.g. `name`, `workers`, `types`, `steps`, `env`, `directory`;
                `prediction` is what `fairlead.predict` returns.

        Returns:
            A handle of the job.

        Raises:
            FairleadError: The control plane refused the job, or does not answer.
        """
        task = _task(run, fields)
        many = task.keys() & {"array", "grid"}
        require(not many, "submit", "one job; submit_array submits arrays and grids", *many)
        [answer] = self.client.submit([task])
        return JobHandle(self.client, str(answer["name"]), int(answer["number"]))

    def submit_array(self, run: str | Sequence[str] | Mapping[str, Any], **fields: Any) -> list[JobHandle]:
        """Submit an array or a grid (`array="0-19"`, or `grid={"lr": [0.1, 0.01]}`): all jobs or none.

        Returns:
            A handle of each job, in the order of the indices.
        """
        answers = self.client.submit([_task(run, fields)])
        return [JobHandle(self.client, str(answer["name"]), int(answer["number"])) for answer in answers]

    def job(self, name: str) -> JobHandle:
        """Return a handle of the most recent job with this name or number."""
        record = self.client.job(name)
        return JobHandle(self.client, str(record["name"]), int(record["number"]))

    def jobs(self) -> list[dict[str, Any]]:
        """Return a record of each of your jobs."""
        return self.client.jobs()

    def nodes(self) -> list[dict[str, Any]]:
        """Return a record of each node."""
        return self.client.nodes()

    def add_node(
        self,
        name: str,
        type_name: str,
        gpus: int,
        *,
        cpus: float | None = None,
        memory_gb: float | None = None,
        gpu_memory_gb: float | None = None,
        rack: str = "",
    ) -> dict[str, Any]:
        """Add a node before its agent connects; return its record. An agent with an agent token adds its node by itself.

        Args:
            name: The name of the node, as its agent gives it (`--node`).
            type_name: The type of its GPUs.
            gpus: How many GPUs it has.
            cpus: Its CPUs; None: not limited.
            memory_gb: Its memory; None: not limited.
            gpu_memory_gb: The memory of each GPU, for a type that the cluster does not have yet.
            rack: Its rack; empty: none.

        Raises:
            FairleadError: There is such a node, or the token is not an admin's.
        """
        about = {"cpus": cpus, "memory_gb": memory_gb, "gpu_memory_gb": gpu_memory_gb, **({"rack": rack} if rack else {})}
        return self.client.add_node(name, type_name, gpus, **about)

    def remove_node(self, name: str) -> dict[str, Any]:
        """Remove a node on which no job runs, and revoke its credential. Return `stranded`: jobs that no node can run now.

        Raises:
            FairleadError: Jobs run on the node, there is no such node, or the token is not an admin's.
        """
        return self.client.remove_node(name)

    def drain(self, node: str, *, reason: str = "", start: float | None = None, until: float | None = None) -> dict[str, Any]:
        """Drain a node: its jobs move, and none starts there until `undrain`.

        Args:
            node: The name of the node.
            reason: The reason, which users see.
            start: Unix time at which the drain begins by itself; None: now.
            until: Unix time at which it ends by itself; None: with `undrain`.

        Returns:
            The record of the node.
        """
        return self.client.drain(node, reason=reason, start=start, until=until)

    def undrain(self, node: str) -> dict[str, Any]:
        """Use a drained node again; return its record."""
        return self.client.drain(node, undo=True)


def _task(run: str | Sequence[str] | Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    task = dict(run) if isinstance(run, Mapping) else {"run": run if isinstance(run, str) else list(run)}
    made = {**task, **fields}
    prediction: Any = made.get("prediction")
    if hasattr(prediction, "to_data"):
        made["prediction"] = prediction.to_data()
    return made


@dataclass(frozen=True)
class JobHandle:
    """A job on a cluster."""

    client: ControlPlaneClient = field(repr=False)
    name: str
    number: int

    def status(self) -> dict[str, Any]:
        """Return the job's record: phase, nodes, steps done, and the reason why it waits."""
        return self.client.job(str(self.number))

    def wait(self, timeout_s: float = math.inf, poll_s: float = 1.0) -> dict[str, Any]:
        """Wait until the job has ended.

        Args:
            timeout_s: Give up after this many seconds.
            poll_s: Seconds between two requests.

        Returns:
            The job's record; `phase` is `finished`, `failed`, `cancelled` or `refused`.

        Raises:
            TimeoutError: The job has not ended in time.
            FairleadError: The control plane refused the request, or does not answer.
        """
        from fairlead.runtime.http_client import Unreachable

        check_number("wait", "timeout_s", timeout_s, "seconds, at least 0")
        check_number("wait", "poll_s", poll_s, "seconds, at least 0")
        deadline, known = time.monotonic() + timeout_s, "the control plane does not answer"
        while True:
            within_s = min(self.client.timeout_s, max(MIN_REQUEST_S, deadline - time.monotonic()))
            try:
                record = replace(self.client, timeout_s=within_s).job(str(self.number))
            except Unreachable:
                if time.monotonic() < deadline:
                    raise
            else:
                if record["ended_s"] is not None:
                    return record
                known = f"it is {record['phase']}"
            if (left_s := deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"job {self.name!r} has not ended within {timeout_s:g} s; {known}")
            time.sleep(min(poll_s, left_s))

    def logs(self, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yield what the job printed, piece by piece; with `follow`, until it ends."""
        for piece in self.client.logs(str(self.number), follow=follow, tail=tail):
            yield str(piece["text"])

    def fetch(self, to: str | Path) -> list[Path]:
        """Write the declared outputs of the ended job below a folder, and return their paths."""
        return self.client.fetch(str(self.number), Path(to))

    def cancel(self) -> dict[str, Any]:
        """Cancel the job."""
        return self.client.cancel(str(self.number))

    def hold(self) -> dict[str, Any]:
        """Hold the job: it does not start until it is released. Raises `FairleadError` if it runs or has ended."""
        return self.client.hold(str(self.number))

    def release(self) -> dict[str, Any]:
        """Release the held job."""
        return self.client.release(str(self.number))

    def requeue(self, *, hold: bool = False) -> dict[str, Any]:
        """Put the job back into the queue: a running job saves and stops, an ended job runs again."""
        return self.client.requeue(str(self.number), hold=hold)

    def update(self, **changes: Any) -> dict[str, Any]:
        """Change fields of the job: `name`, `account`, `priority`, `weight`, `time_limit_s`, `deadline_s`, `retries`."""
        return self.client.update(str(self.number), changes)
