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
from fairlead.prediction.features import NAMES, Features
from fairlead.prediction.interference import Slowdown
from fairlead.prediction.memory import Memory
from fairlead.prediction.utilization import Utilization

FORMAT = "fairlead predictor 1"
TRAINED = Path(__file__).parent / "trained"


@dataclass(frozen=True)
class Prediction:
    utilization: float  # percent, alone
    memory_mb: float
    without_overhead_mb: float
    unknown: Mapping[str, int]  # operators that nobody knows: the prediction is worth less


@dataclass(frozen=True)
class Predictor:
    about: Mapping[str, str]  # device, driver, framework, fingerprint of the data …
    utilization: Utilization
    memory: Memory
    slowdown: Mapping[str, Slowdown] = field(default_factory=dict)  # by sharing mode

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
        )

    def slowdowns(self, utilization: Floats, sharing: str = "time-slicing") -> Floats:
        """Of jobs on one accelerator, by how busy each would keep it alone."""
        if sharing not in self.slowdown:
            known = near_or_all(sharing, self.slowdown)
            raise InputError(
                f"predictor for {self.device}", f"a way of sharing that was measured; {known}", field="sharing", value=sharing
            )
        return self.slowdown[sharing].slowdowns(np.asarray(utilization, dtype=float))

    def save(self, path: Path) -> None:
        told = {
            "format": FORMAT,
            "about": dict(self.about),
            "utilization": self.utilization.kept(),
            "memory": self.memory.kept(),
            "slowdown": {mode: one.kept() for mode, one in self.slowdown.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(_short(told)) + b"\n")


def load(path: Path) -> Predictor:
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
        slowdown = {str(mode): Slowdown.restored(one, path) for mode, one in data["slowdown"].items()}
        utilization, memory = data["utilization"], data["memory"]
        _ = about["device"], about["fingerprint"]
    except (KeyError, AttributeError, TypeError):
        raise InputError(
            path, "about (with device and fingerprint), utilization, memory and slowdown", field="predictor"
        ) from None
    if not about["device"].strip() or not about["device"].isprintable():
        raise InputError(path, "the name of the device that was measured", field="device", value=about["device"])
    busy = Utilization.restored(utilization, path)
    if strange := next((name for name in busy.names if name not in NAMES), None):
        raise InputError(path, "features that a graph has", field="names", value=strange)
    return Predictor(about, busy, Memory.restored(memory, path), slowdown)


@cache
def trained(device: str = "h200") -> Predictor:
    """The one that ships for a device."""
    known = {path.stem: path for path in TRAINED.glob("*.json")}
    if device not in known:
        raise InputError(
            "predictors", f"a device that was measured; {near_or_all(device, known)}", field="device", value=device
        )
    return load(known[device])


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
