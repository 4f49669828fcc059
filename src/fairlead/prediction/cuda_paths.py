"""Makes fake tensors on a CPU machine take the ways that CUDA tensors take: CUDA's autocast lists, fused attention, native
dropout, cuDNN's recurrent nets, foreach optimizers. PyTorch's dispatch tables are changed inside `as_on_cuda` only."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
LOW = (torch.bfloat16, torch.float16)
# CUDA's autocast lists (ATen/autocast_mode.h): in fp32; with an output in fp32; in 16 bits; in the widest type of the inputs.
IN_FP32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm native_layer_norm
    group_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss binary_cross_entropy_with_logits dist cdist renorm logsumexp frobenius_norm nuclear_norm norm
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d pdist rms_norm"""
OUT_FP32 = "softmax log_softmax sum prod cumsum cumprod linalg_vector_norm linalg_matrix_norm"
IN_LOW = "prelu addmv mv addr einsum chain_matmul linalg_multi_dot rnn_tanh_cell rnn_relu_cell"
WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
SMALL_ENOUGH_TO_SET = 4096  # elements: values of smaller tensors may decide how a model is built
LARGEST_PROMISED = 2**28  # elements
RESERVED = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}  # values that cuDNN keeps for each state; measured


class CpuForCuda(TorchFunctionMode):  # type: ignore[misc]
    """Puts on the CPU what names CUDA; while a model is built, leaves large tensors as the system gives them, untouched."""

    def __init__(self, leave_unset: bool = False) -> None:
        super().__init__()
        self.leave_unset = leave_unset

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named, name = kwargs or {}, getattr(function, "__name__", "")
        if name == "cuda" and args:
            return args[0]
        if _is_cuda(named.get("device")):
            named = {**named, "device": "cpu"}
        if name == "to" and any(map(_is_cuda, args[1:])):
            args = tuple("cpu" if _is_cuda(one) else one for one in args)
        if self.leave_unset and (kept := _left_unset(name, args, named)) is not None:
            return kept
        return function(*args, **named)


def _is_cuda(value: Any) -> bool:
    return (isinstance(value, str) and value.startswith("cuda")) or (isinstance(value, torch.device) and value.type == "cuda")


