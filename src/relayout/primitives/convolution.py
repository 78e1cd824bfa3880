"""Forward convolution, in any format.

::

    dst[n, g o, y, x] = bias[g o] + sum over i, r, s of
                            src[n, g i, y * stride + r * dilation - padding, x ...] * weights[g, o, i, r, s]

with one, two or three spatial axes. What falls outside the source counts as zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from relayout.errors import LayoutError, counted
from relayout.forking import locked
from relayout.jit.support import supported
from relayout.kernels.conv.geometry import Geometry, in_three
from relayout.layout.descriptor import MemoryDesc
from relayout.ops import products as ops
from relayout.ops.checks import check_descs
from relayout.ops.formats import with_formats
from relayout.ops.operation import Operation
from relayout.primitives.meaning import check_data, check_weights
from relayout.primitives.product_primitive import ProductPrimitive, vectors_of
from relayout.primitives.products import Products, refusal, weights_format
from relayout.primitives.sizes import for_each_axis, in_front_and_behind
from relayout.records import replace

if TYPE_CHECKING:
    from typing_extensions import Self

    from relayout.primitives.transposed import Transposed

__all__ = ["Convolution", "ImageProducts", "filters_of", "formats_of_images", "windows_of"]

LEAST_BLOCK = 8  # channels: half a line of f32


class Filters(NamedTuple):
    """What weights say of a convolution."""

    grouped: bool
    """Whether they have an axis of groups."""
    groups: int
    outputs: int
    inputs: int
    """Channels of one group."""
    kernel: tuple[int, ...]
    """The sizes of the spatial axes."""


class Windows(NamedTuple):
    """How a filter moves over an image: for each spatial axis."""

    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


class ImageProducts(ProductPrimitive):
    """What convolutions, their transposes and their data's gradients share: which formats they choose."""

    computes: ClassVar[type[Products] | type[Transposed]] = Products
    """A sum of products, or the transpose of one."""
    geometry: Geometry

    def _as_products(self, descs: Mapping[str, MemoryDesc]) -> Products | Transposed:
        """What is computed, on these descriptors."""
        src, weights, dst = (descs[name] for name in ("src", "weights", "dst"))
        grouped = len(weights.dims) > len(src.dims)
        vectors = vectors_of(descs)
        return self.computes(
            self.geometry, src, weights, dst, grouped=grouped, post_ops=self.post_ops, **vectors
        )

    def _formats(self, name: str) -> tuple[str, ...]:
        return formats_of_images(self.descs[name])

    def _decided(self, given: Mapping[str, MemoryDesc]) -> dict[str, MemoryDesc]:
        """The descriptors with every ``any`` decided.

        Source and destination go together: the format that one of them has, the other one gets; where it has
        strides and no format, the other one becomes channels-last. With neither given each has its channels
        in blocks of a vector, or side by side if they don't fill the last block; so a tensor between two
        convolutions is the same to both. The tile takes either as it is. Where vectors are half a
        line all is channels-last instead.
        """
        read, written = self._sides
        src, dst = given[read], given[written]
        plain = {1: "oiw", 2: "oihw", 3: "oidhw"}[len(src.dims) - 2]
        weights = self._weights_format(given)
        free = weights is not None and src.layout is None and dst.layout is None
        blocked = free and not _prefers_channels_last()
        wanted = {
            read: dst.format or _favourite(src, blocked),
            written: src.format or _favourite(dst, blocked),
            "weights": weights or f"{'g' * (len(given['weights'].dims) > len(src.dims))}{plain}",
        }
        return with_formats(given, wanted, "a")

    def _weights_format(self, given: Mapping[str, MemoryDesc]) -> str | None:
        """The format of weights that kernels read fastest; None: there are no kernels."""
        return weights_format(self._as_products(given))

    def _of_images(
        self,
        kind: type[Operation],
        given: Mapping[str, MemoryDesc | None],
        dst: MemoryDesc | None,
        filters: Filters,
        windows: Windows,
        sizes: Sequence[int],
        post_ops: Any,
        **others: Any,
    ) -> None:
        """What constructors end with; ``sizes`` are those of the spatial axes of the destination."""
        src = given["src"]
        assert src is not None
        self.geometry = Geometry(
            src.dims[0],
            filters.groups,
            filters.inputs,
            filters.outputs,
            in_three(src.dims[2:]),
            in_three(sizes),
            in_three(filters.kernel),
            in_three(windows.strides),
            in_three(windows.dilation),
            in_three([front for front, _ in windows.padding], 0),
        )
        outputs = filters.groups * filters.outputs
        dims, attributes = (src.dims[0], outputs, *sizes), windows._asdict() | others
        self._complete(kind, given, dst, dims, outputs, post_ops, grouped=filters.grouped, **attributes)


