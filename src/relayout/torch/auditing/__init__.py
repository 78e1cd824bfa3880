"""The audit of a model: where its memory format is lost.

``relayout.torch.audit`` is :func:`~relayout.torch.auditing.run.audit`. It goes in four steps, each of which
can be read alone:

==================  ====================================================================================
module              what it is
==================  ====================================================================================
``watching``        one run under two modes of PyTorch; what they see is written down (``seen``), with
                    the line of the program and the module of the model (``places``)
``restoring``       the model as it was before
``judging``         what was seen, judged by the rules of strides; conversions that nobody sees
                    (``hidden``), gradients (``gradients``), and what to write instead (``advice``)
``report``          the answer, in words (``words``) and as a page (``page``); the whole model in other
                    formats (``comparing``)
``coverage``        all operators of a list (``cases``) on tensors in channels-last
==================  ====================================================================================
"""

from __future__ import annotations

from relayout.torch.auditing.run import audit

__all__ = ["audit"]
