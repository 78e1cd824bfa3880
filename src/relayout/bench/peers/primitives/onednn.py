"""oneDNN's convolution, matrix product, inner product and recurrent layers, in the formats that it chooses.

Source, weights and destination have the format "any"; they are then laid out as the primitive descriptor
answered. Of a product of two activations the second matrix keeps its format. The library is told nothing that
would let it round sources to bf16.
"""

from __future__ import annotations

import numpy as np

from relayout.bench.networks import BackwardData, BackwardWeights, Conv, Forward, Product
from relayout.bench.operands import Floats, Operands, Work
from relayout.bench.passes import Pass
from relayout.bench.peers.dnnl import (
    BIAS,
    DIFF_DST,
    DIFF_SRC,
    DIFF_WEIGHTS,
    DST,
    SRC,
    WEIGHTS,
    Dims,
    Handle,
    Library,
    Primitive,
    Reorder,
    library,
)
from relayout.bench.peers.primitives import onednn_passes
from relayout.bench.peers.primitives.contestant import Computation
from relayout.bench.peers.primitives.recurrent import by_onednn
from relayout.bench.recurrent import Recurrent
from relayout.layout.format import letters
from relayout.tensor import aligned

__all__ = ["OneDNN"]

SCALES = 4096  # DNNL_ARG_ATTR_SCALES
FORWARD_TRAINING, FORWARD_INFERENCE, DIRECT = 64, 96, 1  # dnnl_forward_training and so on


class OneDNN:
    """oneDNN, with the primitive ``product`` for products: ``matmul`` or ``inner_product_forward``."""

    def __init__(self, name: str, product: str = "matmul") -> None:
        self.name = name
        self.product = product

    def available(self) -> str | None:
        """The version that the library reports, which is not that of the distribution."""
        found = library()
        return None if found is None else found.version

    def prepare(self, work: Work, operands: Operands, threads: int) -> Computation | None:
        """Make a primitive, and lay out its operands."""
        found = library()
        if found is None or isinstance(work, Forward):
            return None
        if self.product != "matmul" and (not isinstance(work, Product) or not work.has_bias):
            return None
        found.set_threads(threads)
        if isinstance(work, Recurrent):
            return by_onednn(found, work, operands)
        if isinstance(work, Pass):
            if not hasattr(found.c, f"dnnl_{work.kind}_forward_primitive_desc_create"):
                return None  # older versions have no group normalisation
            made = onednn_passes.Layer(found, work, operands)
            return Computation(made, made.result, made.implementation)
        layer = _Layer(found, work, operands, self.product)
        return Computation(layer, layer.result, layer.implementation)


