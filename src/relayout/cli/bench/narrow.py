"""``relayout bench formats``, ``few-bits`` and ``narrow``: layers on narrow numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from relayout.cli.arguments import examples
from relayout.cli.bench.group import bench
from relayout.cli.bench.options import case_option, rounds_option, run_settings, threads_option
from relayout.cli.options import Output, misuse, output_options

__all__ = ["few_bits", "formats", "narrow"]

Figure = TypeVar("Figure")


@bench.command(
    "formats",
    short_help="One convolution in the right and the wrong format.",
    epilog=examples("relayout bench formats", "relayout bench formats --threads 2 --json formats.json"),
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Number of threads."
)
@rounds_option(9, "How often each is timed")
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
@case_option("products")
@threads_option()
@rounds_option(15, "How often each is timed")
@output_options
def few_bits(texts: tuple[str, ...], threads: tuple[int, ...], rounds: int, output: Output) -> None:
    """Measure matrix products by weights of 4 and 8 bits in blocks, which stay packed.

    What they are held against: a kernel that reads as many bytes; the product of f32 by weights that somebody
    has dequantised before; ONNX Runtime's MatMulNBits, where that is installed. Products follow each other in
    one call, as in a network, each with other weights, together twice the last cache.
    """
    from rich.table import Table

    from relayout.bench.blockwise import CASES, READING, figure
    from relayout.bench.measure import OURS

    settings = run_settings(False, threads, rounds, None, (rounds, 6.0))
    cases = [one for one in CASES if all(text in str(one) for text in texts)]
    if not cases:
        raise click.UsageError("no product has that in its line: " + "; ".join(map(str, CASES)))
    found, about = _measured(figure, cases, settings, output)
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
    output.console().print(table)
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
    output.json({**about, "yardstick": READING, "figures": told})


@bench.command(
    "narrow",
    short_help="Pooling, softmax, normalisation on narrow numbers beside memcpy.",
    epilog=examples(
        "relayout bench narrow --threads 1", "relayout bench narrow --case average --json narrow.json"
    ),
)
@case_option("layers")
@threads_option("1")
@rounds_option(15, "How often each is timed")
@output_options
def narrow(texts: tuple[str, ...], threads: tuple[int, ...], rounds: int, output: Output) -> None:
    """Measure layers on bf16, f16 and bytes that do little for each element.

    They are held against a copy of as many bytes: softmax, pooling, linear resampling, normalisations and
    ReLU.
    """
    from rich.table import Table

    from relayout.bench.measure import OURS
    from relayout.bench.narrow import CASES, figure

    settings = run_settings(False, threads, rounds, None, (rounds, 3.0))
    cases = [one for one in CASES if all(text in str(one) for text in texts)]
    if not cases:
        raise click.UsageError("no layer has that in its line: " + "; ".join(map(str, CASES)))
    found, about = _measured(figure, cases, settings, output)
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
    output.console().print(table)
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
    output.json({**about, "figures": told})


def _measured(
    figure: Callable[[Any, int, int, float], Figure],
    cases: Sequence[Any],
    settings: Mapping[str, Any],
    output: Output,
) -> tuple[list[Figure], dict[str, Any]]:
    """A figure of each case with each number of threads; the machine, and how busy others kept it."""
    from relayout.bench.load import Load
    from relayout.bench.particulars import particulars

    load, machine = Load(), particulars("relayout")
    output.console().print(", ".join(f"{key} {value}" for key, value in machine.items()))
    rounds, seconds = settings["rounds"], settings["seconds"]
    with misuse():
        found = [figure(one, many, rounds, seconds) for one in cases for many in settings["threads"]]
    return found, {"machine": machine, "cores_used_by_others": load.others()}
