"""Rounding as another machine might do it, for tests of determinism: installed before anything of Fairlead is imported.

sums      every sum, dot product and matrix product of Fairlead's code adds in the reverse order
rates     the throughputs that policies see are scaled by 1 − 1e-15, 1 or 1 + 1e-15, by the bits of each number
solver    the values that HiGHS returns, primal and dual, are scaled likewise
path      HiGHS draws other random numbers, so that it takes another way to an optimum
libm      exp, log and powers are off by one unit in the last place likewise

An import hook rewrites the calls in the syntax tree; the product has no switch for it."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from typing import Any

import numpy as np

_REDUCTIONS = {"sum", "mean", "dot", "cumsum", "prod"}
_LIBM = {"exp", "log", "log2", "log10", "log1p", "expm1", "power", "hypot", "float_power"}


def _flip(values: Any, axis: Any) -> Any:
    values = np.asarray(values)
    return np.flip(values) if axis is None else np.flip(values, axis)


def _reduced(name: str, values: Any, *args: Any, **named: Any) -> Any:
    """The same reduction over the reverse order."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or name == "cumsum" or args[1:]:
        return getattr(values, name)(*args, **named)
    if name == "dot":
        return _product(values, args[0])
    axis = args[0] if args else named.get("axis")
    return getattr(np.ascontiguousarray(_flip(values, axis)), name)(*args, **named)


def _np_reduced(name: str, values: Any, *args: Any, **named: Any) -> Any:
    if isinstance(values, np.ndarray) and values.dtype.kind == "f" and name in ("sum", "mean", "prod"):
        return _reduced(name, values, *args, **named)
    if name == "dot" and isinstance(values, np.ndarray):
        return _product(values, args[0])
    return getattr(np, name)(values, *args, **named)


def _product(a: Any, b: Any) -> Any:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or "f" not in a.dtype.kind + b.dtype.kind:
        return a @ b
    return np.ascontiguousarray(np.flip(a, -1)) @ np.ascontiguousarray(np.flip(b, -2 if b.ndim > 1 else -1))


def _off(name: str, *args: Any, **named: Any) -> Any:
    """A function of the mathematical library whose last place is another."""
    value = getattr(np, name)(*args, **named)
    return scaled(value, 2.2e-16)


def scaled(values: Any, by: float = 1e-15) -> Any:
    """Each number times 1 − by, 1 or 1 + by. Equal numbers stay equal, as on another machine."""
    array = np.array(values, dtype=np.float64)
    bits = array.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    return array * (1.0 + by * ((bits % np.uint64(3)).astype(np.float64) - 1.0))


class _Rewriter(ast.NodeTransformer):
    def __init__(self, what: str) -> None:
        self.what = what

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        call = node.func
        if not isinstance(call, ast.Attribute):
            return node
        of_numpy = isinstance(call.value, ast.Name) and call.value.id == "np"
        if self.what == "libm" and of_numpy and call.attr in _LIBM:
            return self._to("_off", node, ast.Constant(call.attr))
        if self.what == "sums" and call.attr in _REDUCTIONS:
            if of_numpy:
                return self._to("_np_reduced", node, ast.Constant(call.attr))
            node.args.insert(0, call.value)
            return self._to("_reduced", node, ast.Constant(call.attr))
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if self.what == "sums" and isinstance(node.op, ast.MatMult):
            return ast.copy_location(ast.Call(self._name("_product"), [node.left, node.right], []), node)
        return node

    def _name(self, name: str) -> ast.expr:
        return ast.Attribute(ast.Name("_perturbation", ast.Load()), name, ast.Load())

    def _to(self, name: str, node: ast.Call, first: ast.expr) -> ast.AST:
        return ast.copy_location(ast.Call(self._name(name), [first, *node.args], node.keywords), node)


class _Loader(importlib.machinery.SourceFileLoader):
    what = ""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree = _Rewriter(self.what).visit(ast.parse(data, path))
        at = 1 if ast.get_docstring(tree) else 0
        at += sum(isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in tree.body)
        tree.body.insert(at, ast.Import([ast.alias("perturbation", "_perturbation")]))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> Any:  # never from, or into, the cache of compiled files
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, what: str) -> None:
        self.what = what

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not name.startswith("fairlead."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return spec
        loader = _Loader(name, spec.origin)
        loader.what = self.what
        folders = spec.submodule_search_locations
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader, submodule_search_locations=folders)


def install(what: str) -> None:
    """Perturb all of Fairlead that is imported from now on."""
    sys.modules.setdefault("perturbation", sys.modules[__name__])
    if what in ("sums", "libm"):
        sys.meta_path.insert(0, _Finder(what))
    elif what == "rates":
        _scale_rates()
    elif what == "solver":
        _scale_solutions()
    elif what == "path":
        _draw_otherwise()
    else:
        raise SystemExit(f"unknown perturbation {what!r}")


def _scale_rates() -> None:
    from fairlead.core.plan import Rates

    def after(self: Any) -> None:
        for name in ("alone", "spread", "paired"):
            object.__setattr__(self, name, scaled(getattr(self, name)))
        for name in ("best", "ranked"):
            object.__setattr__(self, name, None)

    original = Rates.__init__

    def init(self: Any, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        after(self)

    Rates.__init__ = init  # type: ignore[method-assign]


def _scale_solutions() -> None:
    from fairlead.policies.allocation.lp import program

    original = program.Solution.__init__

    def init(self: Any, values: Any, *args: Any, **named: Any) -> None:
        original(self, scaled(values), *(scaled(one) for one in args), **named)

    program.Solution.__init__ = init  # type: ignore[method-assign]


def _draw_otherwise() -> None:
    from fairlead.policies.allocation.lp import program

    program._OPTIONS["random_seed"] = 12345
