"""What the backend of a real cluster remembers of each job that has not ended: the state has it too, and is not its to read."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.core.job import Job
from fairlead.core.snapshot import Snapshot
from fairlead.runtime.control.counting import Counted, Sizes

_AS_MADE = Counted()  # of jobs that have told no batch size


@dataclass
class Known:
    """One job. Its progress is as the state knows it: at second t it has done `steps` + `rate` · (t − `since`)."""

    job: Job
    generation: int = 0  # of its last launch
    failures: int = 0  # of its own
    steps: float = 0.0
    rate: float = 0.0
    since: float = 0.0
    saved: int = 0  # steps in its last checkpoint, of who does not run
    regimes: Counted | None = None  # where it has told its batch sizes
    sizes: Sizes = field(default_factory=Sizes)

    @property
    def counted(self) -> Counted:
        return self.regimes or _AS_MADE

    @property
    def made(self) -> int:
        """The steps of its own count that the state knows of."""
        return round(self.counted.made(self.steps))

    def expected(self, now: float) -> float:
        return self.steps + self.rate * (now - self.since)

    def at(self, steps: float, rate: float, now: float) -> None:
        self.steps, self.rate, self.since = steps, rate, now


class KnownJobs(dict[int, Known]):
    """By number."""

    def __init__(self) -> None:
        super().__init__()
        self._called: set[str] = set()  # names that look like those of jobs without one

    def enter(self, number: int, job: Job) -> Known:
        known = self[number] = Known(job)
        if job.name.startswith("job-"):
            self._called.add(job.name)
        return known

    def name_for(self, number: int) -> str:
        """Of a job that has none; somebody may have called another one so."""
        name = f"job-{number}"
        while name in self._called:
            name += "-again"
        return name

    def recall(self, view: Snapshot) -> None:
        """After a restart: those who had not ended."""
        for jobs in (view.jobs, view.queued):
            for number, starts, failures in zip(jobs.number.tolist(), jobs.starts.tolist(), jobs.failures.tolist()):
                known = self.enter(number, view.job_of[number])
                known.generation, known.failures = starts, failures
        columns = (view.jobs.number, view.jobs.base_steps, view.jobs.rate, view.jobs.since_s)
        for number, steps, rate, since in zip(*(column.tolist() for column in columns)):
            known = self[number]
            known.at(steps, rate, since)
            if number in view.regimes:
                known.regimes = Counted(view.regimes[number])
            known.saved = 0 if rate else known.made
