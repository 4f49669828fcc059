"""Kinds of ONNX operators, by what they are to a device and to the way back of a training."""

from __future__ import annotations


def _kinds(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONVOLUTIONS = _kinds("Conv ConvTranspose")
PRODUCTS = _kinds("Gemm MatMul")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CELLS = frozenset(GATES)

VIEWS = _kinds("Constant ConstantOfShape Flatten Identity Reshape Shape Size Squeeze Transpose Unsqueeze")
"""Another look at what is there: no work on the device."""

NEEDS_INPUTS = (
    CONVOLUTIONS
    | PRODUCTS
    | CELLS
    | _kinds("BatchNormalization LayerNormalization InstanceNormalization GroupNormalization MaxPool")
    | _kinds("Mul Div Pow Log Abs Erf Gelu HardSwish HardSigmoid Clip LeakyRelu Elu")
)
NEEDS_OUTPUT = CELLS | _kinds("Relu Sigmoid Tanh Softmax LogSoftmax Exp Sqrt Softplus")
"""What the way back is computed from, as automatic differentiation has it."""

KNOWN = (
    NEEDS_INPUTS
    | NEEDS_OUTPUT
    | VIEWS
    | _kinds("Add Sub Neg Reciprocal Min Max Mod Floor Ceil Sin Cos Cast Dropout Where Equal Less Greater And Or Not")
    | _kinds("Concat Split Slice Gather Pad Expand Tile Range Trilu ScatterND Resize Einsum")
    | _kinds("AveragePool GlobalAveragePool GlobalMaxPool ReduceMean ReduceSum ReduceMax")
)

PER_ELEMENT = {"BatchNormalization": 5.0, "LayerNormalization": 6.0, "Softmax": 5.0, "Gelu": 8.0, "Erf": 4.0, "HardSwish": 4.0}
"""Operations for each element; of what is not here, and does no more than look at each, one."""
