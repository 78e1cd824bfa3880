"""``relayout bench``: how fast it is here."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from relayout.cli.arguments import DIMS, DTYPE, FORMAT, examples
from relayout.cli.options import Output, check_writable, misuse, no_progress_option, output_options
from relayout.cli.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from relayout.bench.census import Outcome
    from relayout.bench.models import Result
    from relayout.bench.modules import Compared
    from relayout.bench.peers import Peer
    from relayout.bench.peers.primitives.contestant import Contestant
    from relayout.bench.primitives import Task
    from relayout.bench.primitives_report import Report as PrimitivesReport
    from relayout.bench.report import Report
    from relayout.bench.threads import Figure
    from relayout.runtime.calibration import Measured

__all__ = ["bench"]

QUICK, WHOLE = (5, 0.25), (7, 3.0)  # rounds, and seconds for a case and a number of threads
QUICK_PRIMITIVES = (5, 1.0)
FURTHEST = 20  # reorders whose estimates are shown
FILE = click.Path(dir_okay=False)

_Command = TypeVar("_Command", bound="Callable[..., Any]")


@click.group(
    invoke_without_command=True,
    short_help="Measure speed, beside other libraries and runtimes.",
    epilog=examples(
        "relayout bench reorder --quick          less than two minutes",
        "relayout bench reorder --list --quick   which reorders that measures",
        "relayout bench primitives --quick",
        "relayout bench threads",
        "relayout bench calibrate",
    ),
)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure speed on this machine, compared with other libraries."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _finite(ctx: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Refuse lengths of time that are infinite or NaN."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no length of time; write seconds, such as 0.5", ctx, option)
    return value


def _measuring(quick: tuple[int, float], whole: tuple[int, float]) -> Callable[[_Command], _Command]:
    """The options of all commands that measure; with the defaults for rounds and seconds."""
    options = [
        click.option(
            "--case", "texts", multiple=True, metavar="TEXT", help="Only cases whose line has TEXT in it."
        ),
        click.option("--threads", type=DIMS, default="1,2", show_default=True, help="Numbers of threads."),
        click.option(
            "--rounds",
            type=click.IntRange(min=1),
            help=f"How often each contestant is timed. [default: {whole[0]}; quick: {quick[0]}]",
        ),
        click.option(
            "--seconds",
            type=click.FloatRange(min=0, min_open=True),
            callback=_finite,
            help="Time for the rounds of a case with one number of threads; one round is made in any case. "
            f"[default: {whole[1]:g}; quick: {quick[1]:g}]",
        ),
        click.option("--plot", "plot_path", type=FILE, help="Draw the ratios: .svg, .png or .pdf."),
        click.option("--list", "listed", is_flag=True, help="Print the cases and measure nothing."),
        no_progress_option,
        output_options,
    ]

    def decorated(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def _settings(
    quick: bool,
    threads: tuple[int, ...],
    rounds: int | None,
    seconds: float | None,
    default: tuple[int, float],
) -> dict[str, Any]:
    """The options of a run."""
    from relayout.targets.processors import MOST

    if not threads or min(threads) < 1 or max(threads) > MOST:
        raise click.UsageError(f"--threads takes numbers from 1 to {MOST}: 1,2", click.get_current_context())
    return {
        "quick": quick,
        "threads": list(dict.fromkeys(threads)),
        "rounds": rounds or default[0],
        "seconds": seconds or default[1],
    }


def _groups(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from relayout.bench.suite import GROUPS

    return [CompletionItem(group) for group in GROUPS if group.startswith(incomplete)]


@bench.command(
    "reorder",
    short_help="Reorders, compared with memcpy, oneDNN, PyTorch and NumPy.",
    epilog=examples(
        "relayout bench reorder --quick",
        "relayout bench reorder --group weights --dtype s8 --threads 1",
        'relayout bench reorder --case "nchw -> f32:nhwc" --rounds 15',
        "relayout bench reorder --json reorder.json --plot reorder.svg",
        "relayout bench reorder --results all.jsonl --minutes 10   one more piece",
        "relayout bench reorder --results all.jsonl --minutes 0    what there is",
        "relayout bench reorder --random 30 --seed 7   sizes that nobody has chosen",
        "relayout bench reorder --list",
    ),
)
@click.option("--quick", is_flag=True, help="A small suite: less than two minutes.")
@click.option("--group", "groups", multiple=True, shell_complete=_groups, help="Only this group of cases.")
@click.option("--dtype", "dtypes", multiple=True, type=DTYPE, help="Only cases with this data type.")
@click.option(
    "--random",
    "count",
    type=click.IntRange(min=1),
    help="Measure so many reorders, drawn at random, instead of the suite.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Which reorders --random draws: the same ones for the same number.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    callback=_finite,
    help="Begin no case after so long; cases are taken from all groups in turn.",
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of results, a line each: what it has is not measured again, but reported with the rest.",
)
@_measuring(QUICK, WHOLE)
def reorder(
    quick: bool,
    groups: Sequence[str],
    dtypes: Sequence[str],
    count: int | None,
    seed: int,
    minutes: float | None,
    results: Path | None,
    texts: Sequence[str],
    threads: tuple[int, ...],
    rounds: int | None,
    seconds: float | None,
    plot_path: str | None,
    listed: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure reorders, each as a multiple of memcpy of the same bytes on as many threads.

    Relayout, oneDNN, PyTorch and NumPy are timed in turn, within one run; those not installed are left out:
    pip install '.[bench]' in a checkout brings all. Figures are medians of the ratios of single rounds. When
    it is interrupted, what was measured until then is reported. The whole suite takes hours: with a file of
    results it can be had in pieces, which are summed up together. What calls cost is left out then.
    """
    from relayout.bench import pieces, plot
    from relayout.bench.drawn import drawn
    from relayout.bench.overhead import overheads
    from relayout.bench.report import as_json, show
    from relayout.bench.suite import cases
    from relayout.dtypes import dtype as as_dtype

    settings = _settings(quick, threads, rounds, seconds, QUICK if quick else WHOLE)
    with misuse():
        several = drawn(count, seed) if count else None
        chosen = cases(quick, groups, [as_dtype(name).name for name in dtypes], texts, several)
        plot_to = _plot_file(plot_path)
    if results is not None:
        check_writable(results)
    known = pieces.read(results) if results else {}
    left = pieces.left(chosen, settings["threads"], known)
    if listed:
        _list([(case.group, str(case)) for case, _ in left], 14, settings, output)
        return
    console = output.console()
    report, peers = _prepared(settings)
    report.planned = len(chosen) * len(settings["threads"])
    _heading(report.machine, report.peers, console)
    wanted = [(str(case), count) for case in chosen for count in settings["threads"]]
    settled = pieces.Settings(settings["rounds"], settings["seconds"], minutes)
    calls = results is None and minutes is None
    try:
        with progress_bar(len(left) + calls, output, no_progress) as progress:
            order = left if minutes is None else pieces.spread_out(left)
            for found in pieces.run(order, settled, peers, results, progress):
                known[str(found.case), found.threads] = found
            if calls:
                progress("calls")
                report.overheads.extend(overheads(settings["rounds"]))
    finally:
        report.results.extend(known[key] for key in wanted if key in known)
        if report.results:
            show(report, console)
            output.json(json.loads(as_json(report)))
            _plotted(plot_to, output, lambda path: plot.draw(report, path))


