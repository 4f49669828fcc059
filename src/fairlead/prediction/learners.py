"""The four learners of Horus' Table 4: linear regression, a random forest, and boosted trees of two makes (extra `predict`).
Fitting is deterministic and returns a `Learned` model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import NotInstalled, install
from fairlead.models.learned_models import Forest, Learned, Line, Tree

Learner = Callable[[Floats, Floats], Learned]


def linear_regression(rows: Floats, wanted: Floats) -> Learned:
    """Ridge regression on standardized inputs."""
    centre, scale = rows.mean(axis=0), rows.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    inputs = (rows - centre) / scale
    penalty = np.eye(inputs.shape[1]) * 3.0
    weights = np.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ (wanted - wanted.mean())) / scale
    return Line(float(wanted.mean() - centre @ weights), tuple(weights.tolist()), tuple(rows.std(axis=0).tolist()))


def random_forest(rows: Floats, wanted: Floats) -> Learned:
    """Scikit-learn's random forest, 120 trees."""
    ensemble: Any = _library("sklearn.ensemble", "scikit-learn")
    many = 120
    made = ensemble.RandomForestRegressor(many, min_samples_leaf=2, max_features=0.4, random_state=0, n_jobs=1)
    made.fit(rows, wanted)
    trees = []
    for one in made.estimators_:
        t = one.tree_
        leaf = t.children_left < 0
        feature = np.where(leaf, -1, t.feature)
        value = np.where(leaf, t.value[:, 0, 0] / many, 0.0)
        trees.append(_told(feature, t.threshold, t.children_left, t.children_right, value))
    return Forest(0.0, tuple(trees), tuple(made.feature_importances_.tolist()))


def xgboost(rows: Floats, wanted: Floats) -> Learned:
    """XGBoost's boosted trees, 300 rounds."""
    library: Any = _library("xgboost", "xgboost")
    settings = {
        "max_depth": 4,
        "eta": 0.05,
        "subsample": 0.8,
        "colsample_bytree": 0.5,
        "min_child_weight": 2.0,
        "lambda": 1.0,
        "seed": 0,
        "nthread": 1,
        "base_score": 0.0,
        "verbosity": 0,
    }
    middle = float(wanted.mean())
    made = library.train(settings, library.DMatrix(rows, label=wanted - middle), num_boost_round=300)
    trees = tuple(_boosted(json.loads(text)) for text in made.get_dump(dump_format="json"))
    gains = made.get_score(importance_type="total_gain")
    return Forest(middle, trees, tuple(float(gains.get(f"f{place}", 0.0)) for place in range(rows.shape[1])))


def lightgbm(rows: Floats, wanted: Floats) -> Learned:
    """LightGBM's boosted trees, 300 rounds."""
    library: Any = _library("lightgbm", "lightgbm")
    settings = {
        "objective": "regression",
        "num_leaves": 12,
        "learning_rate": 0.05,
        "min_data_in_leaf": 4,
        "feature_fraction": 0.5,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "lambda_l2": 1.0,
        "seed": 0,
        "num_threads": 1,
        "verbosity": -1,
        "deterministic": True,
        "force_col_wise": True,
        "boost_from_average": False,
    }
    middle = float(wanted.mean())
    made = library.train(settings, library.Dataset(rows, label=wanted - middle), num_boost_round=300)
    dumped = made.dump_model()
    trees = tuple(_light(one["tree_structure"]) for one in dumped["tree_info"])
    return Forest(middle, trees, tuple(made.feature_importance("gain").tolist()))


LEARNERS: Mapping[str, Learner] = {
    "linear": linear_regression,
    "lightgbm": lightgbm,
    "xgboost": xgboost,
    "random-forest": random_forest,
}


BEST_FIRST = ("xgboost", "lightgbm", "random-forest", "linear")
"""By their error on the shipped set, for utilization and multiprocessors, on unseen families and rows
(docs/papers/prediction.md)."""


def best_installed() -> str:
    """The best learner whose library is installed; linear regression needs none."""
    installed = installed_learners()
    return next(name for name in BEST_FIRST if name in installed)


def installed_learners() -> dict[str, Learner]:
    """The learners whose libraries are installed."""
    needs = {"lightgbm": "lightgbm", "xgboost": "xgboost", "random-forest": "sklearn.ensemble"}
    return {name: learner for name, learner in LEARNERS.items() if name not in needs or _installed(needs[name])}


def _boosted(root: dict[str, Any]) -> Tree:
    """XGBoost asks whether x < threshold in single precision, which is x ≤ the number before it."""

    def ask(node: dict[str, Any]) -> tuple[int, float, dict[str, Any], dict[str, Any]] | float:
        if "leaf" in node:
            return float(node["leaf"])
        below = float(np.nextafter(np.float32(node["split_condition"]), np.float32(-np.inf)))
        children = {child["nodeid"]: child for child in node["children"]}
        return int(node["split"][1:]), below, children[node["yes"]], children[node["no"]]

    return _flattened(root, ask)


def _light(root: dict[str, Any]) -> Tree:
    def ask(node: dict[str, Any]) -> tuple[int, float, dict[str, Any], dict[str, Any]] | float:
        if "leaf_value" in node and "split_feature" not in node:
            return float(node["leaf_value"])
        return int(node["split_feature"]), float(node["threshold"]), node["left_child"], node["right_child"]

    return _flattened(root, ask)


def _flattened(root: dict[str, Any], ask: Callable[[dict[str, Any]], Any]) -> Tree:
    """Breadth first, so that every node stands behind the one that leads to it."""
    feature, threshold, left, right, value = list[int](), list[float](), list[int](), list[int](), list[float]()
    queue = [root]
    for node in queue:
        answer = ask(node)
        if isinstance(answer, float):
            columns = (-1, 0.0, -1, -1, answer)
        else:
            columns = (answer[0], answer[1], len(queue), len(queue) + 1, 0.0)
            queue += [answer[2], answer[3]]
        for column, each in zip((feature, threshold, left, right, value), columns):
            column.append(each)  # type: ignore[attr-defined]
    return Tree(feature, threshold, left, right, value)


def _told(feature: Any, threshold: Any, left: Any, right: Any, value: Any) -> Tree:
    inside = np.asarray(feature) >= 0
    shown = np.where(inside, threshold, 0.0)
    return Tree(feature.tolist(), shown.tolist(), left.tolist(), right.tolist(), value.tolist())


def _installed(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True


def _library(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise NotInstalled(f"this learner needs {package}: {install('predict')}") from None
