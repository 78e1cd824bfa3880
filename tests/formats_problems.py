"""Problems for the planner: networks in outline, with costs at random, and what hypothesis draws."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from hypothesis import strategies as st

from relayout.graph.planner import Operation, Option, Problem

FORMATS = ("nchw", "nhwc", "nChw8c", "nChw16c", "CHWN", "nhcw")


@dataclass
class Network:
    """A network that grows operation by operation; every one takes all formats, at costs that differ."""

    random: random.Random
    formats: tuple[str, ...] = FORMATS
    operations: list[Operation] = field(default_factory=list)

    def _name(self, kind: str) -> str:
        return f"{kind}{len(self.operations)}"

    def conv(self, x: str) -> str:
        """An operation that computes: reads and writes what it likes, at ten-fold differences."""
        options = tuple(
            Option(f"{a}-{b}", (a,), (b,), self.random.uniform(1, 10))
            for a in self.formats
            for b in self.formats
            if a == b or self.random.random() < 0.1
        )
        return self._add("conv", (x,), options, intensive=True)

    def same(self, kind: str, *xs: str) -> str:
        """An operation that moves bytes: one format for all that it reads and writes."""
        options = tuple(
            Option(f, (f,) * len(xs), (f,), self.random.uniform(0.4, 0.6) * len(xs)) for f in self.formats
        )
        return self._add(kind, xs, options)

    def _add(
        self, kind: str, xs: tuple[str, ...], options: tuple[Option, ...], intensive: bool = False
    ) -> str:
        name = self._name(kind)
        self.operations.append(Operation(name, xs, (f"{name}:y",), options, intensive))
        return f"{name}:y"

    def problem(self, **more: bool) -> Problem:
        """With one size of each value, and conversions that cost what the size says, more or less."""
        values = ["x", *(o.outputs[0] for o in self.operations)]
        conversions = {
            (value, a, b): self.random.uniform(0.3, 3)
            for value in values
            for a in self.formats
            for b in self.formats
            if a != b
        }
        plain = self.formats[0]
        pins = {self.operations[-1].outputs[0]: plain}
        return Problem(tuple(self.operations), conversions, pins, {"x": {plain}}, **more)


def residual(count: int, seed: int = 0, formats: tuple[str, ...] = FORMATS) -> Network:
    """Blocks of three convolutions and a sum, as in ResNet-50."""
    net, x = Network(random.Random(seed), formats), "x"
    while len(net.operations) < count:
        y = net.same("relu", net.conv(x))
        y = net.same("relu", net.conv(y))
        x = net.same("relu", net.same("add", net.conv(y), x))
    return net


def inception(count: int, seed: int = 0, formats: tuple[str, ...] = FORMATS) -> Network:
    """Four branches and a concatenation."""
    net, x = Network(random.Random(seed), formats), "x"
    while len(net.operations) < count:
        branches = [net.conv(x), net.conv(net.conv(x)), net.conv(net.conv(net.conv(x)))]
        x = net.same("concat", *branches, net.conv(net.same("pool", x)))
    return net


def dense(
    blocks: tuple[int, ...] = (6, 12, 24, 16), seed: int = 0, formats: tuple[str, ...] = FORMATS
) -> Network:
    """DenseNet-121 as it is exported: each layer concatenates all before it in its block."""
    net = Network(random.Random(seed), formats)
    x = net.same("pool", net.same("relu", net.conv("x")))
    for layers in blocks:
        features = [x]
        for _ in range(layers):
            y = net.same("relu", net.same("norm", net.same("concat", *features)))
            features.append(net.conv(net.same("relu", net.conv(y))))
        x = net.same("pool", net.conv(net.same("relu", net.same("concat", *features))))
    return net


def nested(depth: int, seed: int = 0, formats: tuple[str, ...] = FORMATS) -> Network:
    """U-Net++: each level concatenates all that it has so far, and each value has readers of its own."""
    net = Network(random.Random(seed), formats)
    rows: list[list[str]] = []
    x = "x"
    for _ in range(depth):
        x = net.same("relu", net.conv(net.same("pool", x)))
        rows.append([x])
    for column in range(1, depth):
        for level in range(depth - column):
            up = net.same("resize", rows[level + 1][column - 1])
            rows[level].append(net.same("relu", net.conv(net.same("concat", *rows[level], up))))
    net.same("concat", *(net.conv(x) for x in rows[0][1:]))
    return net


def unet(depth: int, length: int = 2, seed: int = 0, formats: tuple[str, ...] = FORMATS) -> Network:
    """An encoder and a decoder, with a skip at every level."""
    net, x, skips = Network(random.Random(seed), formats), "x", []
    for _ in range(depth):
        for _ in range(length):
            x = net.same("relu", net.conv(x))
        skips.append(x)
        x = net.same("pool", x)
    for skip in reversed(skips):
        x = net.same("concat", net.same("resize", net.conv(x)), skip)
        for _ in range(length):
            x = net.same("relu", net.conv(x))
    return net


def transformer(layers: int, seed: int = 0, formats: tuple[str, ...] = FORMATS) -> Network:
    """A mask that every layer reads, three products of one value, two sums a layer."""
    net, x = Network(random.Random(seed), formats), "x"
    mask = net.same("mask", "x")
    for _ in range(layers):
        y = net.same("norm", x)
        scores = net.same("softmax", net.same("add", net.same("qk", net.conv(y), net.conv(y)), mask))
        x = net.same("add", net.conv(net.same("av", scores, net.conv(y))), x)
        x = net.same("add", net.conv(net.same("gelu", net.conv(net.same("norm", x)))), x)
    return net


def exchange(stages: int, branches: int = 4, seed: int = 0, formats: tuple[str, ...] = FORMATS) -> Network:
    """HRNet: branches of which each stage adds all to all."""
    net = Network(random.Random(seed), formats)
    several = [net.conv("x") for _ in range(branches)]
    for _ in range(stages):
        several = [net.same("relu", net.conv(net.conv(x))) for x in several]
        several = [
            net.same("add", *(x if i == j else net.conv(x) for i, x in enumerate(several)))
            for j in range(branches)
        ]
    net.same("concat", *several)
    return net


@st.composite
def problems(
    draw: st.DrawFn,
    operations: int = 6,
    formats: int = 3,
    whole: bool = True,
    reads: int = 3,
) -> Problem:
    """Any acyclic graph: options at random, conversions that may be missing, several outputs, pins."""
    labels: tuple[Hashable, ...] = tuple(FORMATS[:formats])
    costs = st.integers(0, 20) if whole else st.floats(0, 20)
    some = st.sampled_from(labels)
    sources = {f"x{i}": draw(st.sets(some, min_size=1, max_size=2)) for i in range(draw(st.integers(1, 2)))}
    values, made = [*sources], []
    for index in range(draw(st.integers(1, operations))):
        inputs = tuple(draw(st.lists(st.sampled_from(values), max_size=reads)))
        outputs = tuple(f"v{index}.{i}" for i in range(draw(st.integers(0 if inputs else 1, 2))))
        options = tuple(
            Option(
                str(k),
                tuple(draw(some) for _ in inputs),
                tuple(draw(some) for _ in outputs),
                float(draw(costs)),
            )
            for k in range(draw(st.integers(1, 3)))
        )
        made.append(Operation(f"op{index}", inputs, outputs, options, draw(st.booleans())))
        values += outputs
    conversions = {
        (value, a, b): float(draw(costs))
        for value in values
        for a in labels
        for b in labels
        if a != b and draw(st.integers(0, 7))
    }
    pins = {value: draw(some) for value in draw(st.lists(st.sampled_from(values), max_size=2, unique=True))}
    forced = {value: draw(some) for value in values if not draw(st.integers(0, 9))}
    return Problem(tuple(made), conversions, pins, sources, forced, draw(st.booleans()))


def shuffled(problem: Problem, seed: int) -> Problem:
    """The same problem, with its mappings in another order."""
    mixed = random.Random(seed)

    def mix(items: dict) -> dict:  # type: ignore[type-arg]
        pairs = [*items.items()]
        mixed.shuffle(pairs)
        return dict(pairs)

    return problem.replaced(
        conversions=mix(dict(problem.conversions)),  # type: ignore[arg-type]
        pins=mix(dict(problem.pins)),
        sources=mix(dict(problem.sources)),
        forced=mix(dict(problem.forced)),
    )


def networks() -> Iterator[tuple[str, Network]]:
    """Networks in outline, with the number of operations that real ones have."""
    yield "ResNet-50", residual(120)
    yield "Inception", inception(130)
    yield "DenseNet-121", dense()
    yield "U-Net", unet(5)
    yield "U-Net++", nested(5)
    yield "BERT", transformer(12)
