"""A scheduler as a small YAML of names and parameters, or the same as Python values; and the stages made of it.

policy: {name: tiresias, thresholds: [3250, 7200]}
admission: {name: accept-up-to, factor: 1.5}         # or a list: [{name: user-job-quota, default: 4}, accept-all]
mechanism: {name: gavel-rounds, min_interval_s: 1920}     # where the policy gives shares of time
placement: consolidated
rounds: 300            # seconds, or: event-driven

With `preset: tiresias` the fields of that preset hold where the file itself has none.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_type_hints

from fairlead.admission.base import AdmissionChain
from fairlead.config.parameters import FORMER_PARAMETERS, checked, with_present_names
from fairlead.config.policy_files import PolicyFile
from fairlead.config.registry import FORMER_KINDS, Registry, current_name, preset_named, presets
from fairlead.config.user_limits import UserLimits
from fairlead.config.yaml_source import Value, in_a_line, parse_yaml, read_yaml
from fairlead.core.errors import FairleadError, InputError, UnknownName, check_number, near_or_all, require
from fairlead.core.stages import Allocated, Allocator, Stages
from fairlead.engine.fairness_ledger import GREATEST_WEIGHT, LEAST_WEIGHT, LedgerRules
from fairlead.simulator.costs import Costs

DEFAULT_ROUND_S = 300.0
EVENT_DRIVEN = "event-driven"

SHORTEST_ROUND_S, LONGEST_ROUND_S = 0.01, 1e9

_PARTS = ("admission", "estimator", "policy", "mechanism", "placement", "termination")
_DOCUMENTATION = ("about", "paper")
KEYS: Mapping[str, str] = {
    "policy": "Which jobs run. Required, unless there is a `preset`.",
    "admission": "Which jobs may enter the queue. A list is a chain: a job must pass every part.",
    "placement": "Which GPUs a job gets.",
    "estimator": "What the policy knows about throughputs. Default on a real cluster: `measured`.",
    "mechanism": "How time fractions become rounds. Only allocation policies use it.",
    "termination": "Which jobs end before their last step.",
    "rounds": "Length of a round in seconds, or `event-driven` to decide at every arrival and completion.",
    "run_to_completion": "With `true`, a running job is never preempted.",
    "first_step_s": "A job is not preempted before its first step, for at most this many seconds; 0 turns this off.",
    "limits": "Limits on the weight, priority and other fields that users may set: `default`, `accounts`, `users`.",
    "ledger": "How the fairness ledger counts: `half_life_s` (default: 604800, 7 days), weights of `accounts` and `users`.",
    "preset": "A preset whose keys apply where this file has none.",
    "name": "Label of the scheduler in tables and plots. Default: the policy with its parameters.",
    "about": "A description for readers. It has no effect.",
    "paper": "The source, for readers. It has no effect.",
}
"""The keys of a scheduler file, and what each means."""


@dataclass(frozen=True)
class Part:
    """A stage by its name, with its parameters."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    where: str = field(default="", compare=False)  # file and line, for errors
    links: tuple[Part, ...] = ()  # of a chain, in their order
    places: Mapping[tuple[str | int, ...], str] = field(default_factory=dict, compare=False, repr=False)  # of parameters

    @classmethod
    def chain(cls, links: Iterable[Part], where: str = "") -> Part:
        """Several parts that are one, each behind the one before; one alone is itself."""
        parts = tuple(links)
        return parts[0] if len(parts) == 1 else cls("chain", where=where, links=parts)

    def place(self, *path: str) -> str:
        """File and line of a parameter, or of what is inside one: as near as is known."""
        near = (path[:length] for length in range(len(path), 0, -1))
        return next((self.places[one] for one in near if one in self.places), self.where)

    def to_data(self) -> str | dict[str, Any] | list[Any]:
        if self.links:
            return [link.to_data() for link in self.links]
        return {"name": self.name, **self.parameters} if self.parameters else self.name

    def __str__(self) -> str:
        if self.links:
            return ", ".join(map(str, self.links))
        given = ", ".join(_parameter(key, value) for key, value in self.parameters.items())
        return f"{self.name}({given})" if given else self.name


