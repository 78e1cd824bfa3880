"""Programs of ``torch.export``: opened, taken apart as far as needed, and their weights as arrays."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from relayout.errors import LayoutError, Unsupported, described
from relayout.forking import lock
from relayout.graph.graph import Array, Graph
from relayout.importers.torch.archive import check
from relayout.importers.torch.arrays import array_of
from relayout.importers.torch.operators import TABLE
from relayout.importers.torch.translation import Parts, translated, unknown

__all__ = ["load"]

MOST_ROUNDS = 4
"""Decompositions may lead to operators that have one themselves; none goes deeper than two or three."""


def load(source: Any) -> Graph:
    """A program of ``torch.export`` as a graph.

    Parameters
    ----------
    source : torch.export.ExportedProgram, str or os.PathLike
        The program, or a ``.pt2`` file that ``torch.export.save`` has written.

    Returns
    -------
    Graph
        Its inputs and outputs are those of the program, flattened; its constants have the names of the state
        dict and share the program's memory, read only. Outputs that a model returns by name, in dicts and
        data classes, have these names, ``"aux.0.deep"`` what lies deeper. Sizes that are not known have the
        name of their ``torch.export.Dim``; in files, which don't say it, and where there is none, that of
        PyTorch's symbol, such as ``"s77"``.

    Raises
    ------
    Unsupported
        PyTorch is not installed; operators that have no translation, all of them with the names of their
        nodes; a program that writes to its inputs or buffers; a file that would have to be unpickled.
    LayoutError
        A file that is none of ``torch.export.save``.

    Notes
    -----
    A file is looked through before PyTorch reads it (:mod:`relayout.importers.torch.archive`). That closes
    the known ways from a file to running code; PyTorch itself promises nothing for files from strangers.

    Examples
    --------
    >>> import pytest
    >>> torch = pytest.importorskip("torch")
    >>> layer = torch.nn.Linear(3, 2).eval()
    >>> print(load(torch.export.export(layer, (torch.ones(4, 3),))))
    input f32 4x3
    linear = Gemm(input, weight, bias, transB=1)
    -> linear
    """
    torch = _pytorch()
    if isinstance(source, (str, os.PathLike)):
        source = _read(Path(source), torch)
    if not isinstance(source, torch.export.ExportedProgram):
        raise LayoutError(
            "a program must be a torch.export.ExportedProgram, from torch.export.export(model, inputs), or "
            f"the path of a .pt2 file; got {described(source)}"
        )
    parts = _parts(_taken_apart(source, torch))
    return translated(replace(parts, names=_output_names(source, torch), sizes=_size_names(source)))


def _pytorch() -> Any:
    try:
        with lock():
            import_module("torch.export")
            return import_module("torch")
    except ImportError as error:
        raise Unsupported(
            f"programs of torch.export need PyTorch, which can't be imported: {error}"
        ) from error


def _read(path: Path, torch: Any) -> Any:
    """The program in a file."""
    check(path, torch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        try:
            return torch.export.load(path)
        except Exception as error:  # whatever it raises for a damaged file
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise LayoutError(f"{path}: torch.export.load can't read it ({reason})") from error


def _taken_apart(program: Any, torch: Any) -> Any:
    """The program without the operators that have no translation, as far as PyTorch can take them apart."""
    table = torch.export.default_decompositions()
    for name in TABLE:
        found = _overload(torch, name)
        if found is not None:
            table.pop(found, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        for _ in range(MOST_ROUNDS):
            try:
                program = program.run_decompositions(table)
            except Exception as error:  # whatever PyTorch stumbles over
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                raise Unsupported(f"PyTorch can't take this program apart ({reason})") from error
            left = {node.target for node in unknown(_calls(program))}
            table = torch._decomp.get_decompositions(
                [one for one in left if isinstance(one, torch._ops.OpOverload)]
            )
            if not table:
                break
    return program


def _overload(torch: Any, name: str) -> Any:
    """ATen's operator of a name in the table, if this version of PyTorch has it."""
    namespace, operator, overload = [*name.split("."), "", ""][:3]
    return getattr(getattr(torch.ops.aten, operator, None), overload, None) if namespace == "aten" else None


