"""``relayout.torch.compile`` and ``relayout.torch.explain``.

What ``torch.compile`` makes of a module is a module, too. Three things are given to it here, as attributes of
the instance, since a class would have to be made for each model: ``explain()``; how it is copied, because
PyTorch's own copy would share the back end, and so its report; and that it is not pickled, which PyTorch
refuses with an error about one of its inner functions.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pickle import PicklingError
from typing import Any

import torch

from relayout.torch.compiling.backend import Backend
from relayout.torch.compiling.options import Options
from relayout.torch.compiling.report import Report

__all__ = ["compile", "explain"]


def compile(model: Any, *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any) -> Any:
    """A model or function that Relayout runs where it can: ``torch.compile`` with this back end.

    Parameters
    ----------
    model : torch.nn.Module or callable
        As for ``torch.compile``.
    fullgraph, dynamic
        As for ``torch.compile``.
    **options
        Of :class:`~relayout.torch.compiling.options.Options`: ``format``, ``threads``, ``kept``, ``freeze``,
        ``training``, ``precision``.

    Returns
    -------
    callable
        As ``torch.compile`` returns it, with a method ``explain()`` besides, which returns the
        :class:`~.report.Report` of all that was compiled until then. ``copy.deepcopy`` of a compiled module
        is one of a copy of the model, with a report of its own; ``copy.copy`` shares the model.

    Raises
    ------
    LayoutError
        An option is none, or out of range.
    pickle.PicklingError
        A compiled module is pickled. Machine code belongs to a process: pickle the model, or its
        ``state_dict()``, and compile it again where it is loaded.

    Examples
    --------
    >>> import pytest
    >>> torch = pytest.importorskip("torch")
    >>> model = compile(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval())
    >>> with torch.inference_mode():
    ...     y = model(torch.ones(1, 3, 8, 8))
    >>> model.explain().taken
    {'aten.convolution.default': 1, 'aten.relu.default': 1}
    >>> model.explain().left
    {}
    """
    made = Backend(Options().changed(options))
    found = torch.compile(model, backend=made, fullgraph=fullgraph, dynamic=dynamic)
    own = vars(found)
    own["explain"] = _Explained(made.report)
    if isinstance(model, torch.nn.Module):
        given = _Given(fullgraph=fullgraph, dynamic=dynamic, **asdict(made.options))
        own["__deepcopy__"] = lambda memo: _again(given, copy.deepcopy(model, memo))
        own["__reduce_ex__"] = lambda _: (_again, (given, model))  # for copy.copy, which shares the model
    return found


def _again(given: _Given, model: Any) -> Any:
    return compile(model, **given)


class _Given(dict[str, Any]):
    """What a model was compiled with: that part of a compiled one which refuses to be pickled."""

    def __reduce_ex__(self, _: object) -> Any:
        raise PicklingError(
            "a compiled model has machine code of this process, which can't be pickled; pickle the model "
            "that was compiled (its attribute _orig_mod) or its state_dict(), and compile it again where "
            "it is loaded"
        )


def explain(model: Callable[..., Any], *inputs: Any, backward: bool = False, **named: Any) -> Report:
    """What Relayout takes of a model, what it leaves to PyTorch, and why.

    Parameters
    ----------
    model : torch.nn.Module or callable
        It is compiled anew and called once.
    *inputs, **named
        What it is called with.
    backward : bool
        Whether gradients are computed, too, of the sum of all results. They are not added to those that
        parameters have.

    Returns
    -------
    Report
        It prints itself.

    Examples
    --------
    >>> import pytest
    >>> torch = pytest.importorskip("torch")
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    >>> print(explain(model, torch.ones(2, 4)))
    graph 1: 1 part taken, in ... s
      taken  2 operators (1 x aten.addmm.default, 1 x aten.relu.default)
             0.0 million multiply-adds; formats ...; 0 conversions; translate ... s, plan ... s, compile ... s
    """
    made = Backend()
    before = _breaks()
    with torch.set_grad_enabled(backward):
        results = torch.compile(model, backend=made)(*inputs, **named)
    if backward:
        _differentiated(model, (results, inputs, named))
    made.report.breaks = {why: n - before[why] for why, n in _breaks().items() if n > before[why]}
    return made.report


def _differentiated(model: Any, everything: tuple[Any, Any, Any]) -> None:
    """Compute the gradients of results by inputs and parameters."""
    results, *given = (torch.utils._pytree.tree_leaves(one) for one in everything)
    if isinstance(model, torch.nn.Module):
        given.append(list(model.parameters()))
    learned = [
        one for several in given for one in several if isinstance(one, torch.Tensor) and one.requires_grad
    ]
    wanted = [one.sum() for one in results if isinstance(one, torch.Tensor) and one.requires_grad]
    if learned and wanted:
        torch.autograd.grad(sum(wanted), learned, allow_unused=True)


def _breaks() -> Counter[str]:
    """What dynamo has counted until now: why it cut graphs, in a line each."""
    found: Counter[str] = Counter()
    for kind in ("graph_break", "unimplemented"):
        for why, count in torch._dynamo.utils.counters[kind].items():
            found[str(why).partition("\n")[0]] += count
    return found


class _Explained:
    """What a compiled model answers when it is asked for an explanation."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def __call__(self) -> Report:
        """The report of all that was compiled until now."""
        return self.report