@dataclass(frozen=True)
class SchedulerConfig:
    """A scheduler, composed of parts. `round_s` 0 means: decide at every event."""

    policy: Part = Part("fifo")
    admission: Part = Part("accept-all")
    estimator: Part = Part("oracle")
    placement: Part = Part("consolidated")
    termination: Part = Part("by-steps")
    round_s: float = DEFAULT_ROUND_S
    run_to_completion: bool = False
    first_step_s: float | None = None  # no preemption before the first step, for at most this long; None: default
    name: str = ""
    mechanism: Part = Part("gavel-rounds")  # used where the policy gives shares of time
    limits: UserLimits = field(default_factory=UserLimits)  # on what users of a real cluster may set
    ledger: LedgerRules = field(default_factory=LedgerRules)  # of the fairness ledger of a real cluster

    def __post_init__(self) -> None:
        if self.round_s != 0:
            wanted = f"{SHORTEST_ROUND_S:g} to {LONGEST_ROUND_S:g} seconds, or 0 to decide at every event"
            check_number("scheduler", "round_s", self.round_s, wanted, SHORTEST_ROUND_S, LONGEST_ROUND_S)
        object.__setattr__(self, "round_s", float(self.round_s))

    @property
    def label(self) -> str:
        """What tables and plots call it."""
        if self.name:
            return self.name
        admission = "" if self.admission == Part("accept-all") else f" + {self.admission}"
        termination = "" if self.termination == Part("by-steps") else f" + {self.termination}"
        return f"{self.policy}{admission}{termination}"

    @classmethod
    def from_file(cls, path: Path | str) -> SchedulerConfig:
        return cls.from_value(read_yaml(path))

    @classmethod
    def from_data(cls, data: Mapping[str, Any], source: str = "scheduler") -> SchedulerConfig:
        """The same from plain data, such as a journal's."""
        return cls.from_value(Value(dict(data), source, "", None, {}))

    @classmethod
    def from_value(cls, value: Value) -> SchedulerConfig:
        fields = fields_of(value)
        require("policy" in fields, value.source, "the name of a policy, as in 'policy: fifo', or of a preset", "policy")
        for name in _DOCUMENTATION:
            if name in fields:
                fields[name].text("one line of text")
        changes: dict[str, Any] = {name: _part(fields[name], name) for name in _PARTS if name in fields}
        if "rounds" in fields:
            changes["round_s"] = _rounds(fields["rounds"])
        if "run_to_completion" in fields:
            changes["run_to_completion"] = fields["run_to_completion"].yes_or_no()
        if "first_step_s" in fields:
            changes["first_step_s"] = fields["first_step_s"].number("seconds, at least 0", least=0.0)
        if "limits" in fields:
            changes["limits"] = UserLimits.from_value(fields["limits"])
        if "ledger" in fields:
            changes["ledger"] = _ledger(fields["ledger"])
        if "name" in fields:
            changes["name"] = fields["name"].text("a short name for tables and plots")
        elif "preset" in fields:
            changes["name"] = _varied(fields["preset"].data.strip(), value)
        return cls(**changes)

    @classmethod
    def preset(cls, name: str, /, **changes: Any) -> SchedulerConfig:
        """A preset with some parts changed, as in a scheduler file: `placement="spread", rounds=60`."""
        return cls.from_data({"preset": name, **changes}, f"preset '{name}'")

    def to_data(self) -> dict[str, Any]:
        """What `from_data` reads; also what a journal keeps."""
        data: dict[str, Any] = {name: getattr(self, name).to_data() for name in _PARTS}
        data["rounds"] = self.round_s or EVENT_DRIVEN
        if self.run_to_completion:
            data["run_to_completion"] = True
        if self.first_step_s is not None:
            data["first_step_s"] = self.first_step_s
        if limits := self.limits.to_data():
            data["limits"] = limits
        if ledger := self.ledger.to_data():
            data["ledger"] = ledger
        if self.name:
            data["name"] = self.name
        return data

    def to_yaml(self) -> str:
        """The scheduler as a scheduler file, a line for each field; `from_file` reads it."""
        return "".join(f"{name}: {in_a_line(value)}\n" for name, value in self.to_data().items())

    def build(self, table: Any, registry: Registry | None = None) -> Stages:
        """The stages. `table` (a cluster's throughputs) goes to the parts that have a field of that name."""
        registry = registry or Registry.installed()
        made = {what: make(what, getattr(self, what), registry, {"table": table}) for what in _PARTS}
        mechanism = made.pop("mechanism")
        if isinstance(made["policy"], Allocator):
            if getattr(mechanism, "max_interval_s", 0.0) is None:  # the policy's own
                mechanism = replace(mechanism, max_interval_s=getattr(made["policy"], "max_interval_s", 0.0))
            made["policy"] = Allocated(made["policy"], mechanism)
        whole, first_step_s = self.run_to_completion, self.first_step_s or 0.0
        return Stages(**made, round_s=self.round_s, run_to_completion=whole, first_step_s=first_step_s)


