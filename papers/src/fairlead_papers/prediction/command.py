"""`fairlead predict evaluate` and `fairlead predict pairs`: errors of predictions on what was left out of the fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.cmd_predict import (
    AT_ONCE,
    SET,
    multiprocessors_by_name,
    note_missing_learners,
    training_data,
    utilization_by_name,
)
from fairlead.cli.cmd_predict_model import SHIPPED, WITH, memory_mb_of, predictor_of
from fairlead.cli.output import JsonOption, note, out, print_json, progress
from fairlead.core.errors import InputError, install, near_or_all
from fairlead.prediction import learners
from fairlead.prediction.fit_predictor import (
    ENOUGH,
    Dataset,
    HeldOutErrors,
    KernelProfiles,
    Pairs,
    dataset,
    errors_at_random,
    errors_by_family,
    kernel_durations,
)
from fairlead.prediction.measured_profiles import (
    InterferenceModel,
    measured_slowdowns,
    multiprocessor_use,
    paired_sets,
    profiles_of,
    shipped_profiles,
)
from fairlead.profiling.pair_selection import SelectionMetric
from fairlead.profiling.results import device_of, measured_set, read_pairs
from fairlead_papers.prediction import evaluation, unseen_pairs
from fairlead_papers.prediction.unseen_pairs import Pair

SCORES = {
    "finer": "finer",
    "piecewise": "own and other",
    "of_sum": "sum",
    "linear": "line in the sum",
    "constant": "constant",
}
"""Ways of predicting slowdown, as docs/papers/prediction.md calls them."""

BEST = ", ".join(learners.BEST_FIRST)


def evaluate(set_: str = SET, json: JsonOption = False) -> None:
    """Evaluate predictions on unseen data, by leaving out families, rows and pairs in turn."""
    data, known, _ = training_data(set_)
    note_missing_learners()
    active = multiprocessors_by_name(known)
    counted = data.of(active)
    held = believed_held = KernelProfiles(active, kernel_durations(data))
    enough, tried = len(counted) >= ENOUGH, learners.installed_learners()
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
            believed_held = KernelProfiles(_least_off(counted, found), held.kernel_s)
    for span in SelectionMetric:
        for mode, pairs in shipped_profiles(set_, span).pairs.items():
            finer = mode in AT_ONCE and all(name in active for pair in pairs for name in pair)
            told["slowdown"][f"{mode}, spanning {span.value}"] = {
                "measured": _scores(
                    pairs, utilization_by_name(known), utilization_by_name(known), *([held, held] if finer else [])
                ),
                "predicted": _scores(
                    {each: both for each, both in pairs.items() if all(name in believed for name in each)},
                    utilization_by_name(known),
                    believed,
                    *([held, believed_held] if finer else []),
                ),
            }
    for name in paired_sets(set_):
        repeated = evaluation.ceiling(measured_slowdowns(measured_set(name)[1], known.alone))
        if repeated is not None:
            told.setdefault("ceiling", {})[name] = {"pairs_twice": repeated[0], "r_squared": repeated[1]}
    if json:
        print_json(told)
    else:
        _print_evaluation(told)


def _off(data: Dataset, tried: Mapping[str, learners.Learner], bar: Any) -> dict[str, tuple[HeldOutErrors, HeldOutErrors]]:
    """By learner, with families left out and with rows left out at random."""
    found = {}
    for name, learner in tried.items():
        bar.show(what=f"fitting {name}")
        left = errors_by_family(data, learner, on_fit=bar.advance)
        found[name] = left, errors_at_random(data, learner, on_fit=bar.advance)
    return found


def _least_off(data: Dataset, found: Mapping[str, tuple[HeldOutErrors, HeldOutErrors]]) -> dict[str, float]:
    """What the learner says, of families that it has not seen, that is best at it."""
    best = min((left for left, _ in found.values()), key=lambda left: left.rmsle, default=None)
    return {} if best is None else dict(zip(data.names, best.predicted.tolist()))


def _scores(
    pairs: Pairs,
    busy: dict[str, float],
    believed: dict[str, float],
    held: KernelProfiles | None = None,
    believed_held: KernelProfiles | None = None,
) -> dict[str, float]:
    found = evaluation.of_slowdown(pairs, busy, believed, held, believed_held)
    return {name: getattr(found, name) for name in (*SCORES, "spread") if getattr(found, name) is not None}


def _print_evaluation(told: dict[str, Any]) -> None:
    _print_errors("utilization", told["utilization"])
    for name, errors in told["memory"].items():
        line = f"memory, {name.replace('_', ' ')}: {100 * errors['enough']:.1f} % get at least 0.9 of what they take"
        out.print(f"{line}, median error {100 * errors['median_error']:.1f} %")
    if "multiprocessors" in told:
        _print_errors("multiprocessors", told["multiprocessors"])
    wide = {each: max(len(heading) + 2, 8) for each, heading in SCORES.items()}
    out.print(f"{'slowdown, R²':<22}" + "".join(f"{SCORES[each]:>{many}}" for each, many in wide.items()))
    for mode, errors in told["slowdown"].items():
        out.print(mode)
        for name, scores in errors.items():
            numbers = (f"{scores[each]:{many}.3f}" if each in scores else f"{'–':>{many}}" for each, many in wide.items())
            out.print(f"{f'  from {name}':<22}{''.join(numbers)}")
    for name, twice in told.get("ceiling", {}).items():
        line = f"{name}: {twice['pairs_twice']} pairs measured twice leave an R² of {twice['r_squared']:.2f} to be reached"
        out.print(line)


def _print_errors(what: str, of: Mapping[str, Mapping[str, float]]) -> None:
    out.print(f"{f'{what}, RMSLE':<22}{'by family':>12}{'at random':>12}")
    for name, errors in of.items():
        out.print(f"{f'  {name}':<22}{errors['by_family']:12.3f}{errors['at_random']:12.3f}")


def pairs(
    path: Annotated[Path, typer.Argument(help="A file of `profile pairs` with configurations of the measured set.")],
    many: Annotated[int, typer.Option("--show", help="How many of the best and of the worst pairs to show.", min=1)] = 3,
    learner: Annotated[
        str | None,
        typer.Option("--learner", help=f"The learner that predicts utilization. [default: the first installed of {BEST}]"),
    ] = None,
    with_: Path | None = WITH,
    json: JsonOption = False,
) -> None:
    """Compare predicted and measured slowdowns of pairs that no predictor was trained on.

    Example:

      fairlead predict pairs unseen.jsonl

    It lists the pairs with the lowest and the highest predicted slowdown. Each training occurs in at most two of them.
    Utilization (for mps, also multiprocessors) is predicted from graphs by a learner that was trained on other families.
    Slowdowns are predicted by the predictor of --with, which must not have been trained on these pairs.
    """
    chosen_here, learner = learner is None, learner or learners.best_installed()
    if learner not in learners.installed_learners():
        offered = near_or_all(learner, learners.installed_learners())
        lacking = f"a learner whose library is installed ({install('predict')}); {offered}"
        raise InputError("predict pairs", lacking, field="learner", value=learner)
    about, rows = read_pairs(path)
    predictor, known = predictor_of(with_), shipped_profiles(SHIPPED)
    if (device := device_of(about)) != known.device:
        raise InputError(
            path,
            f"pairs measured on {known.device}",
            line=1,
            field="device",
            value=device,
        )
    there = memory_mb_of(known.device) or math.inf
    sharing, together = next(iter(profiles_of(measured_set(SHIPPED), {path: (about, rows)}, SHIPPED).pairs.items()))
    if sharing not in predictor.slowdown:
        raise InputError(path, f"a sharing mode that was measured: {near_or_all(sharing, predictor.slowdown)}", field="sharing")
    of_the_fit = shipped_profiles(SHIPPED, None).pairs.get(sharing, {})
    data = dataset(measured_set(SHIPPED)[1], measured_set(f"{SHIPPED}_features")[1])
    counted = {name: one.multiprocessors for name, one in known.alone.items() if one.multiprocessors is not None}
    counted |= {row["alone"]: row["sm_active"] for row in rows if "alone" in row and "sm_active" in row}
    fitted = InterferenceModel.fitted(predictor, sharing)
    beliefs = unseen_pairs.believed(
        data, counted if fitted.finer is not None else {}, predictor.memory, learners.LEARNERS[learner]
    )
    ranked = unseen_pairs.in_order(together, beliefs, fitted, there)
    held = {
        name: replace(one, multiprocessors=counted.get(name, one.multiprocessors))
        for name, one in multiprocessor_use(SHIPPED).items()
    }
    as_measured = unseen_pairs.in_order(together, unseen_pairs.seen(known.alone, held), fitted, there)
    (off, score), (off_then, score_then) = unseen_pairs.errors(ranked), unseen_pairs.errors(as_measured)
    ends = unseen_pairs.ends(ranked, many)
    fit = sum(pair.names in of_the_fit for pair in ranked)
    if json:
        print_json(
            {
                "sharing": sharing,
                "learner": learner,
                "of_the_set_that_ships": fit,
                "pairs": [_told(pair) for pair in ranked],
                **{name.replace(" ", "_"): [_told(pair) for pair in chosen] for name, chosen in ends.items()},
                "mean_error": off,
                "r_squared": score,
                "with_measured_inputs": {"mean_error": off_then, "r_squared": score_then},
            }
        )
        return
    for name, chosen in ends.items():
        _print(name, chosen)
    then = f"with what each does alone as measured, by {off_then:.2f} and {_score(score_then)}"
    if fit and with_ is None:
        note(f"{fit} of these pairs are from the set that the predictor was fitted to, so its accuracy on them is overstated")
    told = f"over all {len(ranked)} pairs, {sharing}, utilization by {learner}"
    note(f"{told}: off by {off:.2f} on average, R² {_score(score)}; {then}")
    if chosen_here and learner != (best := learners.BEST_FIRST[0]):
        note(f"{best}, the learner of the figures in docs/papers/prediction.md, is not installed: {install('predict')}")


def _score(found: float) -> str:
    return "–" if math.isnan(found) else f"{found:.2f}"


def _told(pair: Pair) -> dict[str, Any]:
    held = [one.hold.multiprocessors for one in pair.believed] if pair.finer else None
    return {
        "pair": list(pair.names),
        "utilization": [one.utilization for one in pair.believed],
        **({"multiprocessors": held} if held else {}),
        "predicted": list(pair.predicted),
        "measured": list(pair.measured),
        "cost": pair.cost,
    }


def _print(name: str, chosen: Sequence[Pair]) -> None:
    for pair in chosen:
        busy = ", ".join(f"{one.utilization:.0f} %" for one in pair.believed)
        held = f" ({', '.join(f'{one.hold.multiprocessors:.0f} %' for one in pair.believed)} held)" if pair.finer else ""
        slower = ", ".join(f"{each:.2f}" for each in pair.predicted)
        seen = ", ".join(f"{each:.2f}" for each in pair.measured)
        line = f"{name:<16} {' + '.join(pair.names)}: {busy}{held}; predicted {slower}; measured {seen}"
        out.print(line, soft_wrap=True)
