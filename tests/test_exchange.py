"""Memory that is shared with PyTorch: both ways, as arguments and results; and DLPack."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout.primitives import Eltwise, Sequence
from strategies import examples

torch = pytest.importorskip("torch")

TYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
    "s64": torch.int64,
    "s32": torch.int32,
    "s16": torch.int16,
    "s8": torch.int8,
    "u8": torch.uint8,
}
DIMS = (2, 3, 4, 5)


def numbers(dtype=torch.float32, dims=DIMS):
    """Small whole numbers, which every type holds."""
    count = int(np.prod(dims))
    return (torch.arange(count) % 7).reshape(dims).to(dtype)


def values(x):
    return x.to(torch.float64).numpy()


def same_memory(one, two):
    """Whether a write to the one is seen in the other."""
    bits = one.view(torch.uint8) if one.dim() else one.view(torch.int8)
    before = bits.clone()
    other = bytes(rl.tensor(two).buffer)
    bits.bitwise_xor_(torch.ones_like(bits))
    changed = bytes(rl.tensor(two).buffer) != other
    bits.copy_(before)
    return changed


class TestFromPyTorch:
    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize(
        "view",
        [
            lambda x: x,
            lambda x: x.permute(0, 2, 3, 1),
            lambda x: x.to(memory_format=torch.channels_last),
            lambda x: x[:, 1:, ::2, 3:],
            lambda x: x[1, 2, 3, 4],
            lambda x: x[:, :, :0],
            lambda x: x[:, :1].expand(2, 6, 4, 5),
        ],
    )
    def test_memory_and_strides_are_shared(self, dtype, view):
        x = view(numbers(TYPES[dtype]))
        made = rl.tensor(x)
        assert (made.dims, made.dtype) == (tuple(x.shape), dtype)
        np.testing.assert_array_equal(made.numpy().astype(np.float64), values(x))
        if x.numel():
            assert made.buffer.ctypes.data == x.data_ptr()
            assert made.layout.strides == x.stride()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_strides_of_tensors_without_elements(self, dtype):
        for x in (
            torch.empty(2, 0, 4, 5, dtype=dtype),
            torch.empty(2, 3, 0, 5, dtype=dtype).to(memory_format=torch.channels_last),
            numbers(dtype)[:, :0],
            torch.empty(0, dtype=dtype),
        ):
            made = rl.tensor(x)
            assert made.layout.strides == x.stride()
            assert made.torch().stride() == x.stride()
            assert (made.torch().shape, made.torch().dtype) == (x.shape, dtype)
            rl.reorder(x, out=torch.empty_like(x))
            rl.Reorder(made.desc, made.desc)(x, torch.empty_like(x))

    def test_a_tensor_lives_as_long_as_its_memory_is_shared(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2):
            x = numbers(dtype)
            expected, storage = values(x), weakref.ref(x.untyped_storage())
            made = rl.tensor(x)[:, 1]
            del x
            gc.collect()
            np.testing.assert_array_equal(made.numpy().astype(np.float64), expected[:, 1])
            del storage

    def test_a_shared_storage_can_not_be_resized(self):
        x = numbers()
        made = rl.tensor(x)
        with pytest.raises(RuntimeError, match="resiz"):
            x.resize_(1 << 20)
        np.testing.assert_array_equal(made.numpy(), values(numbers()))

    def test_subclasses_and_parameters(self):
        class Picture(torch.Tensor):
            pass

        x = numbers()
        assert rl.tensor(x.as_subclass(Picture)).buffer.ctypes.data == x.data_ptr()
        assert rl.tensor(torch.nn.Parameter(x)).buffer.ctypes.data == x.data_ptr()

    @pytest.mark.filterwarnings("ignore")  # some of these are prototypes
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: numbers().to("meta"), "device meta: it has sizes, but no memory"),
            (lambda: numbers().to_sparse(), r"layout torch.sparse_coo, .* give x.to_dense\(\)"),
            (lambda: torch.eye(3).to_sparse_csr(), "layout torch.sparse_csr"),
            (lambda: numbers().to_mkldnn(), r"layout torch._mkldnn, .* give x.to_dense\(\)"),
            (
                lambda: torch.quantize_per_tensor(numbers(), 0.5, 1, torch.quint8),
                r"quantised .* x.int_repr\(\)",
            ),
            (lambda: torch.zeros(3, dtype=torch.complex64).conj().imag, r"negative bit .* x.resolve_neg\(\)"),
            (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "is nested"),
            (lambda: torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged), "is nested"),
            (lambda: torch._efficientzerotensor(3), "has no memory that could be shared: .*ZeroTensor"),
            (lambda: torch.zeros(3, dtype=torch.complex64).conj(), "torch.complex64.* is no data type"),
            (lambda: torch.zeros(3, dtype=torch.bool), "store them as u8"),
            (lambda: torch.empty(3, dtype=torch.int4), "torch.int4, with which PyTorch does not compute"),
            (lambda: torch.zeros(3, dtype=torch.uint16), "torch.uint16.* is no data type"),
            (lambda: torch.zeros(3, dtype=torch.float8_e4m3fnuz), "float8_e4m3fnuz.* is no data type"),
            (
                lambda: torch.nn.Parameter(numbers()) * 2,
                r"recorded by autograd \(MulBackward0\).*x.detach\(\)",
            ),
        ],
    )
    def test_what_has_no_memory_of_ours_is_refused(self, make, words):
        given = make()
        for call in (rl.tensor, lambda x: rl.reorder(x, "ab"), lambda x: Eltwise(DESC, "relu")(x)):
            with pytest.raises(rl.LayoutError, match=words):
                call(given)

    def test_axes_are_counted(self):
        assert rl.tensor(torch.zeros((1,) * 12)).desc.rank == 12
        with pytest.raises(rl.LayoutError, match="13 axes; memory descriptors have at most 12"):
            rl.tensor(torch.zeros((1,) * 13))

    def test_fake_tensors_have_no_memory(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            fake = torch.empty(3)
            with pytest.raises(rl.LayoutError, match=r"FakeTensor has no memory that could be shared"):
                rl.tensor(fake)
        with pytest.raises(rl.LayoutError, match=r"FakeTensor has no memory that could be shared"):
            rl.tensor(fake)

    def test_a_result_is_read_where_gradients_are_off(self):
        weight = torch.nn.Parameter(numbers())
        result = weight * 2
        np.testing.assert_array_equal(rl.tensor(result.detach()).numpy(), values(result.detach()))
        with torch.no_grad():
            np.testing.assert_array_equal(rl.tensor(result).numpy(), values(result))


DESC = rl.MemoryDesc(DIMS, "f32", "nchw")


class TestToPyTorch:
    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw8c"])
    def test_there_and_back(self, dtype, format):
        made = rl.tensor(numbers(TYPES[dtype]), format)
        x = made.torch()
        assert x.dtype == TYPES[dtype]
        np.testing.assert_array_equal(values(x), values(numbers()))
        shares = format != "nChw8c"
        assert (x.data_ptr() == made.buffer.ctypes.data) == shares
        assert x.is_contiguous(memory_format=torch.channels_last) == (format == "nhwc")
        copied = made.torch(copy=True)
        assert copied.data_ptr() != made.buffer.ctypes.data
        assert (copied.dtype, copied.stride()) == (x.dtype, x.stride())
        np.testing.assert_array_equal(values(copied), values(x))
        if shares:
            assert made.torch(copy=False).data_ptr() == x.data_ptr()
        else:
            with pytest.raises(rl.LayoutError, match=r"torch.Tensor without a copy: .* more than strides"):
                made.torch(copy=False)

    @given(st.data())
    @examples(60)
    def test_views_are_shared_with_their_strides(self, data):
        made = rl.tensor(numbers(TYPES[data.draw(st.sampled_from(sorted(TYPES)))]), "nhwc")
        expected = made.numpy().astype(np.float64)
        key = tuple(
            slice(data.draw(st.integers(0, n)), n, data.draw(st.integers(1, 3)))
            if data.draw(st.booleans())
            else 0
            for n in DIMS
        )
        x = made[key].torch(copy=False)
        np.testing.assert_array_equal(values(x), expected[key])
        if x.numel():
            assert x.untyped_storage().data_ptr() >= made.buffer.ctypes.data
            assert x.stride() == made[key].layout.strides

    def test_memory_lives_as_long_as_the_tensor(self):
        x = rl.tensor(numbers(torch.bfloat16), "nhwc").torch()
        gc.collect()
        junk = [np.full(240, 77, np.uint8) for _ in range(100)]
        np.testing.assert_array_equal(values(x), values(numbers()))
        del junk

    def test_what_pytorch_can_not_have_is_copied(self):
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        backwards = rl.tensor(array[:, ::-1])
        np.testing.assert_array_equal(backwards.torch().numpy(), array[:, ::-1])
        with pytest.raises(rl.LayoutError, match="no negative strides"):
            backwards.torch(copy=False)
        array = array.T.copy().T
        array.flags.writeable = False
        read_only = rl.tensor(array)
        copied = read_only.torch()
        copied += 1
        assert copied.stride() == (1, 2)
        np.testing.assert_array_equal(copied.numpy() - 1, array)
        with pytest.raises(rl.LayoutError, match="its memory is read-only"):
            read_only.torch(copy=False)
        with pytest.raises(rl.Unsupported, match="PyTorch does not compute with s4"):
            rl.tensor([[1, 2]], "ab", "s4").torch()

    def test_broadcast_views_are_shared(self):
        x = rl.tensor(numbers(dims=(1, 3))).broadcast_to(4, 3).torch(copy=False)
        assert x.stride() == (0, 1)
        with pytest.raises(RuntimeError, match="single memory location"):
            x += 1  # PyTorch looks itself

    def test_the_hint_of_axes_of_size_1_is_kept(self):
        x = torch.zeros(8, 64, 1, 1).to(memory_format=torch.channels_last)
        assert x.stride() == (64, 1, 64, 64)
        assert rl.tensor(x).torch().stride() == x.stride()
        assert rl.tensor(x, "nhwc").torch().stride() == x.stride()

    def test_pytorch_is_not_imported_before_it_is_asked_for(self):
        code = (
            "import sys, numpy as np, relayout as rl\n"
            "from relayout.primitives import Eltwise\n"
            "x = rl.tensor(np.ones((1, 2, 2, 2), 'f4'), 'nhwc')\n"
            "rl.reorder(x, 'channels_last', out=rl.tensor(np.zeros((1, 2, 2, 2), 'f4'), 'nhwc'))\n"
            "np.from_dlpack(x); Eltwise(x.desc, 'relu')(x)\n"
            "rl.MemoryDesc((1, 2), 'torch.bfloat16', 'torch.contiguous_format')\n"
            "assert 'torch' not in sys.modules\n"
            "x.torch()\n"
            "print('torch' in sys.modules)\n"
            "sys.modules['torch'] = None\n"
            "try: x.torch()\n"
            "except rl.Unsupported as error: print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        first, second = done.stdout.splitlines()
        assert first == "True"
        assert second.startswith("a torch.Tensor needs PyTorch")


class TestDLPack:
    @pytest.mark.parametrize("dtype", TYPES)
    def test_both_ways(self, dtype):
        class Foreign:
            """Only DLPack: neither __array__ nor a torch.Tensor."""

            def __init__(self, x):
                self.x = x

            def __dlpack__(self, **options):
                return self.x.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.x.__dlpack_device__()

        x = numbers(TYPES[dtype]).permute(0, 2, 3, 1)
        made = rl.tensor(Foreign(x))
        assert (made.dtype, made.buffer.ctypes.data, made.layout.strides) == (dtype, x.data_ptr(), x.stride())
        again = torch.from_dlpack(made)
        assert (again.dtype, again.data_ptr(), again.stride()) == (x.dtype, x.data_ptr(), x.stride())
        del x, made
        gc.collect()
        np.testing.assert_array_equal(values(again), values(numbers()).transpose(0, 2, 3, 1))

    def test_what_a_capsule_can_not_say(self):
        with pytest.raises(BufferError, match="two elements share a byte"):
            rl.tensor([1, 2], dtype="u4").__dlpack__()
        with pytest.raises(BufferError, match="not on DLPack's device"):
            rl.tensor([1, 2]).__dlpack__(dl_device=(2, 0))
        with pytest.raises(BufferError, match="which has no stream 1"):
            rl.tensor([1, 2]).__dlpack__(stream=1)
        blocked = rl.tensor(numbers(), "nChw8c")
        with pytest.raises(BufferError, match=r"through DLPack without a copy: .*Tensor.torch\(\)"):
            torch.from_dlpack(blocked)
        copied = torch.from_dlpack(blocked, copy=True)
        np.testing.assert_array_equal(values(copied), values(numbers()))

    @pytest.mark.parametrize("version", [None, (1, 0)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2])
    def test_bare_capsules_are_read_once(self, dtype, version):
        x = numbers().to(dtype).permute(0, 2, 3, 1)
        capsule = x.__dlpack__(max_version=version)
        made = rl.tensor(capsule)
        assert (made.buffer.ctypes.data, made.torch().stride()) == (x.data_ptr(), x.stride())
        assert made.dtype == dtype
        with pytest.raises(rl.LayoutError, match="it has been read"):
            rl.tensor(capsule)

    def test_a_refusal_names_the_object(self):
        class Learned:
            def __dlpack__(self, **options):
                return torch.nn.Parameter(numbers()).__dlpack__(**options)

            def __dlpack_device__(self):
                return (1, 0)

        with pytest.raises(rl.LayoutError, match=r"Learned can't be read through DLPack: .*gradient"):
            rl.tensor(Learned())


class TestNames:
    @pytest.mark.parametrize(
        ("given", "dims", "tag"),
        [
            (torch.channels_last, (2, 3, 4, 5), "acdb"),
            (torch.contiguous_format, (2, 3, 4), "abc"),
            (torch.channels_last_3d, (2, 3, 4, 5, 6), "acdeb"),
        ],
    )
    def test_formats(self, given, dims, tag):
        x = numbers(dims=dims)
        desc = rl.MemoryDesc(dims, torch.float32, given)
        assert desc.tag == tag
        assert desc == rl.MemoryDesc(x.shape, "f32", tag)
        assert rl.Layout(x.shape, given) == desc.layout
        assert rl.Format(given) == rl.Format(str(given))
        assert rl.tensor(x, given).desc == desc
        assert rl.reorder(x, given).desc == desc
        assert rl.tensor(x).reorder(given, dtype=torch.bfloat16).desc == rl.MemoryDesc(dims, "bf16", tag)
        assert rl.reorder(x, given).torch().is_contiguous(memory_format=given)
        name = str(given).removeprefix("torch.")
        for written in (given, str(given), name):
            assert str(rl.MemoryDesc(dims, "f32", written)).startswith(f"f32:{name}:")
            assert rl.Format(written) == rl.Format(name)

    def test_what_is_no_format_says_why(self):
        with pytest.raises(rl.Unsupported, match="a rule, not a format"):
            rl.tensor(numbers(), torch.preserve_format)
        with pytest.raises(rl.Unsupported, match="no dense layout"):
            rl.MemoryDesc(DIMS, "f32", torch.sparse_coo)
        with pytest.raises(rl.LayoutError, match=r"got torch.dtype torch.float32"):
            rl.MemoryDesc(DIMS, "f32", torch.float32)
        with pytest.raises(rl.LayoutError, match=r"got torch.Tensor"):
            rl.MemoryDesc(DIMS, "f32", numbers())
        with pytest.raises(rl.LayoutError, match="is no data type"):
            rl.MemoryDesc(DIMS, torch.channels_last, "nchw")

    @pytest.mark.parametrize("name", TYPES)
    def test_data_types(self, name):
        assert rl.dtype(TYPES[name]) is rl.dtype(name)
        assert rl.dtype(name) == TYPES[name]
        assert TYPES[name] == rl.dtype(name)
        assert rl.dtype("s8" if name != "s8" else "u8") != TYPES[name]
        assert rl.dtype(name) != torch.bool

    def test_whose_tensor_it_is(self):
        with pytest.raises(rl.LayoutError, match=r"src must be a MemoryDesc, not torch.Tensor"):
            Eltwise(numbers(), "relu")
        with pytest.raises(rl.LayoutError, match=r"src must be a MemoryDesc, not relayout.Tensor"):
            Eltwise(rl.tensor(numbers()), "relu")
        with pytest.raises(rl.LayoutError, match=r"takes a MemoryDesc.* got torch.Tensor"):
            rl.from_buffer(b"", numbers())
        for wrong in (numbers(), rl.tensor(numbers()), "nhwc"):
            words = r"a plan's {} is a MemoryDesc, got .*rl.tensor\(x\).desc"
            with pytest.raises(rl.LayoutError, match=words.format("source")):
                rl.Reorder(wrong, DESC)
            with pytest.raises(rl.LayoutError, match=words.format("destination")):
                rl.Reorder(DESC, wrong)
        with pytest.raises(
            rl.LayoutError, match=r"a destination is a format: .* got relayout.Tensor; .*out=\.\.\."
        ):
            rl.reorder(numbers(), rl.tensor(numbers()))
        with pytest.raises(rl.LayoutError, match=r"torch.memory_format is no contiguous buffer"):
            rl.from_buffer(torch.channels_last, DESC)


NHWC = rl.MemoryDesc(DIMS, "f32", "nhwc")


class TestArguments:
    """Plans, primitives and runs take tensors of PyTorch of the strides that their descriptors say."""

    def test_a_plan_checks_strides(self):
        plan = rl.Reorder(NHWC, rl.MemoryDesc(DIMS, "bf16", "nchw"), src_scale=2)
        source, out = numbers().to(memory_format=torch.channels_last), numbers(torch.bfloat16) * 0
        for _ in range(100):  # by way of Python, and with checks in machine code
            out.zero_()
            plan(source, out)
            np.testing.assert_array_equal(values(out), 2 * values(source))
        words = (
            r"reorder: src must be f32:nhwc:2x3x4x5 with strides 60x1x15x3, but a torch.Tensor of f32, "
            r"2x3x4x5, was given with strides 60x20x5x1; give x.contiguous\(memory_format=torch.channels_last"
        )
        with pytest.raises(rl.LayoutError, match=words):
            plan(numbers(), out)
        with pytest.raises(rl.LayoutError, match=r"reorder: dst must be bf16:nchw.* strides 60x1x15x3"):
            plan(source, out.to(memory_format=torch.channels_last))
        with pytest.raises(rl.LayoutError, match=r"reorder: dst .* data type differs"):
            plan(source, numbers())
        with pytest.raises(
            rl.LayoutError, match=r"reorder: src .* neither its dims nor its physical shape, 2x4x5x3"
        ):
            plan(numbers(dims=(3, 3, 4, 5)), out)
        with pytest.raises(rl.LayoutError, match="overlap"):
            rl.Reorder(NHWC, NHWC)(source, source)

    def test_a_plan_takes_buffers(self):
        blocked = rl.MemoryDesc((2, 16, 3, 3), "f32", "nChw8c")
        x = numbers(dims=(2, 16, 3, 3))
        plan = rl.Reorder(rl.tensor(x).desc, blocked)
        for shape in ((2, 2, 3, 3, 8), (blocked.nbytes // 4,)):
            out = torch.zeros(shape)
            plan(x, out)
            np.testing.assert_array_equal(rl.from_buffer(out, blocked).numpy(), x.numpy())
        out = torch.zeros(blocked.nbytes, dtype=torch.uint8)
        plan(x, out)
        assert bytes(rl.from_buffer(out, blocked).buffer) == bytes(rl.tensor(x, blocked).buffer)
        for wrong, words in (
            (torch.zeros(2, 16, 3, 3), "no strides describe this format"),
            (torch.zeros(1, 2, 2, 3, 3, 8), "nor its physical shape, 2x2x3x3x8"),
            (torch.zeros(2, 3, 3, 2, 8), "nor its physical shape, 2x2x3x3x8"),
            (torch.zeros(2, 2, 3, 3, 16)[..., ::2], "no contiguous buffer"),
            (torch.zeros(blocked.nbytes // 4 - 1), "must have 1152 bytes, and it has 1148"),
            (torch.zeros(blocked.nbytes // 4 + 1), "must have 1152 bytes, and it has 1156"),
            (torch.zeros(2, 2, 3, 3, 8, dtype=torch.int32), "data type differs"),
        ):
            with pytest.raises(rl.LayoutError, match=words):
                plan(x, wrong)
            assert not wrong.any()

    def test_a_plan_that_begins_within_its_buffer(self):
        part = rl.MemoryDesc((4, 6), "f32", "ab").submemory((2, 6), (2, 0))
        plan = rl.Reorder(part, rl.MemoryDesc((2, 6), "f32", "ab"))
        with pytest.raises(
            rl.LayoutError, match="it begins at element 12 of its buffer: give the whole buffer"
        ):
            plan(torch.zeros(2, 6), torch.zeros(2, 6))
        out = torch.zeros(2, 6)
        plan(torch.arange(24.0), out)
        assert out.flatten().tolist() == list(range(12, 24))

    def test_reorder_fills_a_tensor_by_its_strides(self):
        for view in (
            lambda x: x,
            lambda x: x.to(memory_format=torch.channels_last),
            lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
            lambda x: torch.zeros(4, 6, 8, 10, dtype=x.dtype)[::2, 1:4, :4, ::2],
        ):
            out = view(numbers(torch.bfloat16) * 0)
            made = rl.reorder(rl.tensor(numbers(), "nChw8c"), out=out)
            np.testing.assert_array_equal(values(out), values(numbers()))
            assert made.buffer.ctypes.data == out.data_ptr()
            assert made.dtype == "bf16"
        out = torch.zeros(DIMS).to(memory_format=torch.channels_last)
        rl.reorder(numbers(), torch.channels_last, out=out)
        np.testing.assert_array_equal(values(out), values(numbers()))

    def test_reorder_into_a_buffer(self):
        desc = rl.MemoryDesc((2, 3, 4, 5), "f32", "nChw8c")
        for out in (torch.ones(2, 1, 4, 5, 8), torch.ones(320), torch.ones(1280, dtype=torch.uint8)):
            made = rl.reorder(numbers(), "nChw8c", out=out)
            assert made.desc == desc
            assert made.buffer.ctypes.data == out.data_ptr()
            np.testing.assert_array_equal(made.numpy(), numbers().numpy())
            assert made.padding_is_zero()

    @pytest.mark.parametrize(
        ("out", "options", "words"),
        [
            (lambda: torch.zeros(2, 3, 4), {}, r"out is a torch.Tensor of 2x3x4, but the source is f32:abcd"),
            (lambda: torch.zeros(DIMS), {"dst": "nhwc"}, "out is f32:abcd.* which is not nhwc as asked for"),
            (lambda: torch.zeros(DIMS), {"dst": "nChw8c"}, "out is f32:abcd.* not nChw8c as asked for"),
            (lambda: torch.zeros(DIMS), {"dtype": "s8"}, "but dtype s8 was asked for"),
            (lambda: torch.zeros(DIMS[1:]).expand(DIMS), {}, "share places"),
            (lambda: torch.zeros(DIMS, dtype=torch.bool), {}, "out can't be written to: .*store them as u8"),
            (
                lambda: torch.zeros(DIMS).to("meta"),
                {},
                "out can't be written to: torch.Tensor is on the device meta",
            ),
            (
                lambda: torch.nn.Parameter(torch.zeros(DIMS)),
                {},
                r"out can't .* requires a gradient.* x.detach\(\)",
            ),
        ],
    )
    def test_what_out_can_not_be(self, out, options, words):
        with pytest.raises(rl.LayoutError, match=words):
            rl.reorder(numbers(), out=out(), **options)

    def test_an_overlapping_source_is_refused(self):
        x = torch.zeros(8, 8)
        with pytest.raises(rl.LayoutError, match="overlap"):
            rl.reorder(x[:, :4], out=x[:, 2:6])

    def test_primitives(self):
        relu = Eltwise(NHWC, "relu")
        source = (numbers() - 3).to(memory_format=torch.channels_last)
        out = torch.zeros(DIMS).to(memory_format=torch.channels_last)
        expected = np.maximum(values(source), 0)
        for _ in range(40):
            np.testing.assert_array_equal(relu(source).numpy(), expected)
            out.zero_()
            assert relu(source, out=out).buffer.ctypes.data == out.data_ptr()
            np.testing.assert_array_equal(values(out), expected)
        relu(rl.tensor(source), out=source)  # in place
        np.testing.assert_array_equal(values(source), expected)
        with pytest.raises(
            rl.LayoutError, match=r"eltwise: src must be f32:nhwc.* strides 60x20x5x1; give x.contig"
        ):
            relu(numbers())
        with pytest.raises(rl.LayoutError, match=r"eltwise: dst must be f32:nhwc.* strides 60x20x5x1"):
            relu(source, out=numbers())
        with pytest.raises(rl.LayoutError, match=r"eltwise: dst: torch.*Parameter requires a gradient"):
            relu(source, out=torch.nn.Parameter(out))

    def test_definitions_take_bf16(self):
        assert Eltwise(NHWC, "relu").reference(numbers(torch.bfloat16) - 3).max() == 3

    def test_sequences(self):
        sequence = Sequence()
        sequence.output(sequence.add(Eltwise(NHWC, "relu"), sequence.input("x", NHWC)))
        run = sequence.compile()
        source = (numbers() - 3).to(memory_format=torch.channels_last)
        expected = np.maximum(values(source), 0)
        np.testing.assert_array_equal(run(source).numpy(), expected)
        out = torch.zeros(DIMS).to(memory_format=torch.channels_last)
        before = out._version
        run(source, out=out)
        np.testing.assert_array_equal(values(out), expected)
        assert out._version > before
        with pytest.raises(rl.LayoutError, match=r"must be f32:nhwc.* strides 60x20x5x1"):
            run(source, out=numbers())


class TestAutograd:
    """Autograd learns of writes that it has not made."""

    @pytest.mark.parametrize("way", ["reorder", "plan", "primitive"])
    def test_a_backward_pass_that_needs_overwritten_values_fails(self, way):
        weight = torch.nn.Parameter(torch.ones(DIMS))
        x = numbers()
        loss = (weight * x).sum()  # the gradient of weight is x
        desc = rl.tensor(x).desc
        source = torch.full(DIMS, 5.0)
        if way == "reorder":
            rl.reorder(source, out=x)
        elif way == "plan":
            rl.Reorder(desc, desc)(source, x)
        else:
            Eltwise(desc, "relu")(source, out=x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_nothing_is_said_where_nothing_was_written(self):
        x = numbers()
        with pytest.raises(rl.LayoutError):
            rl.reorder(torch.zeros(2, 2), out=x)
        with pytest.raises(rl.LayoutError):
            rl.Reorder(NHWC, NHWC)(x, x)
        assert x._version == numbers()._version

    def test_parameters_are_written_where_gradients_are_off(self):
        weight = torch.nn.Parameter(torch.zeros(DIMS))
        with torch.no_grad():
            rl.reorder(numbers(), out=weight)
        assert torch.equal(weight.detach(), numbers())

    def test_tensors_of_inference_mode(self):
        with torch.inference_mode():
            x = numbers()
        out = torch.zeros(DIMS)
        rl.reorder(x, out=out)
        rl.reorder(out, out=x)
        assert torch.equal(out, numbers())


class TestBuffers:
    """from_buffer takes tensors of PyTorch by the rule of plans."""

    def test_physical_shape(self):
        x = numbers(torch.bfloat16, (2, 4))
        made = rl.from_buffer(x, rl.MemoryDesc((4, 2), "bf16", "ba"))
        assert made.buffer.ctypes.data == x.data_ptr()
        assert made.numpy().dtype == ml_dtypes.bfloat16

    def test_of_the_dims_its_strides_count(self):
        x = numbers().to(memory_format=torch.channels_last)
        made = rl.from_buffer(x, NHWC)
        assert made.buffer.ctypes.data == x.data_ptr()
        assert torch.equal(made.torch(), x)
        for wrong, desc in ((numbers(), NHWC), (x, DESC)):
            with pytest.raises(rl.LayoutError, match=r"the buffer must be f32:n.*describe what you have"):
                rl.from_buffer(wrong, desc)

    def test_a_longer_buffer_with_one_axis(self):
        for x in (torch.arange(200.0), torch.arange(200.0).view(torch.uint8)):
            assert rl.from_buffer(x, NHWC).item(0, 1, 0, 0) == 1
        with pytest.raises(rl.LayoutError, match="needs 480 bytes; the buffer has 476"):
            rl.from_buffer(torch.zeros(119), NHWC)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.bfloat16])
    def test_another_data_type_is_refused(self, dtype):
        for x in (numbers(dtype), numbers(dtype).flatten()):
            with pytest.raises(rl.LayoutError, match="its data type differs"):
                rl.from_buffer(x, DESC)
