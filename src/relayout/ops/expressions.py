"""Expressions: what is computed element by element, from operands of any types.

Everything that works element by element is one of them: a function, a binary operation, a weighted sum, batch
normalisation, masks and positions of attention, and what post-ops do behind any of these. An
:class:`Expression` is a list of terms, each an operation on operands or on terms before it:

>>> masked = Expression.of(("bool", "f32"), [("constant", "f32", (), -1e9), ("select", "f32", (0, 1, 2))])
>>> print(masked)
bool a, f32 b; c = -1000000000.0; d = select a b c
>>> masked.definition(np.array([True, False]), np.float32([1, 2])).tolist()
[1.0, -1000000000.0]

:class:`Writing` appends them one by one. One kernel does all of them: :mod:`relayout.kernels.elementwise`.

======================================  =====================================================================
``add sub mul neg``                     integers wrap around
``div mod rem``                         of integers: towards zero; the remainder with the sign of the divisor,
                                        or of the dividend. Of what is divided by 0 they make 0. ``div`` of
                                        real numbers is exact and rounded
``max min abs sign``                    NaN where there is one
``floor ceil trunc isnan isinf``        of real numbers
``shr``                                 of integers: so many bits to the right, zeros come in from the left;
                                        the number counts modulo the width
``and or xor not``                      of truth values, and bit by bit of integers
``eq ne lt le gt ge``                   truth values; with NaN nothing is so, but for ``ne``
``fma``                                 x y + z in f32, rounded once where the processor can do that
``lost``                                what is rounded off x y in f32, on any processor
``select``                              the second operand where the first is true, else the third
``cast``                                to another kind (:mod:`relayout.ir.kinds`)
``constant``                            a number
a :class:`~.functions.Function`         of f32
======================================  =====================================================================

and all other binary operations of :mod:`.binary`, of real numbers. The kinds of operands are those of
:mod:`relayout.ir.registers`. The definition is evaluated in NumPy in the same types, so both agree to the
bit, but for functions, which have an error of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from relayout.dtypes import single
from relayout.errors import LayoutError
from relayout.ir.kinds import KINDS, cast
from relayout.ir.math import lost
from relayout.ir.types import constant
from relayout.ops import binary
from relayout.ops.functions import Function
from relayout.ops.post_ops import BinaryOp, PostOp
from relayout.records import dataclass, replace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.dtypes import DType
    from relayout.ir.builder import Builder
    from relayout.ir.types import Value

__all__ = ["NUMPY", "OPERATIONS", "Expression", "Term", "Writing", "followed_by", "kind_of", "narrowed"]

NUMPY: Final = {
    "bool": np.dtype(bool),
    "u8": np.dtype(np.uint8),
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
"""The data types that the definition computes in."""

FEW = 8  # terms of an expression whose code is a few instructions
RELU = Function("relu")  # which leaves what is near where it is
_INTEGERS = ("u8", "s8", "s16", "s32", "s64")
_REALS = ("f32", "f64")
_NUMBERS = (*_INTEGERS, *_REALS)
_BITS = ("bool", *_INTEGERS)


class _Operation(NamedTuple):
    define: Callable[..., Any]
    """In NumPy."""
    emit: Callable[..., Value]
    """The code: the builder, the kind of the first operand, the operands."""
    takes: int
    kinds: tuple[str, ...]
    """Of operands."""
    gives: str = ""
    """The kind of the result; empty: that of the operands."""
    costly: tuple[str, ...] = ()
    """The kinds for which the code is more than a few instructions."""


def _either(real: str, signed: str, unsigned: str = "") -> Callable[..., Value]:
    """An instruction for real numbers, one for integers, and perhaps one for those without a sign."""

    def emit(b: Builder, kind: str, *x: Value) -> Value:
        name = real if kind in _REALS else unsigned if unsigned and kind == "u8" else signed
        made: Value = getattr(b, name)(*x)
        return made

    return emit


def _compared(real: str, signed: str, unsigned: str) -> Callable[..., Value]:
    def emit(b: Builder, kind: str, x: Value, y: Value) -> Value:
        if kind in _REALS:
            return b.fcmp(real, x, y)
        return b.icmp(unsigned if kind in ("u8", "bool") else signed, x, y)

    return emit


def _extreme(name: str) -> Callable[..., Value]:
    def emit(b: Builder, kind: str, x: Value, y: Value) -> Value:
        if kind in _REALS:
            return binary.emit(b, name, x, y)
        return b.intrinsic(("u" if kind == "u8" else "s") + name, x, y)

    return emit


def _negated(b: Builder, kind: str, x: Value) -> Value:
    return b.fneg(x) if kind in _REALS else b.sub(constant(x.type, 0), x)


def _absolute(b: Builder, kind: str, x: Value) -> Value:
    if kind in _REALS:
        return b.intrinsic("fabs", x)
    return x if kind == "u8" else b.intrinsic("smax", x, _negated(b, kind, x))


def _sign(b: Builder, kind: str, x: Value) -> Value:
    if kind not in _REALS:
        over, under = (b.icmp(which, x, 0) for which in (("ne", "ult") if kind == "u8" else ("sgt", "slt")))
        return b.sub(b.resize(over, x.type.bits), b.resize(under, x.type.bits))
    found = b.select(b.fcmp("ogt", x, 0.0), 1.0, b.select(b.fcmp("olt", x, 0.0), -1.0, 0.0, x.type))
    return b.select(b.fcmp("uno", x, x), x, found)


def _divided(remainder: bool, floored: bool = False) -> Callable[..., Value]:
    """Integers by integers: not by 0, and not by -1, since the quotient of the smallest is no number."""

    def emit(b: Builder, kind: str, x: Value, y: Value) -> Value:
        if kind in _REALS:
            return b.fdiv(x, y)
        if kind == "u8":
            by = b.select(b.icmp("eq", y, 0), 1, y)
            made = b.urem(x, by) if remainder else b.udiv(x, by)
            return b.select(b.icmp("eq", y, 0), 0, made)
        odd = b.icmp("ult", b.add(y, 1), 2)  # 0 or -1
        by = b.select(odd, 1, y)
        if not remainder:
            inverse = b.select(b.icmp("eq", y, 0), 0, _negated(b, kind, x))
            return b.select(odd, inverse, b.sdiv(x, by))
        left = b.srem(x, by)
        if floored:
            other = b.and_(b.icmp("ne", left, 0), b.icmp("slt", b.xor(left, y), 0))
            left = b.select(other, b.add(left, y), left)
        return b.select(odd, 0, left)

    return emit


def _quotient(x: NDArray[Any], y: NDArray[Any]) -> Any:
    if x.dtype.kind == "f":
        return x / y
    exact = np.floor_divide(x, y)
    return exact + ((np.remainder(x, y) != 0) & ((x < 0) != (y < 0))).astype(x.dtype)


def _rounded(name: str) -> Callable[..., Value]:
    return lambda b, kind, x: b.intrinsic(name, x)


def _infinite(b: Builder, kind: str, x: Value) -> Value:
    return b.fcmp("oeq", b.intrinsic("fabs", x), float("inf"))


def _shift(b: Builder, kind: str, x: Value, y: Value) -> Value:
    return b.lshr(x, b.and_(y, x.type.bits - 1))


def _shifted(x: NDArray[Any], y: NDArray[Any]) -> Any:
    bits = np.dtype(f"u{x.dtype.itemsize}")
    return (x.astype(bits) >> (y.astype(bits) & bits.type(8 * bits.itemsize - 1))).astype(x.dtype)


def _fused(x: NDArray[Any], y: NDArray[Any], z: NDArray[Any]) -> Any:
    """X y + z, rounded once: of two steps from double the first is to odd (Boldo and Melquiond)."""
    product, z = x.astype(np.float64) * y, z.astype(np.float64)
    total = product + z
    back = total - product
    rest = (product - (total - back)) + (z - back)
    even = np.asarray(total).view(np.int64) % 2 == 0
    inexact = even & np.isfinite(rest) & (rest != 0)
    return np.where(inexact, np.nextafter(total, np.copysign(np.inf, rest)), total).astype(np.float32)


def _lost(x: NDArray[Any], y: NDArray[Any]) -> Any:
    """What is rounded off x y: a product of two floats has twice their bits, so it is exact in double."""
    return (x.astype(np.float64) * y - (x * y).astype(np.float64)).astype(np.float32)


OPERATIONS: Final[dict[str, _Operation]] = {
    "add": _Operation(np.add, _either("fadd", "add"), 2, _NUMBERS),
    "sub": _Operation(np.subtract, _either("fsub", "sub"), 2, _NUMBERS),
    "mul": _Operation(np.multiply, _either("fmul", "mul"), 2, _NUMBERS),
    "neg": _Operation(np.negative, _negated, 1, _NUMBERS),
    "div": _Operation(_quotient, _divided(False), 2, _NUMBERS, costly=_INTEGERS),
    "fma": _Operation(_fused, lambda b, kind, x, y, z: b.fmuladd(x, y, z), 3, ("f32",)),
    "lost": _Operation(_lost, lambda b, kind, x, y: lost(b, x, y), 2, ("f32",)),
    "mod": _Operation(np.mod, _divided(True, True), 2, _INTEGERS, costly=_INTEGERS),
    "rem": _Operation(np.fmod, _divided(True), 2, _INTEGERS, costly=_INTEGERS),
    "max": _Operation(np.maximum, _extreme("max"), 2, _NUMBERS),
    "min": _Operation(np.minimum, _extreme("min"), 2, _NUMBERS),
    "abs": _Operation(np.abs, _absolute, 1, _NUMBERS),
    "sign": _Operation(np.sign, _sign, 1, _NUMBERS),
    "floor": _Operation(np.floor, _rounded("floor"), 1, _REALS),
    "ceil": _Operation(np.ceil, _rounded("ceil"), 1, _REALS),
    "trunc": _Operation(np.trunc, _rounded("trunc"), 1, _REALS),
    "isnan": _Operation(np.isnan, lambda b, kind, x: b.fcmp("uno", x, x), 1, _REALS, "bool"),
    "isinf": _Operation(np.isinf, _infinite, 1, _REALS, "bool"),
    "and": _Operation(np.bitwise_and, lambda b, kind, x, y: b.and_(x, y), 2, _BITS),
    "or": _Operation(np.bitwise_or, lambda b, kind, x, y: b.or_(x, y), 2, _BITS),
    "xor": _Operation(np.bitwise_xor, lambda b, kind, x, y: b.xor(x, y), 2, _BITS),
    "not": _Operation(np.invert, lambda b, kind, x: b.xor(x, -1), 1, _BITS),
    "shr": _Operation(_shifted, _shift, 2, _INTEGERS),
    "eq": _Operation(np.equal, _compared("oeq", "eq", "eq"), 2, tuple(KINDS), "bool"),
    "ne": _Operation(np.not_equal, _compared("une", "ne", "ne"), 2, tuple(KINDS), "bool"),
    "lt": _Operation(np.less, _compared("olt", "slt", "ult"), 2, _NUMBERS, "bool"),
    "le": _Operation(np.less_equal, _compared("ole", "sle", "ule"), 2, _NUMBERS, "bool"),
    "gt": _Operation(np.greater, _compared("ogt", "sgt", "ugt"), 2, _NUMBERS, "bool"),
    "ge": _Operation(np.greater_equal, _compared("oge", "sge", "uge"), 2, _NUMBERS, "bool"),
}
"""All operations but ``select``, ``cast`` and ``constant``, which have kinds of their own."""


def _operation(name: str | Function) -> _Operation | None:
    """What a term does."""
    if isinstance(name, Function):
        costly = () if name.cheap else ("f32",)
        return _Operation(name.definition, lambda b, kind, x: name.emit(b, x), 1, ("f32",), costly=costly)
    if name in OPERATIONS or name not in binary.OPERATIONS:
        return OPERATIONS.get(name)
    other = binary.OPERATIONS[name]
    return _Operation(other.define, lambda b, kind, x, y: other.emit(b, x, y), 2, _REALS)


class Term(NamedTuple):
    """One operation of an expression."""

    operation: str | Function
    kind: str
    """Of the result."""
    arguments: tuple[int, ...] = ()
    """Numbers of operands, and behind them of terms."""
    number: float | int | bool = 0
    """Of a constant."""


@dataclass(frozen=True)
class Expression:
    """Terms, of which the last one is the result; without terms, the last operand. Or with several results.

    Attributes
    ----------
    operands : tuple of str
        Their kinds.
    terms : tuple of Term
    results : tuple of int
        The numbers of the operands and terms that are results, where the last one is not the only one.
    near : bool
        Whether it is known that results are numbers that s32 can hold: kernels need not look then, where they
        round them to integers.

    Raises
    ------
    LayoutError
        A term is no operation, or its arguments are not what that takes.

    Examples
    --------
    >>> Expression(("s64", "s64"), (Term("lt", "bool", (0, 1)),)).kind
    'bool'
    >>> both = Expression(("f32",), (Term("neg", "f32", (0,)), Term("abs", "f32", (0,))), (1, 2))
    >>> both.definition(np.float32([3])), str(both)
    ((array([-3.], dtype=float32), array([3.], dtype=float32)), 'f32 a; b = neg a; c = abs a; -> b, c')
    >>> Expression(("s64", "f32"), (Term("add", "s64", (0, 1)),))
    Traceback (most recent call last):
    relayout.errors.LayoutError: add takes 2 operands of one kind, ...; given are s64, f32
    """

    operands: tuple[str, ...]
    terms: tuple[Term, ...] = ()
    results: tuple[int, ...] = ()
    near: bool = False

    @classmethod
    def of(
        cls,
        operands: Sequence[str],
        terms: Sequence[tuple[Any, ...]] = (),
        results: Sequence[int] = (),
        near: bool = False,
    ) -> Expression:
        """An expression from terms as plain tuples."""
        return cls(tuple(operands), tuple(Term(*term) for term in terms), tuple(results), near)

    def __post_init__(self) -> None:
        known = list(self.operands)
        if not known and not self.terms:
            raise LayoutError("an expression has an operand or a term")
        for kind in (*known, *(term.kind for term in self.terms)):
            if kind not in KINDS:
                raise LayoutError(f"{kind!r} is nothing to compute with; there are {', '.join(KINDS)}")
        for term in self.terms:
            if any(type(k) is not int or not 0 <= k < len(known) for k in term.arguments):
                raise LayoutError(f"{term.operation} reads what is not there before it")
            _check(term, [known[k] for k in term.arguments])
            known.append(term.kind)
        if any(type(k) is not int or not 0 <= k < len(known) for k in self.results):
            raise LayoutError(f"results {self.results} are none of {len(known)} operands and terms")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of the results."""
        known = [*self.operands, *(term.kind for term in self.terms)]
        return tuple(known[k] for k in self.results) or (known[-1],)

    @property
    def kind(self) -> str:
        """That of the first result."""
        return self.kinds[0]

    @property
    def given_one(self) -> Expression:
        """The same with one more operand in front, of f32, that nothing reads.

        >>> print(Expression.of((), [("constant", "f32", (), 2.0), ("neg", "f32", (0,))]).given_one)
        f32 a; b = 2.0; c = neg b
        """
        terms = (term._replace(arguments=tuple(k + 1 for k in term.arguments)) for term in self.terms)
        return replace(
            self,
            operands=("f32", *self.operands),
            terms=tuple(terms),
            results=tuple(k + 1 for k in self.results),
        )

    @property
    def steps(self) -> list[str | Function]:
        """What is done, without constants."""
        return [term.operation for term in self.terms if term.operation != "constant"]

    @property
    def cheap(self) -> bool:
        """Whether the code is a few instructions, so that several vectors at a time are worth it."""
        made = ((_operation(term.operation), term.kind) for term in self.terms)
        costly = any(one is not None and kind in one.costly for one, kind in made)
        return not costly and len(self.steps) <= FEW

    @cached_property
    def keeps_zero(self) -> bool:
        """Whether zeros of all operands give a zero, so that padding may be computed like the rest."""
        zeros = [np.zeros(1, NUMPY[kind]) for kind in self.operands]
        made = self.definition(*zeros)
        several = made if isinstance(made, tuple) else (made,)
        return not any(np.ascontiguousarray(one).view(np.uint8).any() for one in several)

    def definition(self, *operands: NDArray[Any]) -> Any:
        """The result for arrays that broadcast, in NumPy and in the types of the kinds; several: a tuple."""
        known: list[Any] = [
            np.asarray(x).astype(NUMPY[kind], copy=False)
            for x, kind in zip(operands, self.operands, strict=True)
        ]
        with np.errstate(all="ignore"):
            for name, kind, arguments, number in self.terms:
                given = [known[k] for k in arguments]
                if name == "constant":
                    made = np.asarray(number).astype(NUMPY[kind])
                elif name == "cast":
                    made = narrowed(given[0], NUMPY[kind])
                elif name == "select":
                    made = np.where(*given)
                else:
                    made = self._known(name).define(*given)
                known.append(np.asarray(made, NUMPY[kind]))
        dims = np.broadcast_shapes(*(x.shape for x in known))
        several = tuple(np.asarray(np.broadcast_to(known[k], dims)) for k in self.results or (-1,))
        return several if len(several) > 1 else several[0]

    def emit(self, b: Builder, values: Sequence[Value]) -> list[Value]:
        """The code for vectors of the operands: the results."""
        known, kinds = list(values), list(self.operands)
        count = values[0].type.count if values else 0
        for name, kind, arguments, number in self.terms:
            given = [known[k] for k in arguments]
            if name == "constant":
                made = b.splat(constant(KINDS[kind], number), count)
            elif name == "cast":
                made = cast(b, given[0], kinds[arguments[0]], kind)
            elif name == "select":
                made = b.select(given[0], given[1], given[2])
            else:
                made = self._known(name).emit(b, kinds[arguments[0]], *given)
            known.append(made)
            kinds.append(kind)
        return [known[k] for k in self.results or (-1,)]

    @staticmethod
    def _known(name: str | Function) -> _Operation:
        found = _operation(name)
        assert found is not None
        return found

    def __str__(self) -> str:
        def named(k: int) -> str:
            return chr(ord("a") + k) if k < 26 else f"x{k}"

        said = [", ".join(f"{kind} {named(k)}" for k, kind in enumerate(self.operands))]
        for k, (name, kind, arguments, number) in enumerate(self.terms, len(self.operands)):
            what = f"{number}" if name == "constant" else " ".join([str(name), *map(named, arguments)])
            said.append(f"{named(k)} = {what}{f' to {kind}' if name == 'cast' else ''}")
        if self.results:
            said.append(f"-> {', '.join(map(named, self.results))}")
        return "; ".join(said)