@bench.command(
    "schedules",
    short_help="All schedules of each reorder: how far the estimate is from the best.",
    epilog=examples(
        "relayout bench schedules --quick",
        "relayout bench schedules --quick --threads 1 --json schedules.json",
        'relayout bench schedules --case "s8:nchw -> s8:nhwc" --rounds 9',
    ),
)
@click.option("--quick", is_flag=True, help="The small suite of bench reorder.")
@click.option("--group", "groups", multiple=True, shell_complete=_groups, help="Only this group of cases.")
@click.option(
    "--random",
    "count",
    type=click.IntRange(min=1),
    help="Measure so many reorders, drawn at random, instead of the suite.",
)
@click.option("--seed", default=0, show_default=True, help="Which reorders --random draws.")
@click.option("--case", "texts", multiple=True, metavar="TEXT", help="Only cases whose line has TEXT in it.")
@click.option("--threads", type=DIMS, default="1,2", show_default=True, help="Numbers of threads.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="How often each schedule is timed that is not hopeless after the first.",
)
@no_progress_option
@output_options
def schedules(
    quick: bool,
    groups: Sequence[str],
    count: int | None,
    seed: int,
    texts: Sequence[str],
    threads: tuple[int, ...],
    rounds: int,
    no_progress: bool,
    output: Output,
) -> None:
    """Time every schedule that a reorder has, the estimate among them, in turn and in this process.

    The estimate is what runs with RELAYOUT_EFFORT=estimate, and before a contest is over. Its time divided by
    that of the best schedule is what it loses. Reorders that kernels don't do are left out, and those of less
    than 128 KiB, among whose schedules nobody chooses by measuring.
    """
    from rich.table import Table

    from relayout.bench.drawn import drawn
    from relayout.bench.load import Load
    from relayout.bench.particulars import particulars
    from relayout.bench.schedules import figure, mean_loss
    from relayout.bench.suite import cases

    settings = _settings(False, threads, rounds, None, (rounds, 1.0))
    load, console = Load(), output.console()
    machine = particulars("relayout")
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    with misuse():
        chosen = cases(quick, groups, (), texts, drawn(count, seed) if count else None)
    found = []
    with progress_bar(len(chosen) * len(settings["threads"]), output, no_progress) as progress:
        for many, case in product(settings["threads"], chosen):
            progress(str(case))
            found.append(figure(case, many, rounds))
    figures = [one for one in found if one is not None]
    table = Table(title="furthest from the best")
    table.add_column("reorder", no_wrap=True)
    for name in ("threads", "schedules", "estimate / memcpy", "best / memcpy", "estimate / best"):
        table.add_column(name, justify="right")
    table.add_column("best")
    for one in sorted(figures, key=lambda one: -one.loss)[:FURTHEST]:
        table.add_row(
            str(one.case),
            str(one.threads),
            str(len(one.schedules)),
            f"{one.estimate.seconds / one.copy:.2f}",
            f"{one.best.seconds / one.copy:.2f}",
            f"{one.loss:.2f}",
            one.best.wish,
        )
    console.print(table)
    means = {}
    for many in settings["threads"]:
        several = [one for one in figures if one.threads == many]
        if several:
            means[many] = mean_loss(several)
            amount = f"{len(several)} {'reorder' if len(several) == 1 else 'reorders'}"
            console.print(f"threads {many}: estimate / best {means[many]:.3f}, geometric mean of {amount}")
    output.json(
        {
            "machine": machine,
            "cores_used_by_others": load.others(),
            "estimate_over_best": {str(many): mean for many, mean in means.items()},
            "figures": [one.as_data() for one in figures],
        }
    )


