"""Whatever is wrong with an input: one line that names the place, exit code 2, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Done, fairlead, from_scratch

NATIVE = "name,submitted_s,duration_s\na,0,10\n"
SIMULATE = ("simulate", "--policy", "fifo", "--cluster", "1xv100:1")
OPENED = (
    '{"e":"opened","version":1,"t":0.0,"cluster":{"types":[{"name":"v100","memory_gb":"inf","price_per_hour":0.0}],"nodes":'
    '[{"name":"n","type":"v100","accelerators":1,"cpus":"inf","memory_gb":"inf","network_gbps":0.0,"links":[]}]},'
    '"scheduler":{"policy":"fifo"},"trace":"t","rates":{"|1":[1.0]}}\n'
)

# What it is: (files, arguments, what the line has to name).
WRONG: dict[str, tuple[dict[str, str | bytes], tuple[str, ...], tuple[str, ...]]] = {
    # Traces.
    "a trace with a word for a number": (
        {"jobs.csv": NATIVE + "b,1,ten\n"},
        (*SIMULATE, "--trace", "jobs.csv"),
        ("jobs.csv:3", "'duration_s'", "'ten'", "expected"),
    ),
    "a trace with a negative gang": (
        {"jobs.csv": "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,-4,0,1,x,5,1\n"},
        (*SIMULATE, "--trace", "jobs.csv", "--format", "tiresias"),
        ("jobs.csv:2", "'num_gpu'", "-4"),
    ),
    "a trace with a misspelt column": (
        {"jobs.csv": "name,submited_s,duration_s\na,0,10\n"},
        (*SIMULATE, "--trace", "jobs.csv", "--format", "native"),
        ("jobs.csv:1", "submited_s"),
    ),
    "a trace cut off in a line": (
        {"jobs.trace": "LM (batch size 5)\tpython x\t--steps\t1\n"},
        (*SIMULATE, "--trace", "jobs.trace", "--format", "gavel"),
        ("jobs.trace:1", "expected"),
    ),
    "a trace that is not UTF-8": (
        {"jobs.csv": NATIVE.encode() + b"\xff\xfe,1,2\n"},
        (*SIMULATE, "--trace", "jobs.csv"),
        ("jobs.csv:3",),
    ),
    "a trace that nothing recognises": (
        {"jobs.txt": "once upon a time\n"},
        (*SIMULATE, "--trace", "jobs.txt"),
        ("jobs.txt", "format"),
    ),
    "a trace that is not there": ({}, (*SIMULATE, "--trace", "none.csv"), ("none.csv", "No such file")),
    "a format that there is not": (
        {"jobs.csv": NATIVE},
        (*SIMULATE, "--trace", "jobs.csv", "--format", "phily"),
        ("'phily'", "did you mean 'philly'"),
    ),
    "two jobs of one name": (
        {"jobs.csv": NATIVE + "a,1,10\n"},
        (*SIMULATE, "--trace", "jobs.csv"),
        ("jobs.csv:3", "'name'", "'a'"),
    ),
    "a kind that no table has": (
        {"jobs.csv": "name,submitted_s,steps,kind\na,0,10,ResNet-5O (batch size 64)\n"},
        (*SIMULATE, "--trace", "jobs.csv"),
        ("job 'a'", "'kind'", "ResNet-50 (batch size 64)"),
    ),
    # Clusters.
    "a cluster text that is none": (
        {},
        ("simulate", "--policy", "fifo", "--cluster", "v100x8"),
        ("--cluster 'v100x8'", "8xv100:4"),
    ),
    "a cluster file with a wrong field": (
        {"c.yaml": "nodes:\n  - type: v100\n    acelerators: 4\n"},
        ("simulate", "--policy", "fifo", "--cluster", "c.yaml"),
        ("c.yaml:3", "'acelerators'", "accelerators"),
    ),
    "a cluster of a type without throughputs": (
        {},
        ("simulate", "--policy", "fifo", "--cluster", "4xv10O:4", "--jobs", "2"),
        ("'v10o'", "v100"),
    ),
    # Schedulers.
    "an unknown policy": ({}, ("simulate", "--policy", "tiresas"), ("unknown policy 'tiresas'", "did you mean 'tiresias'")),
    "an unknown parameter of a policy": ({}, ("simulate", "--policy", "las:bye=time"), ("'las'", "'bye'", "'by'")),
    "a scheduler file with a wrong field": (
        {"s.yaml": "policy: fifo\nround: 300\n"},
        ("simulate", "--config", "s.yaml"),
        ("s.yaml:2", "'round'", "rounds"),
    ),
    "a scheduler file that is no YAML": (
        {"s.yaml": "policy: [fifo\n"},
        ("simulate", "--config", "s.yaml"),
        ("s.yaml:", "YAML"),
    ),
    "neither policy nor file": ({}, ("simulate",), ("--policy NAME, --preset NAME or --config FILE",)),
    # Throughput tables.
    "a throughput table that is broken JSON": (
        {"t.json": '{"v100": {'},
        (*SIMULATE, "--throughputs", "t.json"),
        ("t.json", "JSON"),
    ),
    "a throughput table with a negative rate": (
        {"t.csv": "kind,workers,type,steps_per_s\nLM,1,v100,-3\n"},
        (*SIMULATE, "--throughputs", "t.csv"),
        ("t.csv:2", "-3"),
    ),
    # Journals.
    "a journal that is none": ({"e.jsonl": "hello\n"}, ("report", "e.jsonl"), ("e.jsonl:1", "not a journal")),
    "a journal with a damaged line": (
        {"e.jsonl": OPENED + '{"e":"lost"}\n'},
        ("report", "e.jsonl"),
        ("e.jsonl:2", "damaged 'node_lost' event"),
    ),
    "a journal with an event that cannot have happened": (
        {"e.jsonl": OPENED + '{"e":"finished","t":2.0,"jobs":[500],"at":[2.0]}\n'},
        ("report", "e.jsonl"),
        ("e.jsonl:2", "cannot have happened"),
    ),
    "a journal that launches a job on an accelerator that is not there": (
        {
            "e.jsonl": OPENED
            + '{"e":"submitted","t":1.0,"n":0,"job":{"name":"a"}}\n'
            + '{"e":"planned","t":2.0,"admitted":[0],"launched":[0],"types":[0],"workers":[1],"accelerators":[99]}\n'
        },
        ("report", "e.jsonl"),
        ("e.jsonl:3", "a GPU that does not exist"),
    ),
    "a journal that has lost the submission of a job that it launches": (
        {
            "e.jsonl": OPENED
            + '{"e":"submitted","t":1.0,"n":1,"job":{"name":"b"}}\n'
            + '{"e":"planned","t":2.0,"admitted":[0],"launched":[0],"types":[0],"workers":[1],"accelerators":[0]}\n'
            + '{"e":"finished","t":3.0,"jobs":[0],"at":[3.0]}\n'
        },
        ("report", "e.jsonl"),
        ("e.jsonl:3", "job number 0, which was never submitted"),
    ),
    **{
        f"a journal to {verb[0]} whose job finished at the end of all time": (
            {
                "e.jsonl": OPENED
                + '{"e":"submitted","t":1.0,"n":0,"job":{"name":"a"}}\n'
                + '{"e":"planned","t":2.0,"admitted":[0],"launched":[0],"types":[0],"workers":[1],"accelerators":[0]}\n'
                + '{"e":"finished","t":3.0,"jobs":[0],"at":[1e308]}\n'
            },
            verb,
            ("e.jsonl:4", "a damaged 'jobs_finished' event", "at is 1e+308: expected 0 to 3"),
        )
        for verb in (("report", "e.jsonl"), ("resimulate", "e.jsonl", "--policies", "las"))
    },
    "a journal of another version": (
        {"e.jsonl": OPENED.replace('"version":1', '"version":99')},
        ("report", "e.jsonl"),
        ("e.jsonl:1", "version 99"),
    ),
    "a journal whose version is no number": (
        {"e.jsonl": OPENED.replace('"version":1', '"version":true')},
        ("report", "e.jsonl"),
        ("e.jsonl:1", "version True"),
    ),
    "an event log that cannot be written": (
        {"no": "a file"},
        (*SIMULATE, "--jobs", "2", "--events", "no/e.jsonl"),
        ("no/e.jsonl", "a writable path"),
    ),
    **{
        f"tables of {verb[0]} that cannot be written": (
            {"no": "a file"},
            (*verb, "--jobs", "2", "--out", "no/tables"),
            ("no/tables", "a writable path"),
        )
        for verb in (SIMULATE, ("compare",))
    },
    # Options.
    "a round of no length": ({}, (*SIMULATE, "--round", "0"), ("--round", "0.0", "seconds")),
    "an outage of a node that is not there": ({}, (*SIMULATE, "--outage", "7:1:2"), ("--outage", "7:1:2")),
    "jobs to measure that are none": ({}, (*SIMULATE, "--measure", "ten"), ("--measure", "'ten'", "50:150")),
    "jobs to measure from the last to the first": ({}, (*SIMULATE, "--measure", "9:3"), ("--measure", "'9:3'", "first < last")),
    "no job to measure": ({}, ("compare", "--measure", "3:3"), ("--measure", "'3:3'", "first < last")),
    "nodes that are repaired never": ({}, ("compare", "--mtbf", "100", "--mttr", "inf"), ("--mttr", "inf", "finite")),
    "a scheduler that is compared with itself": (
        {},
        ("compare", "--policies", "fifo,las,fifo"),
        ("'scheduler' is 'fifo'", "each scheduler only once"),
    ),
    "two schedulers of one name": (
        {"s.yaml": "policy: fifo\nplacement: spread\n"},
        ("compare", "--policies", "fifo", "--config", "s.yaml"),
        ("'scheduler' is 'fifo'", "another name", "name: "),
    ),
    "seeds that are none": ({}, ("compare", "--seeds", "one"), ("--seeds", "'one'")),
    "half a gang to keep": (
        {"jobs.csv": NATIVE},
        ("trace", "transform", "jobs.csv", "-o", "out.csv", "--keep-workers", "1.5"),
        ("--keep-workers", "'1.5'"),
    ),
    "a trace to be written as something unknown": (
        {"jobs.csv": NATIVE},
        ("trace", "convert", "jobs.csv", "-o", "out.xlsx"),
        ("out.xlsx", ".csv"),
    ),
    "a full disk": ({}, (*SIMULATE, "--jobs", "2", "--events", "/dev/full"), ("/dev/full", "No space left")),
    # Tasks.
    "a task that is a list": ({"task.yaml": "- run: x\n"}, ("submit", "task.yaml"), ("task.yaml:1", "mapping")),
    "a task that is cut off": ({"task.yaml": "run: [x\n"}, ("submit", "task.yaml"), ("task.yaml:2", "YAML")),
    "a task that is code": (
        {"task.yaml": "run: !!python/object/apply:os.system ['x']\n"},
        ("submit", "task.yaml"),
        ("task.yaml:1", "YAML"),
    ),
    "a task with an unknown field": ({"task.yaml": "run: x\nworker: 2\n"}, ("submit", "task.yaml"), ("task.yaml:2", "workers")),
    "a task with a word for a number": (
        {"task.yaml": "run: x\nworkers: many\n"},
        ("submit", "task.yaml"),
        ("task.yaml", "'workers'", "'many'", "integer"),
    ),
    "a task in a directory that is somewhere": (
        {"task.yaml": "run: x\ndirectory: ../../etc\n"},
        ("submit", "task.yaml"),
        ("task.yaml", "'directory'", "absolute"),
    ),
    "a task with a lease that waits for nothing": (
        {"task.yaml": "run: x\nlease: {renewal: central}\n"},
        ("submit", "task.yaml"),
        ("task.yaml", "'lease'", "bound"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_is_one_line_with_its_place(name, tmp_path):
    files, arguments, named = WRONG[name]
    if "/dev/full" in arguments and not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here to be a full disk")
    write(files, tmp_path)
    check(fairlead(*arguments, cwd=tmp_path), named)


def test_a_process_from_scratch_says_the_same(tmp_path):
    files, arguments, named = WRONG["a trace with a word for a number"]
    write(files, tmp_path)
    check(from_scratch(*arguments, cwd=tmp_path), named)


def write(files: dict[str, str | bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def check(done: Done, named: tuple[str, ...]) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("fairlead: error: ")
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    for part in named:
        assert part in done.stderr
    assert len(done.stderr) < 400
