"""A network as frozen data: values, the nodes that compute them, and constants.

::

    Graph    inputs, outputs, nodes in an order in which they can run, constants
    Node     operator, names of what it reads and writes, attributes
    Value    name, dims, data type

Operators are ONNX's, in the meaning of the newest version (:mod:`relayout.graph.operators`); importers
rewrite older ones and those of other systems. A node reads values by name; an input that is left out has the
name ``""``. A graph within a node, such as the branch of an ``If``, is an attribute, and closed: what it uses
of the graph around it are inputs of that node, behind the operator's own, and inputs of the inner graph,
behind its own.

Dims are numbers where they are known, and text or None where they are not: ``("batch", 3, 224, 224)``. Data
types are NumPy's (with ml_dtypes), since networks compute with truth values and indices as well as with
elements that have a :class:`relayout.DType`.

Everything is frozen. A pass is a function that takes a graph and returns another one.

>>> import numpy as np
>>> x = Value("x", (2, 3), np.dtype("float32"))
>>> relu = Node("Relu", ("x",), ("y",))
>>> graph = Graph((x,), ("y",), (relu,))
>>> print(graph)
x f32 2x3
y = Relu(x)
-> y
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, counted
from relayout.forking import lock, locked
from relayout.records import dataclass, field

if TYPE_CHECKING:
    from typing_extensions import Self

    from relayout.graph.plan import Plan
    from relayout.graph.run import Run

__all__ = ["Array", "Dims", "Graph", "Node", "Value", "fresh"]

Array: TypeAlias = NDArray[Any]
Dims: TypeAlias = tuple["int | str | None", ...]


@dataclass(frozen=True)
class Value:
    """What is known of a tensor before the network runs.

    Attributes
    ----------
    name : str
        Unique in its graph.
    dims : tuple of int, str or None; or None
        Text names a size that is not known yet; None is one without a name. None for all: not even how many
        axes there are is known.
    dtype : numpy.dtype or None
        None: not known.
    """

    name: str
    dims: Dims | None = None
    dtype: np.dtype[Any] | None = None

    @property
    def known(self) -> bool:
        """Whether data type and all dims are numbers."""
        return self.dtype is not None and self.dims is not None and all(type(n) is int for n in self.dims)

    def __str__(self) -> str:
        dims = "?" if self.dims is None else "x".join("?" if n is None else str(n) for n in self.dims)
        return f"{self.name} {spelled(self.dtype)} {dims}".rstrip()


@dataclass(frozen=True, eq=False)
class Node:
    """One operation.

    Attributes
    ----------
    operator : str
        A name of :data:`relayout.graph.operators.OPERATORS`; in other domains than ONNX's own with that in
        front: ``"com.microsoft.FusedConv"``.
    inputs, outputs : tuple of str
        Names of values; ``""`` for what is left out.
    attributes : mapping of str
        Numbers, text, tuples of them, arrays, graphs. What an operator's default says may be missing.
    name : str
        What its source calls it, for messages and profiles.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def __str__(self) -> str:
        given = ", ".join((*(name or "-" for name in self.inputs), *map(_attribute, self.attributes.items())))
        return f"{', '.join(name or '-' for name in self.outputs)} = {self.operator}({given})"


