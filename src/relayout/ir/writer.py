"""Text IR with types spelled in every line, for kernels that do not use typed values yet.

>>> w = Writer()
>>> a = w.value("add i64 1, 2")
>>> print(w.text())
  %v1 = add i64 1, 2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relayout.ir.builder import Builder
from relayout.ir.types import I1, I64, Type, Value

__all__ = ["Writer"]


class Writer(Builder):
    """A builder that also takes text: names without types, and whole lines."""

    def _as(self, type: Type, x: Any, what: str) -> Value:
        plain = isinstance(x, str) and not isinstance(x, Value)
        if plain and x.lstrip("-").isdigit():
            x = int(x)
        return Value(x, type) if isinstance(x, str) and plain else super()._as(type, x, what)

    def value(self, text: str) -> str:
        """Add a line that computes a value; return its name."""
        name = "%" + self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def at(self, pointer: str, offset: int | str) -> str:
        """The address ``offset`` bytes behind a pointer."""
        return pointer if offset == 0 else self.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def times(self, index: str | int, factor: int) -> str | int:
        """``index * factor``, folded where it is constant."""
        if isinstance(index, int):
            return index * factor
        return index if factor == 1 else self.value(f"mul i64 {index}, {factor}")

    def loop(self, start: Any, stop: Any, step: int, body: Callable[[Value], None]) -> None:
        """As a builder's."""
        super().loop(self._as(I64, start, "loop"), self._as(I64, stop, "loop"), step, body)

    def carry(
        self,
        turns: int | str,
        values: Sequence[tuple[str, str]],
        body: Callable[[list[str]], list[str]],
    ) -> list[str]:
        """So many turns, at least one, that hand on values, given as types and first values; the last ones.

        >>> w = Writer()
        >>> w.carry(3, [("i64", "1")], lambda given: [w.value(f"mul i64 {given[0]}, 2")])
        ['%v6']
        """
        given = [Value(first, Type(kind, 0)) for kind, first in values]
        after: list[str] = []

        def turn(_: Value, inside: list[Value]) -> list[Value]:
            after[:] = body([str(x) for x in inside])
            return [Value(last, x.type) for last, x in zip(after, inside, strict=True)]

        Builder.repeat(self, 0, self._as(I64, turns, "carry"), 1, given, turn, True)
        return after

    def when(self, condition: str, body: Callable[[], None]) -> None:
        """As a builder's."""
        super().when(Value(condition, I1), body)

    def unless(self, condition: str, *rest: Any) -> Value:
        """As a builder's; of text with its type in front of the value."""
        if len(rest) == 2:
            return super().unless(Value(condition, I1), *rest)
        kind, value, rare = rest
        type = Type(kind, 0)
        done = super().unless(Value(condition, I1), Value(value, type), lambda: Value(rare(), type))
        return str(done)  # type: ignore[return-value]

    def shuffle(self, one: str, two: Any, *rest: Any) -> Value:  # type: ignore[override]
        """As a builder's; of text ``one, two, type, picks``."""
        if isinstance(one, Value) and not isinstance(two, str):
            return super().shuffle(one, two, *rest)
        kind, picks = rest
        lanes = ", ".join(f"i32 {p}" if p >= 0 else "i32 poison" for p in picks)
        return self.value(  # type: ignore[return-value]
            f"shufflevector {kind} {one}, {kind} {two}, <{len(picks)} x i32> <{lanes}>"
        )

    def text(self) -> str:
        """All lines."""
        return self.body()
