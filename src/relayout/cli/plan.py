"""``relayout plan``: which formats a network gets, which conversions are left, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from relayout.cli import models
from relayout.cli.arguments import ALGORITHM, FORMAT, PRECISION, examples
from relayout.cli.models import model_options
from relayout.cli.options import Output, check_writable, output_options
from relayout.cli.tables import Column, print_table
from relayout.errors import counted, spelled_bytes
from relayout.layout.images import descriptor_name, format_name

if TYPE_CHECKING:
    from rich.console import Console

    from relayout.graph.plan import Plan
    from relayout.graph.planner import Explanation, Solution
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["plan"]

WIDTH = 80
SINGLE = ("nchw", "nhwc", "nChw16c")
"""Formats with which the plan is compared."""


@click.command(
    short_help="Choose the formats of a model, and say why.",
    epilog=examples(
        "relayout plan model.onnx",
        "relayout plan model.onnx --batch 8 --threads 2 --why",
        "relayout plan model.onnx --pin s=nhwc",
        "relayout plan model.onnx --precision bf16",
        "relayout plan model.onnx --html plan.html --json plan.json",
        "relayout plan model.onnx --batch 1 --save model.relayout",
    ),
)
@click.argument("model", type=click.Path(readable=False))
@click.option("--format", type=FORMAT, help="The one format that images shall have. [default: any]")
@model_options()
@click.option(
    "--pin",
    "pins",
    multiple=True,
    metavar="VALUE=FORMAT",
    callback=models.named,
    help="The format in which an inner value has to be read.",
)
@click.option("--precision", type=PRECISION, help="The type of products of f32, and of what follows them.")
@click.option(
    "--algorithm",
    type=ALGORITHM,
    default="auto",
    show_default=True,
    help="Of 3x3 convolutions: all products, fewer of transformed tiles, or whichever takes less time.",
)
@click.option("--all", "everything", is_flag=True, help="A line for each node, however many.")
@click.option("--why", is_flag=True, help="What the best plan without each conversion would cost.")
@click.option("--svg", metavar="FILE", type=click.Path(), help="Write a drawing of the network.")
@click.option(
    "--html", metavar="FILE", type=click.Path(), help="Write a page with the drawing and the tables."
)
@click.option(
    "--save",
    metavar="FILE",
    type=click.Path(),
    help="Compile the model, and write the run to a file: relayout run FILE and relayout.load start at once.",
)
@output_options
def plan(
    model: str,
    format: str | None,
    batch: int | None,
    dims: dict[str, Any],
    threads: int | None,
    pins: dict[str, str],
    precision: str | None,
    algorithm: str,
    everything: bool,
    why: bool,
    svg: str | None,
    html: str | None,
    save: str | None,
    output: Output,
) -> None:
    """Choose the formats of all values of MODEL, an ONNX file or a program of torch.export (.pt2).

    Formats are chosen so that all nodes cost least, with the conversions in between; costs are estimated.
    Each conversion that is left is listed with the nodes that want it. For comparison: what other choices
    would cost. With --quiet: the conversions, one on each line.
    """
    from relayout.graph.planner import explain

    for path in (svg, html, save):
        if path is not None:
            check_writable(Path(path))
    graph = models.sized(models.load(model), batch, dims)
    models.known(graph)
    wanted = None if format in (None, "any") else format
    found = graph.plan(wanted, threads, pins=pins, precision=precision, algorithm=algorithm)
    proofs = explain(found.solution) if why else None
    others = _others(found)
    document = _as_json(model, found, others, proofs)
    output.json(document)
    if save is not None:
        from relayout.graph.compiling import compiled_as
        from relayout.graph.inference import inferred

        compiled_as(inferred(graph), found, threads).save(save)
    if svg is not None:
        Path(svg).write_text(found.svg(), encoding="utf-8")
    if html is not None:
        from relayout.cli.plan_page import page

        Path(html).write_text(page(document, found.svg()), encoding="utf-8")
    if output.quiet:
        for one in document["conversions"]:
            output.answer(f"{one['value']}\t{one['from']}\t{one['to']}")
    elif output.talks:
        console = output.console()
        _summary(model, found, others, console)
        if found.chosen:
            _formats(found, everything, console)
        _conversions(found, proofs, console)
        for path in (svg, html, save):
            if path is not None:
                console.print(f"written to {path}")


def _others(found: Plan) -> dict[str, Solution | None]:
    """What others would choose; None: they can't go on somewhere."""
    from relayout.errors import LayoutError
    from relayout.graph.lowering.case import label, row_major, unblocked
    from relayout.graph.planner import Infeasible, greedy, uniform
    from relayout.layout.descriptor import MemoryDesc

    problem = found.solution.problem
    plain = {name: _first(use.formats) for name, use in problem.uses.items()}

    def everywhere(format: str) -> Any:
        def of(value: str) -> MemoryDesc:
            desc = plain[value]
            if len(desc.dims) == len(SINGLE[0]):
                try:
                    return unblocked(label(MemoryDesc(desc.dims, desc.dtype, format)))
                except LayoutError:
                    pass
            return row_major(desc.dims, desc.dtype.name)

        return of

    def made(name: str) -> Solution | None:
        try:
            return greedy(problem) if name == "greedy" else uniform(problem, everywhere(name))
        except Infeasible:
            return None

    return {name: made(name) for name in ("greedy", *SINGLE)}