def fields_of(value: Value) -> dict[str, Value]:
    """The fields of a scheduler file, and below them those of its preset."""
    own = value.mapping(KEYS, FORMER_KINDS)
    if "preset" not in own:
        return own
    place = "" if own["preset"].line is None else f"{own['preset'].where}: "
    base = preset_named(own["preset"].text("the name of a preset"), place)
    return {**base.value.mapping(KEYS), **own}


def make(what: str, part: Part, registry: Registry, supplies: Mapping[str, Any] | None = None) -> Any:
    """A stage from its name and parameters; an error names the wrong parameter and the expected value."""
    place = f"{part.where}: " if part.where else ""
    if part.links:
        if what != "admission":
            raise InputError(part.where or "scheduler", "one part, not a list", field=what, value=str(part))
        return AdmissionChain(tuple(make(what, link, registry, supplies) for link in part.links))
    try:
        found = registry.load(what, part.name)
    except UnknownName as error:
        instead = f"it is a preset: use --preset {part.name}" if what == "policy" and part.name in presets() else ""
        raise UnknownName(what, part.name, error.known, place, instead) from None
    if not dataclasses.is_dataclass(found):
        try:
            return found(**part.parameters)
        except TypeError as error:
            raise InputError(_source(what, part), f"other parameters ({error})") from error
    fields = {f.name: f for f in dataclasses.fields(found) if f.init}
    given = {name: supplied for name, supplied in (supplies or {}).items() if name in fields}
    hints = _hints(found)
    for name, value in with_present_names(part.parameters, fields, partial(_source, what, part)).items():
        if name not in fields or name in given:
            known = [n for n in fields if n not in given]
            raise InputError(_source(what, part, name), f"a known parameter ({near_or_all(name, known)})", field=name)
        given[name] = checked(name, value, hints[name], partial(_source, what, part))
    try:
        return found(**given)
    except TypeError as error:  # one without a default is missing
        raise InputError(_source(what, part), f"other parameters ({error})") from error
    except InputError as error:
        if error.line is not None or not part.places:
            raise
        source = f"{part.place(*(error.field or '').split('.'))}: {error.source}"
        raise InputError(source, error.expected, field=error.field, value=error.value) from error


_hints = cache(get_type_hints)  # slow, and searches build a scheduler hundreds of times


def parse_part(text: str) -> Part:
    """`"tiresias"` or `"tiresias:thresholds=[3250,7200]:promote_after=2"`, as on a command line. Colons in brackets are part of
    a value: `"hierarchical-perf:weights={a: 3, b: 1}"`."""
    name, *settings = split_outside_brackets(text)
    parameters: dict[str, Any] = {}
    for setting in settings:
        key, equals, written = setting.partition("=")
        if not equals or not key.strip():
            raise InputError("scheduler", "name or name:parameter=value", field="scheduler part", value=text)
        if any(re.match(r"\s*\w+\s*=", more) for more in split_outside_brackets(written, ",")[1:]):
            expected = "colons between parameters, as in name:one=1:other=2"
            raise InputError("scheduler", expected, field="scheduler part", value=text)
        parameters[key.strip()] = parse_yaml(written or "''", f"parameter {key.strip()!r}").data
    return Part(name.strip(), parameters)


