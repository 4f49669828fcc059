"""Operators on fake tensors: their results, kept by shape, and the values that a trace takes for granted, because fake tensors
have none."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
CPU = torch.device("cpu")
NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach_", "set_", "resize_"}
_REDUCED = {aten.all.default: "all()", aten.any.default: "any()", aten.rand.default: "rand() < p"}
_EXTREMES = {aten.max.default: "max()", aten.min.default: "min()"}
_COMPARED = {aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class AssumedValues:
    """What a step asks of values. Masks hide nothing, no layer is dropped, and no value is out of its range."""

    def __init__(self) -> None:
        self.notes = set[str]()
        self._checked: tuple[str, Any] | None = None  # the last check, and the tensor with its result
        self._summed: tuple[int, Any] | None = None  # the last sum of a mask: its number of elements, and the tensor

    def follow(self, function: Any, args: Any, found: Any) -> None:
        """Remember the results of checks."""
        if function in _REDUCED or function in _EXTREMES:
            self._checked = (_REDUCED.get(function) or _EXTREMES[function], found)
        elif function in _COMPARED and self._checked is not None and _same(args[0], self._checked[1]):
            self._checked = (self._checked[0], found)
        elif function is aten.sum.default and args[0].dtype == torch.bool:
            self._summed = (args[0].numel(), found)
        elif function is aten.eq.Scalar and self._summed is not None and _same(args[0], self._summed[1]):
            whole = args[1] == self._summed[0]  # `mask.sum() == mask.numel()` is an all()
            self._checked = ("all()", found) if whole else None

    def answer(self, tensor: Any) -> bool | None:
        """The value of a check; None if the tensor is no check's result."""
        if self._checked is None or not _same(tensor, self._checked[1]):
            return None
        name = self._checked[0]
        if name in _EXTREMES.values() and tensor.dtype != torch.bool:
            return None  # the value itself, not its range
        what = name if name in _REDUCED.values() else f"a check of {name}"
        self.notes.add(f"{what} was taken to be {str(name == 'all()').lower()}")
        return name == "all()"


def _same(one: Any, other: Any) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


class FakeOperators:
    """Runs operators on fake tensors. PyTorch takes 0.4 ms for each; results are kept by the shapes of the arguments."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode, self.kept = mode, dict[Any, Any]()

    def run(self, function: Any, args: Any, named: Any) -> Any:
        """The operator's result."""
        schema, returns = function._schema, function._schema.returns
        if function is aten._grouped_mm.default and args[0].dtype != torch.bfloat16:  # only its shapes are checked
            low = (one.to(torch.bfloat16) if isinstance(one, torch.Tensor) else one for one in args[:2])
            return self.run(function, (*low, *args[2:]), named).to(args[0].dtype)
        if function is aten._ctc_loss.Tensor:  # whose size depends on the longest of the targets
            steps, batch = args[0].shape[:2]
            longest = args[1].shape[1] if args[1].dim() == 2 else -(-args[1].numel() // batch)
            return args[0].new_empty(batch), args[0].new_empty(batch, steps, 2 * longest + 1)
        if function is aten._ctc_loss_backward.Tensor:
            return args[1].new_empty(args[1].shape)
        if function.namespace != "aten":
            return function(*args, **named)
        try:
            key = (function, _key(args), _key(named.items()) if named else None)
        except _NotFakeError:
            return function(*args, **named)
        if (
            schema.is_mutable
            and torch.Tag.inplace_view not in function.tags
            and function.overloadpacket.__name__ not in NO_KERNEL
        ):
            if not returns:
                return None
            if len(returns) == 1 and returns[0].alias_info is not None and schema.arguments[0].alias_info is not None:
                return args[0]  # in place: neither shape nor type changes
        if any(one.alias_info is not None for one in returns):
            if schema.is_mutable:
                return function(*args, **named)
            with fake_tensor.in_kernel_invocation_manager(self.mode):
                found = function(*args, **named)
            return self._wrapped(found)
        if key not in self.kept:
            found = function(*args, **named)
            plain = found if isinstance(found, tuple | list) else (found,)
            storages = [one.untyped_storage()._cdata for one in plain if isinstance(one, FakeTensor)]
            given = {one.untyped_storage()._cdata for one in tree_leaves((args, named)) if isinstance(one, FakeTensor)}
            fresh = len({*storages}) == len(storages) and given.isdisjoint(storages) and bool(storages)
            alike = all(isinstance(one, FakeTensor | int | float | None) for one in plain)
            self.kept[key] = (
                (type(found), [_key((one,))[0] if isinstance(one, FakeTensor) else one for one in plain])
                if fresh and alike
                else None
            )
            return found
        if self.kept[key] is None:
            return function(*args, **named)
        kind, described = self.kept[key]
        made = [self._made(*one) if isinstance(one, tuple) else one for one in described]
        return kind(made) if kind in (tuple, list) else made[0]

    def _made(self, shape: Any, stride: Any, dtype: Any) -> Any:
        with torch._C._DisableTorchDispatch():
            inner = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        return FakeTensor(self.mode, inner, CPU)

    def _wrapped(self, found: Any) -> Any:
        if isinstance(found, tuple | list):
            return type(found)(self._wrapped(one) for one in found)
        return FakeTensor(self.mode, found, CPU) if isinstance(found, torch.Tensor) else found


class _NotFakeError(Exception):
    """An argument is a real tensor, or cannot be part of a key."""


def _key(values: Any) -> tuple[Any, ...]:
    found: list[Any] = []
    for one in values:
        if type(one) is FakeTensor:
            found.append((one.shape, one.stride(), one.dtype))
        elif isinstance(one, torch.Tensor | torch.SymInt | torch.SymFloat):
            raise _NotFakeError
        elif isinstance(one, tuple | list):
            found.append(_key(one))
        else:
            found.append((type(one), one))
    return tuple(found)
