"""Running a model under two modes of PyTorch: one sees what the program calls, the other what is run for it.

``x.reshape(2, -1)`` is one call for the program, and for PyTorch a ``clone`` and a ``view``. A person knows
the first, and only the second can be judged; so both are written down, the second as part of the first.
The backward pass has no calls. There a node of autograd stands for the call in which it was made: nodes are
numbered, and so the call is found.

The results stay bitwise those of the model alone: the modes pass everything on as it came. Memory that is
older than the run and is written to (a parameter, a buffer, an input) is copied first, and put back later.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from time import perf_counter
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from relayout.torch.auditing.places import Place, Places, buffers_of, parameters_of
from relayout.torch.auditing.seen import Operator, Seen

__all__ = ["Kernel", "Watch"]

TRAINING = 5
"""The place of ``training`` among the arguments of kernels of batch normalisation."""

NO_NODE = 1 << 63
"""The numbers of nodes that stand for no call, such as those that add up gradients, are above."""

FAST_PATHS = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)
"""Modules that take another way where a mode sees their calls: there only kernels are written down."""


class Kernel(NamedTuple):
    """What PyTorch ran."""

    name: str
    inputs: tuple[Seen, ...]
    outputs: tuple[Seen, ...]
    seconds: float
    call: int
    """The index of the operator that it belongs to."""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors of nested tuples, lists and dicts."""
    found: list[torch.Tensor] = []
    _collect((value,), found)
    return found


NO_TENSORS = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format))


def _collect(values: Iterable[Any], found: list[torch.Tensor]) -> None:
    for one in values:
        if type(one) in NO_TENSORS:
            continue
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, (tuple, list)):
            _collect(one, found)
        elif isinstance(one, dict):
            _collect(one.values(), found)


@cache
def _named(dtype: torch.dtype) -> tuple[str, int]:
    return str(dtype).removeprefix("torch."), dtype.itemsize


class _Call(NamedTuple):
    """A call as it is written down."""

    operator: str
    place: Place
    inputs: tuple[Seen, ...]
    outputs: tuple[Seen, ...]
    seconds: float
    backward: bool
    failed: str


