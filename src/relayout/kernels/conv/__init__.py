"""Sums of products: convolution, inner product and matrix product as loops around a register tile.

====================  =======================================================================================
``geometry``          the numbers of a convolution, without formats
``arithmetic``        in which numbers it is computed
``dot``               the code of one step of a sum
``sides``             where a layout puts images, rows, pixels and channels
``weights``           where it puts vectors of weights, and the format that is read fastest
``direct``            the plan of a direct convolution: the loops around the tile, as plain data
``planning``          from formats to the direct plans that solve a problem
``cost``              what a schedule costs, from named facts of a processor
``candidates``        the schedules that are worth measuring, cheapest first
``tile``              the building block: a register tile that adds up products
``offsets``           what sums begin with where the source's zero is another number
``epilogue``          what becomes of a sum before it is stored
``amx``               the tile of processors that multiply matrices
``amx_cost``          what that one costs
``amx_text``          the text of a direct convolution that uses it
``module``            what the text of all plans has in common
``convolution``       the text of a direct convolution
``depthwise``         depthwise and grouped convolutions, whose groups are narrower than a vector: the plan
``depthwise_text``    and its text
``depthwise_bytes``   the same in bytes, four taps in an instruction: the plan
``depthwise_bytes_text``
                      and its text
``winograd``          3x3 filters by fewer products: the plan
``winograd_text``     and its text
``signs``             products of bytes whose signs have moved to the source: the plan
``signs_text``        and its text
``gemv``              few rows by weights whose inputs lie side by side: the plan
``gemv_text``         and its text
``gradient``          the gradient of weights: the plan
``gradient_planning``
                      from formats to such plans
``gradient_text``     and their text
====================  =======================================================================================
"""

ENTRY = "convolution"
"""The name of the function that a module defines."""
