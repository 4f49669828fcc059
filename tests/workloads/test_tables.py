"""Tables as files: what is written is what is read, Gavel's JSON is understood, and everything wrong is named."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InputError, UnknownName
from fairlead.core.job import TIMED
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.table_files import COLUMNS, fill_workers, read_throughputs, write_throughputs
from fairlead.workloads.throughput_tables import ThroughputTable

DATA = Path(__file__).resolve().parents[2] / "../shared/data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public tables of ../shared/data are not here")

HEADER = ",".join(COLUMNS)


def same(one: ThroughputTable, other: ThroughputTable) -> bool:
    columns = all(np.array_equal(getattr(one, c), getattr(other, c)) for c in ("alone", "spread", "paired"))
    names = (one.types, one.keys, one.source, one.sources) == (other.types, other.keys, other.source, other.sources)
    return columns and names


def written(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# round trips


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_the_catalogue_survives_a_file(tmp_path, name):
    write_throughputs(catalogue(), tmp_path / name)
    assert same(read_throughputs(tmp_path / name), catalogue())


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp")), min_size=1, max_size=12)
rates = st.one_of(st.just(0.0), st.floats(1e-9, 1e9))


@st.composite
def tables(draw):
    types = tuple(draw(st.lists(st.sampled_from(["k80", "v100", "h200", "tpu-v5e"]), min_size=1, max_size=3, unique=True)))
    keys = draw(st.lists(st.tuples(names, st.integers(1, 999)), min_size=1, max_size=4, unique=True))
    shape = (len(keys) + 1, len(types))

    def filled(*size):
        count = int(np.prod(size))
        return np.array(draw(st.lists(rates, min_size=count, max_size=count))).reshape(size)

    alone, spread, paired = filled(*shape), filled(*shape), filled(shape[0], *shape)
    alone[0] = spread[0] = 1.0
    paired[0] = paired[:, 0] = 0.0
    return ThroughputTable(types, ((TIMED, 1), *keys), alone, spread, paired, "drawn")


@settings(max_examples=40, deadline=None)
@given(tables(), st.sampled_from(["t.csv", "t.parquet"]))
def test_any_table_survives_a_file_bit_for_bit(table, name):
    with tempfile.TemporaryDirectory() as folder:
        write_throughputs(table, Path(folder) / name)
        assert same(read_throughputs(Path(folder) / name), table)


def test_rows_keep_their_own_sources(tmp_path):
    filled = fill_workers(catalogue().for_types(["v100"]), [("A3C", 4)])
    measured = ThroughputTable(
        filled.types, filled.keys, filled.alone, filled.spread, filled.paired, "a; modelled",
        ("", *["a"] * (len(filled.keys) - 2), "modelled"),
    )  # fmt: skip
    write_throughputs(measured, tmp_path / "t.csv")
    back = read_throughputs(tmp_path / "t.csv")
    assert same(back, measured)
    assert back.source_of(back.row("A3C", 4)) == "modelled"
    assert back.source_of(back.row("A3C", 1)) == "a"
    assert back.for_types(["v100"]).source_of(back.row("A3C", 4)) == "modelled"


# native columns


def test_the_short_form_needs_four_columns(tmp_path):
    table = read_throughputs(written(tmp_path, "kind,workers,type,steps_per_s\nx,1,V100,2.5\nx,2,v100,4\n\n"))
    assert table.types == ("v100",)
    assert table.keys == ((TIMED, 1), ("x", 1), ("x", 2))
    assert table.alone.tolist() == [[1.0], [2.5], [4.0]]
    assert table.spread.tolist() == [[1.0], [2.5], [4.0]]  # nothing spread is listed: nothing is known against it
    assert table.source == "table.csv"


def test_a_gang_without_a_spread_rate_does_not_run_spread_where_others_have_one(tmp_path):
    text = "kind,workers,type,placement,steps_per_s\nx,1,v100,consolidated,2\nx,2,v100,consolidated,4\n"
    text += "y,2,v100,consolidated,5\ny,2,v100,spread,3\nx,2,k80,consolidated,1\n"
    table = read_throughputs(written(tmp_path, text))
    v100, k80 = table.types.index("v100"), table.types.index("k80")
    assert table.spread[table.row("x", 1), v100] == 2.0
    assert table.spread[table.row("x", 2), v100] == 0.0
    assert table.spread[table.row("y", 2), v100] == 3.0
    assert table.spread[table.row("x", 2), k80] == 1.0
    assert table.alone[table.row("y", 2), k80] == 0.0  # not listed: does not fit


def test_parquet_from_other_tools_has_whole_numbers_as_floats(tmp_path):
    columns = {
        "kind": ["x", "x"], "workers": [1.0, 1.0], "type": ["v100", "v100"], "steps_per_s": [2.0, 1.0],
        "partner_kind": [None, "x"], "partner_workers": [float("nan"), 1.0],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    table = read_throughputs(tmp_path / "t.parquet")
    assert table.paired[1, 1, 0] == 1.0


ROW = "x,1,v100,consolidated,,,2.0,here\n"
BAD_NATIVE = [
    ("colour", f"{HEADER},colour\n", 1, "header", "at most once"),
    ("no rate column", "kind,workers,type\nx,1,v100\n", 1, "header", "steps_per_s"),
    ("negative rate", f"{HEADER}\n{ROW}x,2,v100,consolidated,,,-1,here\n", 3, "steps_per_s", "from 0 to"),
    ("nan", f"{HEADER}\nx,1,v100,consolidated,,,nan,here\n", 2, "steps_per_s", "from 0 to"),
    ("infinite", f"{HEADER}\nx,1,v100,consolidated,,,inf,here\n", 2, "steps_per_s", "from 0 to"),
    ("no number", f"{HEADER}\nx,1,v100,consolidated,,,fast,here\n", 2, "steps_per_s", "from 0 to"),
    ("half a worker", f"{HEADER}\nx,1.5,v100,consolidated,,,1,here\n", 2, "workers", "whole number"),
    ("no workers", f"{HEADER}\nx,0,v100,consolidated,,,1,here\n", 2, "workers", "whole number"),
    ("no kind", f"{HEADER}\n,1,v100,consolidated,,,1,here\n", 2, "kind", "a name"),
    ("placement", f"{HEADER}\nx,1,v100,nearby,,,1,here\n", 2, "placement", "consolidated or spread"),
    ("spread pair", f"{HEADER}\n{ROW}x,1,v100,spread,x,1,1,here\n", 3, "placement", "consolidated for a pair"),
    ("half a partner", f"{HEADER}\n{ROW}x,1,v100,consolidated,x,,1,here\n", 3, "partner_workers", "whole number"),
    ("unknown partner", f"{HEADER}\n{ROW}x,1,v100,consolidated,y,1,1,here\n", 3, "v100", "alone are listed"),
    ("twice", f"{HEADER}\n{ROW}{ROW}", 3, "kind", "once"),
    ("short row", f"{HEADER}\n{ROW}x,1,v100\n", 3, "columns", "8 columns"),
    ("open quote", f'{HEADER}\n"x,1,v100,consolidated,,,1,here\n', 2, None, "a row of cells"),
    ("only a header", f"{HEADER}\n", None, None, "at least one rate"),
    ("empty", "", 1, "header", "column 'kind'"),
]


@pytest.mark.parametrize(("text", "line", "field", "expected"), [b[1:] for b in BAD_NATIVE], ids=[b[0] for b in BAD_NATIVE])
def test_bad_native_tables_are_named(tmp_path, text, line, field, expected):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_throughputs(path)
    problem = caught.value
    assert (problem.source, problem.line, problem.field) == (str(path), line, field)
    assert expected in problem.expected
    assert "\n" not in str(problem)


def test_files_that_are_no_tables_are_named(tmp_path):
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and nothing more")
    (tmp_path / "latin.csv").write_bytes(b"kind,workers,type,steps_per_s\nM\xfcller,1,v100,2\n")
    for name, expected in (("torn.parquet", "a Parquet file"), ("latin.csv", "UTF-8"), ("nowhere.csv", "can be read")):
        with pytest.raises(InputError, match=expected):
            read_throughputs(tmp_path / name)
    with pytest.raises(InputError, match="a writable path"):
        write_throughputs(catalogue(), tmp_path / "no" / "such" / "folder.csv")


def test_a_table_too_wide_for_memory_is_refused(tmp_path):
    rows = "".join(f"kind-{i},1,v100,1\n" for i in range(10_001))
    with pytest.raises(InputError, match="at most 10,000 job types"):
        read_throughputs(written(tmp_path, "kind,workers,type,steps_per_s\n" + rows))


# Gavel's JSON

SMALL = {
    "v100": {
        "('A (batch size 4)', 1)": {"null": 4.0, "('B', 1)": [3.0, 1.5]},
        "('A (batch size 4)', 2)": {"null": 6.0},
        "('B', 1)": {"null": 2.0},
    },
    "k80": {"('A (batch size 4)', 1)": {"null": 1.0}, "('B', 1)": {"null": 0.0}},
    "v100_unconsolidated": {"('B', 1)": {"null": 2.0}},
}


def test_gavels_json_is_seen_by_its_first_character(tmp_path):
    table = read_throughputs(written(tmp_path, "\n " + json.dumps(SMALL), "rates.txt"))
    a, b, gang = table.row("A (batch size 4)", 1), table.row("B", 1), table.row("A (batch size 4)", 2)
    assert table.types == ("v100", "k80")
    assert table.alone[[0, a, b, gang]].tolist() == [[1, 1], [4, 1], [2, 0], [6, 0]]
    assert table.spread[[0, a, b, gang]].tolist() == [[1, 1], [4, 1], [2, 0], [6, 0]]  # missing: not measured, as together
    assert table.paired[a, b].tolist() == [3.0, 0.0]
    assert table.paired[b, a].tolist() == [1.5, 0.0]  # listed on A's side only
    assert table.source == "rates.txt"


BAD_JSON = [
    ("cut short", '{"v100": {\n"(\'A\', 1)": {', 2, None, "JSON"),
    ("a list", "[1, 2]", None, "types", "an object"),
    ("empty", "{}", None, "types", "an object"),
    ("no keys", '{"v100": 3}', None, "v100", "an object"),
    ("no rate alone", '{"v100": {"(\'A\', 1)": {"(\'A\', 1)": [1, 1]}}}', None, "v100", "null"),
    ("key is code", '{"v100": {"__import__(1)": {"null": 1}}}', None, "v100", "a key like"),
    ("no workers", '{"v100": {"(\'A\', 0)": {"null": 1}}}', None, "v100", "a key like"),
    ("negative", '{"v100": {"(\'A\', 1)": {"null": -1}}}', None, "v100 / ('A', 1) / null", "from 0 to"),
    ("nan", '{"v100": {"(\'A\', 1)": {"null": NaN}}}', None, "v100 / ('A', 1) / null", "from 0 to"),
    ("beyond floats", '{"v100": {"(\'A\', 1)": {"null": 1' + "0" * 400 + "}}}", None, "v100 / ('A', 1) / null", "from 0 to"),
    ("text", '{"v100": {"(\'A\', 1)": {"null": "1"}}}', None, "v100 / ('A', 1) / null", "from 0 to"),
    ("true", '{"v100": {"(\'A\', 1)": {"null": true}}}', None, "v100 / ('A', 1) / null", "from 0 to"),
    ("half a pair", '{"v100": {"(\'A\', 1)": {"null": 1, "(\'A\', 1)": [1]}}}', None, "v100 / ('A', 1) / ('A', 1)", "two"),
    ("pair of a stranger", '{"v100": {"(\'A\', 1)": {"null": 1, "(\'B\', 1)": [1, 1]}}}', None, "v100", "alone are listed"),
    ("only spread", '{"v100_unconsolidated": {"(\'A\', 1)": {"null": 1}}}', None, "type", "without that ending"),
    ("twice", '{"v100": {"(\'A\', 1)": {"null": 1}, "(\'A\', 1)": {"null": 2}}}', None, "key", "once"),
    ("twice, written otherwise", '{"v100": {"(\'A\', 1)": {"null": 1}, "(\'A\',1)": {"null": 2}}}', None, "v100", "once"),
    ("too deep", '{"v100": ' + "[" * 100_000, None, None, "JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "field", "expected"), [b[1:] for b in BAD_JSON], ids=[b[0] for b in BAD_JSON])
def test_bad_json_is_named(tmp_path, text, line, field, expected):
    path = written(tmp_path, text, "table.json")
    with pytest.raises(InputError) as caught:
        read_throughputs(path)
    problem = caught.value
    assert (problem.source, problem.line, problem.field) == (str(path), line, field)
    assert expected in problem.expected


@needs_data
def test_gavels_own_table(tmp_path):
    table = read_throughputs(DATA / "gavel/simulation_throughputs.json")
    assert set(table.types) == {"k80", "p100", "v100"}
    assert len(table.keys) == 83 + 1
    assert len(table.kinds) == 26
    raw = json.loads((DATA / "gavel/simulation_throughputs.json").read_text())
    for kind, workers in (("ResNet-50 (batch size 64)", 4), ("A3C", 1), ("LM (batch size 80)", 8)):
        entry = f"('{kind}', {workers})"
        for column, name in enumerate(table.types):
            assert table.alone[table.row(kind, workers), column] == raw[name][entry]["null"]
            apart = raw[f"{name}_unconsolidated"].get(entry, raw[name][entry])  # what is missing was not measured
            assert table.spread[table.row(kind, workers), column] == apart["null"]
    mine, other = "('CycleGAN', 1)", "('LM (batch size 5)', 1)"
    pair = [table.paired[table.row("CycleGAN", 1), table.row("LM (batch size 5)", 1), table.types.index("v100")],
            table.paired[table.row("LM (batch size 5)", 1), table.row("CycleGAN", 1), table.types.index("v100")]]  # fmt: skip
    assert pair == raw["v100"][mine][other]
    lacking = table.row("ResNet-50 (batch size 64)", 2), table.types.index("k80")
    assert table.spread[lacking] == table.alone[lacking] > 0
    write_throughputs(table, tmp_path / "native.parquet")
    assert same(read_throughputs(tmp_path / "native.parquet"), table)


@needs_data
@pytest.mark.parametrize("name", ["gavel/physical_cluster", "shockwave/tacc", "shockwave/wisr"])
def test_its_relatives(name):
    table = read_throughputs(DATA / f"{name}_throughputs.json")
    assert (len(table.keys), len(table.kinds)) == (84, 26)


@needs_data
def test_the_catalogue_knows_the_kinds_and_sizes_that_gavel_measured():
    assert set(read_throughputs(DATA / "gavel/simulation_throughputs.json").keys) == set(catalogue().keys)


@needs_data
def test_the_catalogue_is_of_the_order_of_what_gavel_measured_alone():
    measured = read_throughputs(DATA / "gavel/simulation_throughputs.json")
    modelled = catalogue().for_types(measured.types)
    single = [(modelled.row(kind, 1), measured.row(kind, 1)) for kind in measured.kinds]
    ratio = modelled.alone[[m for m, _ in single]] / measured.alone[[g for _, g in single]]
    assert ratio.min() > 1 / 3
    assert ratio.max() < 3
    assert (np.abs(ratio - 1) > 1e-6).all()  # modelled, not copied


# gang sizes nobody measured


def table_of(sizes: dict[int, float], spread: dict[int, float] | None = None) -> ThroughputTable:
    apart = spread or sizes
    alone = np.array([[1.0], *([rate] for rate in sizes.values())])
    return ThroughputTable(
        ("v100",), ((TIMED, 1), *(("x", n) for n in sizes)), alone,
        np.array([[1.0], *([apart[n]] for n in sizes)]), np.zeros((len(alone), len(alone), 1)), "seen",
    )  # fmt: skip


def filled_rate(table: ThroughputTable, workers: int) -> float:
    full = fill_workers(table, [("x", workers)])
    return float(full.alone[full.row("x", workers), 0])


def test_a_size_in_between_has_the_efficiency_in_between():
    table = table_of({1: 10.0, 4: 32.0})  # each worker: 10, then 8
    assert filled_rate(table, 2) == pytest.approx(18.0)


def test_beyond_the_largest_the_last_ratio_goes_on():
    assert filled_rate(table_of({1: 10.0, 2: 18.0}), 4) == pytest.approx(4 * 10 * 0.9**2)
    assert filled_rate(table_of({1: 10.0, 2: 25.0}), 8) == pytest.approx(100.0)  # better than linear is not believed
    assert filled_rate(table_of({1: 10.0, 2: 4.0}), 8) == pytest.approx(4.0)  # nor that a larger gang is slower in all
    assert filled_rate(table_of({1: 10.0}), 8) == pytest.approx(80.0)
    assert filled_rate(table_of({4: 20.0, 8: 30.0}), 1) == pytest.approx(5.0)


def test_what_does_not_fit_is_not_filled():
    assert filled_rate(table_of({1: 10.0, 2: 0.0}), 4) == 0.0
    assert filled_rate(table_of({1: 10.0, 4: 0.0}), 2) == 0.0


def test_filling_marks_its_rows_and_leaves_the_rest():
    table = table_of({1: 10.0, 2: 18.0}, {1: 10.0, 2: 12.0})
    assert fill_workers(table, [("x", 2), (TIMED, 7)]) is table
    full = fill_workers(table, [("x", 16), ("x", 16), ("x", 3)])
    assert full.keys == (*table.keys, ("x", 16), ("x", 3))
    assert np.array_equal(full.alone[:3], table.alone)
    assert [full.source_of(row) for row in range(1, 5)] == ["seen", "seen", "modelled", "modelled"]
    assert not full.paired[3:].any()
    assert not full.paired[:, 3:].any()


def test_filling_refuses_what_it_cannot_know():
    with pytest.raises(UnknownName, match="kind of job 'y'"):
        fill_workers(table_of({1: 1.0}), [("y", 2)])
    with pytest.raises(InputError, match="at least 1"):
        fill_workers(table_of({1: 1.0}), [("x", 0)])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(catalogue().kinds), st.integers(1, 300))
def test_filled_gangs_keep_the_laws_of_the_catalogue(kind, workers):
    full = fill_workers(catalogue(), [(kind, workers)])
    row, one = full.row(kind, workers), full.alone[full.row(kind, 1)]
    assert (full.alone[row] <= workers * one * (1 + 1e-6)).all()
    assert (full.spread[row] <= full.alone[row]).all()
    smaller = max(n for n in catalogue().workers_of(kind) if n <= workers)
    assert (full.alone[row] >= full.alone[full.row(kind, smaller)] * (1 - 1e-6)).all()
