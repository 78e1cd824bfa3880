"""Learn to tell digits apart: a small residual network, trained by Relayout, with a progress bar.

The pictures are scikit-learn's digits where that is installed: 1797 of 8 x 8 pixels, written by 43 people.
Without it they are made here: digits of seven segments, moved, slanted, thick or thin, in noise. The last
fifth of the pictures is not learned from, and has to be told apart with 95 % right.

    python examples/training.py
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from numpy.typing import NDArray

from relayout.graph import Graph, Node, Value
from relayout.training import SGD, Trainer

Floats = NDArray[np.float32]
Classes = NDArray[np.int64]

CLASSES, SIZE, BATCH = 10, 16, 64
GOAL = 0.95
"""What share of pictures that were not learned from must be right."""

SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
"""Of each digit: a is on top, then clockwise to f, and g is in the middle."""
ENDS = {
    "a": ((-1, -2), (1, -2)),
    "b": ((1, -2), (1, 0)),
    "c": ((1, 0), (1, 2)),
    "d": ((-1, 2), (1, 2)),
    "e": ((-1, 0), (-1, 2)),
    "f": ((-1, -2), (-1, 0)),
    "g": ((-1, 0), (1, 0)),
}
"""Where segments begin and end, in units of half a digit's width."""


def made(count: int, seed: int = 0) -> tuple[Floats, Classes]:
    """Pictures of digits of seven segments, and which they are."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    y, x = np.mgrid[:SIZE, :SIZE]
    pictures = np.empty((count, 1, SIZE, SIZE), np.float32)
    for k, label in enumerate(labels):
        centre, unit = SIZE / 2 + rng.uniform(-2, 2, 2), rng.uniform(2.0, 3.0)
        slant, thick = rng.uniform(-0.3, 0.3), rng.uniform(0.6, 1.2)
        distance = np.full((SIZE, SIZE), np.inf)
        for segment in SEGMENTS[label]:
            begin, end = (centre + unit * np.array((u - slant * v, v)) for u, v in ENDS[segment])
            along = end - begin
            share = ((x - begin[0]) * along[0] + (y - begin[1]) * along[1]) / (along @ along)
            nearest = np.clip(share, 0, 1)
            away = np.hypot(x - begin[0] - nearest * along[0], y - begin[1] - nearest * along[1])
            distance = np.minimum(distance, away)
        pictures[k, 0] = np.clip(1.5 - distance / thick, 0, 1)
    return pictures + rng.normal(0, 0.25, pictures.shape).astype(np.float32), labels


def loaded() -> tuple[Floats, Classes, str]:
    """Pictures, classes, and where they are from."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return *made(2500), "digits of seven segments, made here"
    digits = load_digits()
    pictures = digits.images[:, None].astype(np.float32).repeat(2, 2).repeat(2, 3) / 16
    order = np.random.default_rng(0).permutation(len(pictures))
    return pictures[order], digits.target[order].astype(np.int64), "the digits of scikit-learn"


