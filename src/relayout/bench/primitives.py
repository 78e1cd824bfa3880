"""Primitives: which layers are measured, and how.

What a layer takes is held against its *time at the peak*: the time in which as many threads do as many
multiplications and additions in registers (:mod:`relayout.bench.peak`), measured in the same round::

    round 1   peak  Relayout  Relayout nhwc ...  oneDNN  PyTorch ...
    round 2   peak  Relayout  Relayout nhwc ...  oneDNN  PyTorch ...     ratio = time / time at the peak

so 1 is what no library can reach, and 1 / ratio is the share of the peak. A sum over the layers of a network
is one of ratios, each weighted by the time at the peak and by how often the network has the layer: it is not
disturbed by a clock that changes between two layers. In narrow data types (``--dtype``) the peak is that of
the instruction which adds up their products.

Everybody has laid out the source and packed the weights before; only the primitive is timed
(:mod:`relayout.bench.peers.primitives`). Relayout has measured its schedules before, as the first calls of a
primitive do; ``RELAYOUT_EFFORT=estimate`` leaves that out. Others choose in their own ways. Results are
compared with those of the first contestant, which is Relayout where it can do the layer.

===================  ======================================================================================
network              what is measured
===================  ======================================================================================
ResNet-50            all convolutions
ResNeXt-101          32x4d: its convolutions with 32 groups
MobileNetV2          its convolutions of each channel by itself
ViT-B/16             its matrix products
LLaMA-7B             those for a prompt of 128 tokens, without attention: larger than any cache
ResNet-50 data       the gradients of the sources of these convolutions; likewise ResNeXt-101, MobileNetV2
ResNet-50 weights    the gradients of their weights; likewise
ResNet-50 forward    the whole network, with all that is between the convolutions
LSTM, GRU            layers, 512 and 1024 wide: inference, training, and the backward pass
===================  ======================================================================================

What has no products is held against a copy of the bytes that it must move (:mod:`relayout.bench.passes`):
normalisations of ResNet-50, pooling and other layers of images, a layer of BERT; forward and backward.

Depthwise convolutions read and write as much as they compute; their share of the peak is small for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from relayout.bench.load import Load, disturbed
from relayout.bench.measure import OURS, Spread, Stopwatch, figures, in_rounds
from relayout.bench.networks import (
    TYPES,
    BackwardData,
    BackwardWeights,
    Conv,
    Forward,
    Product,
    backward_data,
    backward_weights,
    convolutions,
    products,
    prompts,
)
from relayout.bench.operands import Floats, Operands, Work, difference, operands, tolerance
from relayout.bench.passes import NETWORKS as PASSES
from relayout.bench.passes import Pass, copying, passes
from relayout.bench.peak import Yardstick, instruction_of, yardstick
from relayout.bench.peers.primitives.contestant import Computation, Contestant
from relayout.bench.recurrent import BATCHES, CELLS, Recurrent, layers
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError

__all__ = ["NETWORKS", "PEAK", "Result", "Task", "measured", "tasks"]

PEAK = "peak"
PICTURES = (1, 8)
LONGER = 5  # times the seconds of a layer are for a whole network


@dataclass(frozen=True)
class Task:
    """A layer, or a whole network, and where it is from.

    >>> [task] = tasks(networks=["ResNet-50"], batches=[8], texts=["conv1"])
    >>> print(task)
    ResNet-50 conv1 mb8ic3ih224iw224oc64oh112ow112kh7kw7sh2sw2ph3pw3
    """

    network: str
    batch: int
    work: Work

    @property
    def group(self) -> str:
        """What is summed up together."""
        way = f" {self.work.way}" if isinstance(self.work, Pass | Recurrent) else ""
        kind = self.dtype * (self.dtype != "f32")
        return f"{self.network}{way}{f' {kind}' * bool(kind)}, batch {self.batch}"

    @property
    def dtype(self) -> str:
        """The data types, one of :data:`~relayout.bench.networks.TYPES`."""
        return self.work.dtype if isinstance(self.work, Conv | Product) else "f32"

    @property
    def weight(self) -> int:
        """The share of a layer in the sum: multiplications and additions (bytes) of all its occurrences."""
        return self.amount * self.work.count

    @property
    def amount(self) -> int:
        """What is held against the yardstick: multiplications and additions, or bytes of a :class:`Pass`."""
        return self.work.bytes if isinstance(self.work, Pass) else self.work.flops

    def __str__(self) -> str:
        kind = f" --dt={self.dtype}" * (self.dtype != "f32")
        return f"{self.network} {self.work}{kind}"


@dataclass(frozen=True)
class Result:
    """What one task gave with one number of threads.

    Attributes
    ----------
    case : Task
        What was measured.
    threads : int
        How many threads everybody was allowed.
    seconds : dict of str to Spread
        The time of one run, by contestant; that of ``peak`` is the time at the peak.
    ratios : dict of str to Spread
        Time divided by the time at the peak in the same round.
    behind : dict of str to Spread
        By contestant: its time divided by Relayout's, in the formats that this chose.
    rounds : dict of str to int
        In how many rounds each took part.
    implementations : dict of str to str
        What each says of how it does it.
    notes : dict of str to str
        Who could not do it, and why; whose result differs.
    others : float or None
        Cores that other processes used meanwhile; None where the system does not tell.
    """

    case: Task
    threads: int
    seconds: dict[str, Spread]
    ratios: dict[str, Spread]
    behind: dict[str, Spread]
    rounds: dict[str, int]
    implementations: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    others: float | None = None

    @property
    def disturbed(self) -> bool:
        """Whether other processes took cores that the threads needed; see :mod:`relayout.bench.load`."""
        return disturbed(self.threads, self.others)

    @property
    def peak(self) -> float:
        """The peak that was measured, in units of 10**9 operations (or bytes of a copy) a second."""
        return self.case.amount / self.seconds[PEAK].median / 1e9


def tasks(
    quick: bool = False,
    networks: Sequence[str] = (),
    batches: Sequence[int] | None = None,
    texts: Sequence[str] = (),
    dtype: str = "f32",
) -> list[Task]:
    """Choose what to measure.

    Parameters
    ----------
    quick : bool
        A few layers of each network, and the first of the batches.
    networks : sequence of str
        Only these, by name or by a word of it: ``"weights"`` are all gradients of weights; empty: all.
    batches : sequence of int, optional
        Pictures or sequences at a time; without them 1 and 8, of recurrent layers 1, 16 and 64.
    texts : sequence of str
        Only layers whose line has one of these texts in it; empty: all.
    dtype : str
        The data types, one of :data:`~relayout.bench.networks.TYPES`: of convolutions and matrix products,
        all that there is in others than f32.

    Raises
    ------
    LayoutError
        There is no such network, or no layer is left.

    Examples
    --------
    >>> [task] = tasks(networks=["ResNet-50"], batches=[8], texts=["conv1"], dtype="u8s8")
    >>> task.group, task.work.types.src
    ('ResNet-50 u8s8, batch 8', 'u8')
    """
    wanted = {name for text in networks for name in _named(text)} if networks else NETWORKS
    found = [
        Task(network, batch, work)
        for network, make in NETWORKS.items()
        if network in wanted
        for batch in _batches(network, batches)[: 1 if quick else None]
        for work in make(batch)
        if not quick or (not isinstance(work, Forward) and work.name in QUICK)
    ]
    if dtype != "f32":
        found = [
            replace(task, work=replace(task.work, dtype=dtype))
            for task in found
            if isinstance(task.work, Conv | Product)
            and not isinstance(task.work, BackwardData | BackwardWeights)
        ]
    chosen = [task for task in found if not texts or any(text in str(task) for text in texts)]
    if not chosen:
        asked = ", ".join(map(repr, texts)) or "which a quick run measures"
        raise LayoutError(f"none of {len(found)} layers has {asked} in it; --list prints them")
    return chosen


def _batches(network: str, given: Sequence[int] | None) -> Sequence[int]:
    """Those of a network, if no others are wanted."""
    return given or (BATCHES if network in CELLS else PICTURES)


def _named(text: str) -> list[str]:
    """The network of that name, else all with that word in theirs."""
    found = [text] if text in NETWORKS else [name for name in NETWORKS if text in name.split()]
    if not found:
        raise LayoutError(f"there is no network {text!r}; the networks are {', '.join(NETWORKS)}")
    return found


def measured(
    task: Task,
    threads: Sequence[int],
    rounds: int,
    seconds: float,
    contestants: Sequence[Contestant],
    load: Load | None = None,
) -> Iterator[Result]:
    """Measure a task with each number of threads.

    Parameters
    ----------
    task : Task
        The layer or network.
    threads : sequence of int
        Numbers of threads, one result for each.
    rounds : int
        How often everybody is timed, if time allows.
    seconds : float
        The time that the rounds of one number of threads may take; a whole network has more. One round is
        always made.
    contestants : sequence of Contestant
        Who takes part; the first one's result is what the others are compared with.
    load : Load, optional
        What knows how busy others are; one that serves several tasks knows better.
    """
    load = load or Load()
    given = operands(task.work)
    for count in threads:
        ideal = copying(task.work, count) if isinstance(task.work, Pass) else _ideal(task, count)
        ready, notes = _ready(task.work, given, count, contestants)
        watches = {PEAK: Stopwatch(ideal.run)} | {name: Stopwatch(c.run) for name, c in ready.items()}
        span = seconds * (LONGER if isinstance(task.work, Forward) else 1)
        needed = [name for name in (PEAK, OURS) if name in watches]
        samples = in_rounds(watches, rounds, span, count, needed)
        samples[PEAK] = _at_the_peak(task, ideal, samples[PEAK])
        how = {name: c.implementation for name, c in ready.items()}
        yield Result(
            task, count, **figures(samples, PEAK), implementations=how, notes=notes, others=load.others()
        )


def _ideal(task: Task, threads: int) -> Yardstick:
    """The processor's peak for the data types of a task."""
    types = TYPES[task.dtype]
    return yardstick(threads, instruction_of(as_dtype(types.src), as_dtype(types.weights)))