def _first(formats: Sequence[Any]) -> MemoryDesc:
    first: MemoryDesc = formats[0]
    return first


class _Reader(NamedTuple):
    """A node that wants a conversion."""

    node: str
    operator: str

    def __str__(self) -> str:
        return f"{self.operator} {self.node}".rstrip()


def _readers(found: Plan) -> dict[str, _Reader]:
    """The nodes by the names that the planner has for them."""
    named = zip(found.solution.problem.operations, found.chosen, strict=True)
    return {operation.name: _Reader(one.case.name, one.case.operator) for operation, one in named}


def _as_json(
    model: str, found: Plan, others: dict[str, Solution | None], proofs: Explanation | None
) -> dict[str, Any]:
    """Times in seconds, sizes in bytes."""
    readers = _readers(found)
    losses = [None] * len(found.conversions) if proofs is None else [one.text for one in proofs.proofs]
    solution = found.solution
    return {
        "model": model,
        "inputs": [models.described(value) for value in found.graph.inputs],
        "outputs": [models.described(value) for value in found.graph.outputs],
        "cost": found.cost,
        "exact": solution.exact,
        "bound": solution.bound,
        "nodes": [
            {
                "name": one.case.name,
                "operator": one.case.operator,
                "then": [node.operator for node, _ in one.case.chain],
                "way": one.way.name.removeprefix("machine code: "),
                "view": one.way.view,
                "cost": one.way.cost,
                "reads": {name: descriptor_name(desc) for name, desc in one.way.inputs.items()},
                "writes": {
                    operand.name: descriptor_name(desc)
                    for operand, desc in zip(one.case.outputs, one.way.outputs, strict=True)
                    if operand.name
                },
                "format": _format(one),
            }
            for one in found.chosen
        ],
        "conversions": [
            {
                "value": one.value,
                "from": format_name(one.src),
                "to": format_name(one.dst),
                "src": descriptor_name(one.src),
                "dst": descriptor_name(one.dst),
                "bytes": one.nbytes,
                "cost": one.seconds,
                "for": [str(readers.get(name, name)) for name in one.readers],
                "result": not one.readers,
                **({} if loss is None else {"why": loss}),
            }
            for one, loss in zip(found.conversions, losses, strict=True)
        ],
        "compared": {
            name: None if one is None else {"cost": one.cost, "conversions": len(one.conversions)}
            for name, one in others.items()
        },
    }


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}"


