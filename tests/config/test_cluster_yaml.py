"""Clusters in YAML, and by a short text."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from fairlead.config.clusters import LINKS, read_cluster
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.errors import InputError

KNOWN = [AcceleratorType("v100", 16.0, 2.5), AcceleratorType("k80", 12.0, 0.5)]

WHOLE = """\
types:
  v100: {memory_gb: 32}
  mine: {price_per_hour: 7}
nodes:
  - {count: 2, type: V100, accelerators: 4, cpus: 32, memory_gb: 256, network_gbps: 10, rack: a}
  - {name: big, type: mine, accelerators: 2, links: [[0, 900], [900, 0]]}
"""


def read(tmp_path: Path, text: str | bytes) -> Cluster:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_cluster(str(path), KNOWN)


def test_a_cluster_file_becomes_a_cluster(tmp_path):
    cluster = read(tmp_path, WHOLE)
    assert cluster.types == (AcceleratorType("v100", 32.0, 2.5), AcceleratorType("mine", math.inf, 7.0))
    assert cluster.nodes == (
        Node("v100-0", "v100", 4, 32.0, 256.0, 10.0, rack="a"),
        Node("v100-1", "v100", 4, 32.0, 256.0, 10.0, rack="a"),
        Node("big", "mine", 2, links=((0.0, 900.0), (900.0, 0.0))),
    )


def test_links_can_be_those_of_a_machine_with_a_name(tmp_path):
    cluster = read(tmp_path, "nodes: [{type: v100, accelerators: 4, links: p3.8xlarge}]")
    assert cluster.nodes[0].links == LINKS["p3.8xlarge"]


def test_a_node_needs_only_a_type_and_a_size(tmp_path):
    cluster = read(tmp_path, "nodes: [{type: k80, accelerators: 8}]")
    assert cluster == Cluster((Node("k80-0", "k80", 8),), (AcceleratorType("k80", 12.0, 0.5),))


def test_a_short_text_is_understood_where_no_file_has_that_name():
    assert read_cluster("8xv100:4", KNOWN).types == (KNOWN[0],)


def test_more_types_than_a_job_can_choose_from_are_refused():
    assert len(read_cluster(",".join(f"1xt{n}:1" for n in range(63))).types) == 63
    with pytest.raises(InputError, match="'types' is 64: expected at most 63 GPU types"):
        read_cluster(",".join(f"1xt{n}:1" for n in range(64)))


def test_names_of_nodes_are_numbered_where_they_stand_for_several(tmp_path):
    cluster = read(tmp_path, "nodes: [{name: rack, count: 2, type: k80, accelerators: 1}, {type: k80, accelerators: 1}]")
    assert [node.name for node in cluster.nodes] == ["rack-0", "rack-1", "k80-2"]


NODE = "nodes:\n  - {type: v100, accelerators: 4%s}\n"
WRONG = {
    "no nodes": ("types: {v100: {memory_gb: 3}}\n", "cluster.yaml: field 'nodes': expected a list of nodes"),
    "an empty list of nodes": ("nodes: []\n", "cluster.yaml:1: field 'nodes' is []: expected at least one node"),
    "nodes is a mapping": ("nodes: {a: 1}\n", "cluster.yaml:1: field 'nodes' is {'a': 1}: expected a list"),
    "a node is a word": ("nodes:\n  - v100\n", "cluster.yaml:2: field 'nodes[0]' is 'v100': expected a mapping"),
    "an unknown field": ("node: []\n", "cluster.yaml:1: field 'node': expected a known field"),
    "an unknown field of a node": (NODE % ", gpus: 4", "cluster.yaml:2: field 'gpus': expected a known field"),
    "a near field of a node": (NODE % ", cpu: 4", "cluster.yaml:2: field 'cpu': expected a known field (did you mean 'cpus'"),
    "an unknown field of a type": (
        "types:\n  v100:\n    memory: 4\nnodes: []\n",
        "cluster.yaml:3: field 'memory': expected a known field",
    ),
    "no type": ("nodes:\n  - {accelerators: 4}\n", "cluster.yaml:2: field 'type': expected a value; every node needs one"),
    "no size": ("nodes:\n  - {type: v100}\n", "cluster.yaml:2: field 'accelerators': expected a value; every node needs one"),
    "half an accelerator": (
        "nodes:\n  - {type: v100, accelerators: 2.5}\n",
        "cluster.yaml:2: field 'accelerators' is 2.5: expected a whole number",
    ),
    "no accelerator": (
        "nodes:\n  - {type: v100, accelerators: 0}\n",
        "cluster.yaml:2: field 'accelerators' is 0: expected a whole number",
    ),
    "a number in words": ("nodes:\n  - {type: v100, accelerators: four}\n", "cluster.yaml:2: field 'accelerators' is 'four'"),
    "yes as a number": ("nodes:\n  - {type: v100, accelerators: yes}\n", "cluster.yaml:2: field 'accelerators' is True"),
    "too many": (
        "nodes:\n  - {type: v100, accelerators: 8, count: 1000000}\n",
        "cluster.yaml:2: field 'accelerators' is 8: expected at most 1,000,000",
    ),
    "a huge number": (
        "nodes:\n  - {type: v100, accelerators: 1" + "0" * 400 + "}\n",
        "cluster.yaml:2: field 'accelerators' is ",
    ),
    "no nodes of a kind": (NODE % ", count: 0", "cluster.yaml:2: field 'count' is 0: expected a whole number of at least 1"),
    "negative memory": (NODE % ", memory_gb: -1", "cluster.yaml:2: field 'memory_gb' is -1: expected a number of at least 0"),
    "memory that is no number": (
        NODE % ", memory_gb: .nan",
        "cluster.yaml:2: field 'memory_gb' is nan: expected a number of at least 0",
    ),
    "a type without memory": (
        "types: {v100: {memory_gb: 0}}\nnodes: []\n",
        "cluster.yaml:1: field 'memory_gb' is 0: expected GB above 0",
    ),
    "a rack without a name": (
        "nodes: [{type: k80, accelerators: 1, rack: 7}]\n",
        "cluster.yaml:1: field 'rack' is 7: expected the name of a rack",
    ),
    "a node outside of its folder": (
        "nodes: [{type: k80, accelerators: 1, name: ../../escape}]\n",
        "cluster.yaml:1: field 'name' is '../../escape': expected the name of a node: letters, digits,",
    ),
    "a node that begins with a point": (NODE % ", name: .k80", "cluster.yaml:2: field 'name' is '.k80': expected the name"),
    "a rack that turns the line": (NODE % ', rack: "a\\u202eb"', "cluster.yaml:2: field 'rack' is "),
    "two types of one name": (
        "types:\n  v100: {price_per_hour: 1}\n  V100: {price_per_hour: 2}\nnodes: []\n",
        "cluster.yaml:2: field 'v100' is {'price_per_hour': 1}: expected one entry for v100; types are the same in",
    ),
    "a tag that does not fit": ("types: {v100: {price_per_hour: !!bool abc}}\nnodes: []\n", "cluster.yaml: expected YAML ("),
    "an empty whole number": ("types: {v100: {price_per_hour: !!int ''}}\nnodes: []\n", "cluster.yaml: expected YAML ("),
    "a huge price": (
        "types: {v100: {price_per_hour: 1e308}}\nnodes: []\n",
        "cluster.yaml:1: field 'price_per_hour' is '1e308': expected prices of 0, or from 0.0001",
    ),
    "a negative price": ("types: {v100: {price_per_hour: -1}}\nnodes: []\n", "cluster.yaml:1: field 'price_per_hour' is -1"),
    "a type that is a number": (
        "nodes:\n  - {type: 100, accelerators: 4}\n",
        "cluster.yaml:2: field 'type' is 100: expected a GPU type",
    ),
    "links of a machine that nobody knows": (
        NODE % ", links: p3.8xlarg",
        "cluster.yaml:2: field 'links' is 'p3.8xlarg': expected a matrix of Gb/s, or a machine whose links are known (did",
    ),
    "links of a machine of another size": (
        NODE % ", links: p3.16xlarge",
        "cluster.yaml:2: field 'links' is 'p3.16xlarge': expected a machine of 4 GPUs; this one has 8",
    ),
    "links of another size": (
        NODE % ", links: [[0, 1], [1, 0]]",
        "cluster.yaml:2: field 'links' is [[0, 1], [1, 0]]: expected a 4 × 4 matrix of Gb/s",
    ),
    "links in words": ("nodes:\n  - {type: a, accelerators: 1, links: [[fast]]}\n", "cluster.yaml:2: field "),
    "two nodes of one name": (
        "nodes: [{name: a, type: b, accelerators: 1}, {name: a, type: b, accelerators: 1}]\n",
        "cluster.yaml: field 'name' is 'a': expected a unique name for each node",
    ),
    "nothing": ("", "cluster.yaml: expected some content; the file is empty"),
    "a list": ("- 1\n", "cluster.yaml:1: field 'file' is [1]: expected a mapping"),
    "no YAML": ("nodes: [\n", "cluster.yaml:"),
    "bytes": (b"\x93NUMPY\x01\x00", "cluster.yaml: expected "),
}


@pytest.mark.parametrize(("text", "expected"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_told_with_line_field_value_and_mend(tmp_path, text, expected):
    with pytest.raises(InputError) as told:
        read(tmp_path, text)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < len(str(tmp_path)) + 250
    assert str(told.value).replace(f"{tmp_path}/", "").startswith(expected)


def test_a_stream_has_no_prices(tmp_path):
    os.mkfifo(tmp_path / "spot.csv")
    with pytest.raises(InputError, match=r"spot\.csv: expected a regular file"):
        read(tmp_path, "types: {v100: {price_per_hour: spot.csv}}\nnodes: []\n")


def test_a_file_that_is_not_there_is_told_as_a_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml: expected a readable file \(No such file or directory\)"):
        read_cluster(str(tmp_path / "none.yaml"))
