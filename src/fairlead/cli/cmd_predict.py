"""`fairlead predict`: what a training will do to an accelerator, from its graph; and where such predictions come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.cmd_predict_model import WithOption, model, pair, predictor_of
from fairlead.cli.cmd_predict_pairs import side_by_side
from fairlead.cli.output import JsonOption, distinct, fitted, note, out, print_json, progress
from fairlead.core.errors import InputError, near_or_all
from fairlead.models.interference import ABOVE, BELOW, GRAIN, Slowdown
from fairlead.prediction import evaluation, learners
from fairlead.prediction import fit_predictor as training
from fairlead.prediction.dataset import Dataset, dataset
from fairlead.prediction.evaluation import Errors, Held
from fairlead.prediction.fit_predictor import Pairs, kernels
from fairlead.prediction.measured_profiles import Profiles, each_slowdown, paired_sets, profiles
from fairlead.prediction.predictor import Predictor, fingerprint
from fairlead.profiling.pair_selection import SelectionMetric
from fairlead.profiling.results import measured_set, measured_sets
from fairlead.profiling.sharing_mode import SharingMode

# A predictor as tables that people read: what it was learned from, which features count, and its formulas term by term.

_MEMORY = {
    "activations": "of what the way back needs of a forward pass",
    "loss": "of the outputs",
    "margin": "of all that, what an allocator takes",
    "overhead_mb": "MB that a framework holds before any tensor",
}
_SHARES = "own, others: utilization alone, from 0 to 1"
_FINER = "; finer: of others the multiprocessors that they hold; grain: log₁₀ of how many times longer their kernels are"


def show_predictor(predictor: Predictor, important: Mapping[str, float]) -> None:
    _print_table(
        "learned from", ("about", "value"), [(name.replace("_", " "), str(value)) for name, value in predictor.about.items()]
    )
    shares = [(name, f"{share:.1%}") for name, share in important.items()]
    _print_table(f"utilization: {predictor.utilization.learner}", ("feature", "importance"), shares)
    memory = [
        (name.replace("_mb", ""), f"{value:,.3f}", _MEMORY.get(name, "")) for name, value in predictor.memory.kept().items()
    ]
    _print_table("memory", ("term", "times", ""), memory)
    formulas = {**predictor.slowdown, **{f"{mode}, finer": one for mode, one in predictor.at_once.items()}}
    rows = [row for name, one in formulas.items() for row in formula_rows(name, one)]
    legend = _SHARES + (_FINER if predictor.at_once else "")
    _print_table(
        "slowdown beside others, by shares of the accelerator", ("sharing", "term", "up to 100 %", "above"), rows, legend
    )


def formula_rows(name: str, one: Slowdown) -> list[tuple[str, str, str, str]]:
    """A line for each term, with its factor where both together keep the accelerator no more than busy, and beyond."""
    grain = len(one.below) > len(BELOW)
    below = dict(zip((*BELOW, *GRAIN[:1]) if grain else BELOW, one.below))
    above = dict(zip((*ABOVE, *GRAIN) if grain else ABOVE, one.above))
    rows = [(term, below.get(term), factor) for term, factor in above.items()]
    rows.append(("off by (standard deviation)", one.spread_below, one.spread_above))
    return [
        (name if index == 0 else "", term, "" if low is None else f"{low:.3f}", f"{high:.3f}")
        for index, (term, low, high) in enumerate(rows)
    ]


def _print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> None:
    if rows:
        table = fitted(title, headings, rows, len(headings), caption)
        for column in table.columns:
            column.justify = "right" if column.header in ("importance", "times", "up to 100 %", "above") else "left"
        out.print(table)


predict_app = typer.Typer(help="Predict what trainings do to an accelerator.", no_args_is_help=True)

SCORES = {
    "finer": "finer",
    "piecewise": "own and other",
    "of_sum": "sum",
    "linear": "line in the sum",
    "constant": "constant",
}
"""Ways of predicting slowdown, as docs/prediction.md calls them."""
AT_ONCE = (SharingMode.MPS.value,)  # where kernels of several jobs run side by side
SetOption = Annotated[str, typer.Option("--set", help="Which measured set to learn from.")]


predict_app.command()(model)
predict_app.command()(pair)
predict_app.command("pairs")(side_by_side)


@predict_app.command()
def train(
    to: Annotated[Path, typer.Option("--out", help="Where the predictor is written.")],
    set_: SetOption = "h200",
    without: Annotated[list[str] | None, typer.Option("--without", help="A family to leave out; several times.")] = None,
    json: JsonOption = False,
) -> None:
    """Learn from a measured set and its pairs. The learner that errs least on what it has not seen is kept."""
    distinct([], [to])
    data, known, about = _data(set_)
    _tell_of_learners()
    at_once = _at_once(set_)
    pairs: Mapping[str, Pairs] = {**known.pairs, **at_once}
    if without:
        for family in without:
            if family not in data.families:
                offered = near_or_all(family, sorted(set(data.families)))
                raise InputError("predict train", f"a family of the set; {offered}", field="without", value=family)
        if len({*data.families} - {*without}) < 2:
            raise InputError("predict train", "at least two families that are left", field="without", value=", ".join(without))
        families = {name: one.family for name, one in known.alone.items()}
        data, pairs = training.leaving_out(data, pairs, without, families)
        about |= {"configurations": str(len(data)), "pairs": _told(pairs), "without": ", ".join(sorted(set(without)))}
    finer = {mode: pairs[mode] for mode in at_once}
    made = training.train(data, _busy(known), pairs, learners.there(), about, _multiprocessors(known), finer)
    made.save(to)
    if json:
        print_json({"out": str(to), "learner": made.utilization.learner, **made.about})
    else:
        note(f"{to}: {made.utilization.learner} on {len(data)} configurations, slowdown by {', '.join(made.slowdown)}")


@predict_app.command()
def evaluate(set_: SetOption = "h200", json: JsonOption = False) -> None:
    """How far off predictions are on what they have not seen. Families, rows and pairs are left out in turn."""
    data, known, _ = _data(set_)
    _tell_of_learners()
    active = _multiprocessors(known)
    counted = data.of(active)
    held = believed_held = Held(active, kernels(data))
    enough, tried = len(counted) >= training.ENOUGH, learners.there()
    fits = len(tried) * (evaluation.fits(data) + (evaluation.fits(counted) if enough else 0))
    told: dict[str, Any] = {"configurations": len(data), "slowdown": {}}
    with progress(fits, "fitting", quiet=json) as bar:
        found = _off(data, tried, bar)
        told["utilization"] = {
            name: {"by_family": left.rmsle, "at_random": mixed.rmsle, "families": left.of_families()}
            for name, (left, mixed) in found.items()
        }
        believed = _least_off(data, found)
        off = evaluation.of_memory(data)
        told["memory"] = {
            name: {"enough": off.enough(shares), "median_error": off.median_error(shares)}
            for name, shares in (("with_overhead", off.with_overhead), ("without_overhead", off.without_overhead))
        }
        if enough:
            found = _off(counted, tried, bar)
            told["multiprocessors"] = {
                name: {"by_family": left.rmsle, "at_random": mixed.rmsle} for name, (left, mixed) in found.items()
            }
            believed_held = Held(_least_off(counted, found), held.kernel_s)
    for span in SelectionMetric:
        for mode, pairs in profiles(set_, span).pairs.items():
            finer = mode in AT_ONCE and all(name in active for pair in pairs for name in pair)
            told["slowdown"][f"{mode}, spanning {span.value}"] = {
                "measured": _scores(pairs, _busy(known), _busy(known), *([held, held] if finer else [])),
                "predicted": _scores(
                    {each: both for each, both in pairs.items() if all(name in believed for name in each)},
                    _busy(known),
                    believed,
                    *([held, believed_held] if finer else []),
                ),
            }
    for name in paired_sets(set_):
        repeated = evaluation.ceiling(each_slowdown(measured_set(name)[1], known.alone))
        if repeated is not None:
            told.setdefault("ceiling", {})[name] = {"pairs_twice": repeated[0], "r_squared": repeated[1]}
    if json:
        print_json(told)
    else:
        _print(told)


@predict_app.command()
def show(with_: WithOption = None, json: JsonOption = False) -> None:
    """What a predictor was learned from. With the features that count, and its formulas."""
    predictor = predictor_of(with_)
    important = dict(list(predictor.utilization.importance().items())[:10])
    told = {
        "about": dict(predictor.about),
        "learner": predictor.utilization.learner,
        "important": important,
        "memory": predictor.memory.kept(),
        "slowdown": {mode: one.kept() for mode, one in predictor.slowdown.items()},
        "at_once": {mode: one.kept() for mode, one in predictor.at_once.items()},
    }
    if json:
        print_json(told)
        return
    show_predictor(predictor, important)


def _off(data: Dataset, tried: Mapping[str, learners.Learner], bar: Any) -> dict[str, tuple[Errors, Errors]]:
    """By learner, with families left out and with rows left out at random."""
    found = {}
    for name, learner in tried.items():
        bar.say(f"fitting {name}")
        left = evaluation.by_family(data, learner, on_fit=bar.advance)
        found[name] = left, evaluation.at_random(data, learner, on_fit=bar.advance)
    return found


def _least_off(data: Dataset, found: Mapping[str, tuple[Errors, Errors]]) -> dict[str, float]:
    """What the learner says, of families that it has not seen, that is best at it."""
    best = min((left for left, _ in found.values()), key=lambda left: left.rmsle, default=None)
    return {} if best is None else dict(zip(data.names, best.predicted.tolist()))


def _scores(
    pairs: Pairs,
    busy: dict[str, float],
    believed: dict[str, float],
    held: Held | None = None,
    believed_held: Held | None = None,
) -> dict[str, float]:
    found = evaluation.of_slowdown(pairs, busy, believed, held, believed_held)
    return {name: getattr(found, name) for name in (*SCORES, "spread") if getattr(found, name) is not None}


def _print(told: dict[str, Any]) -> None:
    _print_errors("utilization", told["utilization"])
    for name, errors in told["memory"].items():
        line = f"memory, {name.replace('_', ' ')}: {100 * errors['enough']:.1f} % get at least 0.9 of what they take"
        out.print(f"{line}, median error {100 * errors['median_error']:.1f} %", highlight=False)
    if "multiprocessors" in told:
        _print_errors("multiprocessors", told["multiprocessors"])
    wide = {each: max(len(heading) + 2, 8) for each, heading in SCORES.items()}
    out.print(f"{'slowdown, R²':<22}" + "".join(f"{SCORES[each]:>{many}}" for each, many in wide.items()), highlight=False)
    for mode, errors in told["slowdown"].items():
        out.print(mode, highlight=False)
        for name, scores in errors.items():
            numbers = (f"{scores[each]:{many}.3f}" if each in scores else f"{'–':>{many}}" for each, many in wide.items())
            out.print(f"{f'  from {name}':<22}{''.join(numbers)}", highlight=False)
    for name, twice in told.get("ceiling", {}).items():
        line = f"{name}: {twice['pairs_twice']} pairs measured twice leave an R² of {twice['r_squared']:.2f} to be reached"
        out.print(line, highlight=False)


def _print_errors(what: str, of: Mapping[str, Mapping[str, float]]) -> None:
    out.print(f"{f'{what}, RMSLE':<22}{'by family':>12}{'at random':>12}", highlight=False)
    for name, errors in of.items():
        out.print(f"{f'  {name}':<22}{errors['by_family']:12.3f}{errors['at_random']:12.3f}", highlight=False)


def _tell_of_learners() -> None:
    lacking = sorted(learners.LEARNERS.keys() - learners.there().keys())
    if lacking:
        note(f"left out, since the library is not installed (extra predict): {', '.join(lacking)}")


def _busy(known: Profiles) -> dict[str, float]:
    return {name: one.utilization for name, one in known.alone.items()}


def _multiprocessors(known: Profiles) -> dict[str, float]:
    return {name: one.multiprocessors for name, one in known.alone.items() if one.multiprocessors is not None}


def _at_once(name: str) -> dict[str, Pairs]:
    """All pairs that ran at once, of both choices of configurations; of those in both the mean."""
    return {mode: pairs for mode, pairs in profiles(name, None).pairs.items() if mode in AT_ONCE}


def _data(name: str) -> tuple[Dataset, Profiles, dict[str, str]]:
    offered = [each for each in measured_sets() if f"{each}_features" in measured_sets()]
    if name not in offered:
        raise InputError(
            "predict", f"a set of single measurements, with features; {near_or_all(name, offered)}", field="set", value=name
        )
    known = profiles(name)
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