def _at_the_peak(task: Task, ideal: Yardstick, times: Sequence[float]) -> list[float]:
    return [seconds * task.amount / ideal.flops for seconds in times]


def _ready(
    work: Work, given: Operands, threads: int, contestants: Sequence[Contestant]
) -> tuple[dict[str, Computation], dict[str, str]]:
    """Everybody who can do the work, and what is to be said of the others and of results."""
    ready: dict[str, Computation] = {}
    notes: dict[str, str] = {}
    first: Floats | None = None
    for contestant in contestants:
        try:
            made = contestant.prepare(work, given, threads)
            if made is None:
                continue
            made.run()
            found = made.result()
        except Exception as error:  # of other libraries there may be any
            notes[contestant.name] = f"left out: {_line(error)}"
            continue
        ready[contestant.name] = made
        first = found if first is None else first
        note = difference(first, found, tolerance(work))
        if note is not None:
            notes[contestant.name] = note
    return ready, notes


def _line(error: Exception) -> str:
    """The first line of an error."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def _grouped(
    network: str, batch: int, make: Callable[[str, int], Sequence[Conv]] = convolutions
) -> list[Conv]:
    return [layer for layer in make(network, batch) if layer.groups > 1]


NETWORKS: dict[str, Callable[[int], Sequence[Work]]] = {
    "ResNet-50": partial(convolutions, "ResNet-50"),
    "ResNeXt-101": partial(_grouped, "ResNeXt-101"),
    "MobileNetV2": partial(_grouped, "MobileNetV2"),
    "ViT-B/16": products,
    "LLaMA-7B": prompts,
    "ResNet-50 data": partial(backward_data, "ResNet-50"),
    "ResNet-50 weights": partial(backward_weights, "ResNet-50"),
    "ResNeXt-101 data": partial(_grouped, "ResNeXt-101", make=backward_data),
    "ResNeXt-101 weights": partial(_grouped, "ResNeXt-101", make=backward_weights),
    "MobileNetV2 data": partial(_grouped, "MobileNetV2", make=backward_data),
    "MobileNetV2 weights": partial(_grouped, "MobileNetV2", make=backward_weights),
    "ResNet-50 forward": lambda batch: [Forward(batch)],
    **{name: partial(layers, name) for name in CELLS},
    **{name: partial(passes, name) for name in PASSES},
}
"""The networks, and what makes their layers for a batch."""

QUICK = (
    *("conv1", "stage1.1.middle", "stage2.1.shortcut", "stage3.1.expand", "stage4.2.middle"),
    *("block3.1.depthwise", "attention.inputs", "attention.scores"),
    *("lstm.512", "gru.512"),
    *("stage2.1.expand.norm", "maximum", "relu.512x28x28", "scores"),
)
"""Names of the layers of a quick run."""
