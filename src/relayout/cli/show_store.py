"""``relayout show`` for stores: chunks as what they are, digits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from relayout.cli.options import Output
from relayout.cli.pictures import Pictures

if TYPE_CHECKING:
    from relayout.stores import LazyTensor

__all__ = ["show_store", "store_among"]


def store_among(words: Sequence[str]) -> bool:
    """Whether the first word is the path of a store."""
    first = words[0]
    if "://" not in first and not os.path.lexists(first):
        return False
    from relayout.stores.opening import is_store

    return is_store(first)


def show_store(words: Sequence[str], name: str | None, pictures: Pictures, output: Output) -> None:
    """Show an array in a store: which digits stand in the name of a chunk, and which in the chunk."""
    from relayout import stores

    if len(words) > 2:
        raise click.UsageError(
            f"give a store, and the format that it is in where it can't say it; got {' '.join(words)}",
            click.get_current_context(),
        )
    lazy = stores.open(words[0], name, format=words[1] if len(words) > 1 else None)
    title = f"{os.path.basename(words[0].rstrip('/'))}{f': {name}' if name else ''}"
    if output.wants_json:
        output.json(_as_json(lazy))
    if pictures.wanted:
        if pictures.html is not None:
            raise click.UsageError("of stores there are --svg and --png", click.get_current_context())
        pictures.write(output, lambda: picture(lazy, title), str)
        return
    if output.talks:
        _print(lazy, title, output)


def picture(lazy: LazyTensor, title: str) -> str:
    """The digits of a store as a drawing."""
    from relayout.draw.digits import digits
    from relayout.errors import counted

    said = f"{title}   {lazy.desc}   {counted(lazy.grid.total, 'chunk')} of {'x'.join(map(str, lazy.chunks))}"
    return digits(lazy.layout, axes=lazy.layout.axis_names(), title=said, outer=lazy.outer_digits)


def _print(lazy: LazyTensor, title: str, output: Output) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from relayout.draw import text as draw
    from relayout.errors import spelled_bytes

    layout, outer = lazy.layout, lazy.outer_digits
    _, names = draw.labels(layout)
    console = output.console()
    heading = Text(title, "bold")
    heading.append(
        f"   {'x'.join(map(str, lazy.dims)) or 'scalar'}   {lazy.dtype}   {lazy.format}", "not bold"
    )
    console.print(heading)
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for column in ("", "digit"):
        table.add_column(column, no_wrap=True)
    for column in ("weight", "extent"):
        table.add_column(column, justify="right", no_wrap=True)
    for k, (digit, label) in enumerate(zip(layout.digits, names, strict=True)):
        where = {0: "in the name", outer: "in the chunk"} if outer else {0: "in the chunk"}
        table.add_row(
            Text(where.get(k, ""), draw.FADED), Text(label, draw.colour(digit.term)),
            str(digit.weight), str(digit.extent),
        )  # fmt: skip
    console.print(Padding.indent(table, 2))
    console.print()
    rows = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    found = lazy.stored.fingerprint()
    chunk = spelled_bytes(lazy.cells.stored_bytes)
    rows.add_row("array", f"{list(lazy.grid.shape)} of {lazy.stored.element}, an axis for each digit")
    rows.add_row("in chunks", f"{lazy.grid.total} of {list(lazy.chunks)}, {chunk} each, {_counts(lazy)}")
    if found.chunks >= 0:
        missing = lazy.grid.total - found.chunks
        stored = f"{spelled_bytes(found.nbytes)} of {spelled_bytes(lazy.nbytes)}"
        rows.add_row(
            "stored", stored + (f"; {missing} chunks are not there: fill value" if missing > 0 else "")
        )
    facts = lazy.stored.facts()
    for what, words in facts.items():
        if what != "chunks":
            rows.add_row(what, words)
        elif "shards" in facts:  # what is written as one is a shard, and all that is said above is of those
            rows.add_row("in shards", f"chunks of {words}")
    console.print(Padding.indent(rows, 2))


def _counts(lazy: LazyTensor) -> str:
    return "x".join(map(str, lazy.grid.counts)) + " of them"


def _as_json(lazy: LazyTensor) -> dict[str, Any]:
    from relayout.draw import text as draw
    from relayout.files.descriptor import descriptor_to_json

    layout, outer = lazy.layout, lazy.outer_digits
    axes, names = draw.labels(layout)
    found = lazy.stored.fingerprint()
    return {
        "store": lazy.address.spelled,
        "descriptor": descriptor_to_json(lazy.desc),
        "element": lazy.stored.element,
        "shape": list(lazy.grid.shape),
        "chunks": list(lazy.chunks),
        "counts": list(lazy.grid.counts),
        "chunks_there": found.chunks,
        "bytes": lazy.nbytes,
        "bytes_stored": found.nbytes,
        "digits": [
            {
                "name": name,
                "axes": [axes[a] for a in layout.terms[digit.term]],
                "weight": digit.weight,
                "extent": digit.extent,
                "in_name": k < outer,
            }
            for k, (digit, name) in enumerate(zip(layout.digits, names, strict=True))
        ],
        "facts": dict(lazy.stored.facts()),
    }