class Writing:
    """An expression while it is written: operands and terms are known by their numbers.

    >>> w = Writing("f32", "s32")
    >>> w.apply(Function("relu"), w.apply("add", 0, w.put("cast", "f32", 1)))
    4
    >>> print(w.written())
    f32 a, s32 b; c = cast b to f32; d = add a c; e = relu d
    """

    def __init__(self, *operands: str) -> None:
        self.operands = operands
        self.terms: list[Term] = []

    def put(self, operation: str | Function, kind: str, *arguments: int, number: float | bool = 0) -> int:
        """Append a term; its number."""
        self.terms.append(Term(operation, kind, arguments, number))
        return len(self.operands) + len(self.terms) - 1

    def kind(self, k: int) -> str:
        """Of an operand or a term."""
        count = len(self.operands)
        return self.operands[k] if k < count else self.terms[k - count].kind

    def apply(self, operation: str | Function, *arguments: int) -> int:
        """Append an operation, whose result has the kind that it gives."""
        made = _operation(operation)
        return self.put(operation, (made and made.gives) or self.kind(arguments[0]), *arguments)

    def function(self, algorithm: str, x: int, alpha: float = 0.0, beta: float = 0.0) -> int:
        """Append a function of f32."""
        return self.apply(Function(algorithm, alpha, beta), x)

    def number(self, kind: str, number: float | bool) -> int:
        """Append a constant."""
        whole = kind not in (*_REALS, "bool")
        return self.put("constant", kind, number=int(number) if whole else number)

    def binary(self, algorithm: str, x: int, y: int) -> int:
        """Append one of :data:`.binary.OPERATIONS`, in which comparisons give 1 and 0."""
        found = self.apply(algorithm, x, y)
        return found if self.kind(found) != "bool" else self.put("cast", self.kind(x), found)

    def written(self, *results: int, near: bool = False) -> Expression:
        """The expression; its results, if it is not the last term alone."""
        return Expression(tuple(self.operands), tuple(self.terms), results, near)


