"""``relayout.torch.audit``: one run of a model, and what it shows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from relayout.errors import LayoutError, described
from relayout.torch.auditing.comparing import compared
from relayout.torch.auditing.gradients import Gradient, differing_gradients
from relayout.torch.auditing.judging import Judged, judged
from relayout.torch.auditing.places import buffers_of, parameters_of
from relayout.torch.auditing.report import Audit
from relayout.torch.auditing.restoring import as_it_was, uncollected
from relayout.torch.auditing.watching import Watch, tensors_in

__all__ = ["audit"]


def audit(
    model: Any,
    *inputs: Any,
    train: bool = False,
    loss: Callable[[Any], torch.Tensor] | None = None,
    compare: bool = False,
    warmup: int = 0,
    **kwargs: Any,
) -> Audit:
    """Run a model once, and say where its memory format is lost, and what that costs.

    Every operator is seen, those of autograd's backward pass too. The results are those of the model alone,
    and the model is afterwards as it was: running statistics, gradients, modes of training and the states of
    random numbers included.

    Parameters
    ----------
    model : torch.nn.Module or callable
        A model, in the format and mode in which it is used. Of one that is compiled, the original is run.
    *inputs, **kwargs
        What it is called with: tensors, lists and dicts of tensors, anything else.
    train : bool
        Run a training step: forward in training mode, loss, backward.
    loss : callable, optional
        Makes a number of what the model returns; the sum of all its floating-point tensors otherwise.
    compare : bool
        Measure the whole model, too: as it is, contiguous, channels-last, and compiled by Relayout; some
        runs of each.
    warmup : int
        Runs before the one that is watched. The first run of a process is slower than others.

    Returns
    -------
    Audit
        ``print`` it; or ask for ``.lost``, ``.ambiguous``, ``.copies``, ``.causes``, ``.operators``,
        ``.html()`` and ``.json()``.

    Raises
    ------
    LayoutError
        The model can't be called, has no parameters yet, or ``train`` finds nothing to differentiate.
    Exception
        What the model raises passes through unchanged; what was seen until then is its attribute ``audit``.

    Notes
    -----
    Sizes and strides are judged by the rules of :mod:`relayout.pytorch`. Conversions within convolutions
    are seen by nobody; they follow from these rules, and their time is measured on tensors of the same kind.

    Examples
    --------
    >>> import torch
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.conv = torch.nn.Conv2d(8, 8, 3)
    ...
    ...     def forward(self, x):
    ...         return self.conv(x.contiguous())
    >>> net = Net().eval().to(memory_format=torch.channels_last)
    >>> x = torch.randn(2, 8, 16, 16).to(memory_format=torch.channels_last)
    >>> found = audit(net, x)
    >>> [(one.operator, one.module) for one in found.lost]
    [('contiguous', '')]
    >>> [(one.operator, one.module, one.tensor) for one in found.copies]
    [('contiguous', '', 'input'), ('conv2d', 'conv', 'input')]
    >>> found.copies[1].cause == found.lost[0]
    True
    """
    model = getattr(model, "_orig_mod", model)
    if not callable(model):
        raise LayoutError(f"audit: a model is a torch.nn.Module or a function, not {type(model).__name__}")

    if loss is not None and not callable(loss):
        raise LayoutError(f"audit: loss is a function of the model's outputs, not {described(loss)}")
    if isinstance(model, torch.nn.Module):
        lazy = torch.nn.parameter.UninitializedTensorMixin
        modules = list(model.modules())
        if any(isinstance(one, lazy) for one in (*parameters_of(modules), *buffers_of(modules))):
            raise LayoutError("audit: the model makes its parameters in the first call; call it once before")

    def work(called: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not train:
            return called(*args, **named)
        if isinstance(model, torch.nn.Module):
            for one in model.parameters():
                one.grad = None
            if not model.training:
                model.train()
        with torch.enable_grad():
            output = called(*args, **named)
            (_sum(output) if loss is None else loss(output)).backward()
        return output

    output: Any = None
    gradients: tuple[Gradient, ...] = ()
    with as_it_was(model, tensors_in((inputs, kwargs))):
        for _ in range(warmup):
            warm = Watch(model, (inputs, kwargs))
            try:
                with as_it_was(model):
                    warm.run(lambda: work(model, inputs, kwargs))
            except Exception as error:
                _attach(error, _audit(model, warm, train, error=error))
                raise
            finally:
                warm.restore()
        watch = Watch(model, (inputs, kwargs))
        try:
            with uncollected():
                output = watch.run(lambda: work(model, inputs, kwargs))
                found = judged(watch.operators, watch.kernels)
            if train:
                gradients = differing_gradients(model)
        except Exception as error:
            _attach(error, _audit(model, watch, train, error=error))
            raise
        finally:
            watch.restore()
    times = None
    if compare:
        try:
            times = compared(model, inputs, kwargs, work, train)
        finally:
            watch.restore()
    return _audit(model, watch, train, found, output=output, gradients=gradients, times=times)


def _audit(
    model: Any,
    watch: Watch,
    train: bool,
    found: Judged | None = None,
    error: Exception | None = None,
    **more: Any,
) -> Audit:
    found = found or judged(watch.operators, watch.kernels)
    seconds = sum(kernel.seconds for kernel in watch.kernels)
    name = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "model")
    said = "" if error is None else f"{type(error).__name__}: {error}"
    return Audit(
        name,
        tuple(watch.operators),
        found.lost,
        found.ambiguous,
        found.copies,
        seconds,
        torch.get_num_threads(),
        found.failed,
        train,
        error=said,
        **more,
    )


def _attach(error: Exception, found: Audit) -> None:
    """Give an error what was seen until then, if it takes attributes."""
    with contextlib.suppress(AttributeError, TypeError):
        error.audit = found  # type: ignore[attr-defined]


def _sum(output: Any) -> torch.Tensor:
    parts = [
        one.sum() for one in tensors_in(_fields(output)) if one.requires_grad and one.is_floating_point()
    ]
    if not parts:
        if torch.is_inference_mode_enabled():
            raise LayoutError("audit: train=True, but no gradients are made in torch.inference_mode()")
        raise LayoutError(
            "audit: train=True, but nothing that the model returns depends on anything that requires a "
            "gradient; if its outputs do, in a form that is not looked into, give loss="
        )
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    return total


def _fields(output: Any) -> Any:
    """What is in an output: some packages return objects with tensors as attributes."""
    if isinstance(output, (torch.Tensor, tuple, list, dict)):
        return output
    return list(vars(output).values()) if hasattr(output, "__dict__") else output