def _calls(program: Any) -> tuple[Any, ...]:
    return tuple(node for node in program.graph.nodes if node.op == "call_function")


def _parts(program: Any) -> Parts:
    """Inputs, weights and outputs by the program's signature.

    Raises
    ------
    Unsupported
        It writes to inputs or buffers, or has inputs that are no tensors.
    """
    signature = program.graph_signature
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs: list[Any] = []
    weights: dict[Any, tuple[str, Array]] = {}
    learned: set[str] = set()
    refused: list[str] = []
    for spec in signature.input_specs:
        kind = spec.kind.name
        node = placeholders[spec.arg.name] if hasattr(spec.arg, "name") else None
        if kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            data = program.state_dict.get(spec.target)
            data = program.constants[spec.target] if data is None else data
            if node is not None and node.users:
                weights[node] = spec.target, array_of(data, spec.target)
                if kind == "PARAMETER" and data.requires_grad:  # others are frozen
                    learned.add(spec.target)
        elif kind == "USER_INPUT" and type(spec.arg).__name__ != "ConstantArgument":
            inputs.append(node)
        elif kind == "CUSTOM_OBJ":
            refused.append(f"it has the object {spec.target}")
    outputs: list[Any] = []
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    for spec, given in zip(signature.output_specs, output.args[0], strict=True):
        if spec.kind.name.endswith("MUTATION"):
            refused.append(f"it writes to {spec.target}")
        elif given is not None and spec.kind.name != "TOKEN":  # what orders effects, no value
            outputs.append(given)
    if refused:
        raise Unsupported(
            f"this program is no function of its inputs: {'; '.join(refused)}; export the model after "
            "model.eval()"
        )
    return Parts(tuple(inputs), weights, _calls(program), tuple(outputs), learned=frozenset(learned))


def _output_names(program: Any, torch: Any) -> tuple[str | None, ...]:
    """For each output that is returned the name under which the model returns it; None: it has no name.

    Results of a model in a tuple or a list have numbers, no names, and are called as the nodes are.
    """
    kinds = [spec.kind.name for spec in program.graph_signature.output_specs]
    returned = [kind for kind in kinds if not kind.endswith("MUTATION") and kind != "TOKEN"]
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    given = output.args[0][len(kinds) - len(returned) :]  # what is written comes first
    try:
        pytree = torch.utils._pytree
        tree = program.call_spec.out_spec.unflatten(range(len(returned)))
        paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    except Exception:  # classes of the user's, which are made of numbers here
        return ()
    if len(paths) != len(returned):
        return ()
    names = [".".join(map(_key, path)) if any(map(_is_name, path)) else None for path in paths]
    return tuple(name for name, one in zip(names, given, strict=True) if one is not None)


def _key(step: Any) -> str:
    """A step of the way to a result, as text."""
    return str(next(getattr(step, name) for name in ("key", "idx", "name") if hasattr(step, name)))


def _is_name(step: Any) -> bool:
    return not hasattr(step, "idx")


def _size_names(program: Any) -> dict[str, str]:
    """For the symbols of sizes the names that ``torch.export.Dim`` has given them.

    They are what PyTorch itself uses in messages about a program that it has just exported.
    """
    found: dict[str, str] = {}
    for node in program.graph.nodes:
        for size in getattr(node.meta.get("val"), "shape", ()) if node.op == "placeholder" else ():
            known = getattr(getattr(size, "node", None), "shape_env", None)
            symbols, names = (
                getattr(known, name, {}) for name in ("source_to_var", "source_name_to_debug_name")
            )
            for source, symbol in symbols.items():
                name = names.get(source, "")
                if name.isidentifier() and name not in found.values():
                    found.setdefault(str(symbol), name)
    return found
