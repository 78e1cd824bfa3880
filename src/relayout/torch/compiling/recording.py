"""The operators of ATen that fake tensors are given, written down as a graph.

A :class:`Recorder` stands in front of PyTorch's kernels. It is asked for each operator, takes those apart
that AOTAutograd takes apart (:mod:`.decompositions`), notes a node for each that is left, and answers with a
fake tensor, of which there are only sizes, strides and a data type.

*Writes in place* become operators that return a new value. A graph of values needs no memory, so that is
right as long as nobody can tell: once a tensor was written, what is read of the same memory by another one is
a view of the new value (:mod:`.views`).

*Constants*, which PyTorch's own operators make from numbers alone, are computed at once, views and writes
included. A node that reads one gets it as it is at that moment.

What is not covered raises :class:`Untraced`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

from relayout.torch.compiling.decompositions import rule_of
from relayout.torch.compiling.views import View

__all__ = ["Recorder", "Untraced"]

try:
    from torch.fx._lazy_graph_module import _LazyGraphModule as _GraphModule
except ImportError:
    from torch.fx import GraphModule as _GraphModule

CPU: Final = torch.device("cpu")

CONSTANT: Final = 1 << 20
"""Elements that a constant may have at most; larger ones stay operators of the graph."""


class Untraced(Exception):
    """Something that AOTAutograd has to see to."""


class Recorder(TorchDispatchMode):
    """Writes down operators.

    Parameters
    ----------
    mode : FakeTensorMode
        Whose tensors are given to them.

    Attributes
    ----------
    stack : dict or None
        The modules that the next operators belong to.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self.stack: Any = None
        self._mode, self._graph, self._root = mode, torch.fx.Graph(), torch.nn.Module()
        self._nodes: dict[int, Any] = {}  # by the ids of tensors
        self._alive: list[Any] = []  # tensors whose ids or memory are compared
        self._sharing: dict[int, list[Any]] = {}  # tensors by their memory
        self._given: set[int] = set()  # memory of inputs and constants
        self._views: dict[int, View] = {}  # by the ids of tensors
        self._stale: set[int] = set()  # tensors whose memory was written through another one
        self._writes: dict[int, int] = {}  # to the memory of constants
        self._constants: dict[tuple[int, int], tuple[Any, Any]] = {}

    def input(self, node: Any, one: Any) -> Any:
        """A fake tensor for an argument of dynamo's graph."""
        if type(one) not in (torch.Tensor, torch.nn.Parameter) or not _is_plain(one):
            raise Untraced(f"an argument {type(one).__name__}")
        said = node.meta.get("example_value")
        if isinstance(said, torch.Tensor) and not all(type(n) is int for n in (*said.shape, *said.stride())):
            raise Untraced("open sizes")
        made = self._imitated(one)
        self._note(self._graph.placeholder(node.name), made)
        self._given.add(_memory(made))
        return made

    def module(self, results: Any) -> Any:
        """The graph, which returns these."""
        for one in results if isinstance(results, (list, tuple)) else (results,):
            if type(one) is not FakeTensor or _memory(one) in self._given:
                raise Untraced("a result that is no new tensor")
        self._graph.output(map_aggregate(results, self._node))
        self._graph.eliminate_dead_code()
        return _GraphModule(self._root, self._graph)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What an operator returns."""
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            raise Untraced(f"{func}, an operator of higher order")
        if func.namespace == "prim":  # which device
            return func(*args, **kwargs)
        if func is _aten.batch_norm.default and (made := self._normalized(args, kwargs)) is not None:
            return made
        if _is_composite(func):
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        given = _tensors((args, kwargs))
        if torch.Tag.nondeterministic_seeded in func.tags and not _without_dropout(func, args, kwargs):
            raise Untraced(f"{func}: random numbers")
        if not any(type(one) is FakeTensor for one in given):
            return self._computed(func, args, kwargs, given)
        if _data_decide(func, args):
            raise Untraced(f"{func}: data decide")
        if func is _aten.as_strided_.default:
            return self._with_other_strides(func, types, args, kwargs)
        if func._schema.is_mutable:
            return self._written(func, args, kwargs)
        if func in FILLED and (made := self._filled(func, types, args, kwargs)) is not None:
            return made
        rule = rule_of(func)
        if rule is not None:
            with self:
                made = rule(*args, **kwargs)
            if made is not NotImplemented:
                return made
        return self._recorded(func, types, args, kwargs)

    # -- what depends on inputs

    def _recorded(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """A node for an operator."""
        nodes = map_aggregate((args, kwargs), self._node)
        if any(type(one) is not FakeTensor for one in _tensors((args, kwargs))):
            args, kwargs = map_aggregate((args, kwargs), self._faked)
        made = self._view(func, args, kwargs)
        if made is None:
            made = self._alike(func, args, kwargs)
        if made is None:
            made = self._mode.__torch_dispatch__(func, types, args, kwargs)
        node = self._graph.create_node("call_function", func, *nodes, name=func.overloadpacket.__name__)
        if type(made) is FakeTensor:
            self._note(node, made)
            if func.is_view:
                self._views[id(made)] = View(args[0], func, tuple(args[1:]), kwargs, made, None)
            return made
        if not isinstance(made, (list, tuple)):
            if type(made) not in (bool, int, float):
                raise Untraced(f"{func} returns no tensor")
            self._graph.erase_node(node)  # which kernel to take, for example
            return made
        node.meta["val"] = made
        self._belongs(node)
        for place, one in enumerate(made):
            if type(one) is FakeTensor:
                self._note(self._graph.call_function(operator.getitem, (node, place)), one)
                if func.is_view:
                    self._views[id(one)] = View(args[0], func, tuple(args[1:]), kwargs, made, place)
            elif one is not None:
                raise Untraced(f"{func} returns no tensor")
        return made

    def _view(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a view returns, a tensor or several, or None where it is no view.

        PyTorch's dispatcher would look for it among all that it has made before, which takes longer than to
        make it. Of these a transformer has hundreds.
        """
        if not func.is_view or type(args[0]) is not FakeTensor:
            return None
        with in_kernel_invocation_manager(self._mode):
            made = func(*args, **kwargs)
        if isinstance(made, torch.Tensor):
            return FakeTensor(self._mode, made, CPU)
        return [FakeTensor(self._mode, one, CPU) for one in made]

    def _alike(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator returns whose result is as its arguments are; None: that is not so plain.

        Those are activations and sums, of which a network has one for each convolution, and normalisations of
        layers. Dynamo has asked PyTorch for each of them already, and found its arguments right.
        """
        if func in ALIKE:
            several = _tensors((args, kwargs))
        elif func is _aten.native_layer_norm.default:
            several = [args[0]]
        else:
            return None
        x = several[0]
        dims, steps = x.shape, x.stride()
        if x.dtype is not torch.float32 or steps != _row_major(dims) or not x.numel():
            return None
        if any(isinstance(one, complex) for one in (*args, *kwargs.values())):
            return None
        if any((one.shape, one.stride(), one.dtype) != (dims, steps, x.dtype) for one in several[1:]):
            return None
        made = self._fake(dims, steps, x.dtype)
        if func in ALIKE:
            return made
        axes = len(args[1])
        shorter = (*dims[: len(dims) - axes], *(1,) * axes)
        return made, *(self._fake(shorter, _row_major(shorter), x.dtype) for _ in range(2))

    def _normalized(self, args: Any, kwargs: Any) -> Any:
        """What a batch normalisation by kept statistics returns; None: it is another one.

        To take it apart and to find out what becomes of sizes are dozens of operators, fifty times for a
        network. Where images are contiguous, so is what becomes of them.
        """
        if kwargs or len(args) < 8 or args[5]:  # it learns
            return None
        x, *vectors = args[:5]
        same = all(type(one) is FakeTensor and one.dtype is torch.float32 for one in (x, *vectors))
        if not same or not x.is_contiguous() or x.stride() != _row_major(x.shape):
            return None
        func = _aten._native_batch_norm_legit_no_training.default
        given = [self._node(one) for one in (x, *vectors)]
        name = func.overloadpacket.__name__
        node = self._graph.create_node("call_function", func, (*given, *args[6:8]), name=name)
        made, empty = self._fake(x.shape, x.stride(), x.dtype), self._fake((0,), (1,), x.dtype)
        node.meta["val"] = made, empty, empty
        self._belongs(node)
        self._note(self._graph.call_function(operator.getitem, (node, 0)), made)
        return made

    def _note(self, node: Any, made: Any) -> None:
        """Remember which node computes a tensor."""
        if made.device.type != "cpu" or made._has_symbolic_sizes_strides:
            raise Untraced("a tensor elsewhere, or of unknown size")
        node.meta["val"] = made
        self._belongs(node)
        self._nodes[id(made)] = node
        self._alive.append(made)
        self._sharing.setdefault(_memory(made), []).append(made)

    def _belongs(self, node: Any) -> None:
        if self.stack is not None:
            node.meta["nn_module_stack"] = self.stack

    def _node(self, one: Any) -> Any:
        """The node that computes a tensor; anything else is itself."""
        if not isinstance(one, torch.Tensor):
            return one
        if type(one) is not FakeTensor:
            return self._constant(one)[0]
        if id(one) in self._stale:
            self._view_again(one)
        return self._nodes[id(one)]

    def _view_again(self, one: Any) -> None:
        """Let a tensor whose memory was written be a view of what was written."""
        view = self._views.get(id(one))
        if view is None:
            raise Untraced("a tensor is read after its memory was written through another one")
        node = self._graph.call_function(view.func, (self._node(view.base), *view.args), dict(view.kwargs))
        node.meta["val"] = view.made
        self._belongs(node)
        if view.place is not None:
            node = self._graph.call_function(operator.getitem, (node, view.place))
            node.meta["val"] = one
            self._belongs(node)
        self._nodes[id(one)] = node
        self._stale.remove(id(one))

    def _written(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A write in place, as an operator that returns a new value."""
        plain, before = _functional(func), len(self._alive)
        target = args[0]
        if plain is None or type(target) is not FakeTensor or _memory(target) in self._given:
            raise Untraced(f"{func} writes to what is not ours alone")
        with self:
            made: Any = plain(*args, **kwargs)
            whole = target
            if (made.size(), made.dtype) != (target.size(), target.dtype):
                raise Untraced(f"{func} would return something else")
            while (view := self._views.get(id(whole))) is not None:
                made, whole = view.written(made), view.base
                if made is None:
                    raise Untraced(f"{func} writes through {view.func}")
            if not self._is_new(made, before):
                made = _aten.clone.default(self._faked(made))
        if (made.size(), made.stride(), made.dtype) != (whole.size(), whole.stride(), whole.dtype):
            raise Untraced(f"{func} would return something else")
        self._stale.update(id(one) for one in self._sharing[_memory(whole)] if one is not whole)
        self._nodes[id(whole)] = self._nodes[id(made)]
        return target

    def _with_other_strides(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """A tensor whose strides are changed in place, as pooling does for ``channels_last``."""
        target = args[0]
        if _memory(target) in self._given or len(self._sharing[_memory(target)]) > 1:
            raise Untraced(f"{func} of what others read")
        before = self._node(target)
        before.meta["val"] = self._mode.__torch_dispatch__(_aten.alias.default, types, (target,), {})
        self._mode.__torch_dispatch__(func, types, args, kwargs)
        node = self._graph.call_function(_aten.as_strided.default, (before, *args[1:]), dict(kwargs))
        node.meta["val"] = target
        self._belongs(node)
        self._nodes[id(target)] = node
        return target

    def _is_new(self, one: Any, before: int) -> bool:
        """Whether the memory of a tensor is that of none of the first so many."""
        if type(one) is not FakeTensor:
            return False
        first, *_ = self._sharing[_memory(one)]
        return any(first is other for other in self._alive[before:])

    # -- constants

    def _computed(self, func: Any, args: Any, kwargs: Any, given: Sequence[Any]) -> Any:
        """What an operator makes of constants, by PyTorch itself."""
        if func.namespace not in ("aten", "prims"):
            raise Untraced(f"{func}: others' operators may return something else each time")
        made = func(*args, **kwargs)
        for one in _tensors(made):
            if not _is_plain(one) or one.numel() > CONSTANT:
                raise Untraced("a constant elsewhere, or a large one")
        if func._schema.is_mutable:
            for memory in map(_memory, given):
                self._writes[memory] = self._writes.get(memory, 0) + 1
        return made

    def _filled(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """A constant of the sizes of another tensor; None: it would be large."""
        like = self._mode.__torch_dispatch__(func, types, args, kwargs)
        if like.numel() > CONSTANT or like.device.type != "cpu":
            return None
        what = FILLED[func]
        number = args[what] if isinstance(what, int) else float(what)
        return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device="cpu").fill_(number)

    def _faked(self, one: Any) -> Any:
        """A fake tensor for a constant; anything else is itself."""
        real = isinstance(one, torch.Tensor) and type(one) is not FakeTensor
        return self._constant(one)[1] if real else one

    def _constant(self, one: Any) -> tuple[Any, Any]:
        """The node of a constant as it is now, and a fake tensor for it."""
        key = id(one), self._writes.get(_memory(one), 0)
        if key not in self._constants:
            with torch.inference_mode(False), torch.no_grad():
                copy = torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device="cpu").copy_(one)
            name, fake = f"constant_{len(self._constants)}", self._imitated(one)
            self._root.register_buffer(name, copy, persistent=False)
            node = self._graph.get_attr(name)
            self._note(node, fake)
            self._given.add(_memory(fake))
            self._alive.append(one)
            self._constants[key] = node, fake
        return self._constants[key]

    def _imitated(self, one: Any) -> Any:
        """A fake tensor of the same sizes, strides and data type."""
        if one.storage_offset():
            return self._mode.from_tensor(one.detach(), static_shapes=True)
        return self._fake(one.size(), one.stride(), one.dtype)

    def _fake(self, dims: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
        """A fake tensor of memory of its own.

        PyTorch's dispatcher would make the same, and first look for it among all that it has made before: for
        each of a network's few hundred weights that takes as long as it takes dynamo to find an operator.
        """
        meta = torch.empty_strided(dims, strides, dtype=dtype, device="meta")
        return FakeTensor(self._mode, meta, CPU)


_aten = torch.ops.aten
ALIKE: Final = frozenset({
    _aten.relu.default, _aten.gelu.default, _aten.silu.default, _aten.sigmoid.default, _aten.tanh.default,
    _aten.hardswish.default, _aten.hardsigmoid.default, _aten.hardtanh.default,
    _aten.add.Tensor, _aten.mul.Tensor,
})  # fmt: skip
"""Operators on elements: what they make of contiguous tensors of the same sizes is contiguous, too."""
FILLED: Final[Mapping[Any, int | str]] = {
    _aten.new_zeros.default: "0", _aten.new_ones.default: "1", _aten.new_full.default: 2,
    _aten.new_empty.default: "0", _aten.zeros_like.default: "0", _aten.ones_like.default: "1",
    _aten.full_like.default: 1, _aten.empty_like.default: "0", _aten.zero.default: "0",
    _aten.fill.Scalar: 1,
}  # fmt: skip
"""Operators that read no elements: the number that they fill with, as text, or the place of that argument."""


def _tensors(nested: Any) -> list[Any]:
    """All tensors among arguments or results."""
    found: list[Any] = []

    def look(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            found.append(one)

    map_aggregate(nested, look)
    return found


def _row_major(dims: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor, those of axes of one element included."""
    steps = [1]
    for size in reversed(dims[1:]):
        steps.append(steps[-1] * max(size, 1))
    return tuple(reversed(steps))


def _memory(tensor: Any) -> int:
    """What tells memory apart."""
    return int(tensor.untyped_storage()._cdata)


def _is_plain(one: Any) -> bool:
    """Whether a tensor lies in the memory of the CPU as its strides say."""
    odd = one.is_quantized or one.is_nested or one.is_neg() or one.is_conj()
    return one.device.type == "cpu" and one.layout is torch.strided and not odd


@cache
def _is_composite(func: Any) -> bool:
    """Whether eager PyTorch takes an operator apart, too, having no kernel for it."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if key not in func.py_kernels and not has(func.name(), key):
        return False
    if func is _aten.native_batch_norm.default:  # its schema does not say what it writes
        return True
    aliasing = any(one.alias_info is not None for one in func._schema.arguments)
    return aliasing or not has(func.name(), torch._C.DispatchKey.CPU)


@cache
def _functional(func: Any) -> Any:
    """The operator that returns what this one writes over its first argument; None: there is none."""
    name, arguments = func.overloadpacket.__name__, func._schema.arguments
    writes = [k for k, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write]
    if writes != [0] or not name.endswith("_") or name.endswith("__") or torch.Tag.inplace_view in func.tags:
        return None
    packet = getattr(getattr(torch.ops, func.namespace), name[:-1], None)
    found = getattr(packet, func._overloadname, None)
    if found is None or found._schema.is_mutable:
        return None
    same = [one.name for one in found._schema.arguments] == [one.name for one in arguments]
    return found if same else None


def _data_decide(func: Any, args: Sequence[Any]) -> bool:
    """Whether sizes or numbers depend on elements; of indices only where they are truth values."""
    if not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags}:
        return False
    kinds = {one.dtype for one in _tensors(args[1:2])}
    return func is not _aten.index.Tensor or bool(kinds & {torch.bool, torch.uint8})


def _without_dropout(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator that could draw random numbers is told not to."""
    for place, one in enumerate(func._schema.arguments):
        if one.name == "dropout_p":
            return bool((args[place] if place < len(args) else kwargs.get(one.name, one.default_value)) == 0)
    return False