def with_policy_files(policies: Iterable[str]) -> tuple[list[str], Registry]:
    """Return policies as `parse_part` reads them, and the installed parts with the classes of files among them:
    `mine.py:MyPolicy:credit=10` becomes `MyPolicy:credit=10`, and the registry has `MyPolicy`."""
    named, registry, files = list[str](), Registry.installed(), list[PolicyFile]()
    for text in policies:
        file, *rest = (part.strip() for part in split_outside_brackets(text))
        if file.endswith(".py"):
            source = PolicyFile(Path(file).absolute(), rest[0] if rest and "=" not in rest[0] else "")
            if source not in files:  # errors of the file come before a long trace is read
                registry = registry.plus("policy", source.load().__name__, source)
            files, text = [*files, source], ":".join(rest)
        named.append(text)
    return named, registry


def parse_chain(text: str) -> Part:
    """Parts with commas between them, each as `parse_part` reads it: `"user-job-quota:default=4,accept-up-to:factor=1.5"`."""
    parts = [part for part in split_outside_brackets(text, ",") if part.strip()]
    require(parts, "scheduler", "names of parts with commas between them", "scheduler part", text)
    return Part.chain(map(parse_part, parts))


def split_outside_brackets(text: str, at: str = ":") -> list[str]:
    """Return a text's parts between the colons, or other letters `at`, that are not in brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[({") - (letter in "])}")
        if letter == at and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _source(what: str, part: Part, *path: str) -> str:
    place = part.place(*path)
    return f"{place}: {what} '{part.name}'" if place else f"{what} '{part.name}'"


def _parameter(key: str, value: Any) -> str:
    """As tables call it, which have no room for mappings of mappings or of lists."""
    long = isinstance(value, Mapping) and any(isinstance(one, (Mapping, list, tuple)) for one in value.values())
    whole = isinstance(value, float) and value.is_integer()
    return f"{key}: {len(value)}" if long else f"{key}={value:.0f}" if whole else f"{key}={value}"


def _part(value: Value, what: str) -> Part:
    """Return a part by its current name."""
    if isinstance(value.data, str):
        return Part(current_name(what, value.text("the name of a part")), where=value.where)
    if isinstance(value.data, list):
        if not value.data or any(isinstance(link, list) for link in value.data):
            raise value.error("one part, or a list of parts")
        return Part.chain((_part(link, what) for link in value.items()), value.where)
    fields = value.mapping()
    if "name" not in fields:
        raise InputError(value.source, "a name, or a mapping with 'name' and parameters", line=value.line, field=value.field)
    name = current_name(what, fields.pop("name").text("the name of a part"))
    if "parameters" in fields and isinstance(fields["parameters"].data, dict):
        fields.update(fields.pop("parameters").mapping())
    places = {(key, *path): where for key, item in fields.items() for path, where in item.places()}
    part = Part(name, {key: item.data for key, item in fields.items()}, value.where, places=places)
    return _with_present_names(what, part) if FORMER_PARAMETERS.keys() & part.parameters.keys() else part


def _with_present_names(what: str, part: Part) -> Part:
    """The part with the present names of its parameters; one that is not installed stays as it is."""
    try:
        found = Registry.installed().load(what, part.name)
    except FairleadError:  # raised again where the part is made
        return part
    known = [one.name for one in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else []
    return replace(part, parameters=with_present_names(part.parameters, known, partial(_source, what, part)))


def _varied(preset: str, value: Value) -> str:
    """The preset's name with the changed fields, so that variants have different names."""
    own = {
        name: field
        for name, field in value.mapping(renamed=FORMER_KINDS).items()
        if name not in ("preset", "limits", "ledger", *_DOCUMENTATION)
    }
    given = ", ".join(f"{name}={_shown(field.data)}" for name, field in own.items())
    return f"{preset}({given})" if given else preset


