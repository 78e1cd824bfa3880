"""Matrix products by weights of 4 and 8 bits, beside ONNX Runtime, products of f32 and the speed of reading.

With one row, what counts is how fast the weights are read, so the yardstick is a kernel that reads as many
bytes and adds them up. Products follow each other as the layers of a network do, in one call and each with
other weights: as many as it takes to be twice the last cache. The yardstick has a call for each, which is
next to nothing, and ONNX Runtime a session for each.

With many rows the yardstick is the same, and what counts is the product of f32 that dequantised weights would
be multiplied by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

import relayout as rl
from relayout import primitives
from relayout.bench.measure import OURS, Spread, Stopwatch, figures, in_rounds
from relayout.ir.kernel import kernel, share
from relayout.ir.types import I64, constant, vector
from relayout.jit.abi import Kernel
from relayout.jit.compile import compiled
from relayout.processors import limited
from relayout.runtime.threads import run
from relayout.targets.machine import host
from relayout.tensor import Tensor, address, aligned, allocate, on_large_pages

__all__ = ["CASES", "READING", "Figure", "Product", "figure", "reader"]

READING, F32, RUNTIME = "reading", "f32 product", "ONNX Runtime"
DYNAMIC = "Relayout, source in 8 bits"
STEP = 512  # bytes of a turn of the yardstick
MOST = 16  # weights that take turns


@dataclass(frozen=True)
class Product:
    """``rows`` of ``inputs`` by weights of so many bits."""

    rows: int
    inputs: int
    outputs: int
    bits: int = 4
    block: int = 32

    @property
    def bytes(self) -> int:
        """Of the weights and their scales."""
        return self.outputs * (self.inputs * self.bits // 8 + 4 * (self.inputs // self.block))

    def __str__(self) -> str:
        shape = f"{self.rows}x{self.inputs} by {self.outputs}x{self.inputs}"
        return f"{shape}, {self.bits} bits in blocks of {self.block}"


CASES = (
    Product(1, 4096, 4096),
    Product(1, 4096, 11008),
    Product(1, 4096, 11008, block=128),
    Product(1, 4096, 11008, bits=8),
    Product(1, 4096, 32000),
    Product(2, 4096, 4096),
    Product(4, 4096, 4096),
    Product(8, 4096, 4096),
    Product(16, 4096, 4096),
    Product(128, 4096, 4096),
)


@dataclass(frozen=True)
class Figure:
    """What one product gave with one number of threads; see :func:`relayout.bench.measure.figures`."""

    product: Product
    threads: int
    seconds: dict[str, Spread]
    ratios: dict[str, Spread]
    behind: dict[str, Spread]
    rounds: dict[str, int]

    @property
    def gigabytes(self) -> float:
        """Bytes of weights and scales in a second, in units of 10**9: Relayout's."""
        return self.product.bytes / self.seconds[OURS].median / 1e9

    @property
    def share(self) -> float:
        """The time of reading as many bytes / Relayout's."""
        return 1 / self.ratios[OURS].median