@dataclass(frozen=True, eq=False)
class Graph:
    """A network.

    Attributes
    ----------
    inputs : tuple of Value
        What a run is given.
    results : tuple of str
        The names of what it returns; :attr:`outputs` is what is known of them.
    nodes : tuple of Node
        Each behind those whose results it reads.
    constants : mapping of str to ndarray
        Values that never change, by name.
    values : mapping of str to Value
        What is known of others: those that nodes compute.
    name : str
        What its source calls it.
    defaults : mapping of str to Value or None
        Constants in whose place a run may be given others, by name, and what fits; None: the graph depends on
        the value, so that it stays.
    parameters : tuple of str or None
        The constants that its source learns: PyTorch's parameters that require gradients, no buffers. None:
        it does not say.

    Examples
    --------
    >>> x = Value("x", ("batch", 3), np.dtype("f4"))
    >>> graph = Graph((x,), ("y",), (Node("MatMul", ("x", "w"), ("y",)),), {"w": np.ones((3, 2), np.float32)})
    >>> print(graph)
    x f32 batchx3
    y = MatMul(x, w)
    -> y
    >>> graph.evaluate(np.ones((1, 3), np.float32))
    (array([[3., 3.]], dtype=float32),)
    """

    inputs: tuple[Value, ...]
    results: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    name: str = ""
    defaults: Mapping[str, Value | None] = field(default_factory=dict)
    parameters: tuple[str, ...] | None = None

    def value(self, name: str) -> Value:
        """What is known of a value; a LayoutError where there is none of that name."""
        found = self._known.get(name)
        if found is None:
            raise LayoutError(f"the graph has no value {name!r}")
        return found

    @property
    def _known(self) -> Mapping[str, Value]:
        """All values by name, made when it is first asked for."""
        known = self.__dict__.get("_all")
        if known is None:
            known = {name: Value(name) for node in self.nodes for name in node.outputs if name}
            known |= self.values
            known |= {name: Value(name, data.shape, data.dtype) for name, data in self.constants.items()}
            known |= {value.name: value for value in self.inputs}
            self.__dict__["_all"] = known
        return known

    def _repr_html_(self) -> str:
        """Inputs, results, operators and the first nodes, for notebooks."""
        with lock():
            from relayout.draw.notebook import of_graph
        return of_graph(self)

    def evaluate(self, /, *arrays: Any, **named: Any) -> tuple[Any, ...]:
        """What the graph computes, by definition: see :func:`relayout.graph.evaluate.evaluate`.

        Inputs are given in their order or by name, as to a :class:`~relayout.graph.run.Run`.
        """
        with lock():
            from relayout.graph.evaluate import evaluate
            from relayout.reorder.arguments import bound
        if named:
            arrays = tuple(bound([value.name for value in self.inputs], arrays, named, "the network"))
        return evaluate(self, *arrays)

    def verify(self) -> Self:
        """The graph itself, if names, order and operators are right; a LayoutError lists what is not."""
        with lock():
            from relayout.graph.verification import verified
        verified(self)
        return self

    def backward(self, loss: str, of: Any = None, batch: Any = None) -> Graph:
        """The joint graph, which computes gradients of a loss as well: see :func:`.backward.backward`.

        Parameters
        ----------
        loss : str
            A value of one element.
        of : sequence of str, optional
            Constants and inputs; without them all constants that training changes
            (:func:`.backward.trainable`).
        batch : int or mapping, optional
            Sizes that are open, as in :meth:`plan`.
        """
        with lock():
            from relayout.graph.backward import backward, trainable
        return backward(self, loss, trainable(self) if of is None else of, batch)

    def replaced(self, **changes: Any) -> Self:
        """The same graph with some attributes replaced."""
        names = ("inputs", "results", "nodes", "constants", "values", "name", "defaults", "parameters")
        return type(self)(**{name: changes.get(name, getattr(self, name)) for name in names})

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What is known of what it returns: name, dims, data type."""
        return tuple(self.value(name) for name in self.results)

    @locked
    def plan(
        self,
        format: str | None = None,
        threads: int | None = None,
        batch: Any = None,
        pins: Mapping[str, str] | None = None,
        precision: str | None = None,
        algorithm: str = "auto",
    ) -> Plan:
        """Choose the formats of all values.

        Parameters
        ----------
        format : str, optional
            The one format that images shall have (``"nhwc"``); None or ``"any"``: whatever costs least.
        threads : int, optional
            For how many threads costs are estimated.
        batch : int or mapping, optional
            The batch size, as :func:`~relayout.graph.inference.inferred` takes it; or sizes by their names,
            and dims by the names of inputs.
        pins : mapping of str to str, optional
            Formats in which values inside the network have to be read, by their names.
        precision : str, optional
            ``"bf16"`` or ``"f16"``: the type of products of f32 (convolutions, matrix products), and of what
            follows them: activations, sums, pools, normalisations, softmax. Sums of products, averages,
            statistics of normalisations and softmax are added up in f32 within; reductions, exponentials,
            powers and losses stay in f32, and so do recurrent layers in f16. Inputs and outputs keep their
            types, and weights are converted once (:mod:`relayout.graph.passes.precision`). ``"f32"`` or
            None: as the network has it; None also uses what the network permits: sources of 8 bits for
            weights of few bits (``accuracy_level=4`` of ONNX Runtime's ``MatMulNBits``).
        algorithm : str, optional
            How convolutions by 3x3 filters are added up, see
            :class:`~relayout.primitives.convolution.Convolution`: ``"direct"`` all products of the
            definition, ``"winograd"`` fewer products of transformed tiles wherever that is possible,
            ``"auto"`` where an estimate says that it takes less time. Results of the two differ in their
            last bits, and of tiles with infinities or NaN; the choice depends on the processor and the sizes
            alone.

        Raises
        ------
        LayoutError
            Dims are not known, or a node fails; the message names it. The format is none of images, or the
            precision none of the three.
        """
        from relayout.graph.compiling import planned

        return planned(self, format, threads, batch, pins, precision, algorithm)

    @locked
    def compile(
        self,
        format: str | None = None,
        threads: int | None = None,
        batch: Any = None,
        precision: str | None = None,
        algorithm: str = "auto",
    ) -> Run:
        """Plan the network and compile it; see :meth:`plan` for the parameters.

        Examples
        --------
        >>> import numpy as np
        >>> graph = Graph((Value("x", (2, 3), np.dtype("f4")),), ("y",), (Node("Relu", ("x",), ("y",)),))
        >>> graph.compile()(np.array([[-1, 2, -3], [4, -5, 6]], "f4"))
        (array([[0., 2., 0.],
               [4., 0., 6.]], dtype=float32),)
        """
        from relayout.graph.compiling import compiled

        return compiled(self, format, threads, batch, precision, algorithm)

    def svg(
        self,
        format: str | None = None,
        threads: int | None = None,
        batch: Any = None,
        pins: Mapping[str, str] | None = None,
        precision: str | None = None,
        algorithm: str = "auto",
    ) -> str:
        """The network drawn as its plan, an SVG document; see :meth:`plan` for the parameters.

        Formats are colours, conversions are marks on lines.

        >>> graph = Graph((Value("x", (2, 3), np.dtype("f4")),), ("y",), (Node("Relu", ("x",), ("y",)),))
        >>> graph.svg().startswith("<svg ")
        True
        """
        return self.plan(format, threads, batch, pins, precision, algorithm).svg()

    def __str__(self) -> str:
        lines = [*map(str, self.inputs), *map(str, self.nodes), f"-> {', '.join(self.results)}"]
        return "\n".join(lines)


def fresh(name: str, taken: set[str]) -> str:
    """A name that nothing has yet, this one if possible; it is taken from now on.

    >>> taken = {"x", "x.1"}
    >>> fresh("x", taken), fresh("y", taken), sorted(taken)
    ('x.2', 'y', ['x', 'x.1', 'x.2', 'y'])
    """
    made, count = name, 0
    while made in taken:
        count += 1
        made = f"{name}.{count}"
    taken.add(made)
    return made


def spelled(dtype: np.dtype[Any] | None) -> str:
    """The name of a data type: Relayout's where it has one."""
    if dtype is None:
        return "?"
    try:
        return as_dtype(dtype).name
    except LayoutError:
        return str(dtype)


def _attribute(item: tuple[str, Any]) -> str:
    name, value = item
    if isinstance(value, Graph):
        return f"{name}={{{counted(len(value.nodes), 'node')}}}"
    if isinstance(value, np.ndarray):
        return f"{name}={spelled(value.dtype)} {'x'.join(map(str, value.shape))}"
    return f"{name}={value!r}"
