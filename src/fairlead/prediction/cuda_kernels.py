"""What CUDA does for an operator: how many kernels it launches, and the workspace that it holds while it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

CUBLAS_WORKSPACE = 32 * 2**20  # of Hopper, for each handle; the backward pass has a thread and a handle of its own
MULTIPROCESSORS = 132  # of an H200
_SUMMED_AS_FP32 = {(torch.bfloat16, torch.float32), (torch.float16, torch.float32)}
MATMULS = {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "_addmm_activation"}
LOOKUPS = {"embedding", "index_select", "gather", "index", "_embedding_bag", "slice_backward", "select_backward"}


def tensor_bytes(tensor: Any) -> int:
    """Bytes that a kernel moves for a tensor; repeated elements once."""
    return int(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def launches(name: str, args: Any, ins: list[Any]) -> int:
    """Kernels that an operator launches on a GPU."""
    if name.startswith(("_foreach", "_amp_foreach", "_fused")):
        lists = [one for one in args if isinstance(one, list | tuple) and one and isinstance(one[0], torch.Tensor)]
        if not lists:
            return 1
        tensors = {1: 110, 2: 64, 3: 48, 4: 36}.get(len(lists), 30)
        chunks = sum(-(-one.numel() // 65536) for one in lists[0])
        return int(max(-(-chunks // 320), -(-len(lists[0]) // tensors)))
    return LAUNCHES.get(name, 1)


def kernel_groups(name: str, args: Any) -> int:
    """Groups of a convolution, or channels of a batch normalization; 0 for others."""
    if name in ("convolution", "convolution_backward"):
        return int(args[8 if name == "convolution" else 9])
    return int(args[0].shape[1]) if name.startswith("native_batch_norm") else 0


LAUNCHES = {
    "convolution_backward": 2,
    "native_layer_norm_backward": 2,
    "native_batch_norm": 2,
    "native_batch_norm_backward": 2,
    "native_group_norm": 3,
    "native_group_norm_backward": 4,
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 3,
    "embedding_dense_backward": 6,
    "index_put": 4,
    "index_put_": 4,
    "nll_loss_backward": 2,
    "sort": 3,
}


def workspaces(name: str, args: Any, outs: list[Any]) -> Iterator[int]:
    """Bytes that an operator holds while it runs on a GPU, besides its inputs and outputs."""
    if name == "convolution":
        yield _convolution_workspace(args[0], args[1], outs[0], args[8])
    elif name == "convolution_backward":
        for wanted in args[10][:2]:
            if wanted:
                yield _convolution_workspace(args[1], args[2], args[0], args[9])
    elif name in ("_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention_backward"):
        query = args[1]
        batch, heads, rows, width = query.shape
        rows, width = -(-rows // 128) * 128, -(-width // 32) * 32
        accumulated = 4 * batch * heads * rows * width if query.element_size() < 4 else 0
        yield accumulated + 4 * batch * heads * rows
    elif name in ("sum", "mean"):
        kinds = (args[0].dtype, outs[0].dtype)
        if kinds[0] != kinds[1] and kinds not in _SUMMED_AS_FP32:
            yield args[0].numel() * outs[0].element_size()  # such as a mask, whose elements become int64
        if len(args) > 1 and isinstance(args[1], list | tuple) and args[0].numel() > 1:  # so it has dimensions
            yield _reduction_workspace(args[0], {one % args[0].dim() for one in args[1] or range(args[0].dim())})
    elif name == "embedding_dense_backward":
        yield 4 * 8 * args[1].numel()  # sorted indices, their order, and the room to sort


def _convolution_workspace(values: Any, weight: Any, output: Any, groups: int) -> int:
    """cuDNN's tensor cores want channels last: other layouts are copied."""
    if groups > 1 and groups == values.shape[1]:
        return 0  # PyTorch's own kernels
    last = values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last) and not values.is_contiguous()
    return 0 if last else tensor_bytes(values) + tensor_bytes(weight) + tensor_bytes(output)


def _reduction_workspace(values: Any, dims: set[int]) -> int:
    """Partial sums that thread blocks exchange, as in ATen's Reduce.cuh. They are many where rows are summed, as for the
    gradient of a bias; sums along the last dimension are made within a block."""
    order = sorted((stride, dim) for dim, stride in enumerate(values.stride()) if values.shape[dim] > 1)
    if not order or order[0][1] in dims:
        return 0
    inputs = math.prod(values.shape[dim] for dim in dims)
    outputs, width, vector = values.numel() // max(inputs, 1), 1, 4 if order[0][0] == 1 else 1
    rest = list(order)
    while rest and rest[0][1] not in dims and rest[0][0] == order[0][0] * width:  # what is adjacent is one dimension
        width *= values.shape[rest.pop(0)[1]]
    while any(one % vector for one in (width, *(stride for stride, _ in rest))):
        vector //= 2
    most = 512 // vector
    across, down = (min(most, 1 << max(one, 1).bit_length() - 1) for one in (outputs // vector, inputs))
    high = min(down, most // min(across, 32))
    wide = min(across, most // high)
    each, grid, wanted = -(-inputs // high), -(-(outputs // vector) // wide), MULTIPROCESSORS * (2048 // (wide * high))
    if inputs < min(16 * high, 256) or each < 256 or grid > wanted:
        return 0
    blocks = max(min(-(-wanted // grid), -(-each // 16)), -(-each // 256))
    return 4 * outputs * blocks * wide * vector if blocks > 1 else 0


def operator_flops(function: Any, args: Any, named: Any, found: Any) -> float:
    """Floating-point operations of an operator's products; 0 for operators that multiply no matrices."""
    count = flop_registry.get(function.overloadpacket)
    try:
        return float(count(*args, **named, out_val=found)) if count is not None else 0.0
    except AssertionError:  # PyTorch before 2.13 does not count attention whose queries share keys
        backward = "backward" in function.overloadpacket.__name__
        queries, _, values = args[1:4] if backward else args[:3]
        products = 3 * queries.shape[-1] + 2 * values.shape[-1] if backward else queries.shape[-1] + values.shape[-1]
        return float(2 * math.prod(queries.shape[:-1]) * values.shape[-2] * products)