def _networks(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from relayout.bench.primitives import NETWORKS

    return [CompletionItem(network) for network in NETWORKS if network.startswith(incomplete)]


@bench.command(
    "primitives",
    short_help="Convolutions, products, recurrent layers, compared with oneDNN and PyTorch.",
    epilog=examples(
        "relayout bench primitives --quick",
        "relayout bench primitives --network ResNet-50 --batch 1 --threads 1",
        "relayout bench primitives --network LSTM --network GRU",
        "relayout bench primitives --network ResNet-50 --dtype u8s8 --case middle",
        "relayout bench primitives --only data --only weights --json gradients.json",
        "relayout bench primitives --case stage1.1.middle --format nhwc --format nchw",
        "relayout bench primitives --json primitives.json --plot primitives.svg",
        "relayout bench primitives --list",
    ),
)
@click.option("--quick", is_flag=True, help="A few layers in a few formats: less than two minutes.")
@click.option(
    *("--network", "--only", "networks"),
    multiple=True,
    shell_complete=_networks,
    metavar="NAME",
    help="Only this network, or all with this word in their names: data and weights are gradients.",
)
@click.option(
    "--dtype",
    type=click.Choice(["f32", "bf16", "f16", "u8s8", "s8s8"]),
    default="f32",
    show_default=True,
    help="Data types of convolutions and matrix products: u8s8 are sources of u8 and weights of s8.",
)
@click.option("--batch", "batches", type=DIMS, help="Batches. [default: 1,8; of recurrent layers 1,16,64]")
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=FORMAT,
    help="Relayout in this format too, besides those that it chooses. [default: all that are in use]",
)
@_measuring(QUICK_PRIMITIVES, WHOLE)
def primitives(
    quick: bool,
    networks: Sequence[str],
    dtype: str,
    batches: tuple[int, ...] | None,
    formats: Sequence[str],
    texts: Sequence[str],
    threads: tuple[int, ...],
    rounds: int | None,
    seconds: float | None,
    plot_path: str | None,
    listed: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure the layers of networks, each as a multiple of its time at the processor's peak.

    The peak is that of multiplications and additions in registers, with as many threads, measured in each
    round; of narrow data types it is that of the instruction which adds up their products. Relayout in the
    formats that it chooses and in given ones, oneDNN and PyTorch are timed in turn; of whole networks also
    ONNX Runtime and OpenVINO. Those not installed are left out. Only the primitive is timed: sources are laid
    out and weights are packed before. A file of --json is written anew whenever a network is done, so that a
    run which is ended leaves what it has measured.
    """
    from relayout.bench import plot
    from relayout.bench.primitives import tasks
    from relayout.bench.primitives_report import as_json, show

    settings = _settings(quick, threads, rounds, seconds, QUICK_PRIMITIVES if quick else WHOLE)
    if batches is not None and (not batches or min(batches) < 1):
        raise click.UsageError("--batch takes numbers from 1 on: 1,8", click.get_current_context())
    with misuse():
        chosen = tasks(quick, networks, batches, texts, dtype)
        plot_to = _plot_file(plot_path)
    if listed:
        _list([(task.group, str(task.work)) for task in chosen], 28, settings, output)
        return
    console = output.console()
    report, contestants = _contestants(settings, formats)
    report.planned = len(chosen) * len(settings["threads"])
    _heading(report.machine, report.peers, console)
    try:
        with progress_bar(len(chosen), output, no_progress) as progress:
            _measure_primitives(report, chosen, contestants, progress, output)
    finally:
        if report.results:
            show(report, console)
            words = "Primitives against the processor's peak", "time / time at the peak"
            output.json(json.loads(as_json(report)))
            _plotted(plot_to, output, lambda path: plot.draw(report, path, *words))


@bench.command(
    "calibrate",
    short_help="When to bypass the caches, when to wake threads.",
    epilog=examples("relayout bench calibrate", "RELAYOUT_THREADS=8 relayout bench calibrate"),
)
@output_options
def calibrate(output: Output) -> None:
    """Measure this machine's thresholds anew, and keep them.

    Relayout does so by itself when it first needs them, and keeps them beside its compiled kernels. Measure
    again where the machine was busy then, or has changed. Each table shows times as a multiple of the plain
    way: of a copy and one reading of the result, with streaming stores; and of a copy, with all threads.
    The clock and the speed of copies, by which networks are planned, are forgotten and measured again, too.
    RELAYOUT_STREAMING and RELAYOUT_SHARING, in bytes, override what was measured.
    """
    from relayout.jit import compile
    from relayout.runtime.kept import forget
    from relayout.runtime.threads import count
    from relayout.runtime.thresholds import calibrated
    from relayout.targets.machine import host

    machine, console = host(), output.console()
    if not compile.available() or machine.thresholds is not None:
        raise click.ClickException(
            "nothing to measure: RELAYOUT_CPU is set, or this host forbids machine code"
        )
    forget()  # the clock and the speed of copies, which are measured again when a plan asks for them
    headings = {"streaming": "streamed", "sharing": f"{count()} threads"}
    told: dict[str, Any] = {"threads": count()}
    for what, heading in headings.items():
        if what == "sharing" and count() == 1:
            console.print("sharing: one thread, nothing to share")
            continue
        found = calibrated(what, machine)
        told[what] = {"threshold": found.threshold, "figures": [f._asdict() for f in found.figures]}
        _thresholds(what, heading, found, console)
    output.json(told)


def _thresholds(what: str, heading: str, found: Measured, console: Console) -> None:
    from rich.table import Table

    from relayout.runtime.calibration import crossover

    how = "" if crossover(found.figures) else ", a guess: nothing that was measured won clearly"
    console.print(f"{what}: from {found.threshold / 2**20:g} MiB on{how}")
    table = Table()
    for name in ("source and destination", "plain", heading):
        table.add_column(name, justify="right", no_wrap=True)
    for size, without, with_it in found.figures:
        table.add_row(f"{size / 2**20:g} MiB", f"{1e6 * without:.0f} us", f"{with_it / without:.2f}")
    console.print(table)


@bench.command(
    "threads",
    short_help="What it costs to share work among threads.",
    epilog=examples(
        "relayout bench threads", "relayout bench threads --threads 4 --rounds 30 --json threads.json"
    ),
)
@click.option(
    "--threads", type=click.IntRange(min=2), help="Number of threads. [default: all that may be used]"
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="How often each is measured."
)
@output_options
def threads(threads: int | None, rounds: int, output: Output) -> None:
    """Measure what it costs to share work among threads: Relayout's and OpenMP's.

    region: a region that does nothing. wakeup: until all threads have begun. arithmetic, copy: how many times
    as fast all threads do what takes one a millisecond. The states: hot, right after another region; busy,
    after the caller has computed alone for so long; asleep, after it has slept; after another, when threads
    of another library may still spin. Figures are medians with quartiles.
    """
    from relayout.bench.load import Load
    from relayout.bench.particulars import particulars
    from relayout.bench.threads import figures
    from relayout.runtime.threads import count
    from relayout.targets.processors import MOST

    many, load, console = min(threads or max(2, count()), MOST), Load(), output.console()
    machine = particulars("relayout")
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    with misuse():
        found = list(figures(many, rounds))
    others = load.others()
    _shared(found, many, others, console)
    told = [{**figure._asdict(), "spread": figure.spread._asdict()} for figure in found]
    output.json(
        {
            "machine": machine,
            "threads": many,
            "rounds": rounds,
            "cores_used_by_others": others,
            "figures": told,
        }
    )


@bench.command(
    "formats",
    short_help="One convolution in the right and the wrong format.",
    epilog=examples("relayout bench formats", "relayout bench formats --threads 2 --json formats.json"),
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Number of threads."
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=9, show_default=True, help="How often each is timed."
)
@click.option(
    "--dtype", "types", multiple=True, type=click.Choice(["f32", "bf16", "u8"]), help="Only this data type."
)
@click.option("--type", "older", multiple=True, type=click.Choice(["f32", "bf16", "u8"]), hidden=True)
@output_options
def formats(
    threads: int, rounds: int, types: tuple[str, ...], older: tuple[str, ...], output: Output
) -> None:
    """Measure a convolution of 3x3 over 256 channels in f32, bf16 and u8, in formats that suit it and others.

    Each format of weights is tried with nhwc, and each format of the source with weights in the format that
    the primitive asks for. Nothing is converted beforehand: what is in the wrong order is packed in each
    call.
    """
    from rich.table import Table

    from relayout.bench.formats import cases, figures
    from relayout.bench.load import Load
    from relayout.bench.particulars import particulars

    load, console = Load(), output.console()
    machine = particulars("relayout")
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    with misuse():
        types += older
        wanted = tuple(one for one in cases() if not types or one.type in types)
        found = figures(threads, rounds, 3.0 * len(wanted), wanted)
    others = load.others()
    best: dict[str, float] = {}
    for one in found:
        if one.seconds is not None:
            best[one.case.type] = min(best.get(one.case.type, math.inf), one.seconds.median)
    table = Table()
    for name in ("type", "source", "weights"):
        table.add_column(name, no_wrap=True)
    for name in ("time", "times the best"):
        table.add_column(name, justify="right")
    for one in found:
        case, taken = one.case, one.seconds
        figures_of = ("no kernel", "")
        if taken is not None:
            figures_of = (
                f"{1e3 * taken.median:.3f} ms",
                f"{taken.median / best[case.type]:.2f}{'~' * taken.wavers}",
            )
        table.add_row(case.type, case.source, case.weights, *figures_of)
    console.print(table)
    told = [
        {
            **vars(one.case),
            "seconds": None if one.seconds is None else one.seconds._asdict(),
            "how": one.how,
        }
        for one in found
    ]
    output.json({"machine": machine, "threads": threads, "cores_used_by_others": others, "figures": told})


@bench.command(
    "few-bits",
    short_help="Products by weights of 4 bits beside ONNX Runtime and the speed of reading.",
    epilog=examples(
        "relayout bench few-bits", "relayout bench few-bits --case 11008 --threads 1 --json few-bits.json"
    ),
)
@click.option("--case", "texts", multiple=True, metavar="TEXT", help="Only products with TEXT in their line.")
@click.option("--threads", type=DIMS, default="1,2", show_default=True, help="Numbers of threads.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="How often each is timed."
)
@output_options
def few_bits(texts: tuple[str, ...], threads: tuple[int, ...], rounds: int, output: Output) -> None:
    """Measure matrix products by weights of 4 and 8 bits in blocks, which stay packed.

    What they are held against: a kernel that reads as many bytes; the product of f32 by weights that somebody
    has dequantised before; ONNX Runtime's MatMulNBits, where that is installed. Products follow each other in
    one call, as in a network, each with other weights, together twice the last cache.
    """
    from rich.table import Table

    from relayout.bench.blockwise import CASES, READING, figure
    from relayout.bench.load import Load
    from relayout.bench.measure import OURS
    from relayout.bench.particulars import particulars

    settings = _settings(False, threads, rounds, None, (rounds, 6.0))
    load, console = Load(), output.console()
    machine = particulars("relayout")
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    cases = [one for one in CASES if all(text in str(one) for text in texts)]
    if not cases:
        raise click.UsageError("no product has that in its line: " + "; ".join(map(str, CASES)))
    with misuse():
        found = [
            figure(one, many, rounds, settings["seconds"]) for one in cases for many in settings["threads"]
        ]
    others = load.others()
    table = Table()
    table.add_column("product", no_wrap=True)
    peers = list(dict.fromkeys(name for one in found for name in one.behind))
    for name in ("threads", "time", "GB/s", "of reading", *(f"{name} / Relayout" for name in peers)):
        table.add_column(name, justify="right")
    for one in found:
        behind = (one.behind.get(name) for name in peers)
        table.add_row(
            str(one.product),
            str(one.threads),
            f"{1e3 * one.seconds[OURS].median:.3f} ms",
            f"{one.gigabytes:.1f}",
            f"{one.share:.2f}",
            *("" if spread is None else f"{spread.median:.2f}{'~' * spread.wavers}" for spread in behind),
        )
    console.print(table)
    told = [
        {
            "product": str(one.product),
            "bytes": one.product.bytes,
            "threads": one.threads,
            "rounds": one.rounds,
            "seconds": {name: spread._asdict() for name, spread in one.seconds.items()},
            "ratios": {name: spread._asdict() for name, spread in one.ratios.items()},
        }
        for one in found
    ]
    output.json({"machine": machine, "yardstick": READING, "cores_used_by_others": others, "figures": told})


@bench.command(
    "narrow",
    short_help="Pooling, softmax, normalisation on narrow numbers beside memcpy.",
    epilog=examples(
        "relayout bench narrow --threads 1", "relayout bench narrow --case average --json narrow.json"
    ),
)
@click.option("--case", "texts", multiple=True, metavar="TEXT", help="Only layers with TEXT in their line.")
@click.option("--threads", type=DIMS, default="1", show_default=True, help="Numbers of threads.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="How often each is timed."
)
@output_options
def narrow(texts: tuple[str, ...], threads: tuple[int, ...], rounds: int, output: Output) -> None:
    """Measure layers on bf16, f16 and bytes that do little for each element.

    They are held against a copy of as many bytes: softmax, pooling, linear resampling, normalisations and
    ReLU.
    """
    from rich.table import Table

    from relayout.bench.load import Load
    from relayout.bench.measure import OURS
    from relayout.bench.narrow import CASES, figure
    from relayout.bench.particulars import particulars

    settings = _settings(False, threads, rounds, None, (rounds, 3.0))
    load, console = Load(), output.console()
    machine = particulars("relayout")
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    cases = [one for one in CASES if all(text in str(one) for text in texts)]
    if not cases:
        raise click.UsageError("no layer has that in its line: " + "; ".join(map(str, CASES)))
    with misuse():
        found = [
            figure(one, many, rounds, settings["seconds"]) for one in cases for many in settings["threads"]
        ]
    others = load.others()
    table = Table()
    table.add_column("layer", no_wrap=True)
    for name in ("threads", "time", "of memcpy", "lower quartile"):
        table.add_column(name, justify="right")
    for one in found:
        times = one.times
        table.add_row(
            str(one.case),
            str(one.threads),
            f"{1e3 * one.seconds[OURS].median:.3f} ms",
            f"{times.median:.2f}{'~' * times.wavers}",
            f"{times.low:.2f}",
        )
    console.print(table)
    told = [
        {
            "layer": str(one.case),
            "bytes": one.case.bytes,
            "threads": one.threads,
            "how": one.how,
            "rounds": one.rounds,
            "seconds": {name: spread._asdict() for name, spread in one.seconds.items()},
            "ratios": {name: spread._asdict() for name, spread in one.ratios.items()},
        }
        for one in found
    ]
    output.json({"machine": machine, "cores_used_by_others": others, "figures": told})


@bench.command(
    "networks",
    short_help="Whole networks beside ONNX Runtime, OpenVINO and torch.compile.",
    epilog=examples(
        "relayout bench networks --quick",
        "relayout bench networks --only resnet --batch 1 --results nets.jsonl",
        "relayout bench networks --dtype int8 --dtype bf16 --results narrow.jsonl",
        "relayout bench networks model.onnx other.onnx --threads 4",
    ),
)
@click.argument(
    "models",
    nargs=-1,
    metavar="[MODEL.onnx...]",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--quick", is_flag=True, help="Six networks with batch 1.")
@click.option("--only", "texts", multiple=True, metavar="TEXT", help="Only networks with TEXT in their name.")
@click.option(
    "--dtype",
    "kinds",
    type=click.Choice(("f32", "bf16", "int8")),
    multiple=True,
    help="What networks are computed in; int8: quantised by ONNX Runtime. Several: one after the other. "
    "[default: f32]",
)
@click.option("--type", "older", type=click.Choice(("f32", "bf16", "int8")), multiple=True, hidden=True)
@click.option("--without", multiple=True, metavar="NAME", help="Leave this contestant out.")
@click.option("--threads", type=DIMS, default="1,2", show_default=True, help="Numbers of threads.")
@click.option("--batch", "batches", type=DIMS, help="Batches. [default: 1,8; of files that leave it open: 1]")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="How often each is timed, at most.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    callback=_finite,
    default=6.0,
    show_default=True,
    help="Time for the rounds of a network, with one number of threads and one batch.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    callback=_finite,
    help="Begin no further network after so many minutes.",
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of results, a line each: what it has of all contestants is not measured again.",
)
@click.option("--list", "listed", is_flag=True, help="Print what would be measured.")
@click.option("--export", "exports", is_flag=True, help="Write the networks as files, and measure nothing.")
@no_progress_option
@output_options
def networks(
    models: tuple[Path, ...],
    quick: bool,
    texts: tuple[str, ...],
    kinds: tuple[str, ...],
    older: tuple[str, ...],
    without: tuple[str, ...],
    threads: tuple[int, ...],
    batches: tuple[int, ...] | None,
    rounds: int,
    seconds: float,
    minutes: float | None,
    results: Path | None,
    listed: bool,
    exports: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure whole networks: Relayout, ONNX Runtime, OpenVINO and torch.compile in turn.

    Without files: 30 well-known networks of torchvision, timm and transformers, with random weights;
    what is not installed is named and left out. They are exported once and kept (RELAYOUT_NETWORKS names the
    folder). Each contestant has a process of its own, and its threads sleep before another one's turn. Memory
    and the time to the first result are those of fresh processes.

    In bf16 and int8 (--dtype) five networks are measured, batch 1 unless --batch says another one: in bf16
    OpenVINO and torch.compile take part; in int8 ONNX Runtime, and OpenVINO with the quantised file and with
    the other one in bf16, which is its default. Relayout in f32 stands beside both.
    """
    from relayout.bench import contest, running
    from relayout.bench.models import as_json, read, show
    from relayout.bench.particulars import particulars

    many = _settings(quick, threads, rounds, seconds, WHOLE)["threads"]
    unknown = sorted(set(without) - set(contest.PEERS))
    if unknown or (batches is not None and (not batches or min(batches) < 1)):
        what = f"--without takes {', '.join(contest.PEERS)}" if unknown else "--batch takes numbers from 1 on"
        raise click.UsageError(what, click.get_current_context())
    kinds = tuple(dict.fromkeys(kinds + older)) or ("f32",)
    if models and "int8" in kinds:
        what = "--dtype int8 is for networks that are quantised here; a quantised file is measured as it is"
        raise click.UsageError(what, click.get_current_context())
    console = output.console()
    peers = {name: None if name in without else found for name, found in contest.installed().items()}
    with running.entries(models, quick, texts, batches, many, kinds) as (entries, lacking):
        known = {one.key: one for one in read(results)} if results else {}
        taking = [name for name in peers if peers[name]]
        left = [one for one in entries if not running.done(one, taking, known)]
        if listed:
            for one in left:
                output.answer(f"{one.title}, batch {one.batch}, threads: {one.threads}")
            return
        if not exports:
            versions = {name: "left out" if name in without else one for name, one in peers.items()}
            _heading(particulars("numpy", "relayout"), versions, console)
        for name, why in lacking.items():
            console.print(f"{name}: left out, {why}", markup=False)
        try:
            with progress_bar(len(left), output, no_progress) as progress:
                settings = running.Settings([name for name in peers if peers[name]], rounds, seconds, minutes)
                for found in running.run(left, settings, results, progress, exports):
                    known[found.key] = found
        finally:
            wanted = {(one.title, one.threads, one.batch) for one in entries}
            told = [one for key, one in known.items() if key in wanted]
            if told:
                show(told, console)
                output.json(as_json(told, particulars("numpy", "relayout"), peers))


@bench.command(
    "training",
    short_help="Steps of training beside PyTorch.",
    epilog=examples(
        "relayout bench training --network resnet50 --threads 2",
        "relayout bench training --batch 8,32 --results steps.jsonl --json steps.json",
        "relayout bench training --without torch.compile",
        "relayout bench training --check --network resnet50 --batch 8",
    ),
)
@click.option("--network", "networks", multiple=True, help="Only this network. [default: all there are]")
@click.option("--without", multiple=True, metavar="NAME", help="Leave this contestant out.")
@click.option("--threads", type=DIMS, default="1,2", show_default=True, help="Numbers of threads.")
@click.option("--batch", "batches", type=DIMS, default="8", show_default=True, help="Pictures of a step.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often each is timed, at most.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    callback=_finite,
    default=60.0,
    show_default=True,
    help="Time for the rounds of a network.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Time nothing: how far five steps come from PyTorch's and from double precision.",
)
@click.option("--rate", "rates", multiple=True, type=float, help="Learning rates of --check. [default: 0.01]")
@click.option(
    "--size",
    type=click.IntRange(min=32),
    default=224,
    show_default=True,
    help="Height and width of the pictures of --check.",
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of results, a line each, that later runs continue.",
)
@no_progress_option
@output_options
def training(
    networks: tuple[str, ...],
    without: tuple[str, ...],
    threads: tuple[int, ...],
    batches: tuple[int, ...],
    rounds: int,
    seconds: float,
    check: bool,
    rates: tuple[float, ...],
    size: int,
    results: Path | None,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure steps of training: forward, backward and stochastic gradient descent with momentum.

    ResNet-50 and ResNeXt-101 on random pictures of 224 x 224: Relayout in the formats that it chooses, with
    nhwc and with nChw16c for all images; PyTorch contiguous, channels_last and compiled. Each has a process
    of its own, and its threads sleep before another one's turn.

    With --check the same five steps are made by Relayout, and by PyTorch in single and in double precision;
    what is told is how far losses and parameters are apart.
    """
    from relayout.bench import training
    from relayout.bench.models import as_json, read
    from relayout.bench.particulars import particulars

    for given, known, what in (
        (networks, training.NETWORKS, "--network"),
        (without, training.CONTESTANTS, "--without"),
    ):
        if not {*given} <= {*known}:
            raise click.UsageError(f"{what} takes {', '.join(known)}", click.get_current_context())
    if not batches or min(batches) < 1:
        raise click.UsageError("--batch takes numbers from 1 on", click.get_current_context())
    if check:
        _checked(networks or training.NETWORKS[:1], batches, rates or (0.01,), size, threads, output)
        return
    many = _settings(False, threads, rounds, seconds, WHOLE)["threads"]
    console, versions = output.console(), training.peers()
    names = [
        name
        for name in training.CONTESTANTS
        if name not in without and versions.get(name, "here") is not None
    ]
    told = {one.key: one for one in read(results)} if results else {}
    wanted = [
        (network, batch, count)
        for network in networks or training.NETWORKS
        for batch in batches
        for count in many
        if not {*names} <= _took_part(told.get((network, count, batch)))
    ]
    _heading(particulars("numpy", "relayout"), versions, console)
    try:
        with progress_bar(len(wanted), output, no_progress) as progress:
            for found in training.run(wanted, names, rounds, seconds, results, progress):
                told[found.key] = found
    finally:
        if told:
            training.show(list(told.values()), console)
            output.json(as_json(list(told.values()), particulars("numpy", "relayout"), versions))


def _checked(
    networks: Sequence[str],
    batches: Sequence[int],
    rates: Sequence[float],
    size: int,
    threads: Sequence[int],
    output: Output,
) -> None:
    """How far steps of training come from PyTorch's."""
    from relayout.bench.drift import drift, show

    found = []
    for network, batch, rate in product(networks, batches, rates):
        with progress_bar(0, output, False) as progress:
            found.append(drift(network, batch, rate, 5, size, max(threads), progress))
        show(found[-1:], output.console())
    output.json({"runs": [one.as_json() for one in found]})


def _took_part(found: Result | Compared | None) -> set[str]:
    """Who has a figure in a result, or was refused."""
    return set() if found is None else {*found.seconds, *found.refused}


@bench.command(
    "compile",
    short_help="torch.compile with this back end beside eager PyTorch and its own back end.",
    epilog=examples(
        "relayout bench compile --one-of-each-family --batch 1 --threads 1",
        "relayout bench compile --results compile.jsonl --minutes 60 --json a.json",
        'relayout bench compile --only resnet --without "torch.compile frozen"',
        "relayout bench compile --one-of-each-family --results compile.jsonl --list",
    ),
)
@click.option("--only", "texts", multiple=True, metavar="TEXT", help="Only networks with TEXT in their name.")
@click.option("--one-of-each-family", "families", is_flag=True, help="24 networks instead of all 80.")
@click.option(
    "--without",
    multiple=True,
    metavar="NAME",
    help="Leave this contestant out: PyTorch, PyTorch channels_last, torch.compile, torch.compile frozen.",
)
@click.option("--threads", type=DIMS, default="1,2", show_default=True, help="Numbers of threads.")
@click.option("--batch", "batches", type=DIMS, default="1,8", show_default=True, help="Pictures of a call.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="How often each is timed, at most.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    callback=_finite,
    default=6.0,
    show_default=True,
    help="Time for the rounds of a network.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    callback=_finite,
    help="Begin no further network after so many minutes.",
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of results, a line each: what it has of this machine is not measured again.",
)
@click.option("--list", "listed", is_flag=True, help="Print what would be measured.")
@no_progress_option
@output_options
def compile_(
    texts: tuple[str, ...],
    families: bool,
    without: tuple[str, ...],
    threads: tuple[int, ...],
    batches: tuple[int, ...],
    rounds: int,
    seconds: float,
    minutes: float | None,
    results: Path | None,
    listed: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure torch.compile with this back end on torchvision's networks for classification.

    Beside it eager PyTorch, contiguous and channels_last, and PyTorch's own back end, with weights as inputs
    and frozen. Weights are random. Each contestant has a process of its own.

    One network of each family comes first: batch 1, then batch 8, on one thread, then on two; behind them all
    other networks. The first entry of a network shows what compiling takes, too: the first call with empty
    caches on disk, and with what that has left there. Most of the time is that of PyTorch's own back end,
    which compiles for each batch and number of threads, and once more for frozen weights.
    """
    from relayout.bench import modules

    if not {*without} <= {*modules.CONTESTANTS}:
        known = ", ".join(modules.CONTESTANTS)
        raise click.UsageError(f"--without takes {known}", click.get_current_context())
    if not batches or min(batches) < 1:
        raise click.UsageError("--batch takes numbers from 1 on", click.get_current_context())
    many = _settings(False, threads, rounds, seconds, WHOLE)["threads"]
    console, versions, here = output.console(), modules.versions(), modules.machine()
    names = [one for one in modules.CONTESTANTS if one not in without and versions.get(one, "") is not None]
    told = modules.read(results, here) if results else {}
    chosen = modules.REPRESENTATIVES if families else modules.NETWORKS
    networks = [one for one in chosen if not texts or any(text in one for text in texts)]
    missing = modules.settings_of(modules.entries(networks, batches, many, names, told))
    wanted = [(network, *setting) for network, several in missing.items() for setting in several]
    if listed:
        for network, count, batch in wanted:
            console.print(f"{network}, batch {batch}, threads: {count}", markup=False)
        output.json({"networks": wanted})
        return
    _heading(here, versions, console)
    try:
        with progress_bar(len(wanted), output, no_progress) as progress:
            for found in modules.run(wanted, names, rounds, seconds, minutes, results, progress, told):
                told[found.key] = found
    finally:
        if told:
            modules.show(list(told.values()), console)
            output.json(modules.as_json(list(told.values()), here, versions))


@bench.command(
    "torch",
    short_help="Conversions of PyTorch's tensors, and batches of pictures.",
    epilog=examples(
        "relayout bench torch --json conversions.json         less than five minutes",
        "relayout bench torch --batch 1,8",
        "relayout bench torch --case batch --case loader",
        "relayout bench torch --list",
    ),
)
@click.option("--case", "texts", multiple=True, metavar="TEXT", help="Only cases whose line has TEXT in it.")
@click.option("--threads", type=DIMS, default="1,2", show_default=True, help="Numbers of threads.")
@click.option(
    "--batch", "batches", type=DIMS, default="8", show_default=True, help="Batch of the activations."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=9,
    show_default=True,
    help="How often each is timed, at most.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    callback=_finite,
    default=0.5,
    show_default=True,
    help="Time for the rounds of a case with one number of threads.",
)
@click.option("--list", "listed", is_flag=True, help="Print the cases and measure nothing.")
@no_progress_option
@output_options
def torch(
    texts: tuple[str, ...],
    threads: tuple[int, ...],
    batches: tuple[int, ...],
    rounds: int,
    seconds: float,
    listed: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure conversions of PyTorch's tensors beside PyTorch's own.

    The activations of ResNet-50 from and to channels-last; batches of pictures, normalised, beside PyTorch's
    operations, and by a DataLoader without and with workers. A figure is PyTorch's time / ours, the median of
    rounds.
    """
    from importlib.util import find_spec

    from relayout.bench import conversions
    from relayout.bench.particulars import particulars

    many = _settings(False, threads, rounds, seconds, WHOLE)["threads"]
    if not batches or min(batches) < 1:
        raise click.UsageError("--batch takes numbers from 1 on", click.get_current_context())
    chosen = conversions.cases(batches, texts)
    if listed:
        for case in chosen:
            output.answer(str(case))
        return
    if find_spec("torch") is None:
        raise click.ClickException("PyTorch is not installed: pip install torch, or as pytorch.org says")
    wanted = [
        (case, count) for count in many for case in chosen if case.kind != "loader" or count == max(many)
    ]
    machine = particulars("numpy", "torch", "relayout")
    found: list[conversions.Result] = []
    _heading(machine, {}, output.console())
    try:
        with progress_bar(len(wanted), output, no_progress) as progress:
            found.extend(conversions.measured(wanted, rounds, seconds, progress))
    finally:
        if found:
            conversions.show(found, output.console())
            output.json(conversions.as_json(found, machine))


@bench.command(
    "census",
    short_help="Which networks of public packages come in, and come out right.",
    epilog=examples(
        "relayout bench census --only extra/",
        "relayout bench census --results census.jsonl --way batch",
        "relayout bench census --results census.jsonl --list",
        "relayout bench census --training --way program --results census.jsonl",
    ),
)
@click.option("--only", "texts", multiple=True, metavar="TEXT", help="Only networks with TEXT in their name.")
@click.option(
    "--way",
    "ways",
    multiple=True,
    default=("static",),
    show_default=True,
    help="static, batch (its size open), plain (unoptimised), script (TorchScript), program (torch.export).",
)
@click.option("--training", is_flag=True, help="Train each network for a step.")
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of results, a line each, that later runs continue.",
)
@click.option("--again", is_flag=True, help="Try once more the networks that did not agree.")
@click.option("--keep", is_flag=True, help="Keep the exported files.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    callback=_finite,
    default=900.0,
    show_default=True,
    help="Seconds that a network may take.",
)
@click.option(
    "--memory",
    type=click.FloatRange(min=0.1),
    default=14.0,
    show_default=True,
    help="Memory that a network may take, in GB.",
)
@click.option("--list", "listed", is_flag=True, help="Print the networks and what is known of them.")
@no_progress_option
@output_options
def census(
    texts: tuple[str, ...],
    ways: tuple[str, ...],
    training: bool,
    results: Path | None,
    again: bool,
    keep: bool,
    seconds: float,
    memory: float,
    listed: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Import, run and compare 277 networks of torchvision, timm and transformers, and some more.

    ONNX files are compared with ONNX Runtime, programs of torch.export with PyTorch: no output may differ by
    more than 1e-4 of its largest value. With --training a step of 77 of them, on pictures of 64 x 64, is
    compared with PyTorch's in double precision: loss and gradients may be 4 times as far off as those of
    PyTorch in single precision. Each network has a process of its own; one that takes too long or too much
    memory is a line in the results.
    """
    import tempfile
    from dataclasses import asdict

    from relayout.bench import census as looking
    from relayout.bench.zoo import CENSUS, MORE, TRAINED

    wrong = [way for way in ways if way not in looking.WAYS]
    if wrong:
        raise click.UsageError(f"--way takes {', '.join(looking.WAYS)}", click.get_current_context())
    names = TRAINED if training else (*CENSUS, *MORE)
    names = tuple(name for name in names if not texts or any(text in name for text in texts))
    if listed:
        before = [one for one in (looking.read(results) if results else ()) if one.training == training]
        known = {(one.name, one.way): one.status for one in before}
        for name in names:
            told = ", ".join(f"{way} {known[name, way]}" for way in ways if (name, way) in known)
            output.answer(f"{name:<48} {told}".rstrip())
        return
    limits = looking.Limits(seconds, memory * 1e9)
    with tempfile.TemporaryDirectory() as scratch:
        path = results or Path(scratch, "census.jsonl")
        with progress_bar(len(names) * len(ways), output, no_progress) as progress:
            for way in ways:
                for name in names:
                    progress(f"{name}, {way}")
                    for one in looking.looked_at([name], way, path, limits, keep, again, training):
                        if training:
                            output.console().print(f"{name}, {way}: {one.status}: {one.why}", markup=False)
        found = [one for one in looking.read(path) if one.way in ways and one.training == training]
        found = [one for one in found if one.name in set(names)]
    _counted(found, output.console())
    output.json({"agrees": looking.AGREES, "outcomes": [asdict(one) for one in found]})


def _counted(found: Sequence[Outcome], console: Console) -> None:
    """How many networks agree, and every one that does not."""
    from relayout.bench.census import OUTSIDE, RIGHT, summary

    for way in dict.fromkeys(one.way for one in found):
        own = [one for one in found if one.way == way]
        valid = [one for one in own if one.status not in OUTSIDE]
        right = sum(one.status == RIGHT for one in valid)
        share = f", {100 * right / len(valid):.1f} %" if valid else ""
        console.print(f"{way}: {right} of {len(valid)} agree{share}; {len(own) - len(valid)} say nothing")
        told = ", ".join(f"{status}: {count}" for status, count in summary(own).items())
        console.print(told, markup=False)
        for one in own:
            if one.status != RIGHT:
                gap = "" if one.difference is None else f" by {one.difference:.1e}"
                console.print(f"{one.name}: {one.status}{gap} {one.why[:300]}".rstrip(), markup=False)


def _shared(found: Sequence[Figure], many: int, others: float | None, console: Console) -> None:
    """A row for each state, a column for each contestant."""
    from rich.table import Table

    from relayout.bench.load import disturbed

    names = list(dict.fromkeys(figure.contestant for figure in found))
    rows: dict[tuple[str, str, str], dict[str, Figure]] = {}
    for figure in found:
        after = "after another" if figure.state.startswith("after ") else figure.state
        rows.setdefault((figure.what, after, figure.unit), {})[figure.contestant] = figure
    table = Table(title=f"{many} threads: medians and quartiles", title_justify="left")
    for heading in ("what", "state", "unit"):
        table.add_column(heading, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row, by in rows.items():
        spreads = [by[name].spread if name in by else None for name in names]
        table.add_row(*row, *(f"{s.median:.2f} ({s.low:.2f} .. {s.high:.2f})" if s else "-" for s in spreads))
    console.print(table)
    if disturbed(many, others):
        console.print("DISTURBED: other processes took the cores; measure on a quiet machine")


def _amount(cases: int, settings: dict[str, Any]) -> str:
    """What a run would do, in a line."""
    threads = " and ".join(map(str, settings["threads"]))
    return (
        f"cases: {cases}; threads: {threads}; rounds of each: at most {settings['rounds']}, for about "
        f"{settings['seconds']:g} seconds"
    )


def _prepared(settings: dict[str, Any]) -> tuple[Report, list[Peer]]:
    """An empty report, and the peers that are there."""
    from relayout.bench.particulars import particulars
    from relayout.bench.peers import all_peers
    from relayout.bench.report import Report

    found = [(peer, peer.available()) for peer in all_peers()]
    machine = particulars("numpy", "llvmlite", "relayout")
    report = Report(machine, {peer.name: version for peer, version in found}, settings)
    return report, [peer for peer, version in found if version is not None]


def _contestants(
    settings: dict[str, Any], formats: Sequence[str]
) -> tuple[PrimitivesReport, list[Contestant]]:
    """An empty report of primitives, and the contestants that are installed."""
    from relayout.bench.ours import FORMATS, QUICK_FORMATS, all_ours
    from relayout.bench.particulars import particulars
    from relayout.bench.peers.primitives import all_peers
    from relayout.bench.primitives_report import Report

    chosen = tuple(formats) or (QUICK_FORMATS if settings["quick"] else FORMATS)
    found = [(peer, peer.available()) for peer in all_peers()]
    report = Report(
        particulars("numpy", "llvmlite", "relayout"),
        {peer.name: version for peer, version in found},
        {**settings, "formats": chosen},
    )
    return report, [*all_ours(chosen), *(peer for peer, version in found if version is not None)]


def _heading(machine: dict[str, Any], peers: dict[str, str | None], console: Console) -> None:
    facts = ", ".join(f"{key} {value}" for key, value in machine.items())
    console.print(*textwrap.wrap(facts, 80), sep="\n", markup=False)
    for name, version in peers.items():
        console.print(f"{name}: {version or 'not installed'}")


def _measure_primitives(
    report: PrimitivesReport,
    chosen: list[Task],
    contestants: list[Contestant],
    progress: Callable[[str], None],
    output: Output,
) -> None:
    """Measure all layers; a file has what was measured after each network."""
    from relayout.bench.load import Load
    from relayout.bench.primitives import measured
    from relayout.bench.primitives_report import as_json

    threads, rounds, seconds = (report.settings[key] for key in ("threads", "rounds", "seconds"))
    load = Load()
    for _, layers in groupby(chosen, key=lambda task: task.group):
        for task in layers:
            progress(str(task))
            report.results.extend(measured(task, threads, rounds, seconds, contestants, load))
        if output.json_file is not None:
            output.json(json.loads(as_json(report)))


def _list(cases: Sequence[tuple[str, str]], width: int, settings: dict[str, Any], output: Output) -> None:
    """Print the cases of a run that is not made."""
    output.json({"cases": [{"group": group, "case": case} for group, case in cases], **settings})
    for group, case in cases:
        output.answer(case if output.quiet else f"{group:<{width}} {case}")
    if output.talks:
        click.echo(_amount(len(cases), settings), err=True)


def _plot_file(text: str | None) -> Path | None:
    """Where the picture goes; what can't be written is refused now, and not after an hour of measuring."""
    from relayout.bench import plot

    if text is None:
        return None
    path = Path(text)
    plot.check(path)
    check_writable(path)
    return path


def _plotted(path: Path | None, output: Output, draw: Callable[[Path], None]) -> None:
    """Draw the picture that was asked for, and say what was written."""
    if path is not None:
        draw(path)
    for written in (output.json_file, path):
        if written is not None:
            output.echo(f"written to {written}")