class Convolution(ImageProducts):
    """A convolution, made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        Batch, channels, then one to three spatial axes.
    weights : MemoryDesc
        Output channels, input channels, spatial axes (``oihw``); for a grouped convolution groups first
        (``goihw``), and the channels are those of one group.
    bias : MemoryDesc, optional
        One value for each output channel: f32, s32, or bf16 or f16, which are converted first.
    dst : MemoryDesc, optional
        Without it the format is ``any`` and the data type that of the source.
    scale : MemoryDesc, optional
        One f32 factor for all sums, or one for each output channel; it comes before the bias. This is how
        quantised convolutions return to real numbers, and fold a batch normalisation.
    src_zero_point : MemoryDesc, optional
        One s32: the number that stands for zero in a source of integers. It must be one that the source can
        hold, and padding counts as real zero.
    weights_zero_point : MemoryDesc, optional
        The same of the weights, one s32 for all or one for each output channel.
    dst_scale : MemoryDesc, optional
        One f32 by which results are divided, behind all post-ops: the length of a step of the destination.
    dst_zero_point : MemoryDesc, optional
        One s32 that is added after that: the number that stands for zero in a destination of integers.
    strides, dilation : int or sequence of int
        For all spatial axes, or one for each. A dilation of 1 leaves no gaps (oneDNN writes 0 there).
    padding : int or sequence
        Zeros in front of and behind each spatial axis; for each axis a number or a pair (in front, behind).
    post_ops : sequence
        See :mod:`relayout.ops.post_ops`.
    algorithm : str
        Which sums are added up (oneDNN's algorithm kinds):

        ``"direct"``
            All products of the definition.
        ``"winograd"``
            16 products in place of 36, of transformed tiles of 4x4 pixels and filters, F(2x2, 3x3);
            25 with strides of two. For filters of 3x3 taps without dilation or groups, and channels that fill
            vectors; others are refused. Integers have the same results. In f32 (f16 and bf16 are widened)
            outputs differ from exact sums by up to about ``(inputs + 10) * 2**-24`` times 16 times the sum
            over input channels of the largest of a tile's pixels times all magnitudes of the filter. Usually
            the error is that of a direct sum; where neighbouring pixels differ by orders of magnitude it is
            that of the largest. Infinities and NaN may make NaN of all four outputs of a tile that reads
            them, and so may overflows: of sources from a quarter of the largest f32 on, of sums from a
            sixteenth.
        ``"auto"``
            Whichever takes less time by an estimate. That knows the processor and the descriptors, not how
            many threads there are nor what was measured: the same bits each time.

    Raises
    ------
    LayoutError
        Sizes don't fit together, or there is no such algorithm for them.

    Examples
    --------
    >>> import relayout as rl
    >>> src = rl.MemoryDesc((1, 3, 8, 8), "f32", "nhwc")
    >>> weights = rl.MemoryDesc((16, 3, 3, 3), "f32", rl.any)
    >>> conv = Convolution(src, weights, padding=1, post_ops="relu")
    >>> conv.dst, conv.flops
    (MemoryDesc('f32:nhwc:1x16x8x8'), 55296)

    Bytes to bytes: real numbers are (src - 3) * 0.5, weights * 0.25 and (dst - 10) * 2.

    >>> import numpy as np
    >>> src, weights = rl.MemoryDesc((1, 2, 1, 1), "u8", "nhwc"), rl.MemoryDesc((1, 2, 1, 1), "s8", rl.any)
    >>> one, number = rl.MemoryDesc((1,), "f32", "a"), rl.MemoryDesc((1,), "s32", "a")
    >>> steps = {"scale": one, "src_zero_point": number, "dst_scale": one, "dst_zero_point": number}
    >>> conv = Convolution(src, weights, **steps)
    >>> conv.inputs
    ('src', 'weights', 'scale', 'src_zero_point', 'dst_scale', 'dst_zero_point')
    >>> values = [[[[9]], [[5]]]], [[[[8]], [[4]]]], [0.125], [3], [2.0], [10]
    >>> given = (rl.tensor(x, conv.descs[name]) for x, name in zip(values, conv.inputs))
    >>> conv(*given).numpy().item()  # (6 * 8 + 2 * 4) * 0.125 / 2 + 10 = 13.5, a tie
    14
    """

    kind = "convolution"
    operation: ops.Convolution

    def __init__(
        self,
        src: MemoryDesc,
        weights: MemoryDesc,
        bias: MemoryDesc | None = None,
        dst: MemoryDesc | None = None,
        *,
        scale: MemoryDesc | None = None,
        src_zero_point: MemoryDesc | None = None,
        weights_zero_point: MemoryDesc | None = None,
        dst_scale: MemoryDesc | None = None,
        dst_zero_point: MemoryDesc | None = None,
        strides: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        padding: int | Sequence[int | tuple[int, int]] = 0,
        post_ops: Any = (),
        algorithm: str = "direct",
    ) -> None:
        self.algorithm = ops.check_algorithm(algorithm, "convolution")
        needed, optional = {"src": src, "weights": weights}, {"bias": bias, "scale": scale}
        optional |= {"src_zero_point": src_zero_point, "weights_zero_point": weights_zero_point}
        optional |= {"dst_scale": dst_scale, "dst_zero_point": dst_zero_point}
        filters = filters_of(self.kind, src, weights, {**optional, "dst": dst})
        windows = windows_of(self.kind, filters, strides, dilation, padding)
        sizes = []
        for axis, count in enumerate(src.dims[2:]):
            span = (filters.kernel[axis] - 1) * windows.dilation[axis] + 1
            room = count + sum(windows.padding[axis]) - span
            if room < 0 and 0 not in (*src.dims, *weights.dims):
                raise LayoutError(
                    f"convolution: spatial axis {axis} of src {src} has {counted(count, 'element')} and "
                    f"{sum(windows.padding[axis])} of padding; the filter spans {span}"
                )
            sizes.append(max(0, room // windows.strides[axis] + 1))
        self._of_images(
            ops.Convolution, needed | optional, dst, filters, windows, sizes, post_ops, algorithm=algorithm
        )
        why = refusal(self._as_products(self.descs)) if algorithm == "winograd" else ""
        if why:
            raise LayoutError(
                f"convolution: no algorithm winograd for src {src} and weights {weights}: {why}"
            )

    def _as_products(self, descs: Mapping[str, MemoryDesc]) -> Products:
        """What is computed, on these descriptors."""
        found = super()._as_products(descs)
        assert isinstance(found, Products)
        return replace(found, algorithm=self.algorithm) if self.algorithm != "direct" else found

    def _alternatives(self) -> list[Self]:
        """Of an algorithm that is demanded those that have it."""
        found = super()._alternatives()
        if self.algorithm != "winograd":
            return found
        return [one for one in found if not refusal(one._as_products(one.descs))]


def filters_of(
    kind: str, src: MemoryDesc, weights: MemoryDesc, others: Mapping[str, MemoryDesc | None]
) -> Filters:
    """What weights say, with all arguments checked but for the sizes of the destination.

    Raises
    ------
    LayoutError
        Weights and source don't fit together, or something is no descriptor.
    """
    check_descs(kind, {"src": src, "weights": weights}, others)
    spatial = len(src.dims) - 2
    if not 1 <= spatial <= 3:
        raise LayoutError(f"{kind}: src {src} must have 3 to 5 axes, batch and channels first")
    if len(weights.dims) not in (spatial + 2, spatial + 3):
        raise LayoutError(
            f"{kind}: weights {weights} must have {spatial + 2} axes, or {spatial + 3} with groups first"
        )
    grouped = len(weights.dims) == spatial + 3
    groups = weights.dims[0] if grouped else 1
    outputs, inputs, *kernel = weights.dims[1:] if grouped else weights.dims
    if src.dims[1] != groups * inputs:
        each = f"{groups} groups of {inputs}" if grouped else f"{inputs}"
        raise LayoutError(
            f"{kind}: src {src} has {counted(src.dims[1], 'channel')}, weights {weights} take {each}"
            + (_as_groups(src.dims[1], weights.dims, grouped) if kind == Convolution.kind else "")
        )
    check_data(kind, "src", src)
    check_weights(kind, "weights", weights, spatial)
    check_data(kind, "dst", others["dst"])
    return Filters(grouped, groups, outputs, inputs, tuple(kernel))


def windows_of(kind: str, filters: Filters, strides: Any, dilation: Any, padding: Any) -> Windows:
    """Strides, dilation and padding as callers write them, checked."""
    spatial = len(filters.kernel)
    return Windows(
        for_each_axis(kind, strides, spatial, "strides", 1),
        for_each_axis(kind, dilation, spatial, "dilation", 1),
        in_front_and_behind(kind, padding, spatial),
    )


@locked
def formats_of_images(desc: MemoryDesc) -> tuple[str, ...]:
    """Formats worth trying for images: channels in blocks of a vector, side by side, or in planes."""
    axes, blocked = {3: "w", 4: "hw", 5: "dhw"}[len(desc.dims)], []
    if supported():
        from relayout.kernels.conv.tile import lanes_of
        from relayout.targets.machine import host

        block = max(lanes_of(host()), LEAST_BLOCK)
        if desc.dims[1] and desc.dims[1] % block == 0:
            blocked.append(f"nC{axes}{block}c")
    return (*blocked, f"n{axes}c", f"nc{axes}")


def _favourite(desc: MemoryDesc, blocked: bool) -> str:
    """The format of a source or destination: blocks of channels, if these fill them, or channels-last."""
    return formats_of_images(desc)[0 if blocked else -2]


@locked
def _prefers_channels_last() -> bool:
    """Whether vectors are half a cache line, as with AVX2: there sums over channels prefer channels-last.

    A block of channels is over after eight steps of a sum, and the next one begins in another page, where no
    prefetcher follows: filters of one tap took up to 2.5 times as long (Zen 3). Depthwise filters alone are
    faster in blocks, but what stands between two convolutions is to be the same to both.
    """
    from relayout.targets.machine import host

    return supported() and host().is_avx2


def _as_groups(channels: int, weights: Sequence[int], grouped: bool) -> str:
    """How to say weights that PyTorch keeps without an axis of groups.

    >>> _as_groups(6, (4, 3, 5, 5), grouped=False)
    '; those of 2 groups are goihw: weights.view(2, 2, 3, 5, 5)'
    """
    outputs, inputs, *kernel = weights
    groups = channels // inputs if inputs else 0
    if grouped or groups < 2 or groups * inputs != channels or outputs % groups:
        return ""
    letters = {1: "goiw", 2: "goihw", 3: "goidhw"}[len(kernel)]
    sizes = ", ".join(map(str, (groups, outputs // groups, inputs, *kernel)))
    return f"; those of {groups} groups are {letters}: weights.view({sizes})"
