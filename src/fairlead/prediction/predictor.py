"""All that is predicted for one device, in one file: JSON with the fingerprint of the measurements it was learned from, and
with the device, driver and framework they were taken on. For another device it predicts nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError, near_or_all
from fairlead.files import atomic_write, is_stream
from fairlead.models.interference import Slowdown
from fairlead.prediction.features import NAMES, Features
from fairlead.prediction.memory import Memory
from fairlead.prediction.utilization import Utilization, kernel_s

FORMAT = "fairlead predictor 1"
TRAINED = Path(__file__).parent / "trained"


@dataclass(frozen=True)
class Prediction:
    utilization: float  # percent, alone
    memory_mb: float
    without_overhead_mb: float
    unknown: Mapping[str, int]  # operators that nobody knows: the prediction is worth less
    kernel_s: float  # how long a kernel takes on average
    multiprocessors: float | None = None  # busy, percent, alone


@dataclass(frozen=True)
class Predictor:
    about: Mapping[str, str]  # device, driver, framework, fingerprint of the data …
    utilization: Utilization
    memory: Memory
    slowdown: Mapping[str, Slowdown] = field(default_factory=dict)  # by sharing mode, from utilizations
    multiprocessors: Utilization | None = None  # how many are busy
    at_once: Mapping[str, Slowdown] = field(default_factory=dict)  # by sharing mode, from multiprocessors and kernels

    @property
    def device(self) -> str:
        return self.about["device"]

    def predict(self, features: Features, device: str | None = None) -> Prediction:
        """Refused for a device that was never measured."""
        if device is not None and _plain(device) not in (_plain(self.device), _plain(self.device.split()[-1])):
            raise InputError(
                "predictor",
                f"{self.device}, on which it was measured; measure there and train anew",
                field="device",
                value=device,
            )
        column = [features.column()]
        return Prediction(
            float(self.utilization.percent(column)[0]),
            float(self.memory.mb(column)[0]),
            float(self.memory.tensors_mb(column)[0]),
            dict(features.unknown),
            kernel_s(column[0]),
            None if self.multiprocessors is None else float(self.multiprocessors.percent(column)[0]),
        )

    def slowdowns(
        self,
        utilization: Floats,
        sharing: str = "time-slicing",
        multiprocessors: Floats | None = None,
        kernel_s: Floats | None = None,
    ) -> Floats:
        """Of jobs on one accelerator, by how busy each would keep it alone, and, where that is known and counts, how many of
        its multiprocessors, with kernels how long."""
        if sharing not in self.slowdown:
            known = near_or_all(sharing, self.slowdown)
            raise InputError(
                f"predictor for {self.device}", f"a way of sharing that was measured; {known}", field="sharing", value=sharing
            )
        if multiprocessors is not None and sharing in self.at_once:
            return self.at_once[sharing].slowdowns(np.asarray(utilization, dtype=float), multiprocessors, kernel_s)
        return self.slowdown[sharing].slowdowns(np.asarray(utilization, dtype=float))

    def save(self, path: Path) -> None:
        told = {
            "format": FORMAT,
            "about": dict(self.about),
            "utilization": self.utilization.kept(),
            "memory": self.memory.kept(),
            "slowdown": {mode: one.kept() for mode, one in self.slowdown.items()},
            "multiprocessors": None if self.multiprocessors is None else self.multiprocessors.kept(),
            "at_once": {mode: one.kept() for mode, one in self.at_once.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, orjson.dumps(_short(told)) + b"\n")


def load_predictor(path: Path) -> Predictor:
    if is_stream(path):
        raise InputError(path, "a regular file", field="predictor")
    try:
        data = orjson.loads(path.read_bytes())
    except OSError as problem:
        raise InputError(path, f"a file that can be read: {problem.strerror}", field="predictor") from None
    except orjson.JSONDecodeError as problem:
        raise InputError(path, f"JSON: {problem}", field="predictor") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(path, f"a file that says format: {FORMAT}", field="format")
    try:
        about = {str(name): str(value) for name, value in data["about"].items()}
        slowdown, at_once = (
            {str(mode): Slowdown.restored(one, path) for mode, one in found.items()}
            for found in (data["slowdown"], data.get("at_once", {}))
        )
        utilization, memory = data["utilization"], data["memory"]
        _ = about["device"], about["fingerprint"]
    except (KeyError, AttributeError, TypeError):
        raise InputError(
            path, "about (with device and fingerprint), utilization, memory and slowdown", field="predictor"
        ) from None
    if not about["device"].strip():
        raise InputError(path, "the name of the device that was measured", field="device", value=about["device"])
    busy, held = _of_graph(utilization, path), data.get("multiprocessors")
    texts = (*about, *about.values(), *slowdown, *at_once, busy.learner)
    if strange := next((text for text in texts if not text.isprintable()), None):
        raise InputError(path, "words, with nothing in them that a terminal would act on", field="predictor", value=strange)
    return Predictor(
        about,
        busy,
        Memory.restored(memory, path),
        slowdown,
        None if held is None else _of_graph(held, path),
        at_once,
    )


def _of_graph(data: Any, path: Path) -> Utilization:
    found = Utilization.restored(data, path)
    if (strange := next((name for name in found.names if name not in NAMES), None)) is not None:
        raise InputError(path, "features that a graph has", field="names", value=strange)
    return found


@cache
def shipped_predictor(device: str = "h200") -> Predictor:
    """The one that ships for a device."""
    known = {path.stem: path for path in TRAINED.glob("*.json")}
    if device not in known:
        raise InputError(
            "predictors", f"a device that was measured; {near_or_all(device, known)}", field="device", value=device
        )
    return load_predictor(known[device])


def fingerprint(*rows: Sequence[Mapping[str, Any]]) -> str:
    """Of measurements, whatever their order."""
    lines = sorted(orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for each in rows for row in each)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def _plain(name: str) -> str:
    return name.lower().replace("_", " ").strip()


def _short(value: Any) -> Any:
    """Nine digits: as many as tell single-precision numbers apart, so that no threshold moves past a row."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    return value
