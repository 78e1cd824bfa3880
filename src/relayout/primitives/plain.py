"""Primitives and sequences as text: what they were made of, and made of that again.

A primitive is its kind and what its constructor was given, with every ``any`` decided::

    ["Eltwise", {"src": {"desc": "f32:ab:1x2"}, "algorithm": "relu", "dst": {"desc": "f32:ab:1x2"}}]

Whoever reads that calls the constructor again, which checks everything. So a text from anywhere does no more
than a program that calls constructors with bad arguments: it makes an error. And the storages of a sequence
(:func:`read`) are checked against the descriptors of the primitives (:func:`check`), so that nothing is read
or written outside of them. No address, no code and no size that is believed stands in a text.

>>> import relayout as rl
>>> from relayout.primitives import Eltwise
>>> made = Eltwise(rl.MemoryDesc((1, 2), "f32", "ab"), "relu")
>>> plain(made)
['Eltwise', {'src': {'desc': 'f32:ab:1x2'}, 'algorithm': 'relu', 'dst': {'desc': 'f32:ab:1x2'}}]
>>> remade(plain(made)).dst
MemoryDesc('f32:ab:1x2')
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import lock
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.expressions import Expression
from relayout.ops.functions import Function
from relayout.ops.indexing import Indexing
from relayout.ops.post_ops import BinaryOp, Sum
from relayout.primitives.primitive import Primitive
from relayout.primitives.storages import Item, Storage, room_of
from relayout.primitives.values import Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Functions", "Steps", "check", "plain", "read", "remade", "written", "written_if_plain"]

PLAIN = (bool, int, float, str, type(None))
CUSTOM = "Custom"
Functions = Callable[[int], Callable[..., Any]]


# -- primitives ---------------------------------------------------------------------------------------------


def plain(made: Primitive) -> list[Any]:
    """A primitive as plain data.

    Raises
    ------
    LayoutError
        It was given something that has no text: an array, a function.
    """
    kind = type(made).__name__
    given, named = made._made_of
    known = dict(type(made).__signature__.bind(*given, **named).arguments)
    known.pop("function", None)  # of a Custom; whoever reads it has the functions
    parameters = type(made).__signature__.parameters
    listed = {name for name, value in known.items() if isinstance(value, (list, tuple))}
    known |= {name: desc for name, desc in made.descs.items() if name in parameters and name not in listed}
    if "post_ops" in known:
        known["post_ops"] = getattr(made, "post_ops", known["post_ops"])
    return [kind, {name: _plain(value, f"{kind}: {name}") for name, value in known.items()}]


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        return value.item()
    if isinstance(value, MemoryDesc):
        return {"desc": _text(value)}
    if isinstance(value, Primitive):  # a backward primitive is made from its forward primitive
        return {"primitive": plain(value)}
    if isinstance(value, Function):
        return {"function": [value.algorithm, value.alpha, value.beta]}
    if isinstance(value, Sum):
        return {"sum": value.scale}
    if isinstance(value, BinaryOp):
        return {"binary": [value.algorithm, _text(value.desc)]}
    if isinstance(value, Expression):
        return {"expression": _plain([value.operands, value.terms, value.results], where)}
    if isinstance(value, Indexing):
        return {"indexing": [list(value.axes), list(value.coordinates), value.listed, value.from_end]}
    if isinstance(value, (list, tuple)):
        return [_plain(one, where) for one in value]
    if isinstance(value, Mapping):
        return {"named": {str(name): _plain(one, where) for name, one in value.items()}}
    raise LayoutError(f"{where} is {type(value).__name__}, which can't be written as text")


@lru_cache(maxsize=4096)
def _text(desc: MemoryDesc) -> str:
    return str(desc)


def remade(data: Any, function: Callable[..., Any] | None = None) -> Primitive:
    """A primitive made of plain data; ``function`` is what a Custom calls.

    Raises
    ------
    LayoutError
        The data are none of a primitive, or its constructor refuses them.
    """
    with lock():
        from relayout import primitives
    if not (isinstance(data, list) and len(data) == 2 and isinstance(data[1], dict)):
        raise LayoutError("a primitive is a kind and its arguments")
    kind, given = data
    if not isinstance(kind, str) or kind not in primitives.__all__ or kind == "Sequence":
        raise LayoutError(f"there is no primitive {kind!r:.60}")
    try:
        named = {name: _made(value) for name, value in given.items()}
        if kind == CUSTOM:
            named["function"] = function
        found = getattr(primitives, kind)(**named)
    except LayoutError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, MemoryError) as error:
        raise LayoutError(f"{kind} can't be made of what is written: {error!s:.200}") from None
    assert isinstance(found, Primitive)
    return found


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return [_made(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, what),) = value.items()
        if tag == "desc" and isinstance(what, str):
            return _desc(what)
        if tag == "primitive":
            return remade(what)
        if tag == "function" and isinstance(what, list):
            return Function(*what)
        if tag == "sum":
            return Sum(what)
        if tag == "binary" and isinstance(what, list) and len(what) == 2 and isinstance(what[1], str):
            return BinaryOp(what[0], _desc(what[1]))
        if tag == "expression":
            operands, terms, *results = _made(what)
            terms = [(a, kind, tuple(given), n) for a, kind, given, n in terms]
            return Expression.of(operands, terms, *results)
        if tag == "indexing":
            axes, coordinates, *more = what
            return Indexing(tuple((d, i) for d, i in axes), tuple(coordinates), *more)
        if tag == "named" and isinstance(what, dict):
            return {name: _made(one) for name, one in what.items()}
    raise LayoutError(f"an argument of a primitive is damaged: {value!r:.80}")


@lru_cache(maxsize=4096)
def _desc(text: str) -> MemoryDesc:
    return MemoryDesc(text)


# -- sequences ----------------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """A sequence whose storages are known."""

    inputs: list[Value]
    outputs: list[Value]
    items: list[Item]
    sizes: list[int]
    """Bytes of the constants."""


def written(
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    items: Sequence[Item],
    constants: Mapping[int, NDArray[np.uint8]],
) -> str:
    """Everything as one text: JSON.

    Raises
    ------
    LayoutError
        A primitive was given something that has no text.
    """
    places = {number: k for k, number in enumerate(constants)}
    storages: dict[Storage, int] = {}
    table, steps = [], []
    for item in items:
        for one in item.storages.values():
            if one not in storages:
                storages[one] = len(storages)
                arena, constant = one.where == "arena", one.where == "constant"
                table.append([one.where, 0 if arena else places[one.number] if constant else one.number])
        used = {name: storages[one] for name, one in item.storages.items()}
        steps.append([item.name, plain(item.primitive), used, dict(item.in_place)])
    document = {
        "inputs": [[value.name, _text(value.desc)] for value in inputs],
        "outputs": [[value.name, _text(value.desc)] for value in outputs],
        "constants": [data.nbytes for data in constants.values()],
        "storages": table,
        "steps": steps,
    }
    return json.dumps(document, separators=(",", ":"))


def written_if_plain(
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    items: Sequence[Item],
    constants: Mapping[int, NDArray[np.uint8]],
) -> str | None:
    """The same; None where something has no text."""
    try:
        return written(inputs, outputs, items, constants)
    except LayoutError:
        return None


def read(text: str, functions: Functions) -> Steps:
    """What a text says; primitives are made when somebody asks for them.

    Parameters
    ----------
    text : str
        What :func:`written` has made, or anybody else.
    functions : callable
        For the number of a Custom step the function that it calls.

    Raises
    ------
    LayoutError
        The text is damaged. What its primitives and storages say is seen by :func:`check`.
    """
    try:
        document = json.loads(text)
        inputs, outputs = (
            [
                Value(_desc(_of(str, desc)), _of(str, name), k)
                for k, (name, desc) in enumerate(_of(list, document[side]))
            ]
            for side in ("inputs", "outputs")
        )
        sizes = [_of(int, size) for size in _of(list, document["constants"])]
        storages = [Storage(_of(str, where), _of(int, k)) for where, k in _of(list, document["storages"])]
        items = []
        for k, (name, made, used, in_place) in enumerate(_of(list, document["steps"])):
            own = {key: storages[_of(int, place)] for key, place in _of(dict, used).items()}
            over = {key: _of(str, other) for key, other in _of(dict, in_place).items()}
            function = functions(k) if made[0] == CUSTOM else None
            items.append(Item(_of(str, name), partial(remade, made, function), own, over))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise LayoutError(f"the steps are damaged: {error!s:.200}") from None
    return Steps(inputs, outputs, items, sizes)


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise LayoutError(f"expected {kind.__name__}, got {value!r:.60}")
    return value


def check(steps: Steps) -> None:
    """Make all primitives, and see to it that what they read and write is there.

    Raises
    ------
    LayoutError
        A primitive can't be made; a storage is too small for what it shall hold, or must not be written; or
        an output is written by nobody. The message names the step.
    """
    written_to = {place for item in steps.items for place in _checked(item, steps)}
    for k, value in enumerate(steps.outputs):
        if ("output", k) not in written_to and 0 not in value.desc.dims:
            raise LayoutError(f"no step writes the output {value.name!r:.60}")


def _checked(item: Item, steps: Steps) -> list[tuple[str, int]]:
    """Check a step; where it writes."""
    try:
        made = item.primitive
        if set(item.storages) != {*made.inputs, *made.outputs}:
            raise LayoutError(f"it has {', '.join(map(repr, item.storages))} as arguments")
        if not all(key in made.outputs and other in made.descs for key, other in item.in_place.items()):
            raise LayoutError("it is done in place of what is no argument")
        for key, storage in item.storages.items():
            _check_storage(key, made, storage, steps)
    except LayoutError as error:
        raise LayoutError(f"step {item.name!r:.60}: {error}") from None
    return [(item.storages[key].where, item.storages[key].number) for key in made.outputs]


def _check_storage(key: str, made: Primitive, storage: Storage, steps: Steps) -> None:
    """One argument of a step."""
    desc = made.descs[key]
    if desc.layout is None or desc.layout.bounds()[0] < 0:
        raise LayoutError(f"{key} {desc} begins in front of its memory")
    if storage.where == "arena":
        return
    rooms = {
        "constant": steps.sizes,
        "input": [room_of(value.desc) for value in steps.inputs],
        "output": [room_of(value.desc) for value in steps.outputs],
    }.get(storage.where, [])
    if not 0 <= storage.number < len(rooms):
        raise LayoutError(f"{key} is in {storage.where!r:.20} {storage.number}, which there is not")
    if key in made.outputs and storage.where != "output":
        raise LayoutError(f"{key} is written to {storage.where} {storage.number}")
    if room_of(desc) > rooms[storage.number]:
        raise LayoutError(
            f"{key} {desc} takes {room_of(desc)} bytes; {storage.where} {storage.number} has "
            f"{rooms[storage.number]}"
        )
