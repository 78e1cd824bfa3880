"""The layers of well-known networks, as data: what primitives are measured on.

A network is a short table of a paper, and everything here follows from those tables:

=================  =====================================================  ======  ==========
network            table                                                  GMACs   parameters
=================  =====================================================  ======  ==========
ResNet-50          He and others, "Deep Residual Learning", table 1         4.09  25,557,032
ResNeXt-101 32x4d  Xie and others, "Aggregated Residual", table 1           7.99  44,177,704
MobileNetV2        Sandler and others, "Inverted Residuals", table 2        0.30   3,504,872
ViT-B/16           Dosovitskiy and others, "16x16 Words", table 1          17.56  86,567,656
=================  =====================================================  ======  ==========

GMACs are 10**9 multiplications for one picture of 224 x 224. The residual networks halve their pictures in
the 3 x 3 convolution of a block ("v1.5"), as all frameworks do today, and not in the first 1 x 1 one.

Layers of one shape are one entry that says how often the network has it:

>>> for layer in convolutions("ResNet-50")[:4]:
...     print(layer)
conv1 mb1ic3ih224iw224oc64oh112ow112kh7kw7sh2sw2ph3pw3
stage1.1.reduce mb1ic64ih56iw56oc64oh56ow56kh1kw1sh1sw1ph0pw0
stage1.1.middle mb1ic64ih56iw56oc64oh56ow56kh3kw3sh1sw1ph1pw1 x3
stage1.1.expand mb1ic64ih56iw56oc256oh56ow56kh1kw1sh1sw1ph0pw0 x4

The spelling behind the name is that of oneDNN's benchdnn, so that a layer can be pasted there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from relayout.errors import LayoutError

__all__ = [
    "PICTURE",
    "TYPES",
    "BackwardData",
    "BackwardWeights",
    "Block",
    "Conv",
    "Forward",
    "Product",
    "Residual",
    "Types",
    "backward_data",
    "backward_weights",
    "convolutions",
    "merged",
    "mobilenet",
    "products",
    "prompts",
    "resnet",
]


class Types(NamedTuple):
    """The data types of a layer's operands; biases are f32."""

    src: str
    weights: str
    dst: str

    @property
    def whole(self) -> bool:
        """Whether they are integers, whose sums are scaled."""
        return self.weights == "s8"


TYPES = {
    "f32": Types("f32", "f32", "f32"),
    "bf16": Types("bf16", "bf16", "bf16"),
    "f16": Types("f16", "f16", "f16"),
    "u8s8": Types("u8", "s8", "u8"),
    "s8s8": Types("s8", "s8", "s8"),
}
"""What layers are measured in: by the types of source and weights, or by the only one."""

PICTURE = 224  # height and width of the input
CLASSES = 1000


