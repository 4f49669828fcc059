"""The predictors of one device in one JSON file, with the fingerprint, device, driver and framework of the measurements that
they were fitted to. Other devices are refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError, near_or_all
from fairlead.files import atomic_write, is_stream
from fairlead.models.interference import Slowdown
from fairlead.models.learned_models import Learned, model_from_data, sane
from fairlead.prediction.features import BYTES, NAMES, Features
from fairlead.prediction.learners import Learner

MB = 2.0**20
COPIES = 3.0  # weight, gradient, momentum
MIN_MEMORY_SHARE = 0.9  # of the measured memory: a lower prediction counts as too low
COVERED_CONFIGURATIONS = 0.98  # of the configurations that were measured


@dataclass(frozen=True)
class Memory:
    """The memory of a training (Horus' Equation 2, with gradients and momentum of parameters):

        bytes = 4 · margin · (activations · kept + loss · outputs + 3 · parameters) + δ

    `kept` are elements that the backward pass needs. The factor 3 stands for weight, gradient and momentum. δ is the memory of
    the framework and its libraries; the margin is the allocator's overhead."""

    activations: float
    loss: float
    margin: float
    overhead_mb: float

    def tensors_mb(self, columns: Sequence[Column]) -> Floats:
        """Without δ."""
        found: Floats = self.margin * (_terms(columns) @ np.array([self.activations, self.loss, COPIES]))
        return found

    def mb(self, columns: Sequence[Column]) -> Floats:
        found: Floats = self.tensors_mb(columns) + self.overhead_mb
        return found

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any], source: object) -> Memory:
        try:
            found = cls(**{name: float(value) for name, value in data.items()})
        except (TypeError, ValueError, AttributeError):
            raise InputError(source, "activations, loss, margin and overhead_mb, as numbers", field="memory") from None
        if not sane(numbers := list(asdict(found).values())) or min(numbers) < 0:
            raise InputError(source, "finite numbers of at least 0", field="memory")
        return found


def fit_memory(columns: Sequence[Column], tensors_mb: Floats, device_mb: Floats, reserved_mb: Floats) -> Memory:
    """Fit to the peak memory of tensors, of the allocator and of the whole device. Relative errors count, so that small jobs
    matter; the margin is the smallest with which nearly all predictions reach MIN_MEMORY_SHARE of the memory."""
    terms = _terms(columns)
    rest = tensors_mb - COPIES * terms[:, 2]
    known = np.column_stack([terms[:, :2], np.ones(len(terms))]) / tensors_mb[:, None]
    kept, loss, libraries = np.maximum(np.linalg.lstsq(known, rest / tensors_mb, rcond=None)[0], 0.0).tolist()
    overhead = float(np.median(device_mb - reserved_mb)) + libraries
    plain = Memory(kept, loss, 1.0, overhead)
    margin = float(np.quantile((MIN_MEMORY_SHARE * device_mb - overhead) / plain.tensors_mb(columns), COVERED_CONFIGURATIONS))
    return Memory(kept, loss, max(margin, 1.0), overhead)


def _terms(columns: Sequence[Column]) -> Floats:
    """Elements kept for the backward pass, outputs and parameters, in MB."""
    return np.array([[one["kept"], one["outputs"], one["parameters"]] for one in columns]) * BYTES / MB


Column = Mapping[str, float]  # features by name
MAX_LOG_UTILIZATION = 5.0  # as a logarithm, more than 100 %


@dataclass(frozen=True)
class Utilization:
    """The utilization of a training alone, from its features (Horus §4.1.1). It is fitted on the logarithm, since
    the error that counts is relative: 10 % taken for 20 % is as wrong as 40 % taken for 80 %."""

    learner: str
    names: tuple[str, ...]
    learned: Learned

    def percent(self, columns: Sequence[Column]) -> Floats:
        predicted = self.learned.predict(inputs(columns, self.names))
        return np.clip(np.expm1(np.minimum(predicted, MAX_LOG_UTILIZATION)), 0.0, 100.0)

    def importance(self) -> dict[str, float]:
        """The importance of each feature as a fraction, most important first."""
        found = self.learned.importance()
        shares = found / max(float(found.sum()), 1e-12)
        return dict(sorted(zip(self.names, shares.tolist()), key=lambda item: (-item[1], item[0])))

    def to_data(self) -> dict[str, Any]:
        return {"learner": self.learner, "names": list(self.names), "learned": self.learned.to_data()}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], source: object) -> Utilization:
        try:
            names = tuple(str(name) for name in data["names"])
            learner, learned = str(data["learner"]), data["learned"]
        except (KeyError, TypeError):
            raise InputError(source, "the keys learner, names and learned", field="utilization") from None
        return cls(learner, names, model_from_data(learned, len(names), source))


