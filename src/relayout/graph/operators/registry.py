"""The table of operators, and how an entry is made.

>>> @operator("TwiceForThisExample", infer=same)
... def twice(x, /, *, times: float = 2.0):
...     return x * x.dtype.type(times)
>>> entry = OPERATORS.pop("TwiceForThisExample")
>>> entry.inputs, entry.required, dict(entry.attributes)
(('x',), 1, {'times': 2.0})
>>> entry(np.float32([1, 2]), times=3.0)
(array([3., 6.], dtype=float32),)

Inference is a function of :class:`Fact`: what is known of each input. It returns a fact for each output, with
None where something is not known::

    def same(x, **attributes):
        return Fact(x.dims, x.dtype)

Where an operator has none, nothing is known of its results until it has run.

Operators that slide windows as another one does say so (``like="Conv"``), and take its attributes as they
are.

What must be true of the inputs' dims is asked by a function of its own, which the definition calls first, so
that a network that can't run is refused before it is planned (:attr:`Operator.fits`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError, counted

__all__ = ["OPERATORS", "Array", "Fact", "Operator", "elementwise", "operator", "same"]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Fact:
    """What is known of a value before anything runs.

    Attributes
    ----------
    dims : tuple of int, str or None; or None
        Text or None: a size that is not known. None for all: nor is the number of axes.
    dtype : numpy.dtype or None
        None: not known.
    data : ndarray or None
        The value itself, where it is a constant: shapes, axes and the like.
    """

    dims: tuple[int | str | None, ...] | None = None
    dtype: np.dtype[Any] | None = None
    data: Array | None = None

    def shaped(self, first: int | None = None) -> Array | None:
        """An array of these dims without memory; None where they are not known, but for an open first one."""
        dims = self.dims
        if first is not None and dims and not isinstance(dims[0], int):
            dims = (first, *dims[1:])
        if dims is None or not all(isinstance(n, int) for n in dims):
            return None
        return np.broadcast_to(
            np.zeros((), self.dtype or np.float32), [n for n in dims if isinstance(n, int)]
        )


Infer: TypeAlias = Callable[..., "Fact | tuple[Fact, ...]"]


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator.

    Attributes
    ----------
    name : str
        As nodes have it.
    inputs : tuple of str
        The names of its inputs.
    required : int
        So many of them can't be left out.
    variadic : bool
        Whether further inputs may follow.
    attributes : mapping of str
        Defaults by name; ``Ellipsis`` for those that have none and must be given.
    define : callable
        The definition.
    infer : callable or None
        Dims and data types of the results.
    wanted : bool
        Whether the definition asks how many outputs are wanted, as a keyword ``wanted``.
    needed : frozenset of str
        The inputs that are never None: those whose annotation doesn't admit it.
    fits : callable or None
        Called as the definition is; raises a LayoutError where dims and attributes don't fit each other. It
        looks at no elements.
    """

    name: str
    inputs: tuple[str, ...]
    required: int
    variadic: bool
    attributes: Mapping[str, Any]
    define: Callable[..., Any]
    infer: Infer | None = None
    wanted: bool = False
    needed: frozenset[str] = frozenset()
    fits: Callable[..., None] | None = None

    def __call__(self, *inputs: Any, outputs: int = 1, **attributes: Any) -> tuple[Any, ...]:
        """The results of the definition; ``outputs``: how many are wanted.

        Scalars of NumPy become arrays. Numbers that overflow or are divided by zero raise no warnings.

        Raises
        ------
        LayoutError
            The inputs don't fit each other or the attributes; the message names the operator and what it was
            given.
        """
        self.check(len(inputs), attributes)
        self._present(inputs)
        if self.wanted:
            attributes["wanted"] = outputs
        with np.errstate(all="ignore"), self._named(inputs):
            if self.fits is not None:
                self.fits(*inputs, **{key: one for key, one in attributes.items() if key != "wanted"})
            made = self.define(*inputs, **attributes)
        several = made if isinstance(made, tuple) else (made,)
        self._enough(len(several), outputs)
        return tuple(np.asarray(one) if isinstance(one, np.generic) else one for one in several)

    def inferred(self, *inputs: Fact | None, outputs: int = 1, **attributes: Any) -> tuple[Fact, ...]:
        """What is known of the results; nothing where there is no rule."""
        self.check(len(inputs), attributes)
        self._present(inputs)
        if self.infer is None:
            return (Fact(),) * outputs
        with self._named(inputs):
            self._fitting(inputs, attributes)
            made = self.infer(*inputs, **attributes)
        made = made if isinstance(made, tuple) else (made,)
        if not made:
            return (Fact(),) * outputs
        self._enough(len(made), outputs)
        return made[:outputs]

    def check(self, inputs: int, attributes: Mapping[str, Any]) -> None:
        """Refuse what no call of the operator looks like.

        Raises
        ------
        LayoutError
            Too few or too many inputs; an attribute that there is not, or that is missing.
        """
        if inputs < self.required or (inputs > len(self.inputs) and not self.variadic):
            raise LayoutError(f"{self.name} takes {', '.join(self.inputs)}; got {counted(inputs, 'input')}")
        for name in attributes:
            if name not in self.attributes:
                known = ", ".join(self.attributes) or "none"
                raise LayoutError(f"{self.name} has no attribute {name!r}; there are: {known}")
        for name, value in self.attributes.items():
            if value is ... and name not in attributes:
                raise LayoutError(f"{self.name} needs the attribute {name!r}")

    def _fitting(self, inputs: tuple[Fact | None, ...], attributes: Mapping[str, Any]) -> None:
        """Refuse inputs that do not fit, whatever the first size of the first of them is if it is open.

        It is a batch most often, and any number fits then, or 1 does; or it is one that another input has.
        """
        if self.fits is None or not inputs or inputs[0] is None:
            return
        others = [None if one is None else one.shaped() for one in inputs[1:]]
        if any((one is None) != (given is None) for one, given in zip(others, inputs[1:], strict=True)):
            return
        refusal = None
        for size in dict.fromkeys((1, *(n for one in others if one is not None for n in one.shape))):
            first = inputs[0].shaped(size)
            if first is None:
                return
            try:
                self.fits(first, *others, **attributes)
                return
            except LayoutError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    def _enough(self, made: int, outputs: int) -> None:
        """Refuse to have more outputs than there are."""
        if outputs > made:
            raise LayoutError(
                f"{self.name} has {counted(made, 'output')} with these attributes, not {outputs}"
            )

    def _present(self, inputs: tuple[Any, ...]) -> None:
        """Refuse None for an input that is needed."""
        for name, given in zip(self.inputs, inputs, strict=False):
            if given is None and name in self.needed:
                raise LayoutError(f"{self.name} needs the input {name!r}")

    @contextmanager
    def _named(self, inputs: tuple[Any, ...]) -> Iterator[None]:
        """Errors within, NumPy's among them, as LayoutErrors that say of which operator and inputs."""
        try:
            yield
        except Exception as error:
            kind = type(error) if isinstance(error, LayoutError) else LayoutError
            given = ", ".join(map(_spelled, inputs)) or "no inputs"
            raise kind(f"{self.name} of {given}: {error}") from error


