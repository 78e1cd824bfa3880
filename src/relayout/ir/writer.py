"""Text LLVM IR, a line at a time.

LLVM IR is a typed assembly language in static single assignment: every value is computed once and has a name.
:class:`Writer` collects the lines of a function and hands out names; what a line means is LLVM's manual.
There is no class for instructions: text is short, and it is what one reads when something is wrong.

Addresses are computed with ``getelementptr`` only: LLVM knows then that they stay within their buffer, and
folds constant parts into the addressing modes of the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Writer"]


class Writer:
    """The body of one function.

    >>> w = Writer()
    >>> a = w.value("add i64 1, 2")
    >>> print(w.text())
      %v1 = add i64 1, 2
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = 0
        self._block = "entry"

    def name(self, stem: str = "v") -> str:
        """A new name."""
        self._names += 1
        return f"{stem}{self._names}"

    def line(self, text: str) -> None:
        """Add a line that computes nothing."""
        self.lines.append("  " + text)

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

    def loop(self, start: str | int, stop: str | int, step: int, body: Callable[[str], None]) -> None:
        """``for i = start; i < stop; i += step`` with at least one turn.

        Constant single turns are written straight.
        """
        if isinstance(start, int) and isinstance(stop, int) and start + step >= stop:
            body(str(start))
            return
        head, done = self.name("loop"), self.name("done")
        before, index = self._block, "%" + self.name("i")
        self.line(f"br label %{head}")
        self.lines.append(f"{head}:")
        where = len(self.lines)
        self.lines.append("")
        self._block = head
        body(index)
        following = self.value(f"add i64 {index}, {step}")
        self.lines[where] = f"  {index} = phi i64 [{start}, %{before}], [{following}, %{self._block}]"
        again = self.value(f"icmp slt i64 {following}, {stop}")
        self.line(f"br i1 {again}, label %{head}, label %{done}")
        self.lines.append(f"{done}:")
        self._block = done

    def carry(
        self,
        turns: int | str,
        values: Sequence[tuple[str, str]],
        body: Callable[[list[str]], list[str]],
    ) -> list[str]:
        """So many turns, at least one, that hand on values, given as types and first values; the last ones.

        >>> w = Writer()
        >>> w.carry(3, [("i64", "1")], lambda given: [w.value(f"mul i64 {given[0]}, 2")])
        ['%v5']
        """
        if turns == 1:
            return body([value for _, value in values])
        head, done = self.name("loop"), self.name("done")
        before, index = self._block, "%" + self.name("i")
        self.line(f"br label %{head}")
        self.lines.append(f"{head}:")
        where = len(self.lines)
        self._block = head
        inside = ["%" + self.name("c") for _ in values]
        self.lines += [""] * (1 + len(values))
        after = body(list(inside))
        following = self.value(f"add i64 {index}, 1")
        phis = [(index, "i64", "0", following)]
        phis += [
            (name, kind, first, last) for name, (kind, first), last in zip(inside, values, after, strict=True)
        ]
        for k, (name, kind, first, last) in enumerate(phis):
            self.lines[where + k] = f"  {name} = phi {kind} [{first}, %{before}], [{last}, %{self._block}]"
        again = self.value(f"icmp ult i64 {following}, {turns}")
        self.line(f"br i1 {again}, label %{head}, label %{done}")
        self.lines.append(f"{done}:")
        self._block = done
        return after

    def when(self, condition: str, body: Callable[[], None]) -> None:
        """Run the body only if the condition holds."""
        yes, done = self.name("when"), self.name("done")
        self.line(f"br i1 {condition}, label %{yes}, label %{done}")
        self.lines.append(f"{yes}:")
        self._block = yes
        body()
        self.line(f"br label %{done}")
        self.lines.append(f"{done}:")
        self._block = done

    def unless(self, condition: str, kind: str, value: str, rare: Callable[[], str]) -> str:
        """The value, or ``rare()`` if the condition holds, which is seldom: that code is out of the way."""
        seldom, done, before = self.name("rare"), self.name("done"), self._block
        odds = '!prof !{!"branch_weights", i32 1, i32 1000}'
        self.line(f"br i1 {condition}, label %{seldom}, label %{done}, {odds}")
        self.lines.append(f"{seldom}:")
        self._block = seldom
        other = rare()
        self.line(f"br label %{done}")
        self.lines.append(f"{done}:")
        after, self._block = self._block, done
        return self.value(f"phi {kind} [{value}, %{before}], [{other}, %{after}]")

    def shuffle(self, one: str, two: str, kind: str, picks: Sequence[int]) -> str:
        """Elements ``picks`` of two vectors laid side by side; -1 leaves one open."""
        lanes = ", ".join(f"i32 {p}" if p >= 0 else "i32 poison" for p in picks)
        return self.value(f"shufflevector {kind} {one}, {kind} {two}, <{len(picks)} x i32> <{lanes}>")

    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)
