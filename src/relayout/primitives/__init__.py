"""Primitives: the operations of deep learning, in any format.

A primitive is made once, from the descriptors of its arguments and its parameters, and then called with
tensors, as often and from as many threads as one likes::

    MemoryDesc x arguments, some of them `any`     what it shall do
        Convolution(...)                           formats chosen, checked, an implementation found
            .src .weights .dst .implementation     what was chosen; .flops and .bytes what it costs
            (src, weights, out=...)                does it

>>> import relayout as rl
>>> from relayout.primitives import Eltwise
>>> x = rl.tensor([[-1.0, 2.0]], "ab", dtype="f32")
>>> relu = Eltwise(x.desc, "relu")
>>> relu(x).numpy()
array([[0., 2.]], dtype=float32)

Which formats `any` stands for follows oneDNN: operations that compute much choose for themselves what suits
their kernels (:class:`Convolution`, :class:`InnerProduct`, :class:`Matmul`); those whose time is that of
reading and writing take what the operation before them wrote, and write the same.

Every kind is one file, with three things: the class, which checks and chooses; a definition in NumPy over
logical indices, in double precision, which is short enough to be believed; and the lowering to kernels.
Tests join the last two. What all kinds share:

=====================  ======================================================================================
``primitive``          the base: named inputs and outputs, checks, calling
``backward``           backward primitives, each made from its forward primitive
``results``            several outputs by name, as they are returned and as ``out`` names them
``candidates``         what a choice of formats costs: what a planner asks
``program``            what a primitive is lowered to: parallel regions in order, and their buffers
``calling``            primitives that are called often are called without Python
``meaning``            what the axes of arguments must mean
``sizes``              numbers for each spatial axis, as callers give them
``post_ops``           the post-ops of :mod:`relayout.ops.post_ops`, where callers look for them
``native``             definitions in the data types of the arguments, not in double precision
``elementwise``        operations that are an expression of their inputs
``custom``             Python functions as primitives
``pieces``             what concatenation and split share: tensors that are parts of another one
``choosing``           kinds that choose formats, since their kernels read some faster than others
``products``           convolution, inner product and matrix product as one thing; its program
``product_primitive``  what the classes of these kinds share
``trials``             contests among the schedules of one problem
``several``            contests within programs of several products and recurrences
``recurrence``         the kernel of a recurrence as a part of such a program
``transposed``         transposed convolutions as convolutions
``folding``            sums of products in the shape that suits kernels best
``drafting``           programs while they are written: kernels compiled, buffers named, reorders around
``lowering``           programs of everything computed element by element
``combining``          programs of pooling, reductions and softmax
``banded``             programs of resampling, and of gradients of it and of pooling
``normalizing``        what layer and group normalisation share; their program
``summing``            statistics of batch normalisation, and sums of gradients, as programs
``recurrent``          RNN, LSTM and GRU; ``recurrent_program`` is theirs
``recurrent_layers``   what their programs share, forward and back
``sequence``           many primitives, compiled together and run without Python in between
``values``             the values between them, as plain data
``storages``           who writes where
``packing``            constants that a thread moves to their places, while kernels are made
``lent``               constants in memory that somebody else keeps
``blocking``           rows of weights into blocks of outputs, by one kernel for all sizes
``schedule``           the calls as rows of machine words
``images``             these rows on disk, for later processes
``plain``              primitives and sequences as text, and made of it again
``memory``             values that are never alive together share memory
``runner``             calls of a compiled sequence, and times layer by layer
=====================  ======================================================================================

What operations mean apart from formats is in :mod:`relayout.ops`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.forking import later as _later

if TYPE_CHECKING:
    from relayout.primitives.backward.batch_normalization import (
        BatchNormalizationBackward as BatchNormalizationBackward,
    )
    from relayout.primitives.backward.convolution import (
        ConvolutionBackwardData as ConvolutionBackwardData,
    )
    from relayout.primitives.backward.convolution_weights import (
        ConvolutionBackwardWeights as ConvolutionBackwardWeights,
    )
    from relayout.primitives.backward.deconvolution import (
        DeconvolutionBackwardData as DeconvolutionBackwardData,
    )
    from relayout.primitives.backward.deconvolution import (
        DeconvolutionBackwardWeights as DeconvolutionBackwardWeights,
    )
    from relayout.primitives.backward.eltwise import EltwiseBackward as EltwiseBackward
    from relayout.primitives.backward.group_normalization import (
        GroupNormalizationBackward as GroupNormalizationBackward,
    )
    from relayout.primitives.backward.inner_product import (
        InnerProductBackwardData as InnerProductBackwardData,
    )
    from relayout.primitives.backward.inner_product import (
        InnerProductBackwardWeights as InnerProductBackwardWeights,
    )
    from relayout.primitives.backward.layer_normalization import (
        LayerNormalizationBackward as LayerNormalizationBackward,
    )
    from relayout.primitives.backward.lrn import LRNBackward as LRNBackward
    from relayout.primitives.backward.pooling import PoolingBackward as PoolingBackward
    from relayout.primitives.backward.prelu import PReLUBackward as PReLUBackward
    from relayout.primitives.backward.recurrent import AUGRUBackward as AUGRUBackward
    from relayout.primitives.backward.recurrent import GRUBackward as GRUBackward
    from relayout.primitives.backward.recurrent import LBRAUGRUBackward as LBRAUGRUBackward
    from relayout.primitives.backward.recurrent import LBRGRUBackward as LBRGRUBackward
    from relayout.primitives.backward.recurrent import LSTMBackward as LSTMBackward
    from relayout.primitives.backward.recurrent import VanillaRNNBackward as VanillaRNNBackward
    from relayout.primitives.backward.resampling import ResamplingBackward as ResamplingBackward
    from relayout.primitives.backward.shuffle import ShuffleBackward as ShuffleBackward
    from relayout.primitives.backward.softmax import SoftmaxBackward as SoftmaxBackward
    from relayout.primitives.batch_normalization import BatchNormalization as BatchNormalization
    from relayout.primitives.binary import Binary as Binary
    from relayout.primitives.blockwise import MatmulNBits as MatmulNBits
    from relayout.primitives.concat import Concat as Concat
    from relayout.primitives.convolution import Convolution as Convolution
    from relayout.primitives.custom import Custom as Custom
    from relayout.primitives.deconvolution import Deconvolution as Deconvolution
    from relayout.primitives.eltwise import Eltwise as Eltwise
    from relayout.primitives.group_normalization import GroupNormalization as GroupNormalization
    from relayout.primitives.indexing import Gather as Gather
    from relayout.primitives.indexing import Scatter as Scatter
    from relayout.primitives.inner_product import InnerProduct as InnerProduct
    from relayout.primitives.layer_normalization import LayerNormalization as LayerNormalization
    from relayout.primitives.lrn import LRN as LRN
    from relayout.primitives.matmul import Matmul as Matmul
    from relayout.primitives.pointwise import Pointwise as Pointwise
    from relayout.primitives.pooling import Pooling as Pooling
    from relayout.primitives.prelu import PReLU as PReLU
    from relayout.primitives.recurrent import AUGRU as AUGRU
    from relayout.primitives.recurrent import GRU as GRU
    from relayout.primitives.recurrent import LBRAUGRU as LBRAUGRU
    from relayout.primitives.recurrent import LBRGRU as LBRGRU
    from relayout.primitives.recurrent import LSTM as LSTM
    from relayout.primitives.recurrent import VanillaRNN as VanillaRNN
    from relayout.primitives.reduction import Reduction as Reduction
    from relayout.primitives.reorder import Reorder as Reorder
    from relayout.primitives.resampling import Resampling as Resampling
    from relayout.primitives.sequence import Sequence as Sequence
    from relayout.primitives.shuffle import Shuffle as Shuffle
    from relayout.primitives.softmax import Softmax as Softmax
    from relayout.primitives.split import Split as Split
    from relayout.primitives.sum import Sum as Sum

_WHERE = {
    "BatchNormalization": "batch_normalization",
    "BatchNormalizationBackward": "backward.batch_normalization",
    "Binary": "binary",
    "Concat": "concat",
    "Convolution": "convolution",
    "ConvolutionBackwardData": "backward.convolution",
    "ConvolutionBackwardWeights": "backward.convolution_weights",
    "Custom": "custom",
    "Deconvolution": "deconvolution",
    "DeconvolutionBackwardData": "backward.deconvolution",
    "DeconvolutionBackwardWeights": "backward.deconvolution",
    "Eltwise": "eltwise",
    "EltwiseBackward": "backward.eltwise",
    "AUGRU": "recurrent",
    "AUGRUBackward": "backward.recurrent",
    "GRU": "recurrent",
    "GRUBackward": "backward.recurrent",
    "Gather": "indexing",
    "GroupNormalization": "group_normalization",
    "GroupNormalizationBackward": "backward.group_normalization",
    "InnerProduct": "inner_product",
    "InnerProductBackwardData": "backward.inner_product",
    "InnerProductBackwardWeights": "backward.inner_product",
    "LBRAUGRU": "recurrent",
    "LBRAUGRUBackward": "backward.recurrent",
    "LBRGRU": "recurrent",
    "LBRGRUBackward": "backward.recurrent",
    "LRN": "lrn",
    "LRNBackward": "backward.lrn",
    "LSTM": "recurrent",
    "LSTMBackward": "backward.recurrent",
    "LayerNormalization": "layer_normalization",
    "LayerNormalizationBackward": "backward.layer_normalization",
    "Matmul": "matmul",
    "MatmulNBits": "blockwise",
    "PReLU": "prelu",
    "PReLUBackward": "backward.prelu",
    "Pointwise": "pointwise",
    "Pooling": "pooling",
    "PoolingBackward": "backward.pooling",
    "Reduction": "reduction",
    "Reorder": "reorder",
    "Resampling": "resampling",
    "ResamplingBackward": "backward.resampling",
    "Scatter": "indexing",
    "Sequence": "sequence",
    "Shuffle": "shuffle",
    "ShuffleBackward": "backward.shuffle",
    "Softmax": "softmax",
    "SoftmaxBackward": "backward.softmax",
    "Split": "split",
    "Sum": "sum",
    "VanillaRNN": "recurrent",
    "VanillaRNNBackward": "backward.recurrent",
}

__all__ = [*_WHERE]

if not TYPE_CHECKING:
    __getattr__, __dir__ = _later(__name__, **_WHERE)
