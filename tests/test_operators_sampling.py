"""Definitions of sampling and resizing against torch, ONNX's reference evaluator and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

import ml_dtypes

from operators_compared import define, same_as_reference, same_as_runtime
from relayout import LayoutError
from relayout.graph.operators import OPERATORS, Fact
from strategies import tried


def normal(*dims: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("axes", [2, 3])
def test_grids_are_sampled_as_torch_does(mode: str, padding_mode: str, align_corners: int, axes: int) -> None:
    """But for cubic interpolation at borders, where ONNX moves the place itself and torch its neighbours."""
    torch = pytest.importorskip("torch")
    x = normal(2, 3, *(5, 6, 4)[:axes])
    reach = 0.4 if mode == "cubic" else 2.5
    grid = np.random.default_rng(1).uniform(-reach, reach, (2, *(7, 4, 3)[:axes], axes)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    (made,) = define("GridSample", [x, grid], **attributes)
    if mode == "cubic" and axes == 3:
        return  # torch has none
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(x),
        torch.from_numpy(grid),
        mode={"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode),
        padding_mode=padding_mode,
        align_corners=bool(align_corners),
    )
    np.testing.assert_allclose(made, expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grids_are_sampled_as_the_reference_does(mode: str, padding_mode: str, align_corners: int) -> None:
    x = normal(1, 2, 4, 5)
    grid = np.random.default_rng(2).uniform(-1.6, 1.6, (1, 5, 4, 2)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    same_as_reference("GridSample", [x, grid], rtol=1e-3, atol=1e-4, **attributes)


def test_places_that_are_no_numbers_are_outside() -> None:
    grid = np.array([[[[np.nan, 0], [np.inf, 0], [1e30, -1e30]]]], np.float32)
    for mode in ("linear", "nearest", "cubic"):
        (made,) = define("GridSample", [normal(1, 2, 4, 5), grid], mode=mode)
        np.testing.assert_array_equal(made, np.zeros((1, 2, 1, 3)))


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (2, 1, 3, 4, 5)])
def test_affine_grids_are_torchs(align_corners: int, sizes: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    axes = len(sizes) - 2
    theta = normal(2, axes, axes + 1)
    (made,) = define("AffineGrid", [theta, np.array(sizes)], align_corners=align_corners)
    expected = torch.nn.functional.affine_grid(torch.from_numpy(theta), sizes, bool(align_corners))
    np.testing.assert_allclose(made, expected.numpy(), rtol=1e-4, atol=1e-5)


@settings(max_examples=tried(25), deadline=None)
@given(
    st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.booleans(),
)
def test_deformed_convolutions_are_sums_of_sampled_taps(
    groups: Any, strides: Any, dilations: Any, pads: Any, masked: bool
) -> None:
    """In plain NumPy: each tap by itself, with the value at its place from GridSample."""
    group, offset_group = groups
    x, w, b = normal(2, 4, 7, 8), normal(6, 4 // group, 3, 2, seed=1), normal(6, seed=2)
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": group}
    attributes["pads"] = (*pads, *pads)
    plain = OPERATORS["Conv"](x, w, b, **attributes)[0]
    rows, columns = plain.shape[2:]
    offset = normal(2, offset_group * 3 * 2 * 2, rows, columns, seed=3)
    mask = normal(2, offset_group * 3 * 2, rows, columns, seed=4) if masked else None
    (made,) = define("DeformConv", [x, w, offset, b, mask], offset_group=offset_group, **attributes)
    moves = offset.reshape(2, offset_group, 3, 2, 2, rows, columns)
    weights = np.ones((2, offset_group * 6, rows, columns)) if mask is None else mask
    weights = weights.reshape(2, offset_group, 3, 2, rows, columns)
    expected = np.broadcast_to(b.reshape(1, 6, 1, 1), made.shape).astype(np.float64)
    for og in range(offset_group):
        channels = range(og * 4 // offset_group, (og + 1) * 4 // offset_group)
        for i in range(3):
            for j in range(2):
                y = np.arange(rows)[:, None] * strides[0] - pads[0] + i * dilations[0] + moves[:, og, i, j, 0]
                z = np.arange(columns) * strides[1] - pads[1] + j * dilations[1] + moves[:, og, i, j, 1]
                grid = np.stack([z / 7 * 2 - 1, y / 6 * 2 - 1], axis=-1)
                found = OPERATORS["GridSample"](x.astype(np.float64), grid, align_corners=1)[0]
                found = found * weights[:, og, i, j][:, None]
                for c in channels:
                    outputs = slice(c // (4 // group) * 6 // group, (c // (4 // group) + 1) * 6 // group)
                    factor = w[outputs, c % (4 // group), i, j].reshape(1, -1, 1, 1)
                    expected[:, outputs] += found[:, c : c + 1] * factor
    np.testing.assert_allclose(made, expected, rtol=1e-3, atol=1e-3)
    inputs = [x, w, np.zeros_like(offset), b]
    (still,) = OPERATORS["DeformConv"](*inputs, offset_group=offset_group, **attributes)
    np.testing.assert_allclose(still, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 1, 3])
def test_regions_are_aligned_as_by_the_runtime(mode: str, transformation: str, ratio: int) -> None:
    rng = np.random.default_rng(5)
    x = normal(2, 3, 9, 11)
    corners = np.sort(rng.uniform(-3, 25, (6, 2, 2)), axis=1).reshape(6, 4).astype(np.float32)
    images = rng.integers(0, 2, 6)
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": transformation,
        "sampling_ratio": ratio,
        "output_height": 3,
        "output_width": 2,
        "spatial_scale": 0.5,
    }
    same_as_reference("RoiAlign", [x, corners, images], rtol=1e-3, atol=1e-4, **attributes)
    if mode == "avg":
        same_as_runtime("RoiAlign", [x, corners, images], opset=16, rtol=1e-3, atol=1e-4, **attributes)


def test_infinities_reach_the_parts_that_have_them() -> None:
    """Elsewhere they have no weight, and 0 times infinity is no term of a mean."""
    x = normal(1, 3, 9, 11)
    x[0, 0, 3, 4], x[0, 1, 7, 9], x[0, 2, 5, 5] = np.inf, np.nan, -np.inf
    corners = np.array([[0.3, 0.6, 10.1, 8.2], [5.2, 0.1, 9.7, 4.4]], np.float32)
    inputs = [x, corners, np.array([0, 0])]
    same_as_runtime("RoiAlign", inputs, opset=16, output_height=4, output_width=3, sampling_ratio=2)


TRANSFORMATIONS = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [(2, 3, 7, 9), (2, 3, 3, 2), (2, 3, 1, 5), (2, 3, 10, 12)])
def test_resized_to_sizes(transformation: str, mode: str, sizes: tuple[int, ...]) -> None:
    if transformation == "pytorch_half_pixel" and mode == "cubic" and 1 in sizes:
        return  # the reference takes the place -0.5 of a single element, the specification 0
    inputs = [normal(2, 3, 5, 6), None, None, np.array(sizes)]
    attributes = {"mode": mode, "coordinate_transformation_mode": transformation}
    for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        same_as_reference("Resize", inputs, nearest_mode=rounding, **attributes)
        if mode != "nearest":
            break
    for outside in (0, 1):
        if mode == "cubic":
            same_as_reference("Resize", inputs, exclude_outside=outside, cubic_coeff_a=-0.5, **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scale", [0.5, 0.6, 1.5, 2.0, 2.3])
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_resized_by_scales(transformation: str, mode: str, scale: float) -> None:
    """At 2.3 an element is halfway between two in single precision, by which the reference does not go."""
    inputs = [normal(1, 2, 5, 6), None, np.array([1, 1, scale, scale], np.float32)]
    attributes = {"mode": mode, "coordinate_transformation_mode": transformation}
    if (mode, scale) == ("nearest", 2.3) and transformation.endswith("half_pixel"):
        same_as_runtime("Resize", inputs, opset=19, **attributes)
    else:
        same_as_reference("Resize", inputs, **attributes)
    if mode != "nearest" and transformation in ("half_pixel", "asymmetric") and scale in (0.5, 1.5, 2.0):
        same_as_runtime("Resize", inputs, opset=19, rtol=1e-3, atol=1e-4, **attributes)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [(3, 2), (2, 6), (9, 3), (1, 1)])
def test_smoothed_when_shrunk(mode: str, sizes: tuple[int, int]) -> None:
    inputs = [normal(1, 2, 7, 8), None, None, np.array([1, 2, *sizes])]
    same_as_reference("Resize", inputs, mode=mode, antialias=1)
    torch = pytest.importorskip("torch")
    (made,) = define("Resize", inputs, mode=mode, antialias=1, exclude_outside=1, cubic_coeff_a=-0.5)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(inputs[0]), sizes, mode=f"bi{mode}", antialias=True, align_corners=False
    )
    np.testing.assert_allclose(made, expected.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_region_is_cropped_and_resized(mode: str) -> None:
    roi = np.array([0, 0, 0.2, -0.1, 1, 1, 0.9, 1.2], np.float32)
    inputs = [normal(1, 2, 5, 6), roi, None, np.array([1, 2, 4, 7])]
    attributes = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize"}
    same_as_reference("Resize", inputs, extrapolation_value=9.0, **attributes)


@pytest.mark.parametrize("size", range(1, 16))
def test_the_nearest_of_an_image_that_is_scaled_is_torchs(size: int) -> None:
    """A scale such as 5/3 is not quite that in single precision: 3 elements become 5 all the same."""
    torch = pytest.importorskip("torch")
    x = np.arange(size, dtype=np.float32).reshape(1, 1, size)
    words = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    for scale in (5 / 3, 7 / 3, 1.4, 1.25, 0.6, 0.7, 2 / 3):
        if int(size * scale):
            (made,) = define("Resize", [x, None, np.float32([1, 1, scale])], **words)
            wanted = torch.nn.functional.interpolate(torch.from_numpy(x), scale_factor=scale)
            np.testing.assert_array_equal(made, wanted.numpy())


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_some_axes_are_resized(policy: str) -> None:
    inputs = [normal(1, 2, 5, 6), None, None, np.array([9, 8])]
    same_as_reference("Resize", inputs, axes=(3, 2), keep_aspect_ratio_policy=policy, mode="linear")
    (made,) = define("Resize", inputs, axes=(-1, -2), keep_aspect_ratio_policy=policy)
    assert made.shape == {"stretch": (1, 2, 8, 9), "not_larger": (1, 2, 8, 9)}.get(policy, (1, 2, 8, 10))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resized_in_other_types(dtype: Any, mode: str) -> None:
    x = (np.random.default_rng(6).uniform(0, 120, (1, 1, 4, 5))).astype(dtype)
    same_as_reference("Resize", [x, None, None, np.array([1, 1, 7, 8])], mode=mode, rtol=1e-2)


def test_what_does_not_fit_is_refused() -> None:
    x, sizes = normal(1, 2, 5, 6), (None, None, np.array([1, 2, 3, 4]))
    for inputs, attributes, message in (
        ((), {}, "either scales or sizes"),
        ((None, np.float32([1, 2])), {}, "2 scales or sizes for 4 axes"),
        ((None, np.float32([1, 1, 0, 1])), {}, "scale 0.0 of axis 2 must be more than 0"),
        (sizes, {"mode": "area"}, "mode 'area' is none of"),
        ((None, None, np.array([3])), {"axes": (4,)}, r"axes \(4,\) of 4"),
        (sizes, {"coordinate_transformation_mode": "x"}, "mode 'x'"),
        (sizes, {"coordinate_transformation_mode": "tf_crop_and_resize"}, "a roi of 8"),
    ):
        with pytest.raises(LayoutError, match=message):
            OPERATORS["Resize"](x, *inputs, **attributes)
    with pytest.raises(LayoutError, match="a grid of"):
        OPERATORS["GridSample"](x, normal(1, 3, 3, 3))
    with pytest.raises(LayoutError, match="offsets must be"):
        OPERATORS["DeformConv"](x, normal(2, 2, 3, 3), normal(1, 9, 3, 4))
    with pytest.raises(LayoutError, match="region 0 is of image 4"):
        OPERATORS["RoiAlign"](x, normal(1, 4), np.array([4]))


def test_names_of_sizes_survive() -> None:
    f32 = np.dtype(np.float32)
    x = Fact(("n", 3, "h", 8), f32)
    scales = Fact((4,), f32, np.array([1, 1, 2, 2], np.float32))
    (made,) = OPERATORS["Resize"].inferred(x, None, scales)
    assert made.dims == ("n", 3, None, 16)
    sizes = Fact((2,), np.dtype(np.int64), np.array([7, 9]))
    (made,) = OPERATORS["Resize"].inferred(x, None, None, sizes, axes=(2, 3))
    assert made.dims == ("n", 3, 7, 9)
    (made,) = OPERATORS["Resize"].inferred(x, None, None, Fact((4,)))
    assert made.dims == (None,) * 4
    (made,) = OPERATORS["GridSample"].inferred(x, Fact(("n", "rows", 5, 2), f32))
    assert made.dims == ("n", 3, "rows", 5)


def test_empty_tensors() -> None:
    (made,) = define("Resize", [np.zeros((0, 3, 4, 5), np.float32), None, None, np.array([0, 3, 8, 2])])
    assert made.shape == (0, 3, 8, 2)
    (made,) = define("GridSample", [normal(2, 3, 4, 5), np.zeros((2, 0, 5, 2), np.float32)])
    assert made.shape == (2, 3, 0, 5)
    no_rois = [normal(2, 3, 4, 5), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)]
    (made,) = define("RoiAlign", no_rois, output_height=2)
    assert made.shape == (0, 3, 2, 1)
