"""Runs a training step on fake tensors, on a CPU machine and without memory, and records what a GPU would allocate and compute.
`cuda_paths` has what CUDA does otherwise than the CPU; `cuda_allocator` and `step_features` evaluate the record."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fairlead.core.errors import FairleadError
from fairlead.prediction import cuda_kernels
from fairlead.prediction.cuda_kernels import kernel_groups, launches, tensor_bytes, workspaces
from fairlead.prediction.cuda_paths import CpuForCuda, as_on_cuda
from fairlead.prediction.fake_operators import CPU, INDEXED, NO_KERNEL, AssumedValues, FakeOperators
from fairlead.prediction.step_prediction import DataDependentStep
from fairlead.prediction.training_step import Training, TrainingStep

DATA = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
fake_tensor.log.setLevel("CRITICAL")  # an error of the user's model is raised, with its text; no traceback before it


class Kernel(NamedTuple):
    """An operator of one step, as it runs on the GPU; `times` operators are alike."""

    phase: str  # forward, backward, recompute (of checkpointed activations) or update
    operator: str
    dtype: str
    flops: float
    read: int  # bytes
    written: int
    elements: int  # of the largest output
    launches: int
    times: int = 1
    groups: int = 0  # of a convolution; channels of a batch normalization


@dataclass(frozen=True)
class StepTrace:
    """What a training step does to a GPU. Events are ("a", tensor, bytes), ("f", tensor) and ("w", bytes): allocated, freed,
    and workspace that an operator holds while it runs."""

    setup: tuple[tuple[Any, ...], ...]  # events before the first step: parameters, buffers, inputs
    steps: tuple[tuple[tuple[Any, ...], ...], ...]  # events of each step
    categories: Mapping[int, str]  # of each tensor; activations where none is given
    kernels: tuple[Kernel, ...]  # of the last step
    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    tensors: int  # trainable ones
    views: Mapping[str, int]  # operators without a kernel, by phase
    modules: int  # that are called in a step
    blocks: tuple[int, ...]  # bytes of the parameters of each repeated block, then of the others
    notes: tuple[str, ...] = ()


def trace_step(training: Training, steps: int = 1) -> StepTrace:
    """Trace a training, without a GPU.

    Args:
        training: The training. Its model and its batch stay as they are.
        steps: Optimizer steps to trace. The allocator's model repeats the last one.

    Returns:
        The trace.

    Raises:
        FairleadError: If the model cannot run without real values.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    recorder, notes = Recorder(FakeOperators(mode)), _notes(training.model)
    with _as_fake(training, mode) as faked, as_on_cuda(recorder.note_kernel), CpuForCuda():
        try:
            recorder.begin(faked)
            step = _RecordedStep(faked, recorder)
            for _ in range(steps):
                recorder.begin_step()
                with mode, recorder:
                    step.step()
                recorder.end_step()
        except FairleadError:
            raise
        except Exception as problem:
            raise _explained(problem) from problem
        finally:
            recorder.events = []  # what is freed from here on is no part of a step
            torch.clear_autocast_cache()
            for one in faked.model.parameters():
                one.grad = None
        parameters = [(one, one.requires_grad) for one in faked.model.parameters()]
        trained = [one for one, trainable in parameters if trainable]
        return StepTrace(
            tuple(recorder.setup),
            tuple(map(tuple, recorder.steps)),
            dict(recorder.categories),
            tuple(one._replace(times=times) for one, times in recorder.kernels.items()),
            sum(one.numel() for one, _ in parameters),
            sum(one.numel() * one.element_size() for one, _ in parameters),
            sum(one.numel() * one.element_size() for one in trained),
            len(trained),
            dict(recorder.views),
            sum(1 for _ in faked.model.modules()) * faked.accumulation,
            _blocks(faked.model),
            (*notes, *sorted(recorder.assumed.notes)),
        )


def _notes(model: Any) -> tuple[str, ...]:
    compiled = any(hasattr(one, "_orig_mod") or one._compiled_call_impl is not None for one in model.modules())
    return ("torch.compile: the eager graph was traced",) if compiled else ()


def _blocks(model: Any) -> tuple[int, ...]:
    """Bytes of the parameters of each block: the members of the outermost lists of alike modules."""

    def size(module: Any) -> int:
        return sum(one.numel() * one.element_size() for one in module.parameters())

    found: list[int] = []

    def visit(module: Any) -> None:
        children = list(module.children())
        kinds = Counter(type(one) for one in children)
        for child in children:
            whole = (
                isinstance(module, torch.nn.ModuleList | torch.nn.Sequential)
                and kinds[type(child)] > 1
                and any(child.children())
            )
            if whole:
                found.append(size(child))
            else:
                visit(child)

    visit(model)
    rest = size(model) - sum(found)
    return (*found, max(rest, 0))