def _shown(data: Any) -> str:
    """The name of a part in tables, or the value itself."""
    return str(Part(data["name"], {k: v for k, v in data.items() if k != "name"})) if isinstance(data, dict) else str(data)


def _ledger(value: Value) -> LedgerRules:
    fields = value.mapping(("half_life_s", "accounts", "users"))
    seconds = fields["half_life_s"].number("seconds from 1 to 1e10", 1.0, most=1e10) if "half_life_s" in fields else None
    wanted = f"a weight from {LEAST_WEIGHT:g} to {GREATEST_WEIGHT:g}"
    accounts, users = (
        {name: one.number(wanted, LEAST_WEIGHT, most=GREATEST_WEIGHT) for name, one in fields[key].mapping().items()}
        if key in fields
        else {}
        for key in ("accounts", "users")
    )
    return LedgerRules(LedgerRules.half_life_s if seconds is None else seconds, accounts, users)


def _rounds(value: Value) -> float:
    if value.data == EVENT_DRIVEN:
        return 0.0
    wanted = f"{SHORTEST_ROUND_S:g} to {LONGEST_ROUND_S:g} seconds, or {EVENT_DRIVEN}"
    return value.number(wanted, SHORTEST_ROUND_S, most=LONGEST_ROUND_S)


# Schedulers for a real cluster. There throughputs are measured, as there is no table, and a start takes an unknown
# time: a job that is preempted before its first step has done nothing, however often.

MEASURED = Part("measured")

_MONITORED = {"predicted": "monitored"}
"""Estimators of co-located rates, and their counterparts for real clusters: with `measured`, which has no such rates, no job
would be co-located."""

FIRST_STEP_S = 120.0
"""How long a job that has not reported a step since its start is not preempted, unless the scheduler sets another time."""


def read_scheduler(path: Path | str) -> SchedulerConfig:
    """Return the scheduler of a file, for a real cluster."""
    return _config(read_yaml(path))


def scheduler_of(data: Mapping[str, Any], source: str = "scheduler") -> SchedulerConfig:
    """From plain data, such as a journal's or a request's."""
    return _config(Value(dict(data), source, "", None, {}))


def compose(data: Mapping[str, Any], registry: Registry | None = None) -> Stages:
    """The stages of a scheduler; whatever is wrong with it is an error here, and not when it decides."""
    config = scheduler_of(data)
    stages = config.build(None, registry)
    if getattr(stages.estimator, "table", stages) is None:
        place = config.estimator.where or "scheduler"
        instead = _MONITORED.get(config.estimator.name, MEASURED.name)
        wanted = f"an estimator without a throughput table, because a real cluster has none: {instead}"
        raise InputError(place, wanted, field="estimator", value=config.estimator.name)
    if getattr(stages.policy, "resizes_all", False):
        wanted = "false; on a real cluster, only jobs with 'mode: elastic' are resized"
        raise InputError(config.policy.where or "scheduler", wanted, field="resizes_all", value=True)
    return stages


def _config(value: Value) -> SchedulerConfig:
    config = SchedulerConfig.from_value(value)
    if "estimator" not in value.mapping(renamed=FORMER_KINDS):  # a preset's is for simulations
        monitored = _MONITORED.get(config.estimator.name)
        config = replace(config, estimator=MEASURED if monitored is None else replace(config.estimator, name=monitored))
    return config if config.first_step_s is not None else replace(config, first_step_s=FIRST_STEP_S)


# Schedulers for simulations. If a simulated start takes a round or longer, a job that is preempted at the next decision has
# done nothing, however often: then a starting job is protected as on a real cluster.


def simulated_with(costs: Costs, config: SchedulerConfig) -> SchedulerConfig:
    """The scheduler with the `first_step_s` of a real cluster, if starts are as long as rounds and it sets none itself."""
    if config.first_step_s is not None or not 0.0 < costs.longest_start_s >= config.round_s:
        return config
    return replace(config, first_step_s=FIRST_STEP_S)