class _Layer(Primitive):
    """A primitive whose operands lie as it chose."""

    implementation: str

    def __init__(self, library: Library, work: Conv | Product, operands: Operands, product: str) -> None:
        super().__init__(library)
        self.types = dict(zip((SRC, WEIGHTS, DST), work.types, strict=True))
        self.scaled = operands.scale is not None
        read, second, written = SRC, WEIGHTS, DST
        if isinstance(work, BackwardData):
            desc, read, written = self._backward_data(work), DIFF_DST, DIFF_SRC
        elif isinstance(work, BackwardWeights):
            desc, second, written = self._backward_weights(work), DIFF_DST, DIFF_WEIGHTS
        elif isinstance(work, Conv):
            desc = self._convolution(work)
        elif product == "matmul":
            desc = self._matmul(work)
        else:
            desc = self._inner_product(work)
            operands = operands._replace(weights=np.ascontiguousarray(operands.weights.T))
        sides = {read: operands.src, second: operands.weights}
        arguments = [(side, self.memory(*self._laid_out(desc, side, data))) for side, data in sides.items()]
        if operands.bias is not None:
            row = operands.bias if product != "matmul" or isinstance(work, Conv) else operands.bias[None]
            arguments.append((BIAS, self.memory(self._plain(row.shape), operands.bias)))
        if operands.scale is not None:
            arguments.append((SCALES | SRC, self.memory(self._plain((1,)), operands.scale)))
        self.dims = work.dst_dims
        self.chosen = library.chosen(desc, written)
        self.given = aligned(library.size(self.chosen))
        arguments.append((written, self.memory(self.chosen, self.given)))
        tags = [library.tag(library.chosen(desc, side)) for side in (read, second, written)]
        self.implementation = f"{library.implementation(desc)} {':'.join(tags)}"
        self.ready(desc, arguments)

    def result(self) -> Floats:
        """The destination, reordered to a plain array."""
        array = np.empty(self.dims, np.float32)
        Reorder(self.library, self.chosen, self.given, self._plain(self.dims), array)()
        return array

    def _plain(self, dims: tuple[int, ...]) -> Handle:
        return self.described(dims, "f32", "".join(letters(len(dims))))

    def _any(self, dims: tuple[int, ...], side: int = 0) -> Handle:
        return self.described(dims, self.types.get(side, "f32"), "any")

    def attributes(self) -> Handle:
        """Sums of integers are scaled by what the source is."""
        made = super().attributes()
        if self.scaled:
            self.library.call("dnnl_primitive_attr_set_scales_mask", made, SRC, 0)
        return made

    def _backward_data(self, work: BackwardData) -> Handle:
        """Made with the forward pass of training as a hint."""
        stride, padding = (Dims(number, number) for number in (work.stride, work.padding))
        return self.primitive_desc(
            *("convolution_backward_data", self.library.engine, DIRECT),
            *(self._any(dims) for dims in (work.dst_dims, work.weights_dims, work.src_dims)),
            *(stride, Dims(0, 0), padding, padding, self._convolution(work.forward, FORWARD_TRAINING)),
            self.attributes(),
        )

    def _backward_weights(self, work: BackwardWeights) -> Handle:
        """Likewise, without a bias."""
        stride, padding = (Dims(number, number) for number in (work.stride, work.padding))
        return self.primitive_desc(
            *("convolution_backward_weights", self.library.engine, DIRECT, self._any(work.src_dims)),
            *(self._any(work.dst_dims), None, self._any(work.weights_dims)),
            *(stride, Dims(0, 0), padding, padding, self._convolution(work.forward, FORWARD_TRAINING)),
            self.attributes(),
        )

    def _convolution(self, work: Conv, how: int = FORWARD_INFERENCE) -> Handle:
        stride, padding = (Dims(number, number) for number in (work.stride, work.padding))
        return self.primitive_desc(
            *("convolution_forward", self.library.engine, how, DIRECT),
            *(self._any(work.src_dims, SRC), self._any(work.weights_dims, WEIGHTS)),
            self._plain(work.bias_dims) if how == FORWARD_INFERENCE else None,
            *(self._any(work.dst_dims, DST), stride, Dims(0, 0), padding, padding, self.attributes()),
        )

    def _matmul(self, work: Product) -> Handle:
        bias = self._plain((1, work.n)) if work.has_bias else None
        weights = self.described(work.weights_dims, work.types.weights, work.weights)
        return self.primitive_desc(
            *("matmul", self.library.engine, self._any(work.src_dims, SRC), weights),
            *(bias, self._any(work.dst_dims, DST), self.attributes()),
        )

    def _inner_product(self, work: Product) -> Handle:
        return self.primitive_desc(
            *("inner_product_forward", self.library.engine, FORWARD_INFERENCE),
            *(self._any(work.src_dims, SRC), self._any((work.n, work.k), WEIGHTS)),
            *(self._plain(work.bias_dims), self._any(work.dst_dims, DST), self.attributes()),
        )

    def _laid_out(self, desc: Handle, side: int, data: Floats) -> tuple[Handle, np.ndarray]:
        """The descriptor that was chosen for an operand, and a buffer with the operand in it."""
        chosen = self.library.chosen(desc, side)
        buffer = aligned(self.library.size(chosen))
        Reorder(self.library, self._plain(data.shape), data, chosen, buffer)()
        return chosen, buffer
