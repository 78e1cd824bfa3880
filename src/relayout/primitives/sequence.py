"""A sequence of primitives: said once, compiled once, then run without returning to Python in between.

>>> import numpy as np
>>> import relayout as rl
>>> from relayout.primitives import Reorder, Sequence
>>> seq = Sequence()
>>> x = seq.input("x", rl.MemoryDesc((1, 2, 1, 3), "f32", "nchw"))
>>> y = seq.add(Reorder(x.desc, rl.MemoryDesc(x.desc.dims, "f32", "nhwc")), x)
>>> seq.output(y)
>>> run = seq.compile()
>>> run
Run(x f32:nchw:1x2x1x3 -> reorder1 f32:nhwc:1x2x1x3, steps: 1, threads: ...)
>>> run(np.arange(6, dtype=np.float32).reshape(1, 2, 1, 3)).buffer.view("f4")
array([0., 3., 1., 4., 2., 5.], dtype=float32)

A sequence is built of *values*, which know their descriptors. Primitives decide on formats when they are
made, so whoever builds a network makes each with what the value before it has, or with ``any`` (and then the
primitive says what it wants). Where that is not what the value has, a reorder comes in between::

    conv1 ----- nhwc ----> pool ----- nhwc ----> [reorder] ---- nChw16c ----> conv2

It is a layer as others are, with a time of its own, so that one sees what formats cost. Two things cost
nothing at run time:

* *Constants* (weights) are put into the format that is wanted when the sequence is compiled.
* A value that several primitives want in the same other format is reordered once.

What happens at :meth:`Sequence.compile` is in :mod:`relayout.primitives.schedule` (who writes where),
:mod:`relayout.primitives.memory` (values share memory) and :mod:`relayout.primitives.runner`.

Post-ops that add (:class:`relayout.ops.post_ops.Sum`) need a value to add to, ``dst=``. The result
takes over its memory if nobody reads it afterwards; otherwise it is copied first, which is a layer, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError, counted, type_name
from relayout.forking import lock
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims, whole_number
from relayout.ops.checks import alike, check_descs, check_written
from relayout.primitives.meaning import check_alike
from relayout.primitives.primitive import Primitive
from relayout.primitives.reorder import Reorder
from relayout.primitives.results import logical, results
from relayout.primitives.values import Memories, Node, Nodes, Value
from relayout.reorder.arguments import bound
from relayout.tensor import Tensor, tensor

if TYPE_CHECKING:
    from collections.abc import Sequence as Several

    from numpy.typing import NDArray

    from relayout.primitives.runner import Run

__all__ = ["Sequence"]


class Sequence(Nodes):
    """A list of primitives with their tensors; see the module's docstring, and :class:`Nodes`."""

    def __init__(self) -> None:
        super().__init__()
        self._values: list[Value] = []
        self._reordered: dict[tuple[int, MemoryDesc], Value] = {}

    # -- building -------------------------------------------------------------------------------------------

    def input(self, name: str, desc: MemoryDesc) -> Value:
        """A value that is given to each run, in this descriptor.

        Raises
        ------
        LayoutError
            Its format is not decided, or there is an input of that name.
        """
        check_descs(f"input {name!r}", {"desc": desc}, {})
        if desc.layout is None:
            raise LayoutError(f"input {name!r}: the format of {desc} is not decided")
        if any(one.name == name for one in self.inputs):
            raise LayoutError(f"there is an input {name!r} already")
        self.inputs.append(self._value(desc, name))
        return self.inputs[-1]

    def constant(self, given: Any, name: str = "constant") -> Value:
        """A value that never changes: a tensor, or a logical array.

        It is read when the sequence is compiled, and not changed or held after that.
        """
        made = tensor(given)
        value = self._value(made.desc, name)
        self.constants[value.number] = made
        return value

    def add(
        self,
        primitive: Primitive,
        /,
        *given: Any,
        name: str | None = None,
        into: Mapping[str, Value] | None = None,
        **named: Any,
    ) -> Any:
        """Append a primitive.

        Parameters
        ----------
        primitive : Primitive
            What is to be done.
        *given : Value, Tensor or array_like
            Its inputs in their order. What is no value is a constant.
        name : str, optional
            What the layer is called; without a name, its kind and its number.
        into : mapping of str to Value, optional
            For outputs by name the :meth:`view` that they are to be written into, of the same descriptor.
        **named : Value, Tensor or array_like
            Inputs by name, and outputs to which results are added: ``dst``, what a Sum among the post-ops
            adds to.

        Returns
        -------
        Value, or named tuple of Value
            The result, or several by the names of the primitive's outputs; nobody has to read all of them.

        Raises
        ------
        LayoutError
            An argument is missing, given twice, of other dims, or a value of another sequence; or it would
            have to be reordered, and the elements of the wanted descriptor share places.
        """
        if not isinstance(primitive, Primitive):
            raise LayoutError(f"{name or 'add'}: expected a Primitive, not {type_name(primitive)}")
        name = name or f"{primitive.kind}{len(self.nodes) + 1}"
        found = self._arguments(primitive, given, named, name)
        wanted = {key: self._as(value, primitive.descs[key], name, key) for key, value in found.items()}
        several = len(primitive.outputs) > 1
        made = {
            key: self._value(primitive.descs[key], f"{name}.{key}" if several else name)
            for key in primitive.outputs
        }
        for key, place in (into or {}).items():
            if key not in made or self._known(place, name).desc != made[key].desc:
                raise LayoutError(f"{name}: {key} can't be written into {place}")
            self.bases[made[key].number] = place
        self.nodes.append(Node(name, primitive, wanted, made))
        return results(primitive.outputs, made.values())

    def reorder(self, value: Value, desc: MemoryDesc) -> Value:
        """The value in another descriptor of the same dims; itself, if that makes no difference."""
        return self._as(self._known(value, "reorder"), desc, "reorder", "src")

    def reshape(self, value: Value, dims: Several[int]) -> Value:
        """The same memory under other dims, elements in row-major order.

        Raises
        ------
        LayoutError
            No descriptor says that of the value's format.
        """
        base = self._known(value, "reshape")
        if base.number in self.constants:
            return self.constant(self.constants[base.number].numpy().reshape(dims), base.name)
        result = self._value(base.desc.reshape(dims), base.name)
        self.bases[result.number] = base
        return result

    def view(self, value: Value, desc: MemoryDesc) -> Value:
        """The same memory under another descriptor: a part of it, other axes, other dims.

        What is made of a view has a place in the memory of another value (``into`` of :meth:`add`).

        Raises
        ------
        LayoutError
            The descriptor reaches beyond the memory of the value.

        Examples
        --------
        Two convolutions that write into the two halves of what a third one reads would be given
        ``into={"dst": half}``:

        >>> import relayout as rl
        >>> seq = Sequence()
        >>> whole = seq.place(rl.MemoryDesc((1, 32, 7, 7), "f32", "nhwc"), "both")
        >>> halves = [seq.view(whole, whole.desc.submemory((1, 16, 7, 7), (0, k, 0, 0))) for k in (0, 16)]
        >>> [half.desc.offset0 for half in halves]
        [0, 16]
        """
        base = self._known(value, "view")
        room = max(base.desc.required_bytes, base.desc.nbytes)
        if desc.required_bytes > room:
            raise LayoutError(f"view: {desc} needs {desc.required_bytes} bytes, {base.name} has {room}")
        if base.number in self.constants:
            whole = self.constants[base.number]
            return self.constant(Tensor(desc, whole.buffer), base.name)
        result = self._value(desc, base.name)
        self.bases[result.number] = base
        return result

    def place(self, desc: MemoryDesc, name: str) -> Value:
        """Memory that several layers write their results into, each its part; nothing makes it as a whole."""
        return self._value(desc, name)

    def output(self, value: Value, desc: MemoryDesc | None = None) -> None:
        """Make a value a result of each run; in another descriptor, if one is given.

        Raises
        ------
        LayoutError
            Its elements share places, as those of a broadcast tensor do, so no run could write it.
        """
        known = self._known(value, "output")
        made = known if desc is None else self.reorder(known, desc)
        check_written(f"output {made.name}", made.desc)
        self.outputs.append(made)

    # -- using ----------------------------------------------------------------------------------------------

    def compile(
        self, threads: int | None = None, progress: Callable[[int, int, str], None] | None = None
    ) -> Run:
        """Compile all primitives, lay out the constants, plan the memory.

        Parameters
        ----------
        threads : int, optional
            How many threads may work on one layer, 1 or more.
        progress : callable, optional
            Called with the number of layers that are done, that of all, and the name of the next one.

        Returns
        -------
        Run
            What runs the sequence as it is now: what is added later has no part in it.

        Raises
        ------
        LayoutError
            Nothing is an output, or ``threads`` is no number of threads; or elements of a constant differ
            that share a place in the descriptor that is wanted.
        """
        if threads is not None and whole_number(threads, "compile: threads") < 1:
            raise LayoutError(f"compile: threads must be 1 or more, got {threads}")
        if not self.outputs:
            raise LayoutError("nothing is an output of the sequence, so there is nothing to compute")
        with lock():
            from relayout.primitives.runner import Run
            from relayout.primitives.schedule import scheduled
        return Run(scheduled(self, threads, progress))

    def reference(self, *given: Any, **named: Any) -> NDArray[np.float64] | tuple[NDArray[np.float64], ...]:
        """What the definitions of all primitives make of logical arrays or tensors, in double precision.

        Returns
        -------
        ndarray, or tuple of ndarray
            The logical output, or a tuple of several.
        """
        known = Memories(self.bases)
        names = [value.name for value in self.inputs]
        for value, data in zip(self.inputs, bound(names, given, named, "the sequence"), strict=True):
            known.write(value, logical(data))
        for value in self._values:
            if value.number in self.constants:
                known.write(value, logical(self.constants[value.number]))
        for node in self.nodes:
            arrays = {key: known.read(value) for key, value in node.arguments.items()}
            made = node.primitive.operation.definition(arrays)
            for key, value in node.results.items():
                known.write(value, made[key])
        found = tuple(known.read(value) for value in self.outputs)
        return found[0] if len(found) == 1 else found

    # -- workings -------------------------------------------------------------------------------------------

    def _value(self, desc: MemoryDesc, name: str) -> Value:
        self._values.append(Value(desc, name, len(self._values)))
        return self._values[-1]

    def _known(self, value: object, where: str) -> Value:
        """A value of this sequence."""
        if not isinstance(value, Value):
            raise LayoutError(f"{where}: {type_name(value)} is no value of a sequence")
        if not (value.number < len(self._values) and self._values[value.number] is value):
            raise LayoutError(f"{where}: {value} belongs to another sequence")
        return value

    def _arguments(
        self, primitive: Primitive, given: Several[Any], named: Mapping[str, Any], name: str
    ) -> dict[str, Value]:
        """Values by the names of the primitive's arguments."""
        names = (*primitive.inputs, *primitive.accumulates)
        if len(given) > len(primitive.inputs):
            takes = ", ".join(primitive.inputs)
            raise LayoutError(f"{name}: {primitive.kind} takes {takes}; got {counted(len(given), 'value')}")
        found = dict(zip(primitive.inputs, given, strict=False))
        for key, value in named.items():
            if key not in names or key in found:
                what = "was given twice" if key in found else f"is none of {', '.join(names)}"
                raise LayoutError(f"{name}: the argument {key!r} {what}")
            found[key] = value
        missing = [key for key in names if key not in found]
        if missing:
            adds = " (what the result is added to)" if missing[0] in primitive.outputs else ""
            raise LayoutError(f"{name}: {primitive.kind} needs {', '.join(missing)}{adds}")
        return {
            key: self._known(value, name)
            if isinstance(value, Value)
            else self.constant(value, f"{name}.{key}")
            for key, value in found.items()
        }

    def _as(self, value: Value, desc: MemoryDesc, where: str, key: str) -> Value:
        """The value in a descriptor."""
        check_descs(where, {key: desc}, {})
        if alike(value.desc, desc):
            return value
        if value.desc.dims != desc.dims:
            raise LayoutError(
                f"{where}: {key} must be of dims {spell_dims(desc.dims)}, but {value.name} is {value.desc}"
            )
        check_alike(where, {value.name: value.desc, key: desc})
        found = self._reordered.get((value.number, desc))
        if found is None:
            constant = self.constants.get(value.number)
            if constant is None:
                check_written(f"{where}: reorder of {value.name} ({value.desc})", desc)
            found = self._value(desc, f"{value.name}.reorder")
            if constant is not None:
                self.constants[found.number] = constant
            else:
                self.nodes.append(Node(found.name, Reorder(value.desc, desc), {"src": value}, {"dst": found}))
            self._reordered[value.number, desc] = found
        return found