@dataclass(frozen=True)
class Conv:
    """One convolution, with a bias.

    Attributes
    ----------
    name : str
        Where the network has it (first).
    batch, ic, ih, iw : int
        Sizes of the source.
    oc, kh, kw : int
        Output channels, and sizes of a filter.
    stride, padding : int
        The same for height and width, and on both sides.
    groups : int
        Each group has ``ic // groups`` inputs and ``oc // groups`` outputs.
    count : int
        How often the network has it.
    dtype : str
        The data types, one of :data:`TYPES`.

    Examples
    --------
    >>> layer = Conv("mine", 1, 128, 56, 56, 128, 3, 3, 2, 1, 32)
    >>> layer.oh, layer.weights_dims, layer.flops
    (28, (32, 4, 4, 3, 3), 7225344)
    >>> print(layer)
    mine g32mb1ic128ih56iw56oc128oh28ow28kh3kw3sh2sw2ph1pw1
    """

    name: str
    batch: int
    ic: int
    ih: int
    iw: int
    oc: int
    kh: int
    kw: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    count: int = 1
    dtype: str = "f32"

    @property
    def types(self) -> Types:
        """The data types of its operands."""
        return TYPES[self.dtype]

    @property
    def oh(self) -> int:
        """Height of the destination."""
        return (self.ih + 2 * self.padding - self.kh) // self.stride + 1

    @property
    def ow(self) -> int:
        """Width of the destination."""
        return (self.iw + 2 * self.padding - self.kw) // self.stride + 1

    @property
    def src_dims(self) -> tuple[int, ...]:
        """The logical sizes of the source: n, c, h, w."""
        return self.batch, self.ic, self.ih, self.iw

    @property
    def weights_dims(self) -> tuple[int, ...]:
        """The logical sizes of the weights: o, i, h, w; with the groups in front if there are several."""
        inner = (self.oc // self.groups, self.ic // self.groups, self.kh, self.kw)
        return inner if self.groups == 1 else (self.groups, *inner)

    @property
    def bias_dims(self) -> tuple[int, ...]:
        """The logical sizes of the bias."""
        return (self.oc,)

    @property
    def dst_dims(self) -> tuple[int, ...]:
        """The logical sizes of the destination: n, c, h, w."""
        return self.batch, self.oc, self.oh, self.ow

    @property
    def flops(self) -> int:
        """Multiplications and additions of one run; those with padding are counted, as everywhere."""
        return 2 * self.batch * self.oc * self.oh * self.ow * self.ic // self.groups * self.kh * self.kw

    @property
    def parameters(self) -> int:
        """Weights of one such layer, and two numbers a channel for the normalisation behind it."""
        return self.oc * self.ic // self.groups * self.kh * self.kw + 2 * self.oc

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is a group of its own."""
        return self.groups == self.ic == self.oc

    def __str__(self) -> str:
        return (
            f"{self.name} {f'g{self.groups}' * (self.groups > 1)}mb{self.batch}"
            f"ic{self.ic}ih{self.ih}iw{self.iw}oc{self.oc}oh{self.oh}ow{self.ow}"
            f"kh{self.kh}kw{self.kw}sh{self.stride}sw{self.stride}ph{self.padding}pw{self.padding}"
            f"{_times(self.count)}"
        )


@dataclass(frozen=True)
class BackwardData(Conv):
    """The gradient of a convolution's source; its own source is the gradient of the destination.

    Examples
    --------
    >>> layer = BackwardData("mine", 1, 128, 56, 56, 256, 3, 3, 2, 1)
    >>> layer.src_dims, layer.dst_dims, layer.forward.src_dims
    ((1, 256, 28, 28), (1, 128, 56, 56), (1, 128, 56, 56))
    """

    @property
    def forward(self) -> Conv:
        """The convolution."""
        return Conv(**vars(self))

    @property
    def src_dims(self) -> tuple[int, ...]:
        """Those of the convolution's destination."""
        return self.forward.dst_dims

    @property
    def dst_dims(self) -> tuple[int, ...]:
        """Those of the convolution's source."""
        return self.forward.src_dims


@dataclass(frozen=True)
class BackwardWeights(Conv):
    """The gradient of a convolution's weights: the convolution's source, multiplied with another gradient.

    Examples
    --------
    >>> layer = BackwardWeights("mine", 1, 128, 56, 56, 256, 3, 3, 2, 1)
    >>> layer.src_dims, layer.weights_dims, layer.dst_dims
    ((1, 128, 56, 56), (1, 256, 28, 28), (256, 128, 3, 3))
    """

    @property
    def forward(self) -> Conv:
        """The convolution."""
        return Conv(**vars(self))

    @property
    def weights_dims(self) -> tuple[int, ...]:
        """Those of the convolution's destination, whose gradient the source is multiplied with."""
        return self.forward.dst_dims

    @property
    def dst_dims(self) -> tuple[int, ...]:
        """Those of the convolution's weights."""
        return self.forward.weights_dims


@dataclass(frozen=True)
class Product:
    """One product of matrices of f32: m x k times k x n.

    Attributes
    ----------
    name : str
        Where the network has it.
    m, k, n : int
        Rows of the source, what is summed over, columns of the destination.
    count : int
        How often the network has it.
    weights : str
        The tag of the second matrix: "any" for weights, which may be packed beforehand and come with a bias;
        "ab" or "ba" for what another layer has written so.
    dtype : str
        The data types, one of :data:`TYPES`.

    Examples
    --------
    >>> print(Product("mine", 197, 768, 3072, 12))
    mine 197x768:768x3072 x12
    """

    name: str
    m: int
    k: int
    n: int
    count: int = 1
    weights: str = "any"
    dtype: str = "f32"

    @property
    def types(self) -> Types:
        """The data types of its operands."""
        return TYPES[self.dtype]

    @property
    def has_bias(self) -> bool:
        """Whether a row is added to each row of the result."""
        return self.weights == "any"

    @property
    def src_dims(self) -> tuple[int, ...]:
        """The logical sizes of the first matrix."""
        return self.m, self.k

    @property
    def weights_dims(self) -> tuple[int, ...]:
        """The logical sizes of the second matrix."""
        return self.k, self.n

    @property
    def bias_dims(self) -> tuple[int, ...]:
        """The logical sizes of the bias."""
        return (self.n,)

    @property
    def dst_dims(self) -> tuple[int, ...]:
        """The logical sizes of the result."""
        return self.m, self.n

    @property
    def flops(self) -> int:
        """Multiplications and additions of one run."""
        return 2 * self.m * self.k * self.n

    @property
    def parameters(self) -> int:
        """Numbers that are learned: weights and bias; none where both matrices are activations."""
        return (self.k + 1) * self.n if self.has_bias else 0

    def __str__(self) -> str:
        turned = f" --wtag={self.weights}" * (not self.has_bias)
        return f"{self.name} {self.m}x{self.k}:{self.k}x{self.n}{turned}{_times(self.count)}"


class Block(NamedTuple):
    """A block of a residual network: three convolutions, and one on the way around them if sizes change."""

    reduce: Conv
    middle: Conv
    expand: Conv
    shortcut: Conv | None


class Residual(NamedTuple):
    """A residual network; after ``stem`` comes a maximum over 3 x 3 with stride 2."""

    stem: Conv
    blocks: tuple[Block, ...]
    classifier: Product

    def convolutions(self) -> Iterator[Conv]:
        """All convolutions in the order of their names."""
        yield self.stem
        for block in self.blocks:
            yield from filter(None, block)


@dataclass(frozen=True)
class Forward:
    """A whole ResNet-50, from pictures to scores.

    Attributes
    ----------
    batch : int
        Pictures.

    Examples
    --------
    >>> work = Forward(8)
    >>> print(work, work.flops / 1e9)
    forward 8x3x224x224 65.426948096
    """

    batch: int
    count: int = 1

    @property
    def network(self) -> Residual:
        """Its layers."""
        return resnet(self.batch)

    @property
    def src_dims(self) -> tuple[int, ...]:
        """The logical sizes of the pictures."""
        return self.batch, 3, PICTURE, PICTURE

    @property
    def flops(self) -> int:
        """Multiplications and additions of all convolutions and the classifier."""
        network = self.network
        return sum(layer.flops for layer in network.convolutions()) + network.classifier.flops

    def __str__(self) -> str:
        return f"forward {'x'.join(map(str, self.src_dims))}"


def resnet(
    batch: int = 1, depths: Sequence[int] = (3, 4, 6, 3), groups: int = 1, width: int = 64
) -> Residual:
    """A residual network of bottleneck blocks; by default ResNet-50.

    Parameters
    ----------
    batch : int
        Pictures.
    depths : sequence of int
        Blocks of each stage.
    groups, width : int
        Groups of the 3 x 3 convolutions, and their channels in the first stage; both double from stage to
        stage, but for the groups.

    Examples
    --------
    >>> network = resnet(depths=(3, 4, 23, 3), groups=32, width=128)  # ResNeXt-101 32x4d
    >>> print(network.blocks[0].middle)
    stage1.1.middle g32mb1ic128ih56iw56oc128oh56ow56kh3kw3sh1sw1ph1pw1
    """
    stem = Conv("conv1", batch, 3, PICTURE, PICTURE, 64, 7, 7, 2, 3)
    blocks, size, inputs = [], stem.oh // 2, stem.oc
    for stage, depth in enumerate(depths):
        inner, outer = width << stage, 256 << stage
        for place in range(depth):
            name, stride = f"stage{stage + 1}.{place + 1}", 2 if place == 0 and stage > 0 else 1
            reduce = Conv(f"{name}.reduce", batch, inputs, size, size, inner, 1, 1)
            middle = Conv(f"{name}.middle", batch, inner, size, size, inner, 3, 3, stride, 1, groups)
            expand = Conv(f"{name}.expand", batch, inner, middle.oh, middle.ow, outer, 1, 1)
            shortcut = Conv(f"{name}.shortcut", batch, inputs, size, size, outer, 1, 1, stride)
            blocks.append(Block(reduce, middle, expand, None if place else shortcut))
            size, inputs = middle.oh, outer
    return Residual(stem, tuple(blocks), Product("classifier", batch, inputs, CLASSES))


def mobilenet(batch: int = 1) -> Iterator[Conv | Product]:
    """All layers of MobileNetV2, one by one: blocks widen, convolve each channel by itself, and narrow."""
    table = [
        # widened by, channels, blocks, stride of the first
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    stem = Conv("conv1", batch, 3, PICTURE, PICTURE, 32, 3, 3, 2, 1)
    yield stem
    size, inputs = stem.oh, stem.oc
    for row, (factor, outputs, depth, first) in enumerate(table, 1):
        for place in range(depth):
            name, stride, inner = f"block{row}.{place + 1}", 1 if place else first, factor * inputs
            if factor > 1:
                yield Conv(f"{name}.widen", batch, inputs, size, size, inner, 1, 1)
            middle = Conv(f"{name}.depthwise", batch, inner, size, size, inner, 3, 3, stride, 1, inner)
            yield middle
            size = middle.oh
            yield Conv(f"{name}.narrow", batch, inner, size, size, outputs, 1, 1)
            inputs = outputs
    yield Conv("conv2", batch, inputs, size, size, 1280, 1, 1)
    yield Product("classifier", batch, 1280, CLASSES)


def convolutions(network: str, batch: int = 1) -> list[Conv]:
    """The different convolutions of a network, with their counts.

    Parameters
    ----------
    network : str
        ``"ResNet-50"``, ``"ResNeXt-101"`` (32x4d) or ``"MobileNetV2"``.
    batch : int
        Pictures.

    Raises
    ------
    LayoutError
        There is no such network.

    Examples
    --------
    >>> layers = convolutions("MobileNetV2")
    >>> len(layers), sum(layer.count for layer in layers)
    (30, 52)
    """
    if network == "ResNet-50":
        return merged(resnet(batch).convolutions())
    if network == "ResNeXt-101":
        return merged(resnet(batch, (3, 4, 23, 3), 32, 128).convolutions())
    if network == "MobileNetV2":
        return merged(layer for layer in mobilenet(batch) if isinstance(layer, Conv))
    raise LayoutError(f"there is no network {network!r}; there are ResNet-50, ResNeXt-101, MobileNetV2")


def products(batch: int = 1, heads: int = 12, width: int = 768, depth: int = 12) -> list[Product]:
    """The matrix products of a vision transformer; by default those of ViT-B/16.

    Attention is a product of two activations for each picture and head: queries by keys, whose rows are
    columns of the second matrix ("ba"), and the result by values ("ab").

    >>> [str(layer) for layer in products()[2:4]]
    ['attention.scores 197x64:64x197 --wtag=ba x144', 'attention.values 197x197:197x64 --wtag=ab x144']
    """
    patches = (PICTURE // 16) ** 2
    tokens, head = patches + 1, width // heads
    rows, each = batch * tokens, batch * heads * depth
    return [
        Product("patches", batch * patches, 3 * 16 * 16, width),
        Product("attention.inputs", rows, width, 3 * width, depth),
        Product("attention.scores", tokens, head, tokens, each, "ba"),
        Product("attention.values", tokens, tokens, head, each, "ab"),
        Product("attention.output", rows, width, width, depth),
        Product("widen", rows, width, 4 * width, depth),
        Product("narrow", rows, 4 * width, width, depth),
        Product("classifier", batch, width, CLASSES),
    ]


def prompts(batch: int = 1, tokens: int = 128) -> list[Product]:
    """The matrix products of LLaMA-7B for so many prompts, but for attention: weights no cache holds.

    A language model reads its prompt in one go, and each weight meets as many rows as that has tokens.
    Source: Touvron and others, "LLaMA", table 2: 32 layers, 4096 wide, in between 11008, twice for the gate.

    >>> [str(layer) for layer in prompts()[:2]]
    ['attention.inputs 128x4096:4096x12288 x32', 'attention.output 128x4096:4096x4096 x32']
    """
    rows, width, between, depth = batch * tokens, 4096, 11008, 32
    return [
        Product("attention.inputs", rows, width, 3 * width, depth),
        Product("attention.output", rows, width, width, depth),
        Product("gate", rows, width, 2 * between, depth),
        Product("narrow", rows, between, width, depth),
    ]


def backward_data(name: str, batch: int = 1) -> list[BackwardData]:
    """The gradients of a network's convolutions; nobody asks for that of the pictures.

    >>> [layer.name for layer in backward_data("ResNet-50")[:2]]
    ['stage1.1.reduce', 'stage1.1.middle']
    """
    return [BackwardData(**vars(layer)) for layer in convolutions(name, batch) if layer.ih < PICTURE]


def backward_weights(name: str, batch: int = 1) -> list[BackwardWeights]:
    """The gradients of the weights of a network's convolutions.

    >>> [layer.name for layer in backward_weights("ResNet-50")[:2]]
    ['conv1', 'stage1.1.reduce']
    """
    return [BackwardWeights(**vars(layer)) for layer in convolutions(name, batch)]


def merged(layers: Iterator[Conv]) -> list[Conv]:
    """Layers of one shape under the name of the first of them, with a count."""
    counts: dict[Conv, int] = {}
    names: dict[Conv, str] = {}
    for layer in layers:
        shape = replace(layer, name="")
        names.setdefault(shape, layer.name)
        counts[shape] = counts.get(shape, 0) + 1
    return [replace(shape, name=names[shape], count=count) for shape, count in counts.items()]


def _times(count: int) -> str:
    return f" x{count}" * (count > 1)
