"""`fairlead predict pairs`: measured pairs beside what is predicted of them, those first that a scheduler would advise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.cmd_predict_model import SHIPPED, WithOption, memory_mb_of, predictor_of
from fairlead.cli.output import JsonOption, note, out, print_json
from fairlead.core.errors import InputError, install, near_or_all
from fairlead.prediction import learners, unseen
from fairlead.prediction.dataset import dataset
from fairlead.prediction.measured_profiles import profiles, profiles_of
from fairlead.prediction.multiprocessors import Interference, holds
from fairlead.prediction.unseen import Pair
from fairlead.profiling.results import device_of, measured_set, read_pairs

BEST = ", ".join(learners.BEST_FIRST)


def side_by_side(
    path: Annotated[Path, typer.Argument(help="A file of `profile pairs`, of configurations of the set that ships.")],
    many: Annotated[int, typer.Option("--show", help="How many to show of either end.", min=1)] = 3,
    learner: Annotated[
        str | None,
        typer.Option("--learner", help=f"By which utilization is predicted. [default: of {BEST}, the first that is installed]"),
    ] = None,
    with_: WithOption = None,
    json: JsonOption = False,
) -> None:
    """Pairs that no fit has seen, predicted and measured. Shown are those that a scheduler advises most, and those that it
    advises most against, each training in two of them at most, with both slowdowns side by side; and of two alike the same.

    Utilization, and through MPS multiprocessors, are predicted from graphs, each by what other families tell; slowdowns by the
    predictor, which must not have seen these pairs: fairlead predict pairs unseen.jsonl
    """
    chosen_here, learner = learner is None, learner or learners.best()
    if learner not in learners.there():
        offered = near_or_all(learner, learners.there())
        lacking = f"a learner whose library is installed ({install('predict')}); {offered}"
        raise InputError("predict pairs", lacking, field="learner", value=learner)
    about, rows = read_pairs(path)
    predictor, known = predictor_of(with_), profiles(SHIPPED)
    if (device := device_of(about)) != known.device:
        raise InputError(
            path,
            f"pairs measured on {known.device}, of which others tell",
            line=1,
            field="device",
            value=device,
        )
    there = memory_mb_of(known.device) or math.inf
    sharing, together = next(iter(profiles_of(measured_set(SHIPPED), {path: (about, rows)}, SHIPPED).pairs.items()))
    if sharing not in predictor.slowdown:
        raise InputError(
            path, f"a way of sharing that was measured: {near_or_all(sharing, predictor.slowdown)}", field="sharing"
        )
    of_the_fit = profiles(SHIPPED, None).pairs.get(sharing, {})
    data = dataset(measured_set(SHIPPED)[1], measured_set(f"{SHIPPED}_features")[1])
    counted = {name: one.multiprocessors for name, one in known.alone.items() if one.multiprocessors is not None}
    counted |= {row["alone"]: row["sm_active"] for row in rows if "alone" in row and "sm_active" in row}
    fitted = Interference.fitted(predictor, sharing)
    beliefs = unseen.believed(data, counted if fitted.finer is not None else {}, predictor.memory, learners.LEARNERS[learner])
    ranked = unseen.in_order(together, beliefs, fitted, there)
    held = {name: replace(one, multiprocessors=counted.get(name, one.multiprocessors)) for name, one in holds(SHIPPED).items()}
    as_measured = unseen.in_order(together, unseen.seen(known.alone, held), fitted, there)
    (off, score), (off_then, score_then) = unseen.errors(ranked), unseen.errors(as_measured)
    ends = unseen.ends(ranked, many)
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
        note(f"{fit} of these pairs are of the set that the predictor was fitted to: of them it says too much")
    told = f"over all {len(ranked)} pairs, {sharing}, utilization by {learner}"
    note(f"{told}: off by {off:.2f} on average, R² {_score(score)}; {then}")
    if chosen_here and learner != (best := learners.BEST_FIRST[0]):
        note(f"{best}, by which docs/prediction.md has its figures, is not installed: {install('predict')}")


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
        out.print(line, highlight=False, markup=False, soft_wrap=True)
