"""Who computes: Relayout and other libraries, behind one small interface.

A *contestant* is anything with a name and two functions::

    available()                        its version, or None where it is not installed
    prepare(work, operands, threads)   a Computation, or None: it does not do such work

and a :class:`Computation` has been prepared down to the last buffer::

    run()                              does the work
    result()                           what came out, as a logical array
    implementation                     a word on how, and in which formats

``prepare`` does once what a user would do once: it lays out the source and packs the weights. In the middle
of a network the layer before has written the source in the format that suits, so that is not timed.

One library may compete more than once, as PyTorch does with its memory formats. What fails while it is being
prepared is told in a note, and measured without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relayout.bench.peers.primitives.contestant import Contestant

__all__ = ["all_peers"]


def all_peers() -> tuple[Contestant, ...]:
    """All peers, installed or not."""
    from relayout.bench.peers.primitives import onednn, pytorch, runtimes

    return (
        onednn.OneDNN("oneDNN"),
        onednn.OneDNN("oneDNN inner product", "inner_product_forward"),
        *(pytorch.PyTorch(memory) for memory in pytorch.MEMORIES),
        *(pytorch.ResNet(how) for how in pytorch.WAYS),
        runtimes.OnnxRuntime(),
        runtimes.OpenVINO(),
    )