@contextmanager
def _as_fake(training: Training, mode: FakeTensorMode) -> Iterator[Training]:
    """The training with fake tensors in its model and its batch; the model gets its own tensors back."""
    memo: dict[int, Any] = {}
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def fake(tensor: Any) -> Any:
        if id(tensor) not in memo:
            with mode:
                if 0 in tensor.stride():  # as `built_untouched` makes the largest ones
                    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                else:
                    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            made = torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made
            memo[id(tensor)] = made if isinstance(tensor, torch.nn.Parameter) else made.requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    def batch(given: Any) -> Any:
        given = dict(given) if isinstance(given, Mapping) else given
        return tree_map_only(torch.Tensor, fake, given)

    model = training.model
    try:
        for module in model.modules():
            for place in (module._parameters, module._buffers):
                kept.append((place, dict(place)))
                place.update({name: None if one is None else fake(one) for name, one in place.items()})
            if isinstance(flat := module.__dict__.get("_flat_weights"), list):  # of recurrent nets
                kept.append((module.__dict__, {"_flat_weights": flat}))
                module.__dict__["_flat_weights"] = [None if one is None else fake(one) for one in flat]
        yield replace(training, inputs=batch(training.inputs), targets=batch(training.targets))
    finally:
        for place, before in kept:
            place.update(before)


