"""`fairlead predict`: what a training will do to an accelerator, from its graph; and where such predictions come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from fairlead.cli.cmd_predict_model import WITH, model, pair, predictor_of
from fairlead.cli.cmd_predict_module import module
from fairlead.cli.output import JsonOption, check_paths, fitted_table, note, out, print_json
from fairlead.core.errors import InputError, near_or_all
from fairlead.models.interference import ABOVE, BELOW, RATIO, Slowdown
from fairlead.prediction import fit_predictor as training
from fairlead.prediction import learners
from fairlead.prediction.fit_predictor import Dataset, Pairs, dataset
from fairlead.prediction.measured_profiles import Profiles, paired_sets, shipped_profiles
from fairlead.prediction.predictor import Predictor, fingerprint
from fairlead.profiling.results import measured_set, measured_sets
from fairlead.profiling.sharing_mode import SharingMode

# A predictor as tables that people read: what it was learned from, which features count, and its formulas term by term.

_MEMORY = {
    "activations": "the part of the forward pass that the backward pass needs",
    "loss": "the outputs of the model",
    "margin": "all tensors, for the overhead of the allocator",
    "overhead_mb": "MB that the framework uses without any tensor",
}
_SHARES = "own, others: utilization alone, from 0 to 1"
_FINER = "; finer: multiprocessors that the others use; grain: log₁₀ of the ratio of kernel durations, others to own"


def show_predictor(predictor: Predictor, important: Mapping[str, float]) -> None:
    """Print a predictor as tables; `important` has the importance of its features."""
    _print_table(
        "learned from", ("about", "value"), [(name.replace("_", " "), str(value)) for name, value in predictor.about.items()]
    )
    shares = [(name, f"{share:.1%}") for name, share in important.items()]
    _print_table(f"utilization: {predictor.utilization.learner}", ("feature", "importance"), shares)
    memory = [
        (name.replace("_mb", ""), f"{value:,.3f}", _MEMORY.get(name, "")) for name, value in predictor.memory.to_data().items()
    ]
    _print_table("memory", ("term", "times", ""), memory)
    formulas = {**predictor.slowdown, **{f"{mode}, finer": one for mode, one in predictor.at_once.items()}}
    rows = [row for name, one in formulas.items() for row in formula_rows(name, one)]
    legend = _SHARES + (_FINER if predictor.at_once else "")
    _print_table("slowdown of co-located jobs, by shares of the GPU", ("sharing", "term", "up to 100 %", "above"), rows, legend)


def formula_rows(name: str, one: Slowdown) -> list[tuple[str, str, str, str]]:
    """A line for each term, with its factor where both together keep the accelerator no more than busy, and beyond."""
    with_ratio = len(one.below) > len(BELOW)
    below = dict(zip((*BELOW, *RATIO[:1]) if with_ratio else BELOW, one.below))
    above = dict(zip((*ABOVE, *RATIO) if with_ratio else ABOVE, one.above))
    rows = [(term, below.get(term), factor) for term, factor in above.items()]
    rows.append(("error (standard deviation)", one.spread_below, one.spread_above))
    return [
        (name if index == 0 else "", term, "" if low is None else f"{low:.3f}", f"{high:.3f}")
        for index, (term, low, high) in enumerate(rows)
    ]


def _print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> None:
    if rows:
        table = fitted_table(title, headings, rows, len(headings), caption)
        for column in table.columns:
            column.justify = "right" if column.header in ("importance", "times", "up to 100 %", "above") else "left"
        out.print(table)


predict_app = typer.Typer(help="Predict GPU utilization, memory and interference of training jobs.", no_args_is_help=True)

AT_ONCE = (SharingMode.MPS.value,)  # where kernels of several jobs run side by side
SET = typer.Option("h200", "--set", help="The measured set to learn from.")


predict_app.command()(module)
predict_app.command()(model)
predict_app.command()(pair)


@predict_app.command()
def train(
    to: Path = typer.Option(..., "--out", help="The file to write the predictor to."),
    set_: str = SET,
    without: list[str] | None = typer.Option(None, help="A model family to leave out; repeatable."),
    json: JsonOption = False,
) -> None:
    """Train a predictor on a measured set and its pairs. The learner with the least error on unseen families is kept.

    Example:

      fairlead predict train --set h200 --out mine.json
    """
    check_paths([], [to])
    data, known, about = training_data(set_)
    note_missing_learners()
    at_once = _at_once(set_)
    pairs: Mapping[str, Pairs] = {**known.pairs, **at_once}
    if without:
        for family in without:
            if family not in data.families:
                offered = near_or_all(family, sorted(set(data.families)))
                raise InputError("predict train", f"a model family in the set; {offered}", field="without", value=family)
        if len({*data.families} - {*without}) < 2:
            raise InputError("predict train", "at least two families to train on", field="without", value=", ".join(without))
        families = {name: one.family for name, one in known.alone.items()}
        data, pairs = training.without_families(data, pairs, without, families)
        about |= {"configurations": str(len(data)), "pairs": _told(pairs), "without": ", ".join(sorted(set(without)))}
    finer = {mode: pairs[mode] for mode in at_once}
    made = training.fit_predictor(
        data, utilization_by_name(known), pairs, learners.installed_learners(), about, multiprocessors_by_name(known), finer
    )
    made.save(to)
    if json:
        print_json({"out": str(to), "learner": made.utilization.learner, **made.about})
    else:
        note(f"{to}: {made.utilization.learner} on {len(data)} configurations, slowdown by {', '.join(made.slowdown)}")


@predict_app.command()
def show(with_: Path | None = WITH, json: JsonOption = False) -> None:
    """Show what a predictor was trained on, its most important features, and its formulas."""
    predictor = predictor_of(with_)
    important = dict(list(predictor.utilization.importance().items())[:10])
    told = {
        "about": dict(predictor.about),
        "learner": predictor.utilization.learner,
        "important": important,
        "memory": predictor.memory.to_data(),
        "slowdown": {mode: one.to_data() for mode, one in predictor.slowdown.items()},
        "at_once": {mode: one.to_data() for mode, one in predictor.at_once.items()},
    }
    if json:
        print_json(told)
        return
    show_predictor(predictor, important)


def note_missing_learners() -> None:
    """Print which learners are left out for lack of their library."""
    lacking = sorted(learners.LEARNERS.keys() - learners.installed_learners().keys())
    if lacking:
        note(f"skipped, because the library is not installed (extra predict): {', '.join(lacking)}")


def utilization_by_name(known: Profiles) -> dict[str, float]:
    """Percent of the GPU that each training keeps busy alone."""
    return {name: one.utilization for name, one in known.alone.items()}


def multiprocessors_by_name(known: Profiles) -> dict[str, float]:
    """Percent of the multiprocessors that each training keeps busy alone, where it was counted."""
    return {name: one.multiprocessors for name, one in known.alone.items() if one.multiprocessors is not None}


def _at_once(name: str) -> dict[str, Pairs]:
    """All pairs that ran at once, of both choices of configurations; of those in both the mean."""
    return {mode: pairs for mode, pairs in shipped_profiles(name, None).pairs.items() if mode in AT_ONCE}


def training_data(name: str) -> tuple[Dataset, Profiles, dict[str, str]]:
    """A measured set with its pairs, and what it was measured on."""
    offered = [each for each in measured_sets() if f"{each}_features" in measured_sets()]
    if name not in offered:
        raise InputError(
            "predict", f"a set of single measurements, with features; {near_or_all(name, offered)}", field="set", value=name
        )
    known = shipped_profiles(name)
    about, rows = measured_set(name)
    _, features = measured_set(f"{name}_features")
    activity = f"{name}_activity"
    more = [measured_set(each)[1] for each in (*paired_sets(name), *([activity] if activity in measured_sets() else []))]
    from_ = {
        "device": about["device"],
        "driver": about["driver"],
        "framework": f"torch {about['torch']}",
        "configurations": str(len(rows)),
        "pairs": _told({**known.pairs, **_at_once(name)}),
        "fingerprint": fingerprint(rows, features, *more),
    }
    return dataset(rows, features), known, from_


def _told(pairs: Mapping[str, Pairs]) -> str:
    """How many, by the way of sharing."""
    return ", ".join(f"{mode} {len({frozenset(pair) for pair in each})}" for mode, each in pairs.items())