def fit_utilization(name: str, learner: Learner, columns: Sequence[Column], percent: Floats) -> Utilization:
    """Fit a learner to measured percents."""
    names = tuple(columns[0])
    return Utilization(name, names, learner(inputs(columns, names), np.log1p(percent)))


def inputs(columns: Sequence[Column], names: Sequence[str]) -> Floats:
    """The logarithms of counts, sizes and microseconds."""
    raw = np.array([[column[name] * (1e6 if name.endswith("_s") else 1.0) for name in names] for column in columns])
    found: Floats = np.log1p(np.maximum(raw, 0.0))
    return found


def kernel_s(column: Column) -> float:
    """The mean length of a kernel, by the roofline: a co-located kernel waits about this long."""
    return max(column["device_s"], 1e-9) / max(column["launches"], 1.0)


def rmsle(predicted: Floats, measured: Floats) -> float:
    """Root mean squared logarithmic error, of percents."""
    return float(np.sqrt(np.mean((np.log1p(predicted) - np.log1p(measured)) ** 2)))


FORMAT = "fairlead predictor 1"
TRAINED = Path(__file__).parent / "trained"


@dataclass(frozen=True)
class Prediction:
    """The predicted use of a device by a training."""

    utilization: float  # percent, alone
    memory_mb: float
    without_overhead_mb: float
    unknown: Mapping[str, int]  # unknown operators: the prediction is worth less
    kernel_s: float  # mean length of a kernel
    multiprocessors: float | None = None  # busy, percent, alone


@dataclass(frozen=True)
class Predictor:
    """All fitted models of one device."""

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
        """Predict for this predictor's device; others raise InputError."""
        if device is not None and _plain(device) not in (_plain(self.device), _plain(self.device.split()[-1])):
            raise InputError(
                "predictor",
                f"{self.device}, on which it was measured; to predict for another device, measure there and train again",
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
        """The slowdowns of jobs on one accelerator, from the utilization of each alone and, if known and fitted, from its
        multiprocessors and the length of its kernels."""
        if sharing not in self.slowdown:
            known = near_or_all(sharing, self.slowdown)
            raise InputError(
                f"predictor for {self.device}", f"a sharing mode that was measured; {known}", field="sharing", value=sharing
            )
        if multiprocessors is not None and sharing in self.at_once:
            return self.at_once[sharing].slowdowns(np.asarray(utilization, dtype=float), multiprocessors, kernel_s)
        return self.slowdown[sharing].slowdowns(np.asarray(utilization, dtype=float))

    def save(self, path: Path) -> None:
        data = {
            "format": FORMAT,
            "about": dict(self.about),
            "utilization": self.utilization.to_data(),
            "memory": self.memory.to_data(),
            "slowdown": {mode: one.to_data() for mode, one in self.slowdown.items()},
            "multiprocessors": None if self.multiprocessors is None else self.multiprocessors.to_data(),
            "at_once": {mode: one.to_data() for mode, one in self.at_once.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, orjson.dumps(_short(data)) + b"\n")


def load_predictor(path: Path) -> Predictor:
    """Read a predictor and check everything in it."""
    if is_stream(path):
        raise InputError(path, "a regular file", field="predictor")
    try:
        data = orjson.loads(path.read_bytes())
    except OSError as problem:
        raise InputError(path, f"a file that can be read: {problem.strerror}", field="predictor") from None
    except orjson.JSONDecodeError as problem:
        raise InputError(path, f"JSON: {problem}", field="predictor") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(path, f"a file with 'format: {FORMAT}'", field="format")
    try:
        about = {str(name): str(value) for name, value in data["about"].items()}
        slowdown, at_once = (
            {str(mode): Slowdown.from_data(one, path) for mode, one in found.items()}
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
    if unprintable := next((text for text in texts if not text.isprintable()), None):
        raise InputError(path, "text without control characters", field="predictor", value=unprintable)
    return Predictor(
        about,
        busy,
        Memory.from_data(memory, path),
        slowdown,
        None if held is None else _of_graph(held, path),
        at_once,
    )


def _of_graph(data: Any, path: Path) -> Utilization:
    found = Utilization.from_data(data, path)
    if (unknown := next((name for name in found.names if name not in NAMES), None)) is not None:
        raise InputError(path, "features that can be computed from a graph", field="names", value=unknown)
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
    """The fingerprint of measurements, independent of their order."""
    lines = sorted(orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for each in rows for row in each)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def _plain(name: str) -> str:
    return name.lower().replace("_", " ").strip()


def _short(value: Any) -> Any:
    """Nine digits, which distinguish all single-precision numbers, so that no threshold moves past a row."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    return value
