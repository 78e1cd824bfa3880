"""Instructions, control flow and functions of text LLVM IR, checked while they are written.

LLVM IR is a typed assembly language in static single assignment: every value is computed once and has a name.
A :class:`Builder` writes the lines of one function. Its methods have LLVM's names, take and return typed
:class:`~relayout.ir.types.Value`, and raise a ``TypeError`` at once where types do not fit:

>>> from relayout.ir.types import FLOAT, I32
>>> f = Function("scale", {"to": PTR, "by": vector(8, FLOAT)})
>>> to, by = f.arguments
>>> x = f.load(vector(8, FLOAT), to)
>>> f.store(f.fmul(f.fadd(x, 1.0), by), f.gep(to, f.mul(f.add(2, 2), 8)))
>>> print(f.text())
define void @scale(ptr %to, <8 x float> %by) {
entry:
  %v1 = load <8 x float>, ptr %to, align 4
  %v2 = fadd <8 x float> %v1, splat (float 0x3FF0000000000000)
  %v3 = fmul <8 x float> %v2, %by
  %v4 = getelementptr i8, ptr %to, i64 32
  store <8 x float> %v3, ptr %v4, align 4
  ret void
}
>>> f.fadd(x, f.add(to, 1))
Traceback (most recent call last):
TypeError: add takes elements of type integer, not ptr

* A Python number beside a value gets the value's type, in all lanes of a vector; numbers alone are ``i64``.
* Integer operations fold: those of constants, and those that change nothing (``x + 0``, ``x * 1``). Those of
  reals do not: ``x + 0.0`` is not ``x`` where x is -0.0, nor is ``x * 1.0`` where x is a signalling NaN.
* Branches on constants are not written, nor are loops of one turn.
* Intrinsics need no declaration: LLVM knows their types from their names. Metadata is written where it is
  used. So the text of a function stands for itself, and a module is functions one after the other.
* Addresses are computed with ``getelementptr`` only: LLVM knows then that they stay within their buffer, and
  folds constant parts into the addressing modes of the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from relayout.ir.folding import compared, folded
from relayout.ir.types import (
    DOUBLE,
    FLOAT,
    HALF,
    I1,
    I64,
    PTR,
    Type,
    Value,
    constant,
    integer,
    poison,
    vector,
)

if TYPE_CHECKING:
    from relayout.targets.machine import Machine

__all__ = ["L1", "L2", "Builder", "Function", "Operand", "table"]

L1, L2 = 3, 2
"""The caches that :meth:`Builder.prefetch` asks for, as LLVM counts them."""

Operand = Value | int | float
"""What a method takes: a value, or a number that becomes a constant."""

SELDOM = '!prof !{!"branch_weights", i32 1, i32 1000}'  # what is said of a branch that is seldom taken


def _integers(name: str) -> Callable[[Builder, Operand, Operand], Value]:
    short = name.split()[0]

    def write(self: Builder, one: Operand, two: Operand) -> Value:
        one, two = self._alike(short, one, two, "integer")
        return folded(short, one, two) or self._value(one.type, f"{name} {one.type} {one}, {two}")

    return write


def _reals(name: str) -> Callable[[Builder, Operand, Operand], Value]:
    def write(self: Builder, one: Operand, two: Operand) -> Value:
        one, two = self._alike(name, one, two, "float")
        return self._value(one.type, f"{name} {one.type} {one}, {two}")

    return write


def _conversion(
    name: str, source: str, target: str, change: int = 0
) -> Callable[[Builder, Value, Type], Value]:
    """``change``: 1 if elements become longer, -1 if they become shorter, 0 if they may be of any length."""

    def write(self: Builder, x: Value, element: Type) -> Value:
        to = x.type.of(element)
        fits = getattr(x.type, f"is_{source}") and getattr(to, f"is_{target}")
        if not fits or element.count or (change and (to.bits - x.type.bits) * change <= 0):
            raise TypeError(f"{name} does not make {element} of {x!r}")
        return self._value(to, f"{name} {x.type} {x} to {to}")

    return write


class Builder:
    """The lines of one function.

    Parameters
    ----------
    machine : Machine
        The processor that the module is compiled for: what writes vector code asks it for instructions.
    """

    machine: Machine
    opaque_loops = False
    """Whether LLVM is kept from seeing how indices and pointers go from turn to turn (:meth:`unrelated`)."""

    def __init__(self, machine: Machine | None = None) -> None:
        if machine is not None:
            self.machine = machine
        self.lines: list[str] = []
        self._allocated: list[str] = []
        self._names = 0
        self._block = "entry"

    # -- lines ----------------------------------------------------------------------------------------------

    def name(self, stem: str = "v") -> str:
        """A new name."""
        self._names += 1
        return f"{stem}{self._names}"

    def line(self, text: str) -> None:
        """Add a line that computes nothing."""
        self.lines.append("  " + text)

    def _value(self, type: Type, text: str) -> Value:
        """Add a line that computes a value."""
        name = "%" + self.name()
        self.lines.append(f"  {name} = {text}")
        return Value(name, type)

    def _as(self, type: Type, x: Operand, what: str) -> Value:
        """An operand that must have a type."""
        if not isinstance(x, Value):
            return constant(type, x)
        if x.type is not type and x.type != type:
            raise TypeError(f"{what} takes {type}, not {x!r}")
        return x

    def _alike(self, what: str, one: Operand, two: Operand, elements: str = "") -> tuple[Value, Value]:
        """Two operands of one type, whose elements are integers or reals (``float``) if that is asked for."""
        kind = one.type if isinstance(one, Value) else two.type if isinstance(two, Value) else I64
        if elements and not (kind is I64 and elements == "integer") and not getattr(kind, f"is_{elements}"):
            raise TypeError(f"{what} takes elements of type {elements}, not {kind}")
        return self._as(kind, one, what), self._as(kind, two, what)

    # -- arithmetic -----------------------------------------------------------------------------------------

    add, sub, mul = _integers("add"), _integers("sub"), _integers("mul")
    udiv, sdiv, urem, srem = _integers("udiv"), _integers("sdiv"), _integers("urem"), _integers("srem")
    shl, lshr, ashr = _integers("shl"), _integers("lshr"), _integers("ashr")
    sdiv_exact, ashr_exact = _integers("sdiv exact"), _integers("ashr exact")
    and_, or_, xor = _integers("and"), _integers("or"), _integers("xor")
    fadd, fsub, fmul, fdiv = _reals("fadd"), _reals("fsub"), _reals("fmul"), _reals("fdiv")

    def fneg(self, x: Value) -> Value:
        """-x; its own instruction, since 0.0 - x is +0.0 for 0.0."""
        return self._value(x.type, f"fneg {x.type} {x}")

    def fmuladd(self, one: Operand, two: Operand, three: Operand) -> Value:
        """``one * two + three``, rounded once where the processor can."""
        given = next(x for x in (one, two, three) if isinstance(x, Value))
        return self.intrinsic("fmuladd", *(self._as(given.type, x, "fmuladd") for x in (one, two, three)))

    def fma(self, one: Operand, two: Operand, three: Operand) -> Value:
        """``one * two + three``, rounded once everywhere: by a function where there is no instruction."""
        given = next(x for x in (one, two, three) if isinstance(x, Value))
        return self.intrinsic("fma", *(self._as(given.type, x, "fma") for x in (one, two, three)))

    def icmp(self, predicate: str, one: Operand, two: Operand) -> Value:
        """A comparison of integers or pointers: eq, ne, slt, ult, ..."""
        one, two = self._alike("icmp", one, two)
        if one.type.is_float:
            raise TypeError(f"icmp takes integers, not {one!r}")
        known = compared(predicate, one, two)
        if known is not None:
            return constant(one.type.of(I1), known)
        return self._value(one.type.of(I1), f"icmp {predicate} {one.type} {one}, {two}")

    def fcmp(self, predicate: str, one: Operand, two: Operand) -> Value:
        """A comparison of floating-point numbers: olt, une, uno, ..."""
        one, two = self._alike("fcmp", one, two, "float")
        return self._value(one.type.of(I1), f"fcmp {predicate} {one.type} {one}, {two}")

    def not_(self, condition: Value) -> Value:
        """The opposite of a condition."""
        return self.xor(condition, -1)

    def select(self, condition: Value, yes: Operand, no: Operand, type: Type | None = None) -> Value:
        """One of two, lane by lane; two numbers need a type."""
        if type is None:
            yes, no = self._alike("select", yes, no)
            type = yes.type
        yes, no = self._as(type, yes, "select"), self._as(type, no, "select")
        if condition.type.name != "i1" or condition.type.count not in (0, type.count):
            raise TypeError(f"{condition!r} does not select among {type}")
        if condition.number is not None:
            return yes if condition.number else no
        return self._value(type, f"select {condition.type} {condition}, {type} {yes}, {type} {no}")

    def pick(self, predicate: str, x: Value, bound: Operand) -> Value:
        """The value where it compares so with the bound, the bound elsewhere (and for NaN)."""
        compare = self.fcmp if x.type.is_float else self.icmp
        return self.select(compare(predicate, x, bound), x, bound)

    def any(self, lanes: Value) -> Value:
        """Whether a condition holds in any lane."""
        return self.icmp("ne", self.bitcast(lanes, integer(lanes.type.count)), 0)

    # -- conversions: ``to`` is the type of an element ------------------------------------------------------

    zext = _conversion("zext", "integer", "integer", 1)
    sext = _conversion("sext", "integer", "integer", 1)
    trunc = _conversion("trunc", "integer", "integer", -1)
    fpext = _conversion("fpext", "float", "float", 1)
    fptrunc = _conversion("fptrunc", "float", "float", -1)
    sitofp, uitofp = _conversion("sitofp", "integer", "float"), _conversion("uitofp", "integer", "float")
    fptosi = _conversion("fptosi", "float", "integer")

    def resize(self, x: Value, bits: int, signed: bool = False) -> Value:
        """Integers as integers of so many bits."""
        if bits == x.type.bits:
            return x
        return (self.trunc if bits < x.type.bits else self.sext if signed else self.zext)(x, integer(bits))

    def bitcast(self, x: Value, to: Type) -> Value:
        """The same bits as another type."""
        if to == x.type:
            return x
        if max(1, to.count) * to.bits != max(1, x.type.count) * x.type.bits or PTR in (to, x.type):
            raise TypeError(f"bitcast does not make {to} of {x!r}")
        return self._value(to, f"bitcast {x.type} {x} to {to}")

    def bits(self, x: Value) -> Value:
        """Elements as integers of their width."""
        return self.bitcast(x, x.type.of(integer(x.type.bits)))

    def real(self, x: Value) -> Value:
        """Integers of 16, 32 or 64 bits as the half, float or double with these bits."""
        return self.bitcast(x, x.type.of({16: HALF, 32: FLOAT, 64: DOUBLE}[x.type.bits]))

    def ptrtoint(self, pointer: Value) -> Value:
        """An address as a number."""
        return self._value(I64, f"ptrtoint ptr {self._as(PTR, pointer, 'ptrtoint')} to i64")

    # -- vectors --------------------------------------------------------------------------------------------

    def insert(self, x: Value, scalar: Operand, lane: int) -> Value:
        """A vector with another element in a lane."""
        scalar = self._as(x.type.element, scalar, "insertelement")
        return self._value(x.type, f"insertelement {x.type} {x}, {scalar.type} {scalar}, i32 {lane}")

    def extract(self, x: Value, lane: int) -> Value:
        """The element in a lane."""
        return self._value(x.type.element, f"extractelement {x.type} {x}, i32 {lane}")

    def shuffle(self, one: Value, picks: Sequence[int], two: Operand | None = None) -> Value:
        """Elements ``picks`` of two vectors laid side by side; -1 leaves a lane open."""
        two = poison(one.type) if two is None else self._as(one.type, two, "shufflevector")
        if not one.type.count or not all(-1 <= pick < 2 * one.type.count for pick in picks):
            raise TypeError(f"{one!r} and {two!r} have no elements {list(picks)}")
        lanes = ", ".join(f"i32 {pick}" if pick >= 0 else "i32 poison" for pick in picks)
        text = f"shufflevector {one.type} {one}, {one.type} {two}, <{len(picks)} x i32> <{lanes}>"
        return self._value(vector(len(picks), one.type), text)

    def splat(self, x: Value, count: int) -> Value:
        """A scalar, or a vector of one, in all lanes."""
        if x.number is not None:
            return constant(vector(count, x.type), x.number)
        if x.type.count == 0:
            x = self.insert(poison(vector(count, x.type)), x, 0)
        return self.shuffle(x, [0] * count)

    # -- memory ---------------------------------------------------------------------------------------------

    def gep(self, pointer: Value, index: Operand, step: int = 1) -> Value:
        """The address ``index * step`` bytes behind a pointer."""
        pointer = self._as(PTR, pointer, "gep")
        if isinstance(index, int):  # nearly all are
            offset: Value = constant(I64, index * step)
        else:
            offset = self.mul(self._as(I64, index, "gep"), step)
        return (
            pointer
            if offset.number == 0
            else self._value(PTR, f"getelementptr i8, ptr {pointer}, i64 {offset}")
        )

    def alloca(self, size: int, align: int) -> Value:
        """So many bytes of the stack, from the beginning of the function to its end."""
        name = "%" + self.name("room")
        self._allocated.append(f"  {name} = alloca [{size} x i8], align {align}")
        return Value(name, PTR)

    def load(self, type: Type, pointer: Value, align: int = 0, nontemporal: bool = False) -> Value:
        """What lies at an address; aligned to an element unless more, or less, is promised."""
        where = f"ptr {self._as(PTR, pointer, 'load')}, {_how(type, align, nontemporal)}"
        return self._value(type, f"load {type}, {where}")

    def store(self, x: Value, pointer: Value, align: int = 0, nontemporal: bool = False) -> None:
        """Write a value to an address."""
        where = f"ptr {self._as(PTR, pointer, 'store')}, {_how(x.type, align, nontemporal)}"
        self.line(f"store {x.type} {x}, {where}")

    def prefetch(self, pointer: Value, into: int = L1, write: bool = False) -> None:
        """Ask for a line: into all caches (:data:`L1`), or from the second on (:data:`L2`)."""
        where = f"ptr {self._as(PTR, pointer, 'prefetch')}, i32 {int(write)}, i32 {into}, i32 1"
        self.line(f"call void @llvm.prefetch.p0({where})")

    # -- calls ----------------------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Value) -> None:
        """Call a function that returns nothing."""
        self.line(f"call void {_called(name, arguments)}")

    def call_value(self, type: Type, name: str, *arguments: Value) -> Value:
        """Call a function that returns a value."""
        return self._value(type, f"call {type} {_called(name, arguments)}")

    def opaque(self, x: Value) -> Value:
        """The same value, of which LLVM knows no more: integer sums are not regrouped across this.

        It stays in its register, of x86, and takes no instruction.

        >>> from relayout.ir.types import I32
        >>> b = Builder()
        >>> x = b.opaque(Value("%x", vector(8, I32)))
        >>> print(b.body())
          %v1 = call <8 x i32> asm sideeffect "", "=x,0"(<8 x i32> %x)
        """
        return self._value(x.type, f'call {x.type} asm sideeffect "", "=x,0"({x.type} {x})')

    def unrelated(self, x: Value) -> Value:
        """An integer or a pointer of which LLVM doesn't know how it was computed; anything else as it is.

        What a loop hands on so is no induction variable: passes that look for better ones, a fifth of the
        time that LLVM takes for a register tile, find nothing to do. It takes no instruction.

        >>> b = Builder()
        >>> x, y = b.unrelated(Value("%x", PTR)), b.unrelated(Value("%i", I64))
        >>> print(b.body())
          %v1 = call ptr @llvm.launder.invariant.group.p0(ptr %x)
          %v2 = call i64 asm "", "=r,0"(i64 %i)
        """
        if x.number is not None or x.type not in (I64, PTR):
            return x
        if x.type == PTR:
            return self.intrinsic("launder.invariant.group", x)
        return self._value(x.type, f'call {x.type} asm "", "=r,0"({x.type} {x})')

    def intrinsic(self, name: str, *operands: Value, result: Type | None = None) -> Value:
        """Call one of LLVM's intrinsics that are overloaded by the type of their operands.

        ``result``, if it is another type than that of the operands, takes part in the name.

        >>> from relayout.ir.types import FLOAT, I32
        >>> b = Builder()
        >>> x = b.intrinsic("sqrt", Value("%x", vector(4, FLOAT)))
        >>> y = b.intrinsic("fptosi.sat", x, result=vector(4, I32))
        >>> print(b.body())
          %v1 = call <4 x float> @llvm.sqrt.v4f32(<4 x float> %x)
          %v2 = call <4 x i32> @llvm.fptosi.sat.v4i32.v4f32(<4 x float> %v1)
        """
        kind = operands[0].type
        for other in operands:
            self._as(kind, other, f"llvm.{name}")
        types = [kind] if result is None or result == kind else [result, kind]
        mangled = ".".join(type.mangled for type in types)
        return self.call_value(types[0], f"llvm.{name}.{mangled}", *operands)

    def smin(self, one: Operand, two: Operand) -> Value:
        """The smaller of two signed integers."""
        return self._extreme("smin", min, one, two)

    def smax(self, one: Operand, two: Operand) -> Value:
        """The larger of two signed integers."""
        return self._extreme("smax", max, one, two)

    def _extreme(self, name: str, of: Callable[..., int], one: Operand, two: Operand) -> Value:
        one, two = self._alike(name, one, two)
        if one.number is not None and two.number is not None:
            return constant(one.type, of(one.number, two.number))
        return self.intrinsic(name, one, two)

    # -- control flow ---------------------------------------------------------------------------------------

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")
        self._block = name

    def loop(self, start: Operand, stop: Operand, step: int, body: Callable[[Value], None]) -> None:
        """``for i = start; i < stop; i += step``, with at least one turn."""

        def turn(i: Value, _: list[Value]) -> list[Value]:
            body(i)
            return []

        self.repeat(start, stop, step, [], turn, True)

    def repeat(
        self,
        start: Operand,
        stop: Operand,
        step: int,
        given: Sequence[Value],
        body: Callable[[Value, list[Value]], list[Value]],
        some: bool = False,
    ) -> list[Value]:
        """``for i = start; i < stop; i += step: given = body(i, given)``; the values after the last turn.

        With ``some`` there is at least one turn, which saves a comparison.
        """
        start, stop = self._as(I64, start, "loop"), self._as(I64, stop, "loop")
        if start.number is not None and stop.number is not None and start.number + step >= stop.number:
            return body(start, list(given)) if some or start.number < stop.number else list(given)
        some = some or (start.number is not None and stop.number is not None)
        head, turn, done, before = self.name("loop"), self.name("turn"), self.name("done"), self._block
        self.line(f"br label %{head}")
        self.label(head)
        where = len(self.lines)
        self.lines += [""] * (1 + len(given))
        index, *carried = (Value("%" + self.name("i"), x.type) for x in (start, *given))
        if not some:
            more = self.icmp("slt", index, stop)
            self.line(f"br i1 {more}, label %{turn}, label %{done}")
            self.label(turn)
        after = body(index, list(carried))
        following = self.add(index, step)
        if self.opaque_loops:
            following, *after = (self.unrelated(x) for x in (following, *after))
        for k, (x, first, last) in enumerate(
            zip((index, *carried), (start, *given), (following, *after), strict=True)
        ):
            last = self._as(x.type, last, "loop")
            self.lines[where + k] = f"  {x} = phi {x.type} [{first}, %{before}], [{last}, %{self._block}]"
        if some:
            more = self.icmp("slt", following, stop)
            self.line(f"br i1 {more}, label %{head}, label %{done}")
        else:
            self.line(f"br label %{head}")
        self.label(done)
        return after if some else carried

    def when(self, condition: Value, body: Callable[[], None], seldom: bool = False) -> None:
        """Run the body only if the condition holds; if that is seldom, its code is out of the way."""
        condition = self._as(I1, condition, "when")
        if condition.number is not None:
            return body() if condition.number else None
        yes, done = self.name("when"), self.name("done")
        odds = f", {SELDOM}" if seldom else ""
        self.line(f"br i1 {condition}, label %{yes}, label %{done}{odds}")
        self.label(yes)
        body()
        self.line(f"br label %{done}")
        self.label(done)
        return None

    def unless(self, condition: Value, value: Value, rare: Callable[[], Value]) -> Value:
        """The value, or ``rare()`` if the condition holds, which is seldom: that code is out of the way."""
        condition = self._as(I1, condition, "unless")
        seldom, done, before = self.name("rare"), self.name("done"), self._block
        self.line(f"br i1 {condition}, label %{seldom}, label %{done}, {SELDOM}")
        self.label(seldom)
        other = self._as(value.type, rare(), "unless")
        self.line(f"br label %{done}")
        after = self._block
        self.label(done)
        return self._value(value.type, f"phi {value.type} [{value}, %{before}], [{other}, %{after}]")

    def body(self) -> str:
        """All lines."""
        return "\n".join([*self._allocated, *self.lines])


def _called(name: str, arguments: Sequence[Value]) -> str:
    return f"@{name}({', '.join(f'{x.type} {x}' for x in arguments)})"


def _how(type: Type, align: int, nontemporal: bool) -> str:
    return f"align {align or type.bits // 8}" + (", !nontemporal !{i32 1}" if nontemporal else "")


class Function(Builder):
    """A function that returns nothing.

    Parameters
    ----------
    name : str
    arguments : mapping of str to Type
        Their names, in order.
    machine : Machine, optional
    linkage : str
        ``internal`` for what only functions of the same module call.
    attributes : str
        Those of the function: ``noinline``.
    marks : mapping of str to str
        Those of arguments: ``noalias``.
    opaque_loops : bool
        Whether its loops are written as they shall become, see :meth:`Builder.unrelated`.
    """

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Type],
        machine: Machine | None = None,
        linkage: str = "",
        attributes: str = "",
        marks: Mapping[str, str] | None = None,
        opaque_loops: bool = False,
    ) -> None:
        super().__init__(machine)
        self.opaque_loops = opaque_loops
        self.arguments = [Value(f"%{argument}", type) for argument, type in arguments.items()]
        marked = ((x, (marks or {}).get(x[1:], "")) for x in self.arguments)
        given = ", ".join(f"{x.type} {mark} {x}" if mark else f"{x.type} {x}" for x, mark in marked)
        self._head = " ".join(filter(None, ("define", linkage, f"void @{name}({given})", attributes)))

    def __getitem__(self, name: str) -> Value:
        """The argument of a name."""
        return next(x for x in self.arguments if x[1:] == name)

    def text(self) -> str:
        """The definition."""
        return "\n".join([f"{self._head} {{", "entry:", self.body(), "  ret void", "}\n"])


def numbers_of(data: bytes) -> list[int]:
    """Bytes as the numbers of a :func:`table`, eight for each.

    >>> numbers_of(bytes(range(1, 9)) + bytes([255] * 8))
    [578437695752307201, -1]
    """
    return [int.from_bytes(data[k : k + 8], "little", signed=True) for k in range(0, len(data), 8)]


def table(name: str, numbers: Sequence[int]) -> str:
    """The text of a constant ``@name``: i64 numbers, one after the other.

    >>> print(table("places", [0, 64]), end="")
    @places = internal constant [2 x i64] [i64 0, i64 64], align 64
    """
    values = ", ".join(f"i64 {number}" for number in numbers)
    return f"@{name} = internal constant [{len(numbers)} x i64] [{values}], align 64\n"