def _left_unset(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if name in ("randn", "rand", "zeros", "ones", "full", "normal", "randint") and "generator" not in named:
        sizes = named.get("size") or [one for one in args if isinstance(one, tuple | list | torch.Size)] or [args]
        sizes = sizes[0] if sizes and isinstance(sizes[0], tuple | list | torch.Size) else sizes
        if not all(isinstance(one, int) for one in sizes):
            return None
        count = 1
        for one in sizes:
            count *= one
        if count <= SMALL_ENOUGH_TO_SET or (name == "full" and "dtype" not in named):
            return None
        keep = {key: value for key, value in named.items() if key in ("dtype", "device", "requires_grad")}
        if name == "randint":  # classes and words may be looked up while the model is built: they must be valid
            whole = torch.zeros(1, dtype=keep.get("dtype", torch.int64)).expand(sizes)
            return whole if count > LARGEST_PROMISED else whole.clone()
        # One that no system would promise: a single element, seen as many.
        return torch.empty(1, **keep).expand(sizes) if count > LARGEST_PROMISED else torch.empty(sizes, **keep)
    tensor = args[0] if args else named.get("tensor")
    in_place = name.endswith("_") and not name.endswith("__") and name not in ("requires_grad_", "detach_", "resize_", "set_")
    if in_place and isinstance(tensor, torch.Tensor) and tensor.numel() > SMALL_ENOUGH_TO_SET:
        return tensor
    return None


def _unset_init(tensor: Any, *_args: Any, **_named: Any) -> Any:
    return tensor


@contextmanager
def built_untouched() -> Iterator[None]:
    """Build models inside: their large tensors take no memory and no time."""
    slow = [
        name for name in ("_no_grad_trunc_normal_", "trunc_normal_", "orthogonal_", "sparse_") if hasattr(torch.nn.init, name)
    ]
    with ExitStack() as stack:
        for name in slow:  # these sample, sort or factorise until the values fit: without end on unset memory
            stack.enter_context(patch.object(torch.nn.init, name, _unset_init))
        stack.enter_context(CpuForCuda(leave_unset=True))
        yield


@contextmanager
def as_on_cuda(note_kernel: Callable[..., None]) -> Iterator[None]:
    """Operators on CPU tensors inside do what CUDA would; `note_kernel` hears of kernels that have no operator here."""
    library = torch.library.Library("aten", "IMPL")
    began = torch.autocast.__init__

    def on_cpu(self: Any, device_type: str, dtype: Any = None, *args: Any, **named: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        began(self, device_type, dtype, *args, **named)

    def stepped(self: Any, optimizer: Any, state: Any, *args: Any, **named: Any) -> Any:
        return optimizer.step(*args, **named)  # fake gradients are never infinite

    from torch.optim import optimizer as optimizers
    from torch.utils import _foreach_utils as foreach

    devices = ["cuda", "cpu"]
    kinds = [*optimizers._foreach_supported_types, FakeTensor]
    with ExitStack() as stack:
        stack.callback(library._destroy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced is the intention
            _register(library, note_kernel)
        stack.enter_context(patch.object(torch.autocast, "__init__", on_cpu))
        stack.enter_context(patch.object(torch.amp.GradScaler, "_maybe_opt_step", stepped))
        for place in (optimizers, foreach):
            stack.enter_context(patch.object(place, "_get_foreach_kernels_supported_devices", lambda: devices))
            stack.enter_context(patch.object(place, "_foreach_supported_types", kinds, create=True))
        stack.enter_context(patch.object(torch.nn.utils.clip_grad, "_has_foreach_support", lambda *_: True))
        stack.enter_context(patch.object(foreach, "_has_foreach_support", lambda *_: True))
        for name, module in list(sys.modules.items()):  # on real tensors, masks that hide nothing are left out
            if name.startswith("transformers.") and callable(getattr(module, "is_tracing", None)):
                stack.enter_context(patch.object(module, "is_tracing", lambda *_: False))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        yield


def _register(library: Any, note_kernel: Callable[..., None]) -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    casts = {name: cast for names, cast in _CASTS for name in names.split()}
    for spelled in [one for one in torch._C._dispatch_get_all_op_names() if one.startswith("aten::")]:
        name, _, overload = spelled.removeprefix("aten::").partition(".")
        if has(spelled, "AutocastCUDA"):
            if name in casts:
                operator = getattr(getattr(aten, name), overload or "default")
                library.impl(spelled.removeprefix("aten::"), casts[name](operator), "AutocastCPU", allow_override=True)
        elif has(spelled, "AutocastCPU"):  # not on CUDA
            library.impl(spelled.removeprefix("aten::"), torch.library.fallthrough_kernel, "AutocastCPU", allow_override=True)
    library.impl("dropout", _dropout, "AutogradCPU")
    library.impl("linear", _linear, "AutogradCPU")
    library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
    library.impl("batch_norm", _batch_norm, "AutogradCPU")
    library.impl("lstm_cell", _lstm_cell(note_kernel), "AutogradCPU")
    library.impl("gru_cell", _gru_cell(note_kernel), "AutogradCPU")
    for name in ("softmax", "log_softmax"):
        library.impl(f"{name}.int", _softmax(name, note_kernel), "AutogradCPU")
    for kind in RESERVED:
        library.impl(f"{kind}.input", _recurrent(kind, note_kernel), "AutogradCPU")


# Autocast


@contextmanager
def _no_autocast() -> Iterator[torch.dtype]:
    kind = torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", False)
    try:
        yield kind
    finally:
        torch.set_autocast_enabled("cpu", True)


def _cast(values: Any, kind: torch.dtype) -> Any:
    if isinstance(values, list | tuple):
        return type(values)(_cast(one, kind) for one in values)
    floats = (*LOW, torch.float32)
    return values.to(kind) if isinstance(values, torch.Tensor) and values.dtype in floats and values.dtype != kind else values


def _in_fp32(operator: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **named: Any) -> Any:
        with _no_autocast():
            return operator(*_cast(args, torch.float32), **{key: _cast(one, torch.float32) for key, one in named.items()})

    return kernel


def _out_fp32(operator: Any) -> Callable[..., Any]:
    place = next((at for at, one in enumerate(operator._schema.arguments) if one.name == "dtype"), None)

    def kernel(*args: Any, **named: Any) -> Any:
        with _no_autocast():
            given = named.get("dtype") or (args[place] if place is not None and len(args) > place else None)
            if place is not None and given is None and args[0].dtype in LOW:
                if operator._schema.arguments[place].kwarg_only or len(args) <= place:
                    named = {**named, "dtype": torch.float32}
                else:
                    args = (*args[:place], torch.float32, *args[place + 1 :])
            return operator(*args, **named)

    return kernel


def _in_low(operator: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **named: Any) -> Any:
        with _no_autocast() as kind:
            return operator(*_cast(args, kind), **named)

    return kernel


def _widest(operator: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **named: Any) -> Any:
        with _no_autocast() as kind:
            wide = any(isinstance(one, torch.Tensor) and one.dtype == torch.float32 for one in args)
            return operator(*_cast(args, torch.float32 if wide else kind), **named)

    return kernel


_CASTS = ((IN_FP32, _in_fp32), (OUT_FP32, _out_fp32), (IN_LOW, _in_low), (WIDEST, _widest))


# Operators that CUDA does in another way than the CPU


def _dropout(values: Any, p: float, train: bool) -> Any:
    if not train or p == 0 or values.numel() == 0:
        return values
    return aten.native_dropout(values, p, True)[0] if p < 1 else values * 0


def _linear(values: Any, weight: Any, bias: Any = None) -> Any:
    """As at::linear; that of C++ adds the bias of a fake tensor out of place."""
    if bias is not None and (values.dim() == 2 or (values.dim() == 3 and values.is_contiguous())):
        flat = values.reshape(-1, values.shape[-1])
        return torch.addmm(bias, flat, weight.t()).view(*values.shape[:-1], weight.shape[0])
    product = torch.matmul(values, weight.t())
    return product if bias is None else product.add_(bias)


def _batch_norm(values: Any, weight: Any, bias: Any, mean: Any, variance: Any, train: bool, *others: Any) -> Any:
    """In fp32, cuDNN copies values whose layout is neither channels first nor channels last, and keeps the copy."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(values.dim(), torch.contiguous_format)
    if train and weight is not None and values.dtype == torch.float32 and not values.is_contiguous(memory_format=last):
        values = values.contiguous()
    return aten._batch_norm_impl_index(values, weight, bias, mean, variance, train, *others)[0]


def _softmax(name: str, note_kernel: Callable[..., None]) -> Callable[..., Any]:
    """From fp16 to fp32 in one kernel, without a copy in fp32; so is the way back."""
    plain = getattr(aten, f"_{name}")

    def kernel(values: Any, dim: int, dtype: Any = None) -> Any:
        if dtype == torch.float32 and values.dtype == torch.float16:
            return _WideSoftmax.apply(values, name, note_kernel)
        return plain(values if dtype is None else values.to(dtype), dim, False)

    return kernel


class _WideSoftmax(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, values: Any, name: str, note_kernel: Callable[..., None]) -> Any:
        found = values.new_empty(values.shape, dtype=torch.float32)
        note_kernel(f"_{name}", 0.0, (values,), (found,))
        ctx.save_for_backward(found)
        ctx.about = (name, values.dtype, note_kernel)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (found,), (name, kind, note_kernel) = ctx.saved_tensors, ctx.about
        made = found.new_empty(found.shape, dtype=kind)
        note_kernel(f"_{name}_backward_data", 0.0, (gradient, found), (made,))
        return made, None, None


def _attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Flash attention in bf16 and fp16, the memory-efficient one in fp32 or with a mask, which may be learned."""
    low, width, groups = query.dtype in LOW, value.shape[-1], query.shape[1] // key.shape[1] if query.dim() == 4 else 1
    turned = mask is not None and mask.stride(-1) != 1  # as T5's: no fused kernel reads such rows
    spread = query.shape[:-2] != key.shape[:-2] and not enable_gqa  # as Falcon's: keys of one head for all queries
    if query.dim() != 4 or key.shape[-1] > 256 or turned or spread or (groups > 1 and enable_gqa and not low):
        return aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout, causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    if mask is None and low and query.shape[-1] == width:
        scale = scale or query.shape[-1] ** -0.5
        query, key, value = (_padded(one) for one in (query, key, value))
        found = aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, scale=scale)[0]
        return found[..., :width] if found.shape[-1] != width else found
    if groups > 1 and enable_gqa:
        key, value = (one.repeat_interleave(groups, 1) for one in (key, value))
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -1e4)
        mask = mask.to(query.dtype)
        if mask.shape[-1] % 8:  # padded to rows of 16 bytes
            mask = _padded(mask)[..., : mask.shape[-1]]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    given = (query, key, value) if mask is None else (query, key, value, mask)
    saves = torch.is_grad_enabled() and any(one.requires_grad for one in given)
    return aten._scaled_dot_product_efficient_attention(query, key, value, mask, saves, dropout, causal, scale=scale)[0]


def _padded(values: Any) -> Any:
    return torch.nn.functional.pad(values, (0, -values.shape[-1] % 8)) if values.shape[-1] % 8 else values


def _recurrent(kind: str, note_kernel: Callable[..., None]) -> Callable[..., Any]:
    """A recurrent net as cuDNN runs it: all layers and steps at once, with a reserve for the backward pass."""

    def kernel(
        values: Any,
        state: Any,
        weights: Any,
        biased: bool,
        layers: int,
        dropout: float,
        train: bool,
        both: bool,
        batch_first: bool,
    ) -> Any:
        first, *others = [*state] if isinstance(state, list | tuple) else [state]
        if torch.is_autocast_enabled("cpu"):
            low = torch.get_autocast_dtype("cpu")
            with _no_autocast():
                values, first, others = _cast(values, low), _cast(first, low), _cast(others, low)
                if any(one.dtype != low for one in weights):  # copied into one buffer in each forward pass
                    weights = _Flattened.apply(low, *weights)
        settings = (kind, layers, 2 if both else 1, batch_first, note_kernel)
        with _no_autocast() if torch.is_autocast_enabled("cpu") else ExitStack():
            found = _CudnnRecurrent.apply(settings, values, first, *others, *weights)
        return tuple(found)

    return kernel


class _Flattened(torch.autograd.Function):  # type: ignore[misc]
    """Weights cast into one buffer, as cuDNN wants them."""

    @staticmethod
    def forward(ctx: Any, kind: torch.dtype, *weights: Any) -> Any:
        ctx.kinds = [one.dtype for one in weights]
        whole = weights[0].new_empty(sum(one.numel() for one in weights), dtype=kind)
        parts = whole.split([one.numel() for one in weights])
        for part, one in zip(parts, weights):
            part.copy_(one.reshape(-1))
        return tuple(part.view(one.shape) for part, one in zip(parts, weights))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, *(one.to(kind) for one, kind in zip(gradients, ctx.kinds)))


