"""``relayout info``: what is in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relayout.cli.arguments import examples
from relayout.cli.models import is_model, model_options
from relayout.cli.options import STANDARD, Output, misuse, output_options
from relayout.cli.streams import readable

if TYPE_CHECKING:
    from relayout.files import FileInfo

__all__ = ["IN_KIND", "info"]

LONGEST = 60  # letters of metadata that are shown
KINDS = ("npy", "npz", "safetensors", "pt", "bin", "png", "jpg")
IN_KIND = click.option(
    "--in-kind",
    type=click.Choice(KINDS),
    help="Kind of file on standard input. [default: recognised from its first bytes]",
)


@click.command(
    short_help="List what is in a file: names, data types, sizes, formats.",
    epilog=examples(
        "relayout info model.safetensors",
        "relayout info checkpoint.pt --json | jq '.arrays[].name'",
        "relayout info x.bin.layout.json",
        "relayout info model.onnx --layers",
        "curl -s https://example.org/x.npz | relayout info -",
    ),
)
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True, readable=False))
@IN_KIND
@model_options(threads=False)
@click.option("--layers", is_flag=True, help="Of a model: a line for each node, or step.")
@output_options
def info(
    file: str, in_kind: str | None, batch: int | None, dims: dict[str, Any], layers: bool, output: Output
) -> None:
    """List what is in a file, without reading the elements.

    Kinds: .npy .npz .safetensors .bin .raw .png .jpg, checkpoints of PyTorch (.pt .pth, of which only
    tensors are read, by PyTorch itself), and descriptors (.layout.json). Sizes are logical where a descriptor
    has them, otherwise they are the shape of the array. With --quiet: the names, one on each line.

    Of a model (.onnx .pt2): inputs, outputs, operators, parameters, multiply-adds. Of a saved run
    (.relayout): inputs, outputs, memory, and with --layers its steps.
    """
    from relayout import files

    if is_model(file):
        from relayout.cli.info_model import info_model

        info_model(file, batch, dims, layers, output)
        return
    if batch or dims or layers:
        raise click.UsageError(
            "--batch, --dim and --layers are for models: .onnx, .pt2", click.get_current_context()
        )
    if file != STANDARD:
        with misuse():
            files.check_kind(file, descriptors=True)
    with readable(file, None if in_kind is None else f".{in_kind}") as path:
        found = files.info(path)._replace(path=Path(file))
    output.json(found.to_json())
    if output.quiet:
        from relayout.files.spelling import spelled

        for array in found.arrays:
            output.answer(spelled(array.name))
    elif output.talks:
        _print(found, "standard input" if file == STANDARD else file, output)


def _print(found: FileInfo, file: str, output: Output) -> None:
    from rich.table import Table
    from rich.text import Text

    from relayout.files.spelling import spelled

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("name", overflow="fold")  # long names that are cut would all look alike
    table.add_column("dims", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("format", no_wrap=True)
    for array in found.arrays:
        dims = "x".join(map(str, array.dims)) if array.dims else "scalar"
        cells = (array.name, dims, array.dtype, str(array.nbytes), array.format or "")
        table.add_row(*(Text(spelled(cell)) for cell in cells))
    console = output.console()
    several = f"{len(found.arrays)} array{'s' * (len(found.arrays) != 1)}"
    console.print(Text(f"{spelled(file)}: {found.kind}, {several}, {found.nbytes} bytes"))
    for key, value in found.metadata.items():
        text = value if len(value) <= LONGEST else value[: LONGEST - 3] + "..."
        console.print(Text(f"metadata  {spelled(key[:LONGEST])} = {spelled(text)}"))
    if found.arrays:
        console.print()
        console.print(table)
