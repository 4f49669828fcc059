"""Schedulers in YAML: the good ones become stages, the bad ones a line that says what to mend."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.admission.accept import AcceptUpTo
from fairlead.config.parameters import FORMER_PARAMETERS
from fairlead.config.registry import FORMER_NAMES, Registry
from fairlead.config.schedulers import Part, SchedulerConfig, make, parse_chain, parse_part
from fairlead.core.errors import FairleadError, InputError, UnknownName
from fairlead.placement.basic import Consolidated
from fairlead.policies.ranking.fifo import Fifo
from fairlead.policies.ranking.tiresias import Tiresias
from fairlead.workloads.throughput_tables import ThroughputTable

TABLE = ThroughputTable.timed(("v100",))

WHOLE = """\
name: my scheduler
policy:
  name: tiresias
  thresholds: [100, 2000.5]
  promote_after: 2
admission: {name: accept-up-to, factor: 1.5}
estimator: oracle
placement: {name: consolidated, parameters: {wait: true}}
termination: by-steps
rounds: 120
run_to_completion: true
"""


def read(tmp_path: Path, text: str | bytes) -> SchedulerConfig:
    path = tmp_path / "scheduler.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return SchedulerConfig.from_file(path)


def said(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(InputError) as told:
        read(tmp_path, text).build(TABLE)
    assert "\n" not in str(told.value)
    return str(told.value).replace(str(tmp_path) + "/", "")


def test_a_scheduler_file_becomes_stages(tmp_path):
    stages = read(tmp_path, WHOLE).build(TABLE)
    assert stages.policy == Tiresias(thresholds=(100.0, 2000.5), promote_after=2.0)
    assert stages.admission == AcceptUpTo(1.5)
    assert stages.placement == Consolidated(wait=True)
    assert stages.round_s == 120.0
    assert stages.run_to_completion
    assert stages.estimator.table is TABLE


def test_a_name_is_enough(tmp_path):
    config = read(tmp_path, "policy: fifo\n")
    assert config == SchedulerConfig()
    assert config.build(TABLE).policy == Fifo()
    assert config.round_s == 300.0


def test_event_driven_means_no_rounds(tmp_path):
    assert read(tmp_path, "policy: fifo\nrounds: event-driven\n").round_s == 0.0


def test_a_scheduler_is_called_by_its_name_or_by_what_it_is_made_of(tmp_path):
    assert read(tmp_path, WHOLE).label == "my scheduler"
    assert SchedulerConfig(Part("las", {"by": "time"})).label == "las(by=time)"
    assert SchedulerConfig(Part("las"), Part("accept-up-to")).label == "las + accept-up-to"
    assert SchedulerConfig(Part("hierarchical-perf", {"weights": {"a": 3}})).label == "hierarchical-perf(weights={'a': 3})"
    assert str(Part("predicted", {"uses": {"A3C": [25, 2], "LM": [40, 3]}})) == "predicted(uses: 2)"
    assert read(tmp_path, SESSION).label == "nexus(sessions: 1)"


def test_what_was_read_can_be_written_down_and_read_again(tmp_path):
    for config in (
        read(tmp_path, WHOLE),
        SchedulerConfig(),
        SchedulerConfig(round_s=0.0),
        SchedulerConfig(Part("las", {"by": "time"})),
    ):
        assert SchedulerConfig.from_data(config.to_data()) == config


FORMER = {old for names in FORMER_NAMES.values() for old in names}  # they are read as the present names
NOT_KEYS = {"name", "parameters", *FORMER_PARAMETERS}

parts = st.builds(
    Part,
    st.text(st.characters(categories=["Ll", "Nd"]), min_size=1, max_size=8).filter(lambda name: name not in FORMER),
    st.dictionaries(
        st.text(st.characters(categories=["Ll"]), min_size=1, max_size=6).filter(lambda key: key not in NOT_KEYS),
        st.integers() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5) | st.lists(st.integers(), max_size=3),
        max_size=3,
    ),
)


@given(
    st.builds(
        SchedulerConfig,
        parts,
        parts,
        parts,
        parts,
        parts,
        st.just(0.0) | st.floats(0.01, 1e6),
        st.booleans(),
        st.none() | st.floats(0.0, 1e6),
        st.text(st.characters(categories=["L"]), max_size=5),
    )
)
def test_any_scheduler_is_the_same_after_being_plain_data(config):
    assert SchedulerConfig.from_data(config.to_data()) == config


# What can be wrong with a file.

SESSION = """policy:
  name: nexus
  sessions:
    photos:
      slo_ms: 100
      rate: 7
      batches: [1]
      latency_ms: {v100: [9]}