def followed_by(expression: Expression, post_ops: Sequence[PostOp]) -> Expression:
    """An expression in f32 with post-ops behind it.

    Each that reads a tensor takes one more operand, in the order of the post-ops: a sum the old destination,
    a binary operation its own.

    >>> from relayout.ops.post_ops import Sum
    >>> print(followed_by(Expression.of(("f32",)), [Sum(0.5), Function("relu")]))
    f32 a, f32 b; c = 0.5; d = mul b c; e = add a d; f = relu e
    """
    if not post_ops:
        return expression
    if expression.results:
        raise LayoutError("post-ops follow an expression of one result")
    own = len(expression.operands)
    more = sum(not isinstance(op, Function) for op in post_ops)
    w = Writing(*expression.operands, *["f32"] * more)
    for operation, kind, arguments, number in expression.terms:
        w.put(operation, kind, *(k if k < own else k + more for k in arguments), number=number)
    x, others = len(w.operands) + len(w.terms) - 1 if w.terms else own - 1, iter(range(own, own + more))
    for op in post_ops:
        if isinstance(op, Function):
            x = w.apply(op, x)
        elif isinstance(op, BinaryOp):
            x = w.binary(op.algorithm, x, next(others))
        else:
            old = next(others)
            if op.scale != 1:
                old = w.apply("mul", old, w.number("f32", single(op.scale)))
            x = w.apply("add", x, old)
    near = expression.near and all(op == RELU for op in post_ops)
    return w.written(near=near)