def _spelled(given: Any) -> str:
    """An input for a message."""
    if isinstance(given, list):
        return f"a sequence of {len(given)}"
    dims = getattr(given, "dims", getattr(given, "shape", None))
    if given is None or dims is None:
        return "-" if given is None else "?"
    sizes = "x".join("?" if n is None else str(n) for n in dims)
    return f"{getattr(given, 'dtype', None) or '?'} {sizes}".rstrip()


OPERATORS: Final[dict[str, Operator]] = {}


def operator(
    name: str,
    infer: Infer | None = None,
    fits: Callable[..., None] | None = None,
    like: str | Mapping[str, Any] = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a definition into the table; its signature says what the operator takes.

    Besides its own attributes it has those of the operator that it is ``like``, or others that are given with
    their defaults, and takes them as ``**``:

    >>> @operator("OneForThisExample")
    ... def one(x, /, *, times: float = 2.0): ...
    >>> @operator("OtherForThisExample", like="OneForThisExample")
    ... def other(x, /, *, plus: float = 0.0, **attributes): ...
    >>> [dict(OPERATORS.pop(f"{name}ForThisExample").attributes) for name in ("One", "Other")]
    [{'times': 2.0}, {'times': 2.0, 'plus': 0.0}]
    """
    inherited = (OPERATORS[like].attributes if like else {}) if isinstance(like, str) else like

    def enter(define: Callable[..., Any]) -> Callable[..., Any]:
        parameters = signature(define).parameters.values()
        places = [
            one
            for one in parameters
            if one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        ]
        keywords = [one for one in parameters if one.kind is Parameter.KEYWORD_ONLY]
        OPERATORS[name] = Operator(
            name,
            tuple(one.name for one in places),
            sum(one.default is Parameter.empty for one in places),
            any(one.kind is Parameter.VAR_POSITIONAL for one in parameters),
            {
                **inherited,
                **{
                    one.name: ... if one.default is Parameter.empty else one.default
                    for one in keywords
                    if one.name != "wanted"
                },
            },
            define,
            infer,
            any(one.name == "wanted" for one in keywords),
            frozenset(one.name for one in places if not {"None", "Any"} & set(str(one.annotation).split())),
            fits,
        )
        return define

    return enter


def same(x: Fact, *_: Fact | None, **__: Any) -> Fact:
    """A result with the dims and data type of the first input."""
    return Fact(x.dims, x.dtype)


def elementwise(*inputs: Fact | None, **_: Any) -> Fact:
    """A result with the first input's data type, and dims as NumPy broadcasts those of all."""
    given = [one for one in inputs if one is not None]
    return Fact(broadcast(*given), given[0].dtype)


def broadcast(*facts: Fact) -> tuple[int | str | None, ...] | None:
    """The dims that NumPy broadcasts to, as far as they are known.

    >>> broadcast(Fact((2, 1, "n")), Fact((3, 1)))
    (2, 3, 'n')
    """
    if any(one.dims is None for one in facts):
        return None
    rank = max(len(one.dims or ()) for one in facts)
    found: list[int | str | None] = []
    for axis in range(-rank, 0):
        sizes = {one.dims[axis] for one in facts if one.dims is not None and -axis <= len(one.dims)} - {1}
        numbers = {n for n in sizes if isinstance(n, int)}
        if len(numbers) > 1:
            raise LayoutError(f"sizes {sorted(numbers)} of axis {axis} can't be broadcast")
        found.append(numbers.pop() if numbers else sizes.pop() if len(sizes) == 1 else None if sizes else 1)
    return tuple(found)