class _CudnnRecurrent(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, settings: Any, values: Any, first: Any, *rest: Any) -> Any:
        kind, layers, directions, batch_first, note_kernel = settings
        width, (across, along) = first.shape[-1], values.shape[:2] if not batch_first else (values.shape[1], values.shape[0])
        steps, batch = (across, along) if not batch_first else (values.shape[1], values.shape[0])
        others, weights = (rest[:1], rest[1:]) if kind == "lstm" else ((), rest)
        states = steps * batch * width * directions  # of one layer
        output = values.new_empty(steps, batch, directions * width)
        output = output.transpose(0, 1).contiguous() if batch_first else output
        reserve = values.new_empty(states * (RESERVED[kind] * layers + layers - 1))
        ctx.settings, ctx.count, ctx.others = settings, sum(one.numel() for one in weights), len(others)
        ctx.flops = 2.0 * steps * batch * ctx.count
        ctx.kernels = layers * directions * steps
        of_layers, once, of_inputs = (4.6, 3.4, 8.0) if values.dtype in LOW else (2.4, 4.5, 4.0)  # measured with 180 nets
        size = states * (of_layers * layers + once) + 1.1 * ctx.count + of_inputs * values.numel()
        ctx.workspace = int(size) * values.element_size()
        note_kernel("cudnn_rnn", ctx.flops, (values, *weights), (output, reserve), ctx.kernels, workspace=ctx.workspace)
        ctx.save_for_backward(values, output, reserve, first, *others, *weights)
        return (output, torch.empty_like(first), *(torch.empty_like(one) for one in others))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        note_kernel = ctx.settings[-1]
        values, output, reserve, first, *rest = ctx.saved_tensors
        others, weights = rest[: ctx.others], rest[ctx.others :]
        made = torch.empty_like(values)
        states = [torch.empty_like(one) for one in (first, *others)]
        whole = values.new_zeros(ctx.count)
        parts = [part.view(one.shape) for part, one in zip(whole.split([one.numel() for one in weights]), weights)]
        note_kernel(
            "cudnn_rnn_backward",
            2 * ctx.flops,
            (values, output, reserve),
            (made, whole),
            2 * ctx.kernels,
            workspace=ctx.workspace,
        )
        return (None, made, *states, *parts)


