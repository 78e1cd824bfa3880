"""The operators that networks are made of: what each means, in NumPy, and the dims of its results.

Names and meanings are ONNX's, of the newest version of each operator. A definition is a function of arrays ::

    @operator("LeakyRelu")
    def leaky_relu(x: Array, /, *, alpha: float = 0.01) -> Array:
        return np.where(x < 0, x * x.dtype.type(alpha), x)

whose positional parameters are the inputs (None where one is left out, ``*more`` where there may be any
number) and whose keywords are the attributes with their defaults. It computes in the data types of its inputs
and returns an array, or a tuple where there are several outputs.

Results may be views of inputs: nothing writes to an array that it is given.

What is known of the results before anything runs, dims and data types, a second function says
(:mod:`relayout.graph.operators.registry`).
"""

from relayout.graph.operators import (  # noqa: F401 (they fill the table)
    activations,
    attention,
    binary,
    blockwise,
    casts,
    control,
    convolution,
    cumulative,
    detection,
    dynamic,
    fused,
    gathering,
    gradients,
    images,
    integers,
    learning,
    losses,
    making,
    movement,
    ngrams,
    normalization,
    optimizers,
    pooling,
    products,
    quantization,
    randomness,
    rearrangement,
    recurrent,
    recurrent_training,
    reductions,
    resizing,
    sampling,
    sampling_gradients,
    selection,
    sequences,
    shapes,
    signals,
    slopes,
    statistics,
    strings,
    training,
    unary,
)
from relayout.graph.operators.registry import OPERATORS, Fact, Operator, operator

__all__ = ["OPERATORS", "Fact", "Operator", "operator"]
