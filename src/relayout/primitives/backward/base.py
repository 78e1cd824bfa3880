"""What all backward primitives are: made from a forward primitive, with its attributes and formats.

oneDNN makes a backward primitive from descriptors and a hint, the descriptor of the forward primitive. Here
the hint says all there is to say, and descriptors are given where something else is wanted::

    forward = Convolution(src, weights, padding=1)
    ConvolutionBackwardData(forward)                           formats and data types of the forward pass
    ConvolutionBackwardData(forward, weights=rl.any)           the implementation decides
    ConvolutionBackwardData(forward, diff_dst=MemoryDesc(...)) this one

The rules of the specification on propagation follow from three words for each argument:

=============  ==============================================================================================
nothing        the format and data type of what it is, or is the gradient of, in the forward pass: weights as
               the forward pass read them, ``diff_src`` as ``src``. Nothing is reordered between the passes
``rl.any``     what suits the kernels, for kinds that compute much (convolution, inner product, recurrent
               layers); where time is that of reading and writing the format of what is read of the forward
               pass, source or destination, else that of the gradient that comes in
a descriptor   that one
=============  ==============================================================================================

A backward primitive may so read weights in another format than the forward pass did, and whoever owns the
tensors (a sequence, a graph's planner) puts a reorder between; :meth:`Primitive.candidates` says what that
saves.

Post-ops are for inference: oneDNN computes no gradients of them, and neither does this. A forward primitive
that has some is refused; what they do is a primitive of its own in training.
"""

from __future__ import annotations

from typing import Any, ClassVar

from relayout.errors import LayoutError, Unsupported, type_name
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import spell_dims
from relayout.ops.checks import check_descs, check_written
from relayout.primitives.primitive import Primitive

__all__ = ["Backward"]


class Backward(Primitive):
    """Base of all backward primitives; see the module's docstring.

    Attributes
    ----------
    forward : Primitive
        The one that it is the backward pass of.
    hint : type or tuple of types
        What :attr:`forward` may be.
    """

    forward: Primitive
    hint: ClassVar[type[Primitive] | tuple[type[Primitive], ...]] = Primitive

    def _made_for(self, forward: Primitive) -> None:
        """What constructors begin with.

        Raises
        ------
        LayoutError
            It is no primitive of the kind that this is the backward pass of.
        Unsupported
            It has post-ops.
        """
        if not isinstance(forward, self.hint):
            kinds = self.hint if isinstance(self.hint, tuple) else (self.hint,)
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise LayoutError(f"{self.kind}: forward must be a {wanted}, not {type_name(forward)}")
        if forward.post_ops:
            raise Unsupported(
                f"{self.kind}: the forward primitive has post-ops ({', '.join(map(str, forward.post_ops))}); "
                "there are no gradients of post-ops: in training they are primitives of their own"
            )
        self.forward = forward

    def _like(self, name: str, given: Any, like: MemoryDesc, written: bool = False) -> MemoryDesc:
        """The descriptor of an argument, which has the dims of one of the forward pass.

        Parameters
        ----------
        name : str
            What it is called, for errors.
        given : MemoryDesc, rl.any or None
            What the caller said.
        like : MemoryDesc
            What it is, or is the gradient of, in the forward pass.
        written : bool
            Whether it is an output.

        Returns
        -------
        MemoryDesc
            Its layout is None where the format is still to be chosen.
        """
        if given is None:
            given = like
        elif given is any_format:
            given = MemoryDesc(like.dims, like.dtype, any_format)
        check_descs(self.kind, {name: given}, {})
        if given.dims != like.dims:
            raise LayoutError(
                f"{self.kind}: {name} {given} must be {spell_dims(like.dims)}, as in the forward pass"
            )
        if written:
            check_written(self.kind, given, name)
        found: MemoryDesc = given
        return found