def _lstm_cell(note_kernel: Callable[..., None]) -> Callable[..., Any]:
    def kernel(values: Any, state: Any, into: Any, along: Any, first: Any = None, second: Any = None) -> Any:
        gates = [torch.nn.functional.linear(*one) for one in ((values, into), (state[0], along))]
        return _FusedCell.apply((4, note_kernel), *gates, _cast(state[1], gates[0].dtype), first, second)

    return kernel


def _gru_cell(note_kernel: Callable[..., None]) -> Callable[..., Any]:
    def kernel(values: Any, before: Any, into: Any, along: Any, first: Any = None, second: Any = None) -> Any:
        gates = [torch.nn.functional.linear(*one) for one in ((values, into), (before, along))]
        return _FusedCell.apply((3, note_kernel), *gates, _cast(before, gates[0].dtype), first, second)

    return kernel


class _FusedCell(torch.autograd.Function):  # type: ignore[misc]
    """All gates of an LSTM or GRU cell in one kernel."""

    @staticmethod
    def forward(ctx: Any, about: Any, into: Any, along: Any, state: Any, first: Any, second: Any) -> Any:
        gates, note_kernel = about
        found = [torch.empty_like(state) for _ in range(2 if gates == 4 else 1)]
        kept = state.new_empty(state.shape[0], (4 if gates == 4 else 5) * state.shape[1])
        note_kernel("_thnn_fused_cell", 0.0, (into, along, state), (*found, kept))
        ctx.save_for_backward(kept, state, *found[1:])
        ctx.about = (about, into.shape, None if first is None else first.dtype)
        return tuple(found) if gates == 4 else found[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (kept, state, *_), ((gates, note_kernel), shape, kind) = ctx.saved_tensors, ctx.about
        made, before = [kept.new_empty(shape) for _ in range(1 if gates == 4 else 2)], torch.empty_like(state)
        note_kernel("_thnn_fused_cell_backward", 0.0, (kept, state), (*made, before))
        sums = [one.sum(0, dtype=kind) for one in (made[0], made[-1])] if kind else [None, None]
        return (None, made[0], made[-1], before, *sums)