def _check(term: Term, given: Sequence[str]) -> None:
    """Refuse a term whose arguments are not what it takes."""
    name, kind = term.operation, term.kind
    if name in ("constant", "cast"):
        if len(given) != (name == "cast"):
            raise LayoutError(f"{name} takes {'one operand' if name == 'cast' else 'no operands'}")
        whole = kind not in _REALS and name == "constant"
        if not isinstance(term.number, (bool, int) if whole else (bool, int, float)):
            raise LayoutError(f"a constant of {kind} can't be {term.number!r:.40}")
        return
    if name == "select":
        if tuple(given) != ("bool", kind, kind):
            raise LayoutError(f"select to {kind} takes bool, {kind}, {kind}, not {', '.join(given)}")
        return
    made = _operation(name)
    if made is None:
        raise LayoutError(
            f"{name!r} is no operation; there are {', '.join(OPERATIONS)}, select, cast, constant"
        )
    if len(given) != made.takes or len(set(given)) != 1 or given[0] not in made.kinds:
        kinds = ", ".join(made.kinds)
        raise LayoutError(
            f"{name} takes {made.takes} operands of one kind, which is {kinds}; given are {', '.join(given)}"
        )
    if kind != (made.gives or given[0]):
        raise LayoutError(f"{name} of {given[0]} gives {made.gives or given[0]}, not {kind}")


def kind_of(kind: DType, boolean: bool = False) -> str | None:
    """What registers hold of elements of a data type; None: nothing that is computed with.

    >>> from relayout.dtypes import dtype
    >>> kind_of(dtype("f16")), kind_of(dtype("s64")), kind_of(dtype("u8"), boolean=True), kind_of(dtype("s4"))
    ('f32', 's64', 'bool', None)
    """
    if boolean:
        return "bool"
    if kind.is_float and kind.bits < 32:
        return "f32"
    return kind.name if kind.name in KINDS else None


def narrowed(x: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A cast: of real numbers to integers towards zero, saturated, NaN as 0; all others as NumPy's.

    >>> narrowed(np.float32([1.9, -1.9, 300, np.nan, -np.inf]), np.dtype("int8")).tolist()
    [1, -1, 127, 0, -128]
    """
    if dtype.kind not in "iu" or x.dtype.kind != "f":
        return x.astype(dtype)
    info = np.iinfo(dtype)
    over, under = x >= float(info.max) + (info.bits < 54), x <= float(info.min)
    inside = np.where(over | under | np.isnan(x), 0, x).astype(dtype)
    return np.where(over, dtype.type(info.max), np.where(under, dtype.type(info.min), inside))
