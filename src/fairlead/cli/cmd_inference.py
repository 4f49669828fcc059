"""`fairlead inference`: serve sessions in simulation, and try a packing on random mixes of them."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli import options as opt
from fairlead.cli.output import fitted_table, note, out, print_json
from fairlead.config.workload_files import read_sessions
from fairlead.core.errors import InputError
from fairlead.core.routes import ServingPlan, Session
from fairlead.experiments.serving import pack_sessions, read_history, serve_sessions
from fairlead.policies.serving.packing.pooled import DEFAULT_POOLING, PoolingOptions
from fairlead.simulator.sessions import ServingResult

inference_app = typer.Typer(
    help="Simulate inference: requests with a latency objective.", no_args_is_help=True, rich_markup_mode=None
)

MOST_REQUESTS = 20_000_000


class Packings(enum.StrEnum):
    pooled = "pooled"
    squishy = "squishy"


class ArrivalKinds(enum.StrEnum):
    poisson = "poisson"
    uniform = "uniform"


PackingOption = Annotated[
    Packings, typer.Option("--packing", help="'pooled': one queue for each session; 'squishy': as Nexus packs.")
]
ArrivalsOption = Annotated[ArrivalKinds, typer.Option("--arrivals", help="How requests come.")]
WaitOption = Annotated[
    float, typer.Option("--wait", help="pooled: for which part of a batch the next one waits; 1 is Nexus' rule.")
]
HeadroomOption = Annotated[
    float, typer.Option("--headroom", help="pooled: standard deviations of arrivals within an SLO that there is room for.")
]
NeighboursOption = Annotated[
    int, typer.Option("--neighbours", help="pooled: how many accelerators on either side one stands in for.")
]


@inference_app.callback()
def inference() -> None:
    """Inference sessions: requests with a latency objective, in simulation."""


@inference_app.command()
def simulate(
    sessions: Annotated[Path, typer.Argument(help="A YAML file of models and sessions.")],
    cluster: opt.ClusterOption = "32xv100:4",
    packing: PackingOption = Packings.pooled,
    arrivals: ArrivalsOption = ArrivalKinds.poisson,
    duration: Annotated[float, typer.Option("--duration", help="Seconds in which requests come.", min=0.1)] = 60.0,
    wait: WaitOption = DEFAULT_POOLING.wait,
    headroom: HeadroomOption = DEFAULT_POOLING.headroom,
    neighbours: NeighboursOption = DEFAULT_POOLING.neighbours,
    seed: Annotated[int, typer.Option("--seed", help="For the requests.", min=0)] = 0,
    json: opt.JsonOption = False,
) -> None:
    """Pack sessions onto accelerators and send them requests. It tells which part was answered in time.

    The packing takes as few accelerators of the cluster as it wants; --json has the whole plan with its routing table. Sessions
    that there is no room for are named, and their requests dropped as far as nobody can answer them.

    Example: fairlead inference simulate examples/sessions.yaml --cluster 16xv100:4
    """
    given, machine = read_sessions(sessions), opt.cluster_of(cluster)
    expected = sum(session.rate for session in given) * duration
    if expected > MOST_REQUESTS:
        raise InputError("--duration", f"at most {MOST_REQUESTS:,} requests; these would be {expected:,.0f}", value=duration)
    room = {name: float(machine.size_of_type[code]) for name, code in machine.type_code.items()}
    plan = pack_sessions(given, room, packing.value, PoolingOptions(wait, headroom, neighbours))
    serving = serve_sessions(plan, given, duration_s=duration, seed=seed, how=arrivals.value)
    if json:
        print_json({"sessions": str(sessions), "cluster": str(machine), "packing": packing.value, **_told(plan, serving)})
        return
    title = f"{sessions} on {len(plan.servers)} of {machine.size} accelerators, {packing.value}"
    whole = f"{serving.attainment:.2%} of {sum(one.requests for one in serving.sessions):,} requests in time"
    out.print(fitted_table(title, _HEADINGS, _rows(plan, serving, given), 1, whole))
    for session in given:
        if session.name in plan.unserved:
            note(_why_unserved(session, room, plan.unserved[session.name]))


@inference_app.command()
def replay(
    journal: Annotated[Path, typer.Argument(help="An event log of a scheduler with policy 'nexus'.")],
    begin: Annotated[float, typer.Option("--from", help="Requests from this second on.", min=0)] = 0.0,
    end: Annotated[float, typer.Option("--until", help="Requests up to this second.", min=0)] = math.inf,
    arrivals: ArrivalsOption = ArrivalKinds.poisson,
    seed: Annotated[int, typer.Option("--seed", help="For the requests.", min=0)] = 0,
    json: opt.JsonOption = False,
) -> None:
    """Send requests to the sessions of a run that is over. With the accelerators that the log says they had.

    The log is of a simulation or of a cluster: fairlead simulate --config scheduler.yaml --trace jobs.csv --events run.jsonl.
    Rates are those that sessions reported as request_rate. While a session has no accelerator nobody answers, and while it
    starts only those that it had before and keeps.
    """
    history = read_history(journal)
    expected = history.requests(begin, end)
    if expected > MOST_REQUESTS:
        raise InputError("--until", f"at most {MOST_REQUESTS:,} requests; these would be {expected:,.0f}", value=end)
    serving = history.served(begin_s=begin, end_s=end, seed=seed, how=arrivals.value)
    if json:
        print_json({"journal": str(journal), "attainment": serving.attainment, "results": _results(serving)})
        return
    whole = f"{serving.attainment:.2%} of {sum(one.requests for one in serving.sessions):,} requests in time"
    rows = [
        (
            one.session,
            f"{one.attainment:.2%}",
            f"{1000 * session.slo_s:g}",
            f"{1000 * one.p99_s:.1f}",
            f"{one.requests:,}",
            f"{one.dropped:,}",
        )
        for one, session in zip(serving.sessions, history.sessions)
    ]
    out.print(fitted_table(str(journal), ("session", "in time", "SLO ms", "99 % ms", "requests", "dropped"), rows, 1, whole))


def _why_unserved(session: Session, types: Collection[str], part: float) -> str:
    here = [kind for kind in types if kind in session.latency_s]
    if not here:
        return (
            f"nobody serves {session.name}: it has latencies on {', '.join(session.latency_s)}, the cluster {', '.join(types)}"
        )
    fastest = min(float(session.latency_s[kind][0]) for kind in here)
    if fastest > session.slo_s:
        return f"nobody serves {session.name}: one request takes {1000 * fastest:g} ms, its SLO is {1000 * session.slo_s:g} ms"
    return f"no room for {part:.0%} of {session.name}"


_HEADINGS = ("session", "in time", "SLO ms", "99 % ms", "accelerators", "batch", "rate", "requests", "dropped", "median ms")


def _rows(plan: ServingPlan, serving: ServingResult, sessions: tuple[Session, ...]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one, session in zip(serving.sessions, sessions):
        here = [resident for server in plan.servers for resident in server.residents if resident.session == one.session]
        sizes = sorted({resident.batch for resident in here})
        rows.append(
            (
                one.session,
                f"{one.attainment:.2%}",
                f"{1000 * session.slo_s:g}",
                f"{1000 * one.p99_s:.1f}",
                f"{sum(resident.occupancy for resident in here):.2f}",
                "–".join(dict.fromkeys((str(sizes[0]), str(sizes[-1])))) if sizes else "none",
                f"{session.rate:g}",
                f"{one.requests:,}",
                f"{one.dropped:,}",
                f"{1000 * one.median_s:.1f}",
            )
        )
    return rows


def _told(plan: ServingPlan, serving: ServingResult) -> dict[str, object]:
    return {
        "attainment": serving.attainment,
        "accelerators": [
            {
                "type": server.type,
                "busy": busy,
                "duty_s": server.duty_s or None,
                "sessions": [{"session": one.session, "batch": one.batch, "rate": one.rate} for one in server.residents],
            }
            for server, busy in zip(plan.servers, serving.busy)
        ],
        "routing": {name: [list(one) for one in servers] for name, servers in plan.routing.items()},
        "unserved": dict(plan.unserved),
        "results": _results(serving),
    }


def _results(serving: ServingResult) -> list[dict[str, object]]:
    return [
        {
            "session": one.session,
            "attainment": one.attainment,
            "requests": one.requests,
            "in_time": one.in_time,
            "dropped": one.dropped,
            "batches": one.batches,
            "median_s": one.median_s,
            "p99_s": one.p99_s,
        }
        for one in serving.sessions
    ]
