"""Matrix products by weights of 4 or 8 bits in blocks: ``dst = src @ dequantised(weights).T``.

A *block* is 16 to 256 neighbouring inputs of one output. It has a scale and a zero point::

    dst[m, n] = sum over blocks of scale[n, block] * sum over k in the block of
                    src[m, k] * (weights[n, k] - zero_point[n, block])

With one row, a token that is generated, nothing counts but the bytes of the weights: each is read once. A
processor with 16 lanes would need three instructions for 16 weights to make f32 of them and to multiply, and
that is slower than memory. Sums of bytes take a third of it, so the *source* is cut into bytes instead
(:mod:`.source`)::

    src[k] = 2**e * (limb0[k] + 2**8 limb1[k] + 2**16 limb2[k])        limbs: s8; e: of 16 to 128 neighbours

    sum of src * weights = 2**e * (sum0 + 2**8 sum1 + 2**16 sum2)      each of them exact, in s32

Each of the three sums is four products an instruction and lane (:mod:`.dots`). The limbs hold 23 bits and a
sign, so an element of the source is off by at most 2**-22 of the largest among its neighbours; all that
follows is exact up to the end of a block, which is scaled and added up in f32. With one limb it is the
dynamic quantisation to 8 bits that some runtimes offer: three times fewer products, and seven bits.

Where many rows come, tiles of some rows share weights that have been taken apart, and sums of bytes stay
ahead of products in f32: 64 products in three instructions, not in four.

The weights' format follows from the instruction. A register has as many outputs as it has lanes, and of each
of them the inputs that a word holds, ``AB16a8b`` of 4 bits and ``AB16a4b`` of 8. Several registers lie side
by side, ``AB64a8b`` and ``AB64a4b`` (:func:`.plan.weights_text`): they share the words of the source, and are
one stream of memory.

================  ==========================================================================
``plan``          the product as plain data: sizes, blocks, where everything lies; its cost
``source``        the kernel that cuts rows into limbs
``dots``          four products and their sum in each lane, by what the processor has
``product``       the kernel that multiplies
================  ==========================================================================
"""
