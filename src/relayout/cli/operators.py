"""``relayout formats --operators``: which operators of networks are known, and which have kernels."""

from __future__ import annotations

from relayout.cli.options import NothingFound, Output
from relayout.cli.tables import Column, print_table

__all__ = ["list_operators"]

ACROSS = 3


def list_operators(search: str | None, output: Output) -> None:
    """List the operators that have some text in their names."""
    from relayout.graph.operators import OPERATORS
    from relayout.graph.plan import RULES  # with all rules in it

    wanted = (search or "").lower()
    names = sorted(
        (n for n in OPERATORS if wanted in n.lower() and not n.startswith("relayout.")), key=str.lower
    )
    if not names:
        raise NothingFound(f"no operator has {search!r} in its name")
    output.json({"operators": [{"operator": name, "kernel": name in RULES} for name in names]})
    if output.quiet:
        for name in names:
            output.answer(name)
        return
    if not output.talks:
        return
    console = output.console()
    marked = [f"{name} *" if name in RULES else name for name in names]
    height = -(-len(marked) // ACROSS)
    rows = [
        [column[k] if k < len(column) else "" for column in _columns(marked, height)] for k in range(height)
    ]
    print_table(console, [Column("operator")] + [Column("")] * (len(rows[0]) - 1), rows)
    kernels = sum(name in RULES for name in names)
    console.print(f"{len(names)} operators of ONNX, in all versions since 7; * {kernels} have kernels")


def _columns(names: list[str], height: int) -> list[list[str]]:
    return [names[k : k + height] for k in range(0, len(names), height)]