def figure(product: Product, threads: int, rounds: int, seconds: float, runtime: bool = True) -> Figure:
    """Measure one product: everybody in turn, in this process.

    Parameters
    ----------
    product : Product
    threads, rounds, seconds
        As :func:`relayout.bench.measure.measured` has them.
    runtime : bool
        Whether ONNX Runtime takes part, where it is installed.

    Examples
    --------
    >>> found = figure(Product(1, 64, 64), 1, 1, 0.1, runtime=False)
    >>> sorted(found.seconds)
    ['Relayout', 'Relayout, source in 8 bits', 'f32 product', 'reading']
    """
    random = np.random.default_rng(0)
    x = random.standard_normal((product.rows, product.inputs)).astype(np.float32)
    codes = random.integers(0, 1 << product.bits, (product.outputs, product.inputs)).astype(np.uint8)
    scale = random.random((product.outputs, product.inputs // product.block)).astype(np.float32) + 0.5
    machine = host()
    copies = max(1, min(MOST, 2 * machine.l3 // product.bytes))
    watches: dict[str, Callable[[], float]] = {
        READING: _Each(reader(product.bytes, threads, copies), copies),
        OURS: _Each(_ours(product, x, codes, scale, threads, copies, 24), copies),
        DYNAMIC: _Each(_ours(product, x, codes, scale, threads, copies, 8), copies),
        F32: Stopwatch(_in_f32(product, x, codes, scale, threads)),
    }
    other = _of_runtime(product, x, codes, scale, threads, copies) if runtime else None
    if other is not None:
        watches[RUNTIME] = Stopwatch(other)
    samples = in_rounds(watches, rounds, seconds, threads, (READING, OURS))
    return Figure(product, threads, **figures(samples, READING))


class _Each:
    """The time of each of so many products that an action computes."""

    def __init__(self, action: Callable[[], object], count: int) -> None:
        self._watch, self._count = Stopwatch(action), count

    def __call__(self) -> float:
        return self._watch() / self._count


def reader(size: int, threads: int, copies: int = 1) -> Callable[[], object]:
    """What reads so many bytes so many times, other ones each time."""
    size = -(-size // STEP) * STEP
    (whole,), target = on_large_pages([size * copies]), aligned(64 * threads)
    whole[:] = 1
    operands, start = np.array([size // STEP], np.int64), address(whole)
    kernel, given = _reading().address, (address(target), address(operands), threads, threads)

    def read() -> object:
        for at in range(start, start + copies * size, size):
            run(kernel, at, *given)
        return whole, target, operands

    return read


@lru_cache(maxsize=1)
def _reading() -> Kernel:
    """The kernel of the yardstick: lines are loaded, and added to eight sums."""
    machine = host()
    f = kernel(READING, machine)
    wide, count = vector(machine.vector // 8, I64), STEP // machine.vector
    first, last = share(f, f.load(I64, f["ops"], 8))

    def turn(i: Any, sums: list[Any]) -> list[Any]:
        at = f.gep(f["src"], i, STEP)
        return [f.add(x, f.load(wide, f.gep(at, k * machine.vector), 8)) for k, x in enumerate(sums)]

    total, *rest = f.repeat(first, last, 1, [constant(wide, 0)] * count, turn)
    for one in rest:
        total = f.add(total, one)
    f.store(f.extract(total, 0), f.gep(f["dst"], f["part"], 64), 8)
    return compiled(f.text(), [READING])[READING]


def _ours(
    product: Product,
    x: NDArray[Any],
    codes: NDArray[Any],
    scale: NDArray[Any],
    threads: int,
    copies: int,
    source_bits: int,
) -> Callable[[], object]:
    weights = rl.MemoryDesc(codes.shape, f"u{product.bits}", rl.any)
    with limited(threads):
        src = rl.tensor(x)
        made = primitives.MatmulNBits(src.desc, weights, block=product.block, source_bits=source_bits)
        layers = primitives.Sequence()
        value = layers.input("x", src.desc)
        for k in range(copies):
            given = rl.tensor(np.roll(codes, k), made.weights.tag, made.weights.dtype)
            layers.output(layers.add(made, value, given, rl.tensor(scale + k, made.scale.tag)))
        ready = layers.compile(threads)
    several = [Tensor(made.dst, allocate(made.dst)) for _ in range(copies)]
    places = [address(one.buffer) for one in (src, *several)]

    def compute() -> object:
        ready.at(places)
        return src, several

    return compute


def _in_f32(
    product: Product, x: NDArray[Any], codes: NDArray[Any], scale: NDArray[Any], threads: int
) -> Callable[[], object]:
    """The product by weights that somebody has dequantised before."""
    real = (codes - np.float32(1 << (product.bits - 1))) * np.repeat(scale, product.block, axis=1)
    with limited(threads):
        src = rl.tensor(x)
        made = primitives.Matmul(src.desc, rl.MemoryDesc(real.T.shape, "f32", rl.any))
        made.tune()
    weights = rl.tensor(real.T).reorder(made.weights)
    out = Tensor(made.dst, allocate(made.dst))
    return partial(made, src, weights, out=out, threads=threads)


def _of_runtime(
    product: Product, x: NDArray[Any], codes: NDArray[Any], scale: NDArray[Any], threads: int, copies: int
) -> Callable[[], object] | None:
    """ONNX Runtime's ``MatMulNBits``; None where it or ``onnx`` is not installed."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    packed = codes if product.bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    shape = product.outputs, product.inputs // product.block, product.block * product.bits // 8
    given = {"w": packed.reshape(shape), "s": scale.reshape(-1)}
    node = onnx.helper.make_node(
        "MatMulNBits",
        ["x", *given],
        ["y"],
        domain="com.microsoft",
        K=product.inputs,
        N=product.outputs,
        bits=product.bits,
        block_size=product.block,
    )
    real = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node],
        "product",
        [onnx.helper.make_tensor_value_info("x", real, x.shape)],
        [onnx.helper.make_tensor_value_info("y", real, (product.rows, product.outputs))],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(data), name) for name, data in given.items()],
    )
    domains = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=domains, ir_version=9).SerializeToString()
    sessions = cycle(list(_sessions(onnxruntime, model, options, copies)))
    return lambda: next(sessions).run(None, {"x": x})


def _sessions(runtime: Any, model: bytes, options: Any, count: int) -> Iterator[Any]:
    for _ in range(count):
        yield runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