class Watch:
    """One run of a model, and what was seen of it.

    Attributes
    ----------
    operators : list of Operator
        The calls, in order.
    kernels : list of Kernel
        What was run for them.
    """

    def __init__(self, model: Any, inputs: Any) -> None:
        self.operators: list[Operator] = []
        self.kernels: list[Kernel] = []
        self.places = Places(model)
        self.saved: dict[int, tuple[Any, Any]] = {}
        self.outermost: FrameType | None = None
        self._numbers: dict[int, int] = {}
        self._made: set[int] = set()
        self._count = 0
        self._roles: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._nodes: list[int] = []  # of each kernel of the forward pass, the number of autograd's next node
        self._callers: list[int] = []
        self._places: dict[int, Place] = {}
        self._calls: dict[int, _Call] = {}
        self._begun = -1
        self._call: int | None = None
        self._kept = [*tensors_in(inputs)]  # so that their memory is not used for anything else
        self._enter(self._kept, "input")
        modules = self.places.modules
        for path, module in modules.items():
            for name, one in module._parameters.items():
                self._names.setdefault(id(one), f"{path}.{name}" if path else name)
        self._enter(buffers_of(modules.values()), "buffer")
        self._enter(parameters_of(modules.values()), "parameter")

    def _enter(self, tensors: Iterable[torch.Tensor], role: str) -> None:
        for tensor in tensors:
            key = storage_of(tensor)
            if key:
                self._roles[key] = role

    # ---------------------------------------------------------------- tensors

    def _fresh(self, key: int) -> int:
        self._count += 1
        if key:
            self._numbers[key] = self._count
        return self._count

    def seen(self, tensor: torch.Tensor, key: int, fresh: bool = False) -> Seen | None:
        """What there is to say of a tensor in some memory; None of one without strides."""
        if tensor.layout is not torch.strided:
            return None
        number = None if fresh else self._numbers.get(key)
        if number is None:
            number = self._fresh(key)
        role = "" if key in self._made else self._roles.get(key, "")
        try:
            dims, strides = (*tensor.shape,), tensor.stride()
        except RuntimeError:  # nested tensors
            return None
        device = "cpu" if tensor.is_cpu else tensor.device.type
        return Seen._make((number, dims, strides, *_named(tensor.dtype), device, role))

    def described(self, tensors: Sequence[torch.Tensor]) -> tuple[Seen, ...]:
        """What there is to say of tensors."""
        return self._described(tensors, map(storage_of, tensors))

    def _described(self, tensors: Iterable[torch.Tensor], keys: Iterable[int]) -> tuple[Seen, ...]:
        found = map(self.seen, tensors, keys)
        return tuple([one for one in found if one is not None])

    def _results(self, value: Any, given: Iterable[int]) -> tuple[Seen, ...]:
        """The outputs; memory that no input has is new."""
        old = set(given)
        found: list[Seen] = []
        for tensor in (value,) if isinstance(value, torch.Tensor) else tensors_in(value):
            key = storage_of(tensor)
            new = key not in old
            if new and key:
                self._made.add(key)
                old.add(key)
            one = self.seen(tensor, key, fresh=new)
            if one is not None:
                found.append(one)
        return tuple(found)

    def _written(self, func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The tensors that a kernel is about to write to."""
        if func.name().endswith("batch_norm"):  # statistics, which not all of its schemas mention
            if len(args) > TRAINING and args[TRAINING] is False:
                return []
            return [one for one in tensors_in(args) if self._roles.get(storage_of(one)) == "buffer"]
        return tensors_in(
            [
                kwargs.get(argument.name) if place >= len(args) else args[place]
                for place, argument in enumerate(func._schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            ]
        )

    def _keep(self, written: Iterable[torch.Tensor]) -> None:
        """Save what is older than this run and is about to be written to."""
        for tensor in written:
            key = storage_of(tensor)
            if key and key not in self._made and key not in self.saved:
                storage = tensor.untyped_storage()
                if storage.nbytes():
                    self.saved[key] = storage, storage.clone()

    def restore(self) -> None:
        """Put back what was written to."""
        for storage, before in self.saved.values():
            if storage.nbytes() == before.nbytes():
                storage.copy_(before)

    # ---------------------------------------------------------------- calls

    def begin(self) -> int:
        """A place among the operators, for a call that is about to be made."""
        self._begun += 1
        return self._begun

    def end(
        self, index: int, name: str, inputs: tuple[Seen, ...], outputs: Any, seconds: float, failed: str = ""
    ) -> None:
        """Write down a call that was made."""
        place = self._places[index] = self.places.here(self.outermost)
        self._calls[index] = _Call(name, place, inputs, outputs, seconds, False, failed)

    def kernel(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a kernel, and write it down."""
        given: list[torch.Tensor] = []
        _collect(args, given)
        if kwargs:
            _collect(kwargs.values(), given)
        keys = [storage_of(one) for one in given]
        inputs = self._described(given, keys)
        name, writes = _known(func)
        if writes:
            self._keep(self._written(func, args, kwargs))
        node = torch._C._current_autograd_node()
        backward = node is not None
        call = self._call
        alone = backward or call is None
        if alone:
            call = self.begin()
        assert call is not None
        if not backward:
            self._nodes.append(torch.autograd._get_sequence_nr())
            self._callers.append(call)
        began = perf_counter()
        failed = ""
        out: Any = None
        try:
            out = func(*args, **kwargs)
            return out
        except BaseException as error:
            failed = f"{type(error).__name__}: {error}"
            raise
        finally:
            seconds = perf_counter() - began
            outputs = self._results(out, keys)
            if alone:
                self._alone(call, name, inputs, outputs, seconds, node, failed)
            self.kernels.append(Kernel(name, inputs, outputs, seconds, call))

    def _alone(
        self,
        call: int,
        name: str,
        inputs: tuple[Seen, ...],
        outputs: tuple[Seen, ...],
        seconds: float,
        node: Any,
        failed: str,
    ) -> None:
        """Write down a kernel that no call of the program stands around."""
        if node is None:
            place = self.places.here(self.outermost)
        else:
            place = self._of_node(node) or Place("", "", "", 0)
        self._places[call] = place
        self._calls[call] = _Call(name, place, inputs, outputs, seconds, node is not None, failed)

    def _of_node(self, node: Any) -> Place | None:
        """Where the call was made that a node of autograd is of."""
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in self._names:
            return Place(self._names[id(variable)], "Parameter", "", 0)
        number = node._sequence_nr()
        if number >= NO_NODE:
            return None
        k = bisect_left(self._nodes, number + 1)
        return self._places.get(self._callers[k]) if k < len(self._callers) else None

    # ---------------------------------------------------------------- the run

    def run(self, work: Any) -> Any:
        """Do some work under the modes; ``operators`` and ``kernels`` are complete afterwards."""
        self.outermost = sys._getframe(0)
        calls = _Calls(self)
        try:
            with self._fast_paths(calls), _Kernels(self), calls:
                return work()
        finally:
            self.outermost = None
            self._completed()

    def _fast_paths(self, calls: _Calls) -> AbstractContextManager[None]:
        """Leave some modules alone, where the model has any."""
        known = self.places.modules
        if known and not any(isinstance(module, FAST_PATHS) for module in known.values()):
            return nullcontext()
        return _around_fast_paths(calls)

    def _completed(self) -> None:
        """Make operators of the calls, with the kernels that were run for them."""
        several: dict[int, list[str]] = {}
        for kernel in self.kernels:
            several.setdefault(kernel.call, []).append(kernel.name)
        for index, (name, place, inputs, outputs, seconds, backward, failed) in sorted(self._calls.items()):
            operator, kernels = _kernels(name, tuple(several.get(index, ())))
            self.operators.append(
                Operator(index, operator, kernels, *place, inputs, outputs, seconds, backward, failed)
            )


VIEWS = (
    "view",
    "_unsafe_view",
    "expand",
    "permute",
    "unsqueeze",
    "squeeze",
    "slice",
    "select",
    "alias",
    "detach",
)


def _kernels(name: str, kernels: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The name of a call and of its kernels; calls in the language's own signs go by their kernel."""
    plain = name.rpartition(".")[2]
    if kernels and (plain.startswith("__") or name.startswith("aten.")):
        bare = [one.rpartition(".")[2] for one in kernels]
        plain = next((one for one in reversed(bare) if one not in VIEWS), bare[-1])
        if plain not in ("_to_copy", "_unsafe_view") and name != kernels[0]:
            plain = plain.lstrip("_")
    return plain, kernels


def storage_of(tensor: torch.Tensor) -> int:
    """Which memory a tensor has; 0 where it has none."""
    try:
        return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]
    except (RuntimeError, NotImplementedError):
        return 0


@cache
def _known(func: Any) -> tuple[str, bool]:
    """The name of a kernel, ``aten.add``, and whether it may write to what it is given."""
    return str(func).rpartition(".")[0], func._schema.is_mutable or func.name().endswith("batch_norm")


@cache
def _is_composite(func: Any) -> bool:
    """Whether PyTorch takes it apart by itself; in inference mode it comes here whole."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


class _Kernels(TorchDispatchMode):
    """Sees what PyTorch runs."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the compiler is loaded, and asked at every kernel

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and _is_composite(func):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        return self.watch.kernel(func, args, kwargs)


class _Calls(TorchFunctionMode):
    """Sees what the program calls."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        self.paused = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        watch = self.watch
        if name == "__get__" or name == "backward" or watch._call is not None:
            return func(*args, **kwargs)
        index, before = watch.begin(), len(watch.kernels)
        watch._call = index
        began = perf_counter()
        try:
            out = func(*args, **kwargs)
        except BaseException as error:
            failed = f"{type(error).__name__}: {error}"
            watch.end(
                index, name, watch.described(tensors_in((args, kwargs))), (), perf_counter() - began, failed
            )
            raise
        finally:
            watch._call = None
        if len(watch.kernels) == before:  # a question, such as x.dim()
            return out
        if len(watch.kernels) == before + 1:  # it took and returned the same
            (_, inputs, outputs, seconds, _) = watch.kernels[before]
        else:
            inputs, outputs = watch.described(tensors_in((args, kwargs))), watch.described(tensors_in(out))
            seconds = sum(kernel.seconds for kernel in watch.kernels[before:])
        watch.end(index, name, inputs, outputs, seconds)
        return out


@contextmanager
def _around_fast_paths(calls: _Calls) -> Iterator[None]:
    """Leave the mode of calls while a module runs that would take another way because of it."""
    outside: list[Any] = []

    def enter(module: Any, _: Any) -> None:
        if isinstance(module, FAST_PATHS):
            off = torch._C.DisableTorchFunction()
            off.__enter__()
            outside.append(off)

    def leave(module: Any, *_: Any) -> None:
        if isinstance(module, FAST_PATHS):
            outside.pop().__exit__(None, None, None)

    first = torch.nn.modules.module.register_module_forward_pre_hook(enter)
    last = torch.nn.modules.module.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        first.remove()
        last.remove()
