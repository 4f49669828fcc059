"""Training steps on fake tensors: what a GPU would allocate and compute, found without one."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.errors import FairleadError

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
flop_counter = pytest.importorskip("torch.utils.flop_counter")

from fairlead.prediction.cuda_allocator import MB, CachingAllocator, memory_use  # noqa: E402
from fairlead.prediction.cuda_kernels import workspaces  # noqa: E402
from fairlead.prediction.cuda_paths import built_untouched  # noqa: E402
from fairlead.prediction.fake_step import StepTrace, trace_step  # noqa: E402
from fairlead.prediction.predict_step import largest_batch, predict  # noqa: E402
from fairlead.prediction.step_prediction import DataDependentStep  # noqa: E402
from fairlead.prediction.training_step import Training  # noqa: E402

nn = torch.nn
WORKSPACES = 64.0  # cuBLAS: a handle for the forward and one for the backward pass


def perceptron(width: int = 1024, batch: int = 512, **fields: Any) -> Training:
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
    return Training(model, torch.empty(batch, width), torch.zeros(batch, dtype=torch.int64), **fields)


def operators(trace: StepTrace, phase: str | None = None) -> set[str]:
    return {one.operator for one in trace.kernels if phase in (None, one.phase)}


def dtypes(trace: StepTrace, operator: str) -> set[str]:
    return {one.dtype for one in trace.kernels if one.operator == operator}


def test_memory_of_parameters_gradients_and_optimizer_is_exact():
    parts = memory_use(trace_step(perceptron())).by_category_mb
    weights = 4 * (2 * 4 * 1024 * 1024 + 5 * 1024) / MB
    assert parts["parameters"] == pytest.approx(weights, abs=0.01)
    assert parts["gradients"] == pytest.approx(weights, abs=0.01)
    assert parts["optimizer"] == pytest.approx(2 * weights, abs=0.01), "two moments of AdamW"
    assert parts["activations"] == pytest.approx(weights, abs=0.01), "the update's own copy, at which the peak is"
    assert parts["workspace"] == WORKSPACES


def test_a_step_is_steady_from_the_second_on():
    once, twice = (memory_use(trace_step(perceptron(clip_norm=1.0), steps=steps)) for steps in (1, 2))
    assert once == twice


def test_precision_is_that_of_autocast_on_a_gpu():
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Softplus(), nn.Dropout(0.1), nn.Linear(64, 8))
    trace = trace_step(Training(model, torch.empty(32, 64), torch.zeros(32, dtype=torch.int64)))
    assert dtypes(trace, "addmm") == {"bfloat16"}
    assert dtypes(trace, "native_layer_norm") == dtypes(trace, "softplus") == {"float32"}
    assert "native_dropout" in operators(trace)
    casts = [one for one in trace.kernels if one.operator == "_to_copy" and one.phase == "forward" and one.elements == 64 * 64]
    assert sum(one.times for one in casts) == 1, "a weight is cast once"
    plain = trace_step(Training(model, torch.empty(32, 64), torch.zeros(32, dtype=torch.int64), precision="fp32"))
    assert dtypes(plain, "addmm") == {"float32"}


@pytest.mark.parametrize(
    ("precision", "masked", "wanted"), [("bf16", False, "flash"), ("bf16", True, "efficient"), ("fp32", False, "efficient")]
)
def test_attention_is_fused(precision: str, masked: bool, wanted: str):
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.split = nn.Linear(128, 384)

        def forward(self, values: Any) -> Any:
            query, key, value = (one.unflatten(-1, (2, 64)).transpose(1, 2) for one in self.split(values).chunk(3, -1))
            mask = torch.ones(64, 64, dtype=torch.bool, device=values.device).tril() if masked else None
            return nn.functional.scaled_dot_product_attention(query, key, value, mask)

    trace = trace_step(Training(Attention(), torch.empty(4, 64, 128), loss=lambda found, _: found.sum(), precision=precision))
    assert f"_scaled_dot_product_{wanted}_attention" in operators(trace, "forward")
    assert f"_scaled_dot_product_{wanted}_attention_backward" in operators(trace, "backward")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_recurrent_nets_run_as_in_cudnn(kind: Any, precision: str):
    net = kind(64, 128, 2, batch_first=True, bidirectional=True, dropout=0.1)
    trace = trace_step(Training(net, torch.empty(8, 20, 64), loss=lambda found, _: found[0].sum(), precision=precision))
    assert {"cudnn_rnn", "cudnn_rnn_backward"} <= operators(trace)
    assert not {"mm", "addmm"} & operators(trace)
    assert trace.parameters == sum(one.numel() for one in net.parameters())


def test_checkpointing_accumulation_scaling_and_optimizers_change_memory_as_they_should():
    def allocated(**fields: Any) -> float:
        return memory_use(trace_step(perceptron(batch=4096, **fields))).allocated_mb

    plain = allocated()
    assert allocated(optimizer="sgd") < plain
    assert allocated(optimizer="adafactor") < plain
    assert allocated(precision="fp32") > plain
    assert allocated(accumulation=2) >= plain
    assert allocated(precision="fp16", gradient_scaling=True, clip_norm=1.0) == pytest.approx(plain, rel=0.02)
    layers = [nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(8)]

    class Deep(nn.Sequential):
        again = False

        def gradient_checkpointing_enable(self) -> None:
            self.again = True

        def forward(self, values: Any) -> Any:
            for layer in self:
                checkpoint = torch.utils.checkpoint.checkpoint
                values = checkpoint(layer, values, use_reentrant=False) if self.again else layer(values)
            return values

    full, less = (
        memory_use(
            trace_step(Training(Deep(*layers), torch.empty(8192, 256), loss=lambda found, _: found.sum(), checkpointing=on))
        )
        for on in (False, True)
    )
    assert less.by_category_mb["activations"] < 0.5 * full.by_category_mb["activations"]


def test_the_model_keeps_its_tensors():
    training = perceptron(8, 4)
    before = [one.detach().clone() for one in training.model.parameters()]
    trace_step(training)
    assert all(torch.equal(one, other) for one, other in zip(training.model.parameters(), before))
    assert all(one.grad is None for one in training.model.parameters())


def test_a_large_model_is_built_and_traced_without_memory():
    import resource

    with built_untouched():
        model = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(24)))  # 6 GiB
        training = Training(model, torch.randn(4096, 8192), torch.randint(10, (4096,)))
    found = predict(training)
    assert found.parts_mb["parameters"] == 24 * 256
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20  # KiB
    assert found.memory_mb > found.reserved_mb > found.allocated_mb > 5 * 24 * 256


def test_compiled_modules_are_traced_as_eager_ones_and_said_to_be():
    plain, compiled = perceptron(64, 8), perceptron(64, 8)
    compiled = Training(torch.compile(compiled.model), compiled.inputs, compiled.targets)
    one, other = predict(plain), predict(compiled)
    assert other.notes == ("torch.compile: the eager graph was traced",)
    assert (one.allocated_mb, one.kernels) == (other.allocated_mb, other.kernels)


def test_a_model_that_looks_at_values_is_refused_in_words(caplog: pytest.LogCaptureFixture):
    class Sorting(nn.Linear):
        def forward(self, values: Any) -> Any:
            return super().forward(values) if values.sum() > 0 else values

    with pytest.raises(FairleadError, match=r"depends on values.*--trial"):
        predict(Training(Sorting(8, 8), torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(FairleadError, match="the training step failed with"):
        predict(Training(nn.Linear(8, 8), torch.zeros(4, 9), torch.zeros(4, dtype=torch.int64)))
    told = [one for one in caplog.records if one.name.split(".")[0] == "torch"]  # threads of earlier tests may log, too
    assert not told, "PyTorch prints no traceback before the error"


def test_the_largest_batch_fits_and_a_larger_one_does_not():
    def make(size: int) -> Training:
        with built_untouched():
            return Training(nn.Linear(1024, 1024), torch.randn(size, 1024), torch.randint(1024, (size,)))

    batch, found = largest_batch(make)
    assert found.memory_mb <= 143_771
    assert predict(make(int(1.02 * batch))).memory_mb > 143_771
    with pytest.raises(FairleadError, match="one sample needs"):
        largest_batch(lambda size: make(size * 10**9))


def test_blocks_are_rounded_split_and_merged_as_in_pytorch():
    allocator = CachingAllocator()
    small = [allocator.allocate(1) for _ in range(3)]
    assert (allocator.allocated, allocator.reserved) == (3 * 512, 2 * MB)
    large = allocator.allocate(3 * MB)
    assert allocator.reserved == 22 * MB
    huge = allocator.allocate(11 * MB)
    assert allocator.reserved == 22 * MB, "it fits into the rest of the 20 MiB segment"
    assert allocator.allocate(6 * MB).size == 6 * MB, "1 MiB or less is not split off"
    for block in (large, huge, *small):
        allocator.release(block)
    assert allocator.allocate(14 * MB).size == 14 * MB
    assert allocator.reserved == 22 * MB


def test_workers_share_memory_by_their_sharding():
    with built_untouched():
        layers = [nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(12)]
        training = Training(nn.Sequential(*layers), torch.randn(64, 2048), torch.randint(10, (64,)))
    alone, copies, shards = predict(training), predict(training, workers=8), predict(training, workers=8, sharding="fsdp")
    weights = alone.parts_mb["parameters"]
    assert copies.allocated_mb == pytest.approx(alone.allocated_mb + weights, rel=0.01), "buckets of gradients"
    assert copies.communication_mb == pytest.approx(2 * 7 / 8 * weights, rel=0.01)
    assert shards.parts_mb["optimizer"] == pytest.approx(alone.parts_mb["optimizer"] / 8)
    assert shards.allocated_mb < 0.5 * alone.allocated_mb
    assert shards.communication_mb == pytest.approx(3 * 7 / 8 * weights, rel=0.01)
    assert copies.steps_per_s <= alone.steps_per_s
    assert copies.speeds == pytest.approx(alone.speeds), "a job with one worker carries them too"
    assert copies.speeds[8] == pytest.approx(8 * copies.steps_per_s)
    assert sorted(predict(training, workers=3).speeds) == [1, 2, 3, 4, 8]
    with pytest.raises(FairleadError, match="ddp or fsdp"):
        predict(training, workers=2, sharding="none")


def test_cross_entropy_is_in_the_type_of_its_input_as_on_a_gpu():
    trace = trace_step(perceptron(64, 8))
    assert dtypes(trace, "_log_softmax") == {"bfloat16"}, "cross_entropy passes its input's type on"
    assert dtypes(trace, "nll_loss_forward") == {"float32"}


@pytest.mark.parametrize("turned", [False, True])
def test_attention_with_a_learned_mask_is_fused_if_its_rows_are_contiguous(turned: bool):
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(16, 16))

        def forward(self, values: Any) -> Any:
            return nn.functional.scaled_dot_product_attention(values, values, values, self.bias.t() if turned else self.bias)

    trace = trace_step(Training(Biased(), torch.empty(2, 4, 16, 32), loss=lambda found, _: found.sum()))
    fused = {f"_scaled_dot_product_efficient_attention{end}" for end in ("", "_backward")}
    assert {name for name in operators(trace) if "attention" in name} == (set() if turned else fused)
    assert ("bmm" in operators(trace)) is turned


@pytest.mark.parametrize(
    ("shape", "dims", "mb"),
    [
        ((65536, 256), [0], 128.0),  # measured, as are the next two
        ((4816, 3072), [0], 114.0),
        ((64, 1024, 3072), [0, 1], 132.0),
        ((4816, 3072), [1], 0.0),
        ((32, 64, 56, 56), [0, 2, 3], 0.0),
        ((16, 3072), [0], 0.0),
        ((), [-1], 0.0),
        ((10**6, 0, 3), [0], 0.0),
    ],
)
def test_sums_of_rows_exchange_partial_sums_in_memory(shape: tuple[int, ...], dims: list[int], mb: float):
    values = torch.empty(shape, device="meta")
    assert sum(workspaces("sum", (values, dims), [values.sum(dims)])) / MB == mb


def test_a_mask_is_copied_to_be_summed():
    mask = torch.empty(1024, 1024, dtype=torch.bool, device="meta")
    assert [*workspaces("sum", (mask,), [mask.sum()])] == [8 * 1024 * 1024]
    low = mask.to(torch.bfloat16)
    assert [*workspaces("sum", (low,), [low.sum(dtype=torch.float32)])] == []


@pytest.mark.parametrize(("precision", "copies"), [("fp32", 1), ("bf16", 0)])
def test_batch_normalization_copies_transposed_values_in_fp32_only(precision: str, copies: int):
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, values: Any) -> Any:
            return self.norm(self.into(values).transpose(1, 2)).mean((1, 2))

    trace = trace_step(Training(Turned(), torch.empty(4, 16, 8), precision=precision, loss=lambda found, _: found.sum()))
    made = [one for one in trace.kernels if one.operator == "clone" and one.elements == 4 * 16 * 8 and one.phase == "forward"]
    assert sum(one.times for one in made) == copies


@pytest.mark.parametrize(("kind", "states"), [(nn.LSTMCell, 2), (nn.GRUCell, 1)])
def test_cells_are_fused(kind: Any, states: int):
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = kind(8, 16), nn.Linear(16, 4)

        def forward(self, values: Any) -> Any:
            state = values.new_zeros(values.shape[1], 16)
            given = (state, state) if states == 2 else state
            for one in values:
                given = self.cell(one, given)
            return self.head(given[0] if states == 2 else given)

    trace = trace_step(Training(Cells(), torch.empty(5, 20, 8), torch.zeros(20, dtype=torch.int64)))
    counts = {one.operator: one.times for one in trace.kernels if one.operator.startswith("_thnn")}
    assert counts == {"_thnn_fused_cell": 5, "_thnn_fused_cell_backward": 5}
    assert not operators(trace) & {"sigmoid", "tanh"}
    casts = [one for one in trace.kernels if one.operator == "_to_copy" and one.phase == "forward"]
    gates = 4 if states == 2 else 3
    wide = sum(one.times for one in casts if one.elements in (gates * 16 * 8, gates * 16 * 16))
    assert wide == 2, "each weight is cast once"


def test_checks_of_masks_pass():
    class Masked(nn.Linear):
        def forward(self, values: Any) -> Any:
            if not (values == 0).all() or (values > 1).any():
                raise ValueError("never")
            return values if torch.rand([]) < 0.1 else super().forward(values)

    found = predict(Training(Masked(8, 4), torch.empty(16, 8), torch.zeros(16, dtype=torch.int64)))
    assert len(found.notes) == 3


def test_a_mask_that_is_counted_hides_nothing():
    class Counted(nn.Linear):
        def __init__(self, count: int) -> None:
            super().__init__(8, 4)
            self.count = count

        def forward(self, values: Any) -> Any:
            return super().forward(values) if (values > 0).sum() == self.count else values

    batch = (torch.empty(16, 8), torch.zeros(16, dtype=torch.int64))
    assert predict(Training(Counted(16 * 8), *batch)).notes == ("all() was taken to be true",)
    with pytest.raises(DataDependentStep):
        predict(Training(Counted(7), *batch))


def test_nonzero_takes_the_most_that_it_can():
    class Chosen(nn.Linear):
        def forward(self, values: Any) -> Any:
            return super().forward(values)[(values[:, 0] > 0).nonzero()[:, 0]]

    found = predict(Training(Chosen(8, 4), torch.empty(16, 8), torch.zeros(16, dtype=torch.int64)))
    assert "all elements" in found.notes[0]


def test_flops_of_attention_are_counted_where_pytorch_does_not(monkeypatch):
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.made = nn.Linear(64, 64)

        def forward(self, values: Any) -> Any:
            queries = self.made(values).unflatten(-1, (4, 16)).transpose(1, 2)
            found = nn.functional.scaled_dot_product_attention(queries, queries, queries)
            return found.transpose(1, 2).flatten(2).mean(1)

    training = Training(Attention(), torch.empty(8, 32, 64), torch.zeros(8, dtype=torch.int64))

    def flops() -> dict[str, float]:
        return {one.operator: one.flops for one in trace_step(training).kernels if "attention" in one.operator}

    known = flops()
    assert len(known) == 2

    def refuse(*_: Any, **__: Any) -> int:
        raise AssertionError("shapes are incompatible")

    for packet in list(flop_counter.flop_registry):
        if "attention" in packet.__name__:
            monkeypatch.setitem(flop_counter.flop_registry, packet, refuse)
    assert flops() == known


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_experts_in_single_precision_are_traced(precision: str):
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.empty(4, 16, 8))

        def forward(self, values: Any) -> Any:
            ends = torch.arange(8, 40, 8, dtype=torch.int32)
            return nn.functional.grouped_mm(values, self.weights, offs=ends)

    trace = trace_step(Training(Experts(), torch.empty(32, 16), torch.zeros(32, dtype=torch.int64), precision=precision))
    assert dtypes(trace, "_grouped_mm") == {"float32"}, "autocast has no grouped product"


def test_values_are_taken_to_be_in_their_range():
    class Checked(nn.Linear):
        def forward(self, values: Any) -> Any:
            if values.max() >= 10 or values.min() < -10:
                raise ValueError("out of range")
            return super().forward(values)

    batch = (torch.empty(16, 8), torch.zeros(16, dtype=torch.int64))
    notes = predict(Training(Checked(8, 4), *batch)).notes
    assert notes == ("a check of max() was taken to be false", "a check of min() was taken to be false")

    class Read(nn.Linear):
        def forward(self, values: Any) -> Any:
            return super().forward(values[: int(values.max())])

    with pytest.raises(DataDependentStep):
        predict(Training(Read(8, 4), *batch))


@pytest.mark.parametrize("way", ["index", "select", "write", "real"])
def test_masks_that_index_take_the_most_that_they_can(way: str):
    class Masked(nn.Linear):
        def forward(self, values: Any) -> Any:
            found = super().forward(values)
            mask = torch.ones(16, dtype=torch.bool) if way == "real" else values[:, 0] > 0
            if way in ("index", "real"):
                return found[mask]
            if way == "select":
                return found.masked_select(mask[:, None]).view(-1, 4)
            found = found.clone()
            found[mask] = 0.0
            return found

    trace = trace_step(Training(Masked(8, 4), torch.empty(16, 8), torch.zeros(16, dtype=torch.int64), precision="fp32"))
    assert len(trace.notes) == 1
    assert "all elements" in trace.notes[0]
    losses = {one.elements for one in trace.kernels if one.operator == "_log_softmax"}
    assert losses == {16 * 4}, "the loss is of all rows"
    assert ("nonzero" in operators(trace)) is (way != "select")


def test_alignments_of_letters_are_traced():
    def loss(found: Any, letters: Any) -> Any:
        lengths = torch.full((4,), 20, dtype=torch.int64), torch.full((4,), 6, dtype=torch.int64)
        return nn.functional.ctc_loss(found.float().log_softmax(-1), letters, *lengths)

    letters = torch.ones(4, 6, dtype=torch.int64)
    trace = trace_step(Training(nn.Linear(8, 30), torch.empty(20, 4, 8), letters, loss))
    sizes = {one.operator: one.elements for one in trace.kernels if "ctc" in one.operator}
    assert sizes == {"_ctc_loss": 4 * 20 * (2 * 6 + 1), "_ctc_loss_backward": 20 * 4 * 30}
