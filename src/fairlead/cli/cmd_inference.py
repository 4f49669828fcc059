"""`fairlead inference`: simulate the serving of inference sessions."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection
from pathlib import Path

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
    help="Simulate inference sessions with latency objectives (SLOs).", no_args_is_help=True, rich_markup_mode=None
)

MAX_REQUESTS = 20_000_000


class Packings(enum.StrEnum):
    """Ways to pack sessions onto GPUs."""

    pooled = "pooled"
    squishy = "squishy"


class ArrivalKinds(enum.StrEnum):
    """Arrival processes of requests."""

    poisson = "poisson"
    uniform = "uniform"


PACKING = typer.Option(Packings.pooled, help="'pooled': one queue for each session; 'squishy': Nexus' bin packing.")
ARRIVALS = typer.Option(ArrivalKinds.poisson, help="Arrival process of requests.")
WAIT = typer.Option(DEFAULT_POOLING.wait, help="pooled: share of a batch that the next one waits for; 1 is Nexus' rule.")
HEADROOM = typer.Option(
    DEFAULT_POOLING.headroom, help="pooled: spare capacity, in standard deviations of arrivals within an SLO."
)
NEIGHBOURS = typer.Option(
    DEFAULT_POOLING.neighbours, help="pooled: how many neighbouring GPUs, on either side, a GPU can replace."
)


@inference_app.callback()
def inference_group() -> None:
    """Simulate inference sessions with latency objectives (SLOs)."""


@inference_app.command("simulate")
def simulate_sessions(
    sessions: Path = typer.Argument(..., help="A YAML file of models and sessions."),
    cluster: opt.ClusterOption = "32xv100:4",
    packing: Packings = PACKING,
    arrivals: ArrivalKinds = ARRIVALS,
    duration: float = typer.Option(60.0, help="Seconds during which requests arrive.", min=0.1),
    wait: float = WAIT,
    headroom: float = HEADROOM,
    neighbours: int = NEIGHBOURS,
    seed: int = typer.Option(0, help="Seed of the requests.", min=0),
    json: opt.JsonOption = False,
) -> None:
    """Pack sessions onto GPUs, send requests, and print the share of requests within their SLO.

    Example:

      fairlead inference simulate examples/sessions.yaml --cluster 16xv100:4

    The packing uses as few GPUs of the cluster as it needs; --json prints the plan with its routing table. The output lists
    sessions that do not fit; their requests are dropped.
    """
    given, machine = read_sessions(sessions), opt.cluster_of(cluster)
    expected = sum(session.rate for session in given) * duration
    if expected > MAX_REQUESTS:
        raise InputError("--duration", f"at most {MAX_REQUESTS:,} requests; these would be {expected:,.0f}", value=duration)
    room = {name: float(machine.size_of_type[code]) for name, code in machine.type_code.items()}
    plan = pack_sessions(given, room, packing.value, PoolingOptions(wait, headroom, neighbours))
    serving = serve_sessions(plan, given, duration_s=duration, seed=seed, how=arrivals.value)
    if json:
        print_json({"sessions": str(sessions), "cluster": str(machine), "packing": packing.value, **_plan_data(plan, serving)})
        return
    title = f"{sessions} on {len(plan.servers)} of {machine.size} GPUs, {packing.value}"
    whole = f"{serving.attainment:.2%} of {sum(one.requests for one in serving.sessions):,} requests within their SLO"
    out.print(fitted_table(title, _HEADINGS, _rows(plan, serving, given), 1, whole))
    for session in given:
        if session.name in plan.unserved:
            note(_why_unserved(session, room, plan.unserved[session.name]))


@inference_app.command()
def replay(
    journal: Path = typer.Argument(..., help="An event log of a scheduler with policy 'nexus'."),
    begin: float = typer.Option(0.0, "--from", help="First second of the requests.", min=0),
    end: float = typer.Option(math.inf, "--until", help="Last second of the requests.", min=0),
    arrivals: ArrivalKinds = ARRIVALS,
    seed: int = typer.Option(0, help="Seed of the requests.", min=0),
    json: opt.JsonOption = False,
) -> None:
    """Send requests to the sessions of a recorded run, on the GPUs that the log records.

    Examples:

      fairlead simulate --config scheduler.yaml --trace jobs.csv --events run.jsonl
      fairlead inference replay run.jsonl

    The log is that of a simulation or of a cluster. Request rates are those that sessions reported as request_rate. A session
    without a GPU answers no requests. While a session restarts, only the GPUs that it keeps answer.
    """
    history = read_history(journal)
    expected = history.requests(begin, end)
    if expected > MAX_REQUESTS:
        raise InputError("--until", f"at most {MAX_REQUESTS:,} requests; these would be {expected:,.0f}", value=end)
    serving = history.served(begin_s=begin, end_s=end, seed=seed, how=arrivals.value)
    if json:
        print_json({"journal": str(journal), "attainment": serving.attainment, "results": _results(serving)})
        return
    whole = f"{serving.attainment:.2%} of {sum(one.requests for one in serving.sessions):,} requests within their SLO"
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
    out.print(fitted_table(str(journal), ("session", "within SLO", "SLO ms", "99 % ms", "requests", "dropped"), rows, 1, whole))


def _why_unserved(session: Session, types: Collection[str], part: float) -> str:
    here = [kind for kind in types if kind in session.latency_s]
    if not here:
        known = ", ".join(session.latency_s)
        return f"{session.name} cannot run here: it has latencies on {known}, the cluster {', '.join(types)}"
    fastest = min(float(session.latency_s[kind][0]) for kind in here)
    if fastest > session.slo_s:
        return f"{session.name} cannot run here: a request takes {1000 * fastest:g} ms, its SLO is {1000 * session.slo_s:g} ms"
    return f"too few GPUs: {part:.0%} of the requests of {session.name} are not served"


_HEADINGS = ("session", "within SLO", "SLO ms", "99 % ms", "GPUs", "batch", "rate", "requests", "dropped", "median ms")


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


def _plan_data(plan: ServingPlan, serving: ServingResult) -> dict[str, object]:
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
    keys = {"in_time": "within_slo"}
    names = ("session", "attainment", "requests", "in_time", "dropped", "batches", "median_s", "p99_s")
    return [{keys.get(name, name): getattr(one, name) for name in names} for one in serving.sessions]
