"""Wrong arguments of the public API: each is a `FairleadError` of one line that names the parameter, before anything runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pyarrow
import pytest

import fairlead
from fairlead.core.errors import FairleadError, InputError
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.journal.recovery import open_journal
from fairlead.plugin import Memo, Selection, Snapshot, in_order
from fairlead.testing import policy_contract

CLUSTER = "2xv100:2"
JOBS = [fairlead.Job(f"job-{number}", submitted_s=60.0 * number, steps=600.0) for number in range(6)]
NAN, INF = math.nan, math.inf


class Signed:
    """Ranks jobs by submission; not a dataclass."""

    def __init__(self, sign: float) -> None:
        self.sign = sign

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        return in_order(view, self.sign * view.jobs.submitted_s), memo


def namesake() -> object:
    @dataclass(frozen=True)
    class Mine:
        def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
            return in_order(view, -view.jobs.submitted_s), memo

    return Mine()


def refused(match: str, function, *arguments, **named):
    with pytest.raises(InputError, match=match) as problem:
        function(*arguments, **named)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"submitted_s": NAN},
        {"submitted_s": "now"},
        {"steps": 0},
        {"steps": NAN},
        {"steps": -1.0},
        {"workers": 0},
        {"workers": 1.5},
        {"name": "job-1"},
    ],
)
@pytest.mark.parametrize("as_trace", [False, True])
def test_jobs_are_checked_like_the_lines_of_a_trace(changes, as_trace):
    jobs = (*JOBS[:2], replace(JOBS[2], **changes))
    refused(
        f"trace, job 3: field '{next(iter(changes))}'", fairlead.simulate, fairlead.Trace(jobs) if as_trace else jobs, CLUSTER
    )


@pytest.mark.parametrize(
    "made",
    [
        lambda: fairlead.Costs(launch_s=INF),
        lambda: fairlead.Costs(restart_s=-1.0),
        lambda: fairlead.Costs(checkpoint_s=NAN),
        lambda: fairlead.Costs(checkpoint_every_s=0.0),
        lambda: fairlead.Costs(by_kind={"a": 4}),
        lambda: fairlead.Faults(mean_up_s=NAN),
        lambda: fairlead.Faults(mean_up_s=-1.0),
        lambda: fairlead.Faults(mean_up_s=10.0, mean_down_s=0.0),
        lambda: fairlead.Faults([4]),
        lambda: fairlead.Outage(0, 20.0, 10.0),
        lambda: fairlead.Outage(0, NAN, 10.0),
        lambda: fairlead.Outage(0, 1.0, NAN),
        lambda: fairlead.Outage(-1, 1.0, 2.0),
    ],
)
def test_values_check_their_fields(made):
    refused("expected", made)


@pytest.mark.parametrize("round_s", [-1, 1e-9, NAN, INF, "abc"])
def test_round_lengths_are_checked(round_s):
    refused("'round_s'", fairlead.simulate, JOBS, CLUSTER, round_s=round_s)
    refused("'round_s'", fairlead.simulate, JOBS, CLUSTER, fairlead.Scheduler("las"), round_s=round_s)
    refused("'round_s'", fairlead.Scheduler, "las", round_s=round_s)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("measure", value) for value in ((6, 9), (3, 2), (1,), 5, "ab", (0, 1.5))),
        *(("seed", value) for value in (-1, 1.5, "a", None)),
        ("throughputs", 4),
        ("costs", 4),
        ("faults", 4),
        ("faults", fairlead.Faults([fairlead.Outage(7, 1.0, 2.0)])),
    ],
)
def test_arguments_of_simulate_are_checked(field, value):
    refused(
        f"'{'outages' if isinstance(value, fairlead.Faults) else field}'", fairlead.simulate, JOBS, CLUSTER, **{field: value}
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("seeds", value) for value in ((), (0, 0), (-1,), (1.5,), 5)),
        *(("loads", value) for value in ((), (NAN,), (-1.0,), (1.0, 1.0), 5)),
        *(("schedulers", value) for value in ((), "fifo", 5)),
        ("measure", (6, 9)),
        *(("processes", value) for value in (0, 1.5, "2")),
    ],
)
def test_arguments_of_compare_are_checked(field, value):
    refused(f"'{field}'", fairlead.compare, JOBS, CLUSTER, **{"schedulers": ["fifo"], "processes": 1, field: value})


def test_seeds_may_be_numpy_integers():
    result = fairlead.compare(JOBS, CLUSTER, ["fifo"], seeds=np.arange(2), loads=[30.0], processes=1)
    assert [row["seed"] for row in result.rows] == [0, 1]


@pytest.mark.parametrize("policy", [None, 5, [], object(), b"fifo", int])
def test_a_policy_without_its_method_is_refused(policy):
    refused("'policy'.*a name, or an object with a method select or allocate", fairlead.Scheduler, policy)


def test_another_stage_without_its_method_is_refused():
    refused("'placement' is 5: expected a name, or an object with a method place", fairlead.Scheduler, "fifo", placement=5)


@pytest.mark.parametrize("trace", [5, [1, 2], None, pyarrow.array([1.0])])
def test_other_objects_are_no_trace(trace):
    with pytest.raises(FairleadError, match=r"trace|data frame"):
        fairlead.simulate(trace, CLUSTER)


def test_a_list_of_jobs_may_be_empty():
    assert fairlead.simulate([], CLUSTER).summary["jobs"] == 0


def test_errors_in_a_data_frame_name_its_row():
    frame = pyarrow.table({"name": ["a"], "submitted_s": [0.0], "steps": [-1.0]})
    refused("^data frame, row 1: field 'steps'", fairlead.simulate, frame, CLUSTER)


def test_pandas_objects_that_are_no_trace_are_refused():
    pandas = pytest.importorskip("pandas")
    refused("^data frame", fairlead.simulate, pandas.DataFrame({"name": ["a", object()]}), CLUSTER)
    with pytest.raises(FairleadError):
        fairlead.simulate(pandas.Series([1.0, 2.0]), CLUSTER)


def test_a_cluster_needs_a_gpu_and_its_errors_name_the_parameter():
    refused("'cluster' is 'empty'", fairlead.simulate, JOBS, fairlead.Cluster((), ()))
    refused("^cluster: field 'cluster' is '5'", fairlead.simulate, JOBS, 5)
    refused("^scheduler: field 'scheduler part'", fairlead.Scheduler, "las:by")


@pytest.mark.parametrize(
    "schedulers",
    [
        [fairlead.Scheduler("las"), fairlead.Scheduler("las", round_s=0)],
        ["las", "las"],
        [Signed(1.0), Signed(-1.0)],
        [namesake(), namesake()],
    ],
)
def test_schedulers_with_one_label_are_refused(schedulers):
    refused("each scheduler only once, or another name", fairlead.compare, JOBS, CLUSTER, schedulers, processes=1)


def test_objects_keep_their_state_and_classes_of_one_name_stay_apart():
    one, other = (fairlead.Scheduler(Signed(sign), name=str(sign), round_s=0) for sign in (1.0, -1.0))
    two = [fairlead.Scheduler(policy, name=name, round_s=0) for policy, name in ((one_class(1.0), "a"), (one_class(-1.0), "b"))]
    jobs = [replace(job, submitted_s=float(number), steps=3600.0) for number, job in enumerate(JOBS)]
    ended = {
        record.scheduler: record.jobs.ended_s.tolist()
        for record in fairlead.compare(jobs, CLUSTER, [one, other, *two], processes=1).records
    }
    assert ended["1.0"] == ended["a"] != ended["-1.0"] == ended["b"]


def one_class(sign: float) -> object:
    class Mine(Signed):
        def __init__(self) -> None:
            super().__init__(sign)

    return Mine


def test_a_preset_takes_parameters_in_its_text():
    assert fairlead.Scheduler("gavel:space_sharing=true").label == "gavel(space_sharing=true)"


@pytest.mark.parametrize("write", ["report", "to_parquet"])
@pytest.mark.parametrize("path", ["", "file/below"])
def test_what_cannot_be_written_is_an_error_of_one_line(tmp_path, monkeypatch, write, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for result in (fairlead.simulate(JOBS, CLUSTER), fairlead.compare(JOBS, CLUSTER, ["fifo"], processes=1)):
        if write == "report" or path:
            with pytest.raises(FairleadError, match="cannot be written"):
                getattr(result, write)(path)


def test_tables_of_several_loads_have_files_of_their_own(tmp_path):
    result = fairlead.compare(JOBS, CLUSTER, ["fifo", "las"], loads=[30.0, 300.0], processes=1)
    names = [path.stem for path in result.to_parquet(tmp_path)]
    assert names == ["runs", *(f"jobs-{one}-load-{load}-seed-0" for load in (30, 300) for one in ("fifo", "las"))]
    assert "worst_ftf" in result._repr_html_()
    with pytest.raises(FairleadError, match="one of jobs, finished"):
        result.paired("las", "fifo", "scheduler")


def test_progress_ends_at_one():
    shares: list[float] = []
    fairlead.simulate(JOBS, CLUSTER, on_progress=shares.append)
    assert shares[-1] == 1.0


def test_a_recorded_run_takes_the_same_schedulers_as_a_comparison(tmp_path):
    cluster = fairlead.Cluster.parse(CLUSTER)
    scheduler = fairlead.Scheduler("las", round_s=60).config
    run_simulation(
        Simulation(fairlead.Trace(tuple(JOBS)), cluster, scheduler), journal=open_journal(str(tmp_path / "run.jsonl"))
    )
    (tmp_path / "mine.yaml").write_text("policy: fifo\nname: mine\n")
    given = [Signed(1.0), fairlead.Scheduler(Signed(-1.0), name="own"), str(tmp_path / "mine.yaml"), "gavel", "srtf"]
    result = fairlead.resimulate(tmp_path / "run.jsonl", given, processes=1)
    assert result.schedulers[2:] == ["Signed", "own", "mine", "gavel", "srtf"]
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(FairleadError, match="it is empty"):
        fairlead.resimulate(tmp_path / "empty.jsonl")


def test_several_seeds_need_something_random():
    refused("expected one seed; more seeds need loads", fairlead.compare, JOBS, CLUSTER, ["fifo"], seeds=range(3))
    faults = fairlead.Faults(mean_up_s=3600.0)
    assert len(fairlead.compare(JOBS, CLUSTER, ["fifo"], seeds=range(2), faults=faults, processes=1).rows) == 2


def test_an_own_policy_has_the_label_that_the_command_line_gives_it():
    @dataclass(frozen=True)
    class OwnPolicy:
        credit: float = 1.0

        def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
            return in_order(view, view.jobs.submitted_s), memo

    labels = [fairlead.Scheduler(one).label for one in (OwnPolicy, OwnPolicy(), OwnPolicy(10.0), OwnPolicy(0.5))]
    assert labels == ["OwnPolicy", "OwnPolicy", "OwnPolicy(credit=10)", "OwnPolicy(credit=0.5)"]
    result = fairlead.compare(JOBS, CLUSTER, ["fifo", OwnPolicy(10.0)], processes=1)
    assert result.paired("OwnPolicy", "fifo")["pairs"] == 1
    assert result.differences("OwnPolicy").baseline == "OwnPolicy(credit=10)"


def test_a_wrong_answer_and_a_misspelt_column_of_a_policy_are_named():
    class Alone:
        def select(self, view, memo):
            return in_order(view, view.jobs.submitted_s)

    class Misspelt:
        def select(self, view, memo):
            return in_order(view, view.jobs.submited_s), memo

    for run in (lambda: fairlead.simulate(JOBS, CLUSTER, Alone()), lambda: policy_contract(Alone)):
        with pytest.raises(FairleadError, match=r"Alone\.select: expected to return \(Selection, memo\), not a value of type"):
            run()
    with pytest.raises(AttributeError, match=r"view.jobs has no column 'submited_s' .*submitted_s"):
        fairlead.simulate(JOBS, CLUSTER, Misspelt())


def test_generated_jobs_have_a_load_in_the_summary():
    trace = fairlead.Generator(jobs=4, jobs_per_hour=30.0, durations=(600.0,))
    assert [row["load"] for row in fairlead.compare(trace, CLUSTER, ["fifo"], processes=1).summary] == [30.0]
    assert fairlead.compare(JOBS, CLUSTER, ["fifo"], processes=1).summary[0]["load"] is None
