"""`fairlead predict pair`: what two trainings that share an accelerator do to each other, by the best that is known of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from fairlead.cli.output import JsonOption, note, out, print_json
from fairlead.cli.predict_model import WithOption, predictor_of
from fairlead.core.errors import InputError, near_or_all
from fairlead.prediction.holding import UNKNOWN, Hold, Interference, holds
from fairlead.prediction.interference import SHORTEST_S
from fairlead.prediction.predictor import Predictor
from fairlead.prediction.profiles import profiles
from fairlead.profiling.spanning import Span

MOST = {"utilization": 100.0, "multiprocessors": 100.0, "kernel-us": 1e9}


def pair(
    jobs: Annotated[list[str], typer.Argument(help="Of each: utilization alone in percent, or a measured configuration.")],
    sharing: Annotated[str, typer.Option("--sharing", help="time-slicing or mps.")] = "time-slicing",
    held: Annotated[
        list[float] | None,
        typer.Option("--multiprocessors", help="Busy in each job alone, in percent; once for each, for mps."),
    ] = None,
    kernel_us: Annotated[
        list[float] | None, typer.Option("--kernel-us", help="How long a kernel takes on average; once for each, for mps.")
    ] = None,
    with_: WithOption = None,
    json: JsonOption = False,
) -> None:
    """How much longer two jobs take that share an accelerator. For example: fairlead predict pair 26 36

    Through MPS it counts how many multiprocessors each keeps busy: --sharing mps --multiprocessors 20 --multiprocessors 80. Of
    configurations that were measured this is known: fairlead predict pair gpt2-small@512:2 resnet50@224:32 --sharing mps
    """
    asked = [_Asked.spelled(each) for each in jobs]
    for name, given in (("utilization", asked), ("multiprocessors", held), ("kernel-us", kernel_us)):
        if given is not None and len(given) != 2:
            raise InputError("predict pair", "two; more than two were not measured", field=name, value=len(given))
    for name, numbers in (("multiprocessors", held), ("kernel-us", kernel_us)):
        for each in numbers or ():
            _check(name, each)
    predictor = predictor_of(with_)
    if sharing not in predictor.slowdown:
        known = near_or_all(sharing, predictor.slowdown)
        expected = f"a way of sharing that was measured; {known}"
        raise InputError(f"predictor for {predictor.device}", expected, field="sharing", value=sharing)
    _check_counts(predictor, sharing, held, kernel_us)
    fitted = Interference.fitted(predictor, sharing)
    have = _held(asked, held, kernel_us) if fitted.finer is not None else [UNKNOWN, UNKNOWN]
    busy = np.array([[one.utilization] for one in asked])
    slower, off, finer = fitted.slower(
        busy, np.array([one.multiprocessors for one in have]), np.array([one.kernel_s for one in have])
    )
    told = {
        "slowdowns": [float(slower[0, 1, 0]), float(slower[1, 0, 0])],
        "spread": [float(off[0, 1, 0]), float(off[1, 0, 0])],
        "by": _by(have, bool(finer[0, 1, 0])),
        "device": predictor.device,
        "sharing": sharing,
        **_measured(asked, sharing),
    }
    if json:
        print_json(told)
        return
    width = max(len(one.configuration) for one in asked)
    for at, (one, factor, spread) in enumerate(zip(asked, told["slowdowns"], told["spread"])):
        seen = f"; it was measured to take {told['measured'][at]:.2f}" if "measured" in told else ""
        name = f"{one.configuration:<{width}}  " if width else ""
        line = f"{name}{one.utilization:5.1f} %  takes {factor:.2f} ± {spread:.2f} times as long as alone{seen}"
        out.print(line, highlight=False)
    note(f"by {told['by']}")


@dataclass(frozen=True)
class _Asked:
    utilization: float
    configuration: str = ""

    @classmethod
    def spelled(cls, text: str) -> _Asked:
        try:
            number = float(text)
        except ValueError:
            known = profiles().alone
            if text not in known:
                expected = f"percent, or a configuration that was measured ({near_or_all(text, known)})"
                raise InputError("predict pair", expected, field="utilization", value=text) from None
            return cls(known[text].utilization, text)
        _check("utilization", number)
        return cls(number)


def _held(asked: list[_Asked], given: list[float] | None, kernel_us: list[float] | None) -> list[Hold]:
    """What each holds: as is said, or as the set that ships has it. Kernels of which nothing is said are as long as others."""
    if given is not None:
        long = [each / 1e6 for each in kernel_us] if kernel_us is not None else [SHORTEST_S] * len(given)
        return [Hold(percent, seconds, counted=True) for percent, seconds in zip(given, long)]
    return [holds().get(one.configuration, UNKNOWN) for one in asked]


def _by(have: list[Hold], finer: bool) -> str:
    if not finer:
        return "utilization alone"
    guessed = ("", ", those of one as its graph says", ", both as their graphs say")[sum(not one.counted for one in have)]
    return f"multiprocessors and kernels{guessed}"


def _measured(asked: list[_Asked], sharing: str) -> dict[str, list[float]]:
    """What was measured of these two, where they were."""
    names = tuple(one.configuration for one in asked)
    for span in Span:
        if (found := profiles(span=span).pairs.get(sharing, {}).get((names[0], names[1]))) is not None:
            return {"measured": list(found)}
    return {}


def _check(name: str, value: float) -> None:
    if not 0 <= value <= MOST[name]:
        raise InputError("predict pair", f"a number from 0 to {MOST[name]:g}", field=name, value=value)


def _check_counts(predictor: Predictor, sharing: str, held: list[float] | None, kernel_us: list[float] | None) -> None:
    """What is said beside utilizations counts where kernels run side by side, and how long these take beside what they hold."""
    where = f"--sharing {' or '.join(predictor.at_once) or 'with which kernels of several jobs run at once'}"
    if held is not None and sharing not in predictor.at_once:
        raise InputError("predict pair", f"{where}, without which it does not count", field="multiprocessors", value=held)
    if kernel_us is not None and held is None:
        expected = f"--multiprocessors beside it and {where}, without which it does not count"
        raise InputError("predict pair", expected, field="kernel-us", value=kernel_us)