def network(seed: int = 0) -> Graph:
    """Two residual blocks between a convolution and a layer of scores."""
    rng = np.random.default_rng(seed)
    nodes: list[Node] = []
    constants: dict[str, Floats] = {}

    def weights(name: str, *dims: int) -> str:
        scale = np.sqrt(2 / np.prod(dims[1:]))
        constants[name] = (rng.standard_normal(dims) * scale).astype(np.float32)
        return name

    def node(operator: str, *inputs: str, name: str, **attributes: object) -> str:
        nodes.append(Node(operator, inputs, (name,), attributes, name))
        return name

    def convolution(x: str, name: str, inputs: int, outputs: int, stride: int = 1) -> str:
        filters = weights(f"{name}.weight", outputs, inputs, 3, 3)
        x = node("Conv", x, filters, name=name, strides=(stride,) * 2, pads=(1,) * 4)
        for one, value in (("scale", 1), ("bias", 0), ("mean", 0), ("variance", 1)):
            constants[f"{name}.{one}"] = np.full(outputs, value, np.float32)
        given = [f"{name}.{one}" for one in ("scale", "bias", "mean", "variance")]
        return node("BatchNormalization", x, *given, name=f"{name}.normalized")

    def block(x: str, name: str, channels: int) -> str:
        y = node("Relu", convolution(x, f"{name}.1", channels, channels), name=f"{name}.relu")
        y = convolution(y, f"{name}.2", channels, channels)
        return node("Relu", node("Add", x, y, name=f"{name}.sum"), name=name)

    x = node("Relu", convolution("pictures", "first", 1, 16), name="first.relu")
    x = block(x, "block1", 16)
    x = node("Relu", convolution(x, "wider", 16, 32, 2), name="wider.relu")
    x = block(x, "block2", 32)
    x = node("Flatten", node("GlobalAveragePool", x, name="pooled"), name="flat")
    constants["scores.bias"] = np.zeros(CLASSES, np.float32)
    node("Gemm", x, weights("scores.weight", CLASSES, 32), "scores.bias", name="scores", transB=1)
    pictures = Value("pictures", ("batch", 1, SIZE, SIZE), np.dtype(np.float32))
    return Graph((pictures,), ("scores",), tuple(nodes), constants, name="digits")


def bar(done: int, of: int, loss: float, seconds: float) -> None:
    """A progress bar on one line of a terminal."""
    if sys.stderr.isatty():
        filled = 30 * done // of
        left = seconds / done * (of - done)
        line = f"{'#' * filled}{'.' * (30 - filled)} {done}/{of} steps, loss {loss:.3f}, {left:.0f} s left"
        print(f"\r{line:78}", end="\n" if done == of else "", file=sys.stderr, flush=True)


def curve(losses: list[float], rows: int = 8, columns: int = 60) -> str:
    """Losses as a drawing in text: each column is a mean of some steps."""
    parts = [float(np.mean(part)) for part in np.array_split(losses, min(columns, len(losses)))]
    top = max(parts)
    lines = []
    for row in range(rows, 0, -1):
        low = top * (row - 1) / rows
        marks = "".join("#" if one > low else " " for one in parts)
        lines.append(f"{top * row / rows:6.2f} |{marks}".rstrip())
    return "\n".join([*lines, f"{0:6.2f} +{'-' * len(parts)} {len(losses)} steps"])


def accuracy(graph: Graph, pictures: Floats, labels: Classes) -> float:
    """What share of pictures gets the largest score where it should."""
    (scores,) = graph.compile(batch=len(pictures))(pictures)
    return float((scores.argmax(1) == labels).mean())


def main(epochs: int = 8) -> float:
    """Train, print how it went, and return the share of unseen pictures that are right."""
    pictures, labels, source = loaded()
    known = len(pictures) * 4 // 5
    graph = network()
    trainer = Trainer(graph, "cross_entropy", SGD(0.1, momentum=0.9, weight_decay=1e-4), batch=BATCH)
    print(f"{known} pictures to learn from, {len(pictures) - known} to try: {source}")
    print(f"before: {accuracy(graph, pictures[known:], labels[known:]):.1%} right")
    rng, losses, start = np.random.default_rng(1), [], time.perf_counter()
    steps = epochs * (known // BATCH)
    for _ in range(epochs):
        order = rng.permutation(known)
        for first in range(0, known - BATCH + 1, BATCH):
            trainer.rate = 0.1 * (1 + np.cos(np.pi * len(losses) / steps)) / 2
            some = order[first : first + BATCH]
            losses.append(trainer.step(pictures[some], labels[some]))
            bar(len(losses), steps, losses[-1], time.perf_counter() - start)
    seconds = time.perf_counter() - start
    print(curve(losses))
    right = accuracy(trainer.trained(graph), pictures[known:], labels[known:])
    print(f"after {steps} steps in {seconds:.1f} s: {right:.1%} right", end=" ")
    print(f"({'at least' if right >= GOAL else 'less than'} {GOAL:.0%})")
    return right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--epochs", type=int, default=8, help="times that all pictures are learned from (8)")
    sys.exit(main(parser.parse_args().epochs) < GOAL)