class _RecordedStep(TrainingStep):
    """Tells the recorder in which phase the step is."""

    def __init__(self, training: Training, recorder: Recorder) -> None:
        super().__init__(training, "cpu")
        self.recorder = recorder

    def forward(self) -> Any:
        self.recorder.phase = "forward"
        return super().forward()

    def loss(self, output: Any) -> Any:
        found = super().loss(output)
        self.recorder.phase = "backward"
        return found

    def update(self) -> None:
        self.recorder.begin_update([one.grad for one in self.model.parameters() if one.grad is not None])
        with fake_tensor.unset_fake_temporarily():  # counters of steps stay real numbers
            super().update()


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records what operators allocate, free and compute."""

    def __init__(self, operators: FakeOperators) -> None:
        super().__init__()
        self.operators = operators
        self.setup: list[tuple[Any, ...]] = []
        self.steps: list[list[tuple[Any, ...]]] = []
        self.events = self.setup
        self.kernels, self.views = Counter[Kernel](), Counter[str]()
        self.categories: dict[int, str] = {}
        self.alive: dict[int, int] = {}  # storage -> tensor number
        self.begun: dict[int, str] = {}  # the phase in which a tensor was made
        self.made, self.phase = 0, "setup"
        self.handles, self.assumed = set[str](), AssumedValues()

    def begin(self, training: Training) -> None:
        """Record parameters, buffers and the batch, which exist before the first step."""
        for module in training.model.modules():
            for one in (*module._parameters.values(), *module._buffers.values()):
                if one is not None:
                    self.note_tensor(one, "parameters")
        for one in tree_leaves((training.inputs, training.targets)):
            if isinstance(one, FakeTensor):
                self.note_tensor(one, "inputs")

    def begin_step(self) -> None:
        """A step comes next."""
        self.steps.append([])
        self.events = self.steps[-1]
        self.kernels, self.views = Counter[Kernel](), Counter[str]()

    def begin_update(self, gradients: list[Any]) -> None:
        """The optimizer comes next; these are the gradients."""
        self.phase = "update"
        for one in gradients:
            number = self.alive.get(one.untyped_storage()._cdata)
            if number is not None and number not in self.categories:
                self.categories[number] = "gradients"

    def end_step(self) -> None:
        """A step is over: what the optimizer made and still has is its state."""
        for number in self.alive.values():
            if self.begun[number] == "update":
                self.categories.setdefault(number, "optimizer")

    def note_tensor(self, tensor: Any, category: str | None = None) -> int:
        """Record a tensor's storage, unless it is known; return its bytes if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.alive:
            return 0
        self.made += 1
        number, size = self.made, storage.nbytes()
        self.alive[key], self.begun[number] = number, self.phase
        self.events.append(("a", number, size))
        if category is not None:
            self.categories[number] = category
        weakref.finalize(storage, self._gone, key, number).atexit = False
        return int(size)

    def _gone(self, key: int, number: int) -> None:
        if self.alive.get(key) == number:
            del self.alive[key]
        self.events.append(("f", number))

    def note_kernel(self, name: str, flops: float, read: Any, written: Any, launches: int = 1, workspace: int = 0) -> None:
        """Record a kernel that has no operator here."""
        if workspace:
            self.events.append(("w", int(workspace)))
        self._add(name, flops, [*read], [*written], launches)

    def _phase(self) -> str:
        """Only a recomputed forward pass needs gradients of what it does within a backward pass."""
        return "recompute" if self.phase == "backward" and torch.is_grad_enabled() else self.phase

    def _add(self, name: str, flops: float, ins: list[Any], outs: list[Any], launches: int, groups: int = 0) -> None:
        reads = sum(map(tensor_bytes, outs)) if name in cuda_kernels.LOOKUPS else sum(map(tensor_bytes, ins))
        kind = str(outs[0].dtype if not ins else max(ins, key=tensor_bytes).dtype).removeprefix("torch.")
        elements = max((one.numel() for one in outs), default=0)
        written = sum(map(tensor_bytes, outs))
        one = Kernel(self._phase(), name, kind, float(flops), reads, written, elements, launches, groups=groups)
        self.kernels[one] += 1

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.prim.device.default:
            return CPU
        named = kwargs or {}
        if function.overloadpacket.__name__ in INDEXED:
            args = (args[0], self._places(args[1]), *args[2:])
        if function is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            if self.phase == "update":
                return 1.0  # some optimizers read norms; no tensor depends on the value
            if (value := self.assumed.answer(args[0])) is not None:
                return value
        if function is torch.ops.aten.nonzero.default and isinstance(args[0], FakeTensor):
            self.assumed.notes.add("nonzero: all elements were taken to be nonzero, the most memory that it can need")
            found = args[0].new_empty((args[0].numel(), args[0].dim()), dtype=torch.int64)
        elif function is torch.ops.aten.masked_select.default:
            self.assumed.notes.add("masked_select: all elements were taken to be selected, the most memory that it can need")
            found = args[0].new_empty(torch.broadcast_shapes(args[0].shape, args[1].shape)).flatten()
        else:
            found = self.operators.run(function, args, named)
        if function.namespace == "prim":
            return found
        self.assumed.follow(function, args, found)
        outs = [one for one in (found if isinstance(found, list | tuple) else (found,)) if isinstance(one, FakeTensor)]
        if not outs and not function._schema.is_mutable:
            return found
        name = function.overloadpacket.__name__
        new = sum(self.note_tensor(one) for one in outs)
        if (new == 0 and not function._schema.is_mutable) or name in NO_KERNEL:
            self.views[self._phase()] += 1
            return found
        ins = [one for one in tree_leaves((args, named)) if isinstance(one, FakeTensor)]
        if not ins and not outs:
            return found
        if name in cuda_kernels.MATMULS:
            self._handle()
        flops = cuda_kernels.operator_flops(function, args, named, found)
        for size in workspaces(name, args, outs):
            self.events.append(("w", size))
        changed = outs or ins[: len(args[0]) if isinstance(args[0], list | tuple) else 1]
        self._add(name, flops, ins, changed, launches(name, args, ins), kernel_groups(name, args))
        return found

    def _places(self, indices: Any) -> list[Any]:
        """Indices without masks: CUDA looks for the places of their elements first."""
        found: list[Any] = []
        for one in indices:
            if one is not None and one.dtype in (torch.bool, torch.uint8):
                with self.operators.mode:
                    mask = one if isinstance(one, FakeTensor) else torch.empty(one.shape, dtype=one.dtype)
                found.extend(self.__torch_dispatch__(torch.ops.aten.nonzero.default, (), (mask,)).unbind(1))
            else:
                found.append(one)
        return found

    def _handle(self) -> None:
        """Each thread that multiplies matrices has a cuBLAS handle, with a workspace that it keeps."""
        thread = "backward" if self.phase == "backward" else "forward"
        if thread not in self.handles:
            self.handles.add(thread)
            self.made += 1
            self.categories[self.made] = "workspace"
            self.events.append(("a", self.made, cuda_kernels.CUBLAS_WORKSPACE))


def _explained(problem: Exception) -> FairleadError:
    """The error in words, with what to do."""
    text = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
    guards = (
        "GuardOnDataDependentSymNode",
        "data pointer",
        "data-dependent",
        "fake tensor",
        "FakeTensor",
        ".item()",
        ".tolist()",
        "numpy",
    )
    if isinstance(problem, DATA) or any(one in text for one in guards):
        return DataDependentStep(
            f"predict module: the model depends on values of its tensors ({text}), so its step cannot be traced without data."
            " Run 'fairlead predict module --trial' on a machine with a GPU; it trains for a few seconds there"
        )
    return FairleadError(f"predict module: the training step failed with {text}")