"""

WRONG = {
    "unknown field": (
        "policy: fifo\n\npolcy: las\n",
        "scheduler.yaml:3: field 'polcy': expected a known field (did you mean 'policy'?)",
    ),
    "a field near to nothing": (
        "policy: fifo\nzzz: 1\n",
        "scheduler.yaml:2: field 'zzz': expected a known field (known: policy, admission, ",
    ),
    "twice the same field": (
        "policy: fifo\nrounds: 3\npolicy: las\n",
        "scheduler.yaml:3: field 'policy': expected each field only once",
    ),
    "no policy": ("rounds: 300\n", "scheduler.yaml: field 'policy': expected the name of a policy, as in 'policy: fifo'"),
    "a list": (
        "- policy\n- fifo\n",
        "scheduler.yaml:1: field 'file' is ['policy', 'fifo']: expected a mapping of names to values",
    ),
    "a word": ("fifo\n", "scheduler.yaml:1: field 'file' is 'fifo': expected a mapping"),
    "nothing": ("", "scheduler.yaml: expected some content; the file is empty"),
    "only a comment": ("# policy: fifo\n", "scheduler.yaml: expected some content; the file is empty"),
    "policy is a number": ("policy: 7\n", "scheduler.yaml:1: field 'policy' is 7: expected a mapping"),
    "policy without a name": (
        "policy: {by: time}\n",
        "scheduler.yaml:1: field 'policy': expected a name, or a mapping with 'name'",
    ),
    "policy is empty": ("policy: ''\n", "scheduler.yaml:1: field 'policy' is '': expected the name of a part"),
    "rounds is a word": (
        "policy: fifo\nrounds: often\n",
        "scheduler.yaml:2: field 'rounds' is 'often': expected ",
    ),
    "rounds is zero": ("policy: fifo\nrounds: 0\n", "scheduler.yaml:2: field 'rounds' is 0: expected "),
    "rounds is negative": ("policy: fifo\nrounds: -5\n", "scheduler.yaml:2: field 'rounds' is -5: expected "),
    "rounds is infinite": ("policy: fifo\nrounds: .inf\n", "scheduler.yaml:2: field 'rounds' is inf: expected "),
    "rounds is no number": (
        "policy: fifo\nrounds: .nan\n",
        "scheduler.yaml:2: field 'rounds' is nan: expected ",
    ),
    "rounds is yes": ("policy: fifo\nrounds: true\n", "scheduler.yaml:2: field 'rounds' is True: expected "),
    "completion is a word": (
        "policy: fifo\nrun_to_completion: perhaps\n",
        "scheduler.yaml:2: field 'run_to_completion' is 'perhaps': expected true or false",
    ),
    "name is a list": ("policy: fifo\nname: [a]\n", "scheduler.yaml:2: field 'name' is ['a']: expected a short name"),
    "bytes": ("policy: !!binary Zmlmbw==\n", "scheduler.yaml:1: expected YAML without !!binary"),
    "a set": ("policy:\n  name: fifo\n  x: !!set {a}\n", "scheduler.yaml:3: expected YAML without !!set"),
    "an alias": ("policy: &a {name: fifo}\nadmission: *a\n", "scheduler.yaml:2: expected YAML without aliases"),
    "broken brackets": ("policy: {name: fifo\nrounds: 5\n", "scheduler.yaml:2: expected YAML ("),
    "a tab": ("policy:\n\tname: fifo\n", "scheduler.yaml:2: expected YAML ("),
    "a python object": ("policy: !!python/object/apply:os.system ['true']\n", "scheduler.yaml:1: expected YAML ("),
    "two documents": ("policy: fifo\n---\npolicy: las\n", "scheduler.yaml:2: expected YAML ("),
    "an unknown parameter": (
        "policy: {name: las, bye: time}\n",
        "scheduler.yaml:1: policy 'las': field 'bye': expected a known parameter (did you mean 'by'?)",
    ),
    "a parameter of the wrong kind": (
        "policy: {name: tiresias, thresholds: many}\n",
        "scheduler.yaml:1: policy 'tiresias': field 'thresholds' is 'many': expected a valid tuple",
    ),
    "a parameter that is none of the choices": (
        "policy: {name: las, by: luck}\n",
        "scheduler.yaml:1: policy 'las': field 'by' is 'luck': expected 'accelerator-time' or 'time'",
    ),
    "a parameter that the policy refuses": (
        "policy: {name: tiresias, thresholds: [5, 3]}\n",
        "scheduler.yaml:1: policy tiresias: field 'thresholds' is [5.0, 3.0]: expected ascending",
    ),
    "a field of a session that nobody knows": (
        SESSION + "      zoo: 1\n",
        "scheduler.yaml:9: policy 'nexus': field 'sessions.photos.zoo': expected a known field (known: slo_ms, batches, ",
    ),
    "a field of a session without a value": (
        SESSION.replace("slo_ms: 100", "slo_ms:"),
        "scheduler.yaml:5: policy 'nexus': field 'sessions.photos.slo_ms': expected a valid number",
    ),
    "a session without a field": (
        SESSION.replace("      slo_ms: 100\n", ""),
        "scheduler.yaml:4: policy 'nexus': field 'sessions.photos.slo_ms': expected a value; the field is required",
    ),
    "a session that the policy refuses": (
        SESSION.replace("rate: 7", "rate: 0"),
        "scheduler.yaml:6: policy nexus: field 'sessions.photos.rate' is 0.0: expected a number above 0",
    ),
    "parameters of their own": (
        "policy:\n  name: tiresias\n  parameters:\n    thresholds: [5, 3]\n",
        "scheduler.yaml:4: policy tiresias: field 'thresholds' is [5.0, 3.0]: expected ascending",
    ),
    "a parameter that is not one's to give": (
        "policy: fifo\nestimator: {name: oracle, table: 3}\n",
        "scheduler.yaml:2: estimator 'oracle': field 'table': expected a known parameter",
    ),
}


@pytest.mark.parametrize(("text", "expected"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_told_with_line_field_value_and_mend(tmp_path, text, expected):
    assert expected in said(tmp_path, text)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00policy", b"policy: \xe4\n", b"\x80\x04}q\x00."], ids=["utf-16", "latin-1", "pickle"]
)
def test_bytes_that_are_no_text_are_refused(tmp_path, content):
    assert said(tmp_path, content).startswith("scheduler.yaml: expected ")


def test_a_nul_byte_is_refused(tmp_path):
    assert said(tmp_path, b"policy: fi\x00fo\n").startswith("scheduler.yaml: expected YAML (")


def test_an_alias_bomb_does_not_go_off(tmp_path):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{name}: &{name} [{', '.join('*' + before for _ in range(9))}]" for before, name in zip("abcdefgh", "bcdefghi")]
    assert said(tmp_path, "\n".join(lines)) == "scheduler.yaml:2: expected YAML without aliases"


def test_brackets_without_end_do_not_exhaust_the_stack(tmp_path):
    assert said(tmp_path, "policy: " + "[" * 600).startswith("scheduler.yaml")


def test_a_number_of_thousands_of_digits_is_refused(tmp_path):
    assert said(tmp_path, "policy: fifo\nrounds: " + "9" * 5000 + "\n").startswith("scheduler.yaml")


def test_a_file_of_megabytes_is_not_read(tmp_path):
    assert said(tmp_path, "#" * (1 << 21)) == "scheduler.yaml: expected a file of at most 1 MiB"


def test_a_file_that_is_not_there_or_is_a_folder_says_so(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml: expected a readable file \(No such file or directory\)"):
        SchedulerConfig.from_file(tmp_path / "none.yaml")
    with pytest.raises(InputError, match=r"expected a (readable|regular) file"):
        SchedulerConfig.from_file(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("policy: fifa\n", "unknown policy 'fifa'; did you mean 'fifo'"),
        ("policy: fifo\nplacement: consolidate\n", "unknown placement 'consolidate'; did you mean 'consolidated'"),
        ("policy: fifo\nadmission: accept\n", "unknown admission 'accept'; did you mean 'accept-all' or 'accept-up-to'?"),
        (
            "policy: fifo\ntermination: qqq\n",
            "unknown termination 'qqq'; known: by-loss, by-steps, hyperband, successive-halving",
        ),
    ],
)
def test_an_unknown_part_is_answered_with_the_near_ones(tmp_path, text, expected):
    with pytest.raises(UnknownName) as told:
        read(tmp_path, text).build(TABLE)
    place = f"{tmp_path}/scheduler.yaml:{text.count(chr(10))}: "
    assert str(told.value).startswith(place + expected)


# On a command line.


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("fifo", Part("fifo")),
        ("las:by=time", Part("las", {"by": "time"})),
        ("tiresias:thresholds=[3250,7200]:promote_after=2", Part("tiresias", {"thresholds": [3250, 7200], "promote_after": 2})),
        ("fifo: backfill = true ", Part("fifo", {"backfill": True})),
        ("x:empty=", Part("x", {"empty": ""})),
        ("x:weights={a: 3, b: 1}:inside=fifo", Part("x", {"weights": {"a": 3, "b": 1}, "inside": "fifo"})),
    ],
)
def test_a_part_on_a_command_line_is_a_name_and_parameters(text, part):
    assert parse_part(text) == part


@pytest.mark.parametrize("text", ["las:by", "las:=time", "las:by=time:", "las: "])
def test_a_parameter_without_name_or_value_is_shown(text):
    with pytest.raises(InputError, match="expected name or name:parameter=value"):
        parse_part(text)


def test_a_value_on_a_command_line_that_is_no_yaml_is_shown():
    with pytest.raises(InputError, match=r"parameter 'thresholds'.*expected YAML"):
        parse_part("tiresias:thresholds=[1,")


@pytest.mark.parametrize(
    "text",
    ["predicted:profiles=h200,sharing=mps", "predicted:below=[1,2,3], above=[1,2]", "monitored:uses={a: [1,2]},sharing=mps"],
)
def test_commas_between_parameters_are_told_for_what_they_are(text: str):
    with pytest.raises(InputError, match="colons between parameters, as in name:one=1:other=2"):
        parse_part(text)


def test_an_empty_name_is_no_part():
    with pytest.raises(FairleadError, match="unknown policy ''"):
        make("policy", parse_part(""), Registry.installed())


def test_a_class_without_fields_can_be_a_stage_too():
    class Plain:
        def __init__(self, speed: float = 1.0) -> None:
            self.speed = speed

    registry = Registry.installed().plus("policy", "plain", Plain)
    assert make("policy", Part("plain", {"speed": 3.0}), registry).speed == 3.0
    with pytest.raises(InputError, match="policy 'plain': expected other parameters"):
        make("policy", Part("plain", {"sped": 3.0}), registry)


def test_admissions_in_a_list_are_a_chain_that_survives_being_written_down():
    data = {"policy": "las", "admission": [{"name": "user-job-quota", "default": 4}, {"name": "accept-up-to", "factor": 1.2}]}
    config = SchedulerConfig.from_data(data)
    assert config.label == "las + user-job-quota(default=4), accept-up-to(factor=1.2)"
    assert SchedulerConfig.from_data({"policy": "las", "termination": "by-loss"}).label == "las + by-loss"
    assert SchedulerConfig.from_data(config.to_data()) == config
    links = config.build(None).admission.links
    assert [type(link).__name__ for link in links] == ["UserJobQuota", "AcceptUpTo"]
    assert parse_chain("user-job-quota:default=4, accept-up-to:factor=1.2") == config.admission
    assert parse_chain("accept-all") == Part("accept-all")
    assert parse_chain("user-job-quota:limits={ann: 1, bob: 2}").parameters == {"limits": {"ann": 1, "bob": 2}}


@pytest.mark.parametrize("written", [[], [["accept-all"]]])
def test_a_chain_of_nothing_or_of_lists_is_refused(written):
    with pytest.raises(InputError, match="expected one part, or a list of parts"):
        SchedulerConfig.from_data({"policy": "las", "admission": written})


def test_only_admissions_can_be_chained():
    with pytest.raises(InputError, match=r"field 'placement' .*expected one part, not a list"):
        SchedulerConfig.from_data({"policy": "las", "placement": ["spread", "consolidated"]}).build(None)