def _summary(model: str, found: Plan, others: dict[str, Solution | None], console: Console) -> None:
    from relayout.graph.dynamic import undecided

    solution = found.solution
    console.print(f"{model}: {counted(len(found.chosen), 'operation')}; {solution.proof}")
    if found.tail is not None:
        count = len(found.tail.nodes)
        left = "1 more node is" if count == 1 else f"{count} more nodes are"
        console.print(f"{left} not planned: {undecided(found.tail)}", style="yellow")
    if not found.chosen:
        return
    columns = (
        Column("plan"),
        Column("us", 0, True),
        Column("operations", 0, True),
        Column("conversions", 0, True),
        Column("how many", 0, True),
        Column("ratio", 0, True),
    )
    rows = []
    for name, one in {"chosen": solution, **others}.items():
        if one is None:
            rows.append((name, "", "", "impossible", "", ""))
            continue
        spent = sum(conversion.cost for conversion in one.conversions)
        ratio = one.cost / solution.cost if solution.cost else 1.0
        row = (_us(one.cost), _us(one.cost - spent), _us(spent), str(len(one.conversions)), f"{ratio:.2f}")
        rows.append((name if name in ("chosen", "greedy") else f"{name} everywhere", *row))
    print_table(console, columns, rows)


def _formats(found: Plan, everything: bool, console: Console) -> None:
    """The formats of values: neighbours that go the same way are one line."""
    console.print("\nformats", style="bold")
    columns = (Column("nodes", 0, True), Column("operators"), Column("format"), Column("us", 0, True))
    rows = []
    for several in _alike(found, everything):
        first, last = several[0], several[-1]
        names = first.case.name if len(several) == 1 else f"{first.case.name} ... {last.case.name}"
        rows.append(
            (
                str(len(several)),
                _cut(_counted([one.case.operator for one in several]), 30),
                _format(first) if len(several) == 1 else _shared(several),
                _us(sum(one.way.cost for one in several)),
                _cut(names, 28),
            )
        )
    print_table(console, (*columns, Column("which", 1)), rows)


def _format(one: Any) -> str:
    """The format of what a node writes."""
    made = dict.fromkeys(
        format_name(d) for o, d in zip(one.case.outputs, one.way.outputs, strict=True) if o.name
    )
    return f"{', '.join(made)}{' (view)' if one.way.view else ''}"


def _shared(several: Sequence[Any]) -> str:
    """The formats of nodes on one line."""
    made = dict.fromkeys(_format(one) for one in several if not one.way.view)
    return _cut(", ".join(made) or "views", 16)


def _alike(found: Plan, everything: bool) -> Iterator[list[Any]]:
    """Nodes one behind the other whose results have the same format; views go with any."""
    several: list[Any] = []
    format = None
    for one in found.chosen:
        own = None if one.way.view else _kind(one)
        if several and (everything or (own is not None and format is not None and own != format)):
            yield several
            several, format = [], None
        several.append(one)
        format = format or own
    if several:
        yield several


def _kind(one: Any) -> str:
    """The format of what a node writes, row-major ones of any rank as one."""
    from relayout.graph.lowering.case import row_major

    desc = one.way.outputs[0]
    plain = desc == row_major(desc.dims, desc.dtype.name)
    return "row-major" if plain else format_name(desc)


def _counted(names: Sequence[str]) -> str:
    counts = {name: names.count(name) for name in names}
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name}" if count > 1 else name for name, count in ordered)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _conversions(found: Plan, proofs: Explanation | None, console: Console) -> None:
    several = found.conversions
    if not several:
        console.print("\nno conversions are left")
        return
    many = f"{len(several)} conversion{'s' * (len(several) != 1)}"
    spent, moved = sum(one.seconds for one in several), sum(one.nbytes for one in several)
    console.print(f"\n{many}: {_us(spent)} us, {spelled_bytes(moved)}", style="bold")
    readers = _readers(found)
    columns = [
        Column("value"),
        Column("from"),
        Column("to"),
        Column("bytes", 1, True),
        Column("us", 0, True),
        Column("for"),
    ]
    rows = []
    for one in several:
        wanting = ", ".join(str(readers.get(name, name)) for name in one.readers) or "the result"
        cells = [
            _cut(one.value, 20),
            format_name(one.src),
            format_name(one.dst),
            str(one.nbytes),
            _us(one.seconds),
        ]
        rows.append((*cells, _cut(wanting, 24)))
    print_table(console, columns, rows)
    if proofs is not None:
        console.print("\nwithout each of them", style="bold")
        for proof in proofs.proofs:
            target = format_name(proof.conversion.dst)
            console.print(f"{_cut(proof.conversion.value, 30)} to {target}: {proof.text}")
