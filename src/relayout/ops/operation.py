"""An operation: what is computed, and nothing of how.

A primitive is three things, and the first of them is plain data::

    Operation      attributes, named inputs and outputs with dims and data types, a definition in NumPy
    candidate      a format for each of them, a schedule, what it costs    relayout.primitives.candidates
    executable     kernels, scratch and constants                          relayout.primitives.program

An operation knows no format. Two that compute the same are equal, whatever formats they were made for, so an
operation is a key: for what was measured, for what a planner has asked before, and for a backward pass, which
is made from the operation of its forward pass.

A kind is a frozen dataclass with the attributes as fields, and one function:

>>> import numpy as np
>>> from relayout.dtypes import dtype
>>> from relayout.ops.functions import Function
>>> @dataclass(frozen=True, kw_only=True)
... class Scaled(Operation):
...     kind = "scaled"
...     factor: float
...
...     def compute(self, src):
...         return self.factor * src
>>> x = Spec("src", (2, 3), dtype("f32"))
>>> made = Scaled((x,), (x.named("dst"),), factor=0.5, post_ops=(Function("relu"),))
>>> print(made)
dst f32:2x3 = scaled(src f32:2x3, factor 0.5), relu
>>> made.definition({"src": np.array([[1.0, -2.0, 3.0]])})["dst"]
array([[0.5, 0. , 1.5]])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from relayout.dtypes import DType
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import spell_dims
from relayout.ops.formats import overwritable
from relayout.ops.post_ops import BinaryOp, PostOp, adds, applied, operands_of
from relayout.records import dataclass, field

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Operation", "Spec", "formatless", "settled", "specs"]


class Spec(NamedTuple):
    """An input or output: its name, dims and data type.

    >>> from relayout.dtypes import dtype
    >>> print(Spec("weights", (64, 3, 7, 7), dtype("bf16")))
    weights bf16:64x3x7x7
    """

    name: str
    dims: tuple[int, ...]
    dtype: DType

    def named(self, name: str) -> Spec:
        """The same by another name."""
        return self._replace(name=name)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}:{spell_dims(self.dims)}"


@dataclass(frozen=True)
class Operation:
    """What is computed; the module's docstring shows a kind.

    Parameters
    ----------
    inputs, outputs : tuple of Spec
        What is read and written, in the order of a call. An input that may be left out is one that the tuple
        has or has not.
    post_ops : tuple
        What follows for the first output (:mod:`relayout.ops.post_ops`), without formats; the tensors that
        binary operations read are inputs like others.
    """

    kind: ClassVar[str] = ""
    usual: ClassVar[Mapping[str, Any]] = {"epsilon": 9.999999747378752e-06, "padding": (0, 0), "dilation": 1}
    """What goes without saying, besides the defaults of fields: the value of an attribute, or of all of its
    elements. Primitives have these defaults; 1e-5 is rounded to f32."""
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    post_ops: tuple[PostOp, ...] = field(default=(), kw_only=True)

    def compute(self, *_: Any, **arrays: Any) -> Any:
        """The logical result before post-ops, or a mapping of several by name.

        It is given the inputs by name, in double precision; an output that results are added to is among
        them, with what it held.
        """
        raise NotImplementedError

    def definition(self, arrays: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
        """The logical results by name: what the operation means, computed slowly."""
        made = self.compute(**{name: arrays[name] for name in self._read if name in arrays})
        found = dict(made) if isinstance(made, Mapping) else {self.outputs[0].name: made}
        if self.post_ops:
            first = self.outputs[0].name
            held = {"dst": arrays[first]} if first in arrays else {}
            found[first] = applied(self.post_ops, found[first], {**arrays, **held})
        return {one.name: found[one.name] for one in self.outputs}

    @cached_property
    def _read(self) -> tuple[str, ...]:
        """What :meth:`compute` is given: everything but what post-ops read."""
        held = () if adds(self.post_ops) else self.accumulates
        operands = operands_of(self.post_ops)
        return tuple(name for name in (*(one.name for one in self.inputs), *held) if name not in operands)

    @property
    def accumulates(self) -> tuple[str, ...]:
        """The outputs to which results are added: what they held takes part."""
        return (self.outputs[0].name,) * adds(self.post_ops)

    @property
    def overwritable(self) -> tuple[str, ...]:
        """The inputs that are read element by element, no later than the first output is written there.

        If format and data type are the same, the output may be written over one of them.
        """
        return ()

    @property
    def flops(self) -> int:
        """Floating-point (or integer) operations; a multiplication and an addition are two."""
        return prod(self.outputs[0].dims)

    @property
    def attributes(self) -> dict[str, Any]:
        """The fields of the kind, by name."""
        general = {one.name for one in fields(Operation)}
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in general}

    @property
    def chosen(self) -> dict[str, Any]:
        """The attributes that do not go without saying."""
        usual = {one.name: one.default for one in fields(self)} | {**self.usual}
        return {name: value for name, value in self.attributes.items() if not _is(value, usual[name])}

    def __str__(self) -> str:
        given = [*map(str, self.inputs), *(f"{name} {value}" for name, value in self.attributes.items())]
        made = f"{', '.join(map(str, self.outputs))} = {self.kind}({', '.join(given)})"
        return ", ".join([made, *map(str, self.post_ops)])


def _is(value: Any, usual: Any) -> bool:
    return bool(value == usual) or (isinstance(value, tuple) and all(one == usual for one in value))


def settled(
    kind: type[Operation],
    inputs: Mapping[str, MemoryDesc],
    outputs: Mapping[str, MemoryDesc],
    post_ops: tuple[PostOp, ...],
    attributes: Mapping[str, Any],
) -> tuple[Operation, dict[str, MemoryDesc], dict[str, tuple[str, ...]]]:
    """The operation on descriptors; all of them by name; and what an output may be written over.

    The operands of post-ops are inputs behind the others.
    """
    inputs = {**inputs, **operands_of(post_ops)}
    made = kind(specs(inputs), specs(outputs), post_ops=formatless(post_ops), **attributes)
    descs, names = {**inputs, **outputs}, made.overwritable
    if not names or made.accumulates:
        return made, descs, {}
    first = made.outputs[0].name
    return made, descs, overwritable({name: descs[name] for name in (*names, first)}, first)


def specs(descs: Mapping[str, MemoryDesc]) -> tuple[Spec, ...]:
    """What descriptors say apart from formats."""
    return tuple(Spec(name, desc.dims, desc.dtype) for name, desc in descs.items())


def formatless(post_ops: Sequence[PostOp]) -> tuple[PostOp, ...]:
    """Post-ops whose operands are in any format.

    >>> print(*formatless([BinaryOp("add", MemoryDesc((1, 3), "s8", "ba"))]))
    add(s8:any:1x3)
    """
    if not post_ops:
        return ()
    return tuple(
        BinaryOp(one.algorithm, MemoryDesc(one.desc.dims, one.desc.dtype, any_format))
        if isinstance(one, BinaryOp)
        else one
        for one in post_ops
    )
