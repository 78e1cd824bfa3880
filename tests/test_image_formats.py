"""The format that a caller wants images to have: what is none of images is refused at once."""

from __future__ import annotations

import numpy as np
import pytest

import relayout as rl
from relayout.errors import LayoutError
from relayout.graph import Graph, Node, Value
from relayout.layout.images import format_name

F32 = np.dtype("f4")


def network(*first):
    """A convolution of images; with a name for the batch, sizes are open."""
    x = Value("x", (*(first or (1,)), 3, 8, 8), F32)
    filters = np.ones((16, 3, 3, 3), F32)
    return Graph((x,), ("y",), (Node("Conv", ("x", "w"), ("y",)),), {"w": filters})


@pytest.mark.parametrize("format", ["oihw", "OIhw16i16o", "hwio", "ldnc", "R4CroutonLayout"])
@pytest.mark.parametrize("first", [(), ("batch",)])
def test_formats_of_something_else_are_refused(format, first):
    with pytest.raises(LayoutError, match=f"format {format} has axes .*; images have n, c, h, w"):
        network(*first).compile(format=format)
    with pytest.raises(LayoutError, match=f"format {format} has axes .*; images have n, c, h, w"):
        network(*first).plan(format=format)


@pytest.mark.parametrize("format", ["tnc", "nc", "ncdhw", "nothing of the kind", 5])
def test_what_is_no_format_of_four_axes_is_refused(format):
    with pytest.raises(LayoutError):
        network("batch").compile(format=format)


@pytest.mark.parametrize(
    ("format", "name"), [("nhwc", "nhwc"), ("acdb", "nhwc"), ("b_fs_yx_fsv16", "nChw16c"), ("bfyx", "nchw")]
)
def test_a_format_of_images_is_taken_in_any_dialect(format, name):
    plan = network().plan(format=format)
    assert format_name(plan.formats["y"]) == name


def test_any_is_whatever_costs_least():
    assert network().plan(format="any").cost == network().plan(format=rl.any).cost == network().plan().cost
