"""Memory that a tensor of PyTorch does not have, shares for a call only, or must not be given."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest

import relayout as rl
from processes import is_done
from relayout.primitives import Eltwise, Sequence

torch = pytest.importorskip("torch")

DIMS = (2, 3, 4, 5)
DESC = rl.MemoryDesc(DIMS, "f32", "nchw")


def copy_plan(desc=DESC):
    return rl.Reorder(desc, desc)


READS = {
    "tensor": lambda x: rl.tensor(x),
    "tensor, converted": lambda x: rl.tensor(x, "nhwc"),
    "reorder": lambda x: rl.reorder(x),
    "plan": lambda x: copy_plan()(x, torch.empty(DIMS)),
    "primitive": lambda x: Eltwise(DESC, "relu")(x),
    "from_buffer": lambda x: rl.from_buffer(x, DESC),
}
WRITES = {
    "out": lambda x: rl.reorder(torch.ones(DIMS), out=x),
    "plan's out": lambda x: copy_plan()(torch.ones(DIMS), x),
    "primitive's out": lambda x: Eltwise(DESC, "relu")(torch.ones(DIMS), out=x),
}
WAYS = READS | WRITES


class TestStorages:
    """FSDP frees parameters by resizing their storage; sizes and strides stay as they were."""

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("held", [0, 100, 479])
    def test_one_that_is_too_small_is_refused(self, way, held):
        x = torch.ones(DIMS)
        x.untyped_storage().resize_(held)
        with pytest.raises(rl.LayoutError, match=rf"needs 480 bytes, but its storage has {held}: it was res"):
            WAYS[way](x)

    def test_what_is_there_is_enough(self):
        x = torch.arange(24.0)
        beyond = x[2:11:8]
        x.untyped_storage().resize_(40)
        assert rl.tensor(x[2:10:2]).tolist() == [2, 4, 6, 8]
        assert rl.tensor(x[2:10][::7]).tolist() == [2, 9]
        assert rl.tensor(x[3:3]).dims == (0,)
        with pytest.raises(rl.LayoutError, match="needs 44 bytes"):
            rl.tensor(beyond)

    @pytest.mark.parametrize("way", [*READS][1:4] + [*WRITES][1:2] + ["primitive"])
    def test_a_finished_call_leaves_it_resizable(self, way):
        x = torch.ones(DIMS)
        WAYS[way](x)
        x.resize_(100_000)

    def test_sources_stay_resizable(self):
        x = torch.ones(DIMS)
        out = rl.reorder(x, out=torch.empty(DIMS))
        sequence = Sequence()
        sequence.output(sequence.add(Eltwise(DESC, "relu"), sequence.input("x", DESC)))
        sequence.compile()(x)
        scale = torch.ones(3)
        rl.reorder(out, src_scale=(scale, 1))
        scale.resize_(100)
        x.resize_(100_000)

    @pytest.mark.parametrize("way", ["tensor", "from_buffer", "out", "primitive's out"])
    def test_memory_that_is_still_shared_is_not_resizable(self, way):
        x = torch.ones(DIMS)
        shared = WAYS[way](x)
        with pytest.raises(RuntimeError, match="resiz"):
            x.resize_(100_000)
        assert shared.numpy().all()

    def test_a_storage_is_no_sequence_of_numbers(self):
        storage = torch.arange(3.0).untyped_storage()
        for call in (rl.tensor, rl.reorder, lambda x: rl.from_buffer(x, rl.MemoryDesc((3,), "f32", "a"))):
            with pytest.raises(rl.LayoutError, match="UntypedStorage holds bytes that have no dims"):
                call(storage)
        made = rl.from_buffer(
            torch.empty(0, dtype=torch.uint8).set_(storage), rl.MemoryDesc((3,), "f32", "a")
        )
        assert made.tolist() == [0, 1, 2]


class Wrapper(torch.Tensor):
    """A subclass that holds nothing and does nothing."""

    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)

    @classmethod
    def __torch_dispatch__(cls, *args, **kwargs):
        raise RuntimeError("not this one")


class Obstinate(torch.Tensor):
    """A subclass that answers no question."""

    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        raise RuntimeError("not that one")


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(DIMS)


def masked():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.masked.masked_tensor(torch.ones(DIMS), torch.ones(DIMS) > 0)


class TestWrappers:
    """Tensors that stand for others have an address of 0, or none at all."""

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (fake, "a fake tensor has sizes and no values; call Relayout outside"),
            (masked, r"no values under its mask.*x.to_tensor\(0\)"),
            (lambda: Wrapper(torch.ones(DIMS)), "only stands for another tensor"),
            (lambda: torch.ones(DIMS).as_subclass(Obstinate), "has no memory .*not that one"),
            (lambda: torch.nn.UninitializedParameter(), "uninitialised parameter; run its module once"),
            (lambda: torch._efficientzerotensor(DIMS), "ZeroTensor"),
        ],
    )
    def test_refused(self, way, make, words):
        with torch.no_grad(), pytest.raises(rl.LayoutError, match=words):
            WAYS[way](make())

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("transform", ["functionalize", "vmap", "grad"])
    def test_inside_of_transforms(self, way, transform):
        def inside(z):
            with pytest.raises(rl.LayoutError, match=r"only stands for another.*outside of torch.func"):
                WAYS[way](z)
            return z.sum()

        with torch.no_grad() if transform == "grad" else torch.enable_grad():
            x = torch.ones(2, *DIMS) if transform == "vmap" else torch.ones(DIMS)
            getattr(torch.func, transform)(inside)(x)

    def test_fake_tensors_make_no_warning(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(rl.LayoutError, match="FakeTensor"):
                rl.tensor(fake())


class TestAdvice:
    """What an error says to do does what was wanted."""

    def test_what_is_written_is_allocated_not_copied(self):
        x, out = torch.ones(DIMS), torch.zeros(DIMS).to(memory_format=torch.channels_last)
        sequence = Sequence()
        sequence.output(sequence.add(Eltwise(DESC, "relu"), sequence.input("x", DESC)))
        run = sequence.compile()
        for call in (
            copy_plan(),
            lambda x, out: Eltwise(DESC, "relu")(x, out=out),
            lambda x, o: run(x, out=o),
        ):
            with pytest.raises(rl.LayoutError) as caught:
                call(x, out)
            text = str(caught.value)
            assert "contiguous(" not in text
            assert "or describe what you have: rl.tensor(out).desc" in text
            advised = eval(text.partition("allocate ")[2].partition(", or describe")[0])
            call(x, advised)
            assert torch.equal(advised, x)

    def test_strides_without_a_name(self):
        desc = rl.tensor(torch.empty(5, 4, 3, 2).permute(2, 0, 3, 1)[:, ::2]).desc
        plan = rl.Reorder(desc, desc)
        x, out = torch.rand(desc.dims), torch.zeros(desc.dims)
        with pytest.raises(rl.LayoutError) as caught:
            plan(x, out)
        text = str(caught.value)
        assert text.count("2x48x1x6") == 1
        given = eval(text.partition("give ")[2].partition(", or describe")[0])
        assert torch.equal(given, x)
        with pytest.raises(rl.LayoutError) as caught:
            plan(given, out)
        out = eval(str(caught.value).partition("allocate ")[2].partition(", or describe")[0])
        plan(given, out)
        assert torch.equal(out, x)

    def test_an_expanded_destination(self):
        out = torch.zeros(3, 4, 5).expand(DIMS)
        with pytest.raises(
            rl.LayoutError, match=r"allocate torch.empty\(\(2, 3, 4, 5\), dtype=torch.float32"
        ):
            copy_plan()(torch.ones(DIMS), out)


class TestAttributes:
    """Scales and their like are read from tensors of PyTorch."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("learned", [False, True])
    def test_values(self, dtype, learned):
        x, values = torch.ones(2, 3), torch.tensor([0.5, 1, 2], dtype=dtype)
        scale = torch.nn.Parameter(values) if learned else values
        expected = values.float().expand(2, 3).clone()
        for given in ((scale, 1), (scale.expand(1, 3)[0].detach(), 1)):
            assert torch.equal(rl.reorder(x, src_scale=given).torch(), expected)
        plan = rl.Reorder(rl.tensor(x).desc, rl.tensor(x).desc, src_scale=(scale, 1))
        with torch.no_grad():
            scale.zero_()
        plan(x, out := torch.empty(2, 3))  # values were copied
        assert torch.equal(out, expected)
        one = torch.tensor(3, dtype=dtype)
        assert rl.reorder(x, src_shift=torch.nn.Parameter(one) if learned else one).item(0, 0) == -2

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            (lambda: torch.ones(3, device="meta"), "on the device meta"),
            (lambda: torch.ones(3).to_sparse(), r"x.to_dense\(\)"),
            (lambda: torch.ones(3, dtype=torch.complex64), "is no data type"),
            (lambda: torch.ones(3, requires_grad=True) * 2, r"recorded by autograd .*x.detach\(\)"),
            (lambda: [torch.ones((), dtype=torch.bfloat16)] * 3, "src_scale can't be read as numbers: "),
            (lambda: [1, [2, 3]], "src_scale must be a number or numbers in one list"),
        ],
    )
    def test_others_are_refused_by_name(self, values, words):
        with pytest.raises(rl.LayoutError, match=f"src_scale.*{words}" if "src" not in words else words):
            rl.reorder(torch.ones(2, 3), src_scale=(values(), 1))

    def test_lists_of_tensors(self):
        assert rl.tensor([torch.zeros(2), torch.ones(2)]).tolist() == [[0, 0], [1, 1]]
        for one in (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, requires_grad=True)):
            with pytest.raises(rl.LayoutError, match=r"list can't be read.*give torch.stack\(x\)"):
                rl.tensor([one, one])


class TestDLPack:
    """DLPack is used by PyTorch without a look at what it can't have."""

    @pytest.mark.parametrize("dtype", ["f32", "bf16"])
    def test_negative_strides(self, dtype):
        backwards = rl.tensor(np.arange(6.0), dtype=dtype)[::-1]
        for copy in (None, False):
            with pytest.raises(BufferError, match=r"negative strides; Tensor.torch\(\) and copy=True"):
                torch.from_dlpack(backwards, copy=copy)
        assert torch.from_dlpack(backwards, copy=True).tolist() == [5, 4, 3, 2, 1, 0]
        assert backwards.torch().tolist() == [5, 4, 3, 2, 1, 0]

    @pytest.mark.parametrize("dtype", ["f32", "bf16"])
    def test_read_only_memory_is_copied(self, dtype):
        x = rl.tensor(np.arange(6.0).reshape(2, 3), "ba", dtype)
        x.buffer.flags.writeable = False
        made = torch.from_dlpack(x)
        made[0] = 9
        assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert made.tolist() == [[9, 9, 9], [3, 4, 5]]
        if dtype == "f32":
            assert not np.from_dlpack(x).flags.writeable
            assert torch.utils.dlpack.from_dlpack(x.__dlpack__()).tolist() == x.tolist()
        with pytest.raises(BufferError, match=r"its memory is read-only; Tensor.torch\(\)"):
            torch.from_dlpack(x, copy=False)

    def test_a_mapped_file_may_be_written_to(self, tmp_path):
        code = """
            import numpy as np, torch
            import relayout as rl

            if __name__ == "__main__":
                np.save(PATH, np.arange(6.0))
                x = rl.tensor(np.load(PATH, mmap_mode="r"))
                v = torch.from_dlpack(x)
                v[0] = 9
                assert x.item(0) == 0
                print("done")
        """
        is_done(tmp_path, code.replace("PATH", repr(str(tmp_path / "x.npy"))))

    def test_copy_is_a_truth_value(self):
        x = rl.tensor([1.0])
        for call in (x.torch, x.numpy):
            with pytest.raises(rl.LayoutError, match="copy must be True, False or None, got str 'x'"):
                call(copy="x")


class TestWords:
    """What a caller wrote by mistake, and what to write instead."""

    @pytest.mark.parametrize(
        ("dtype", "words"),
        [
            ("bool", r"x.view\(torch.uint8\)"),
            ("complex64", r"torch.view_as_real\(x\)"),
            ("uint16", "have 8 bits or 4; convert it to a signed type"),
            ("uint64", "have 8 bits or 4; convert it to a signed type"),
            ("float8_e4m3fnuz", "its bits mean other numbers .* convert it"),
            ("float8_e8m0fnu", "exponents only"),
            ("qint8", r"x.int_repr\(\)"),
        ],
    )
    def test_data_types(self, dtype, words):
        with pytest.raises(rl.LayoutError, match=words) as caught:
            rl.dtype(getattr(torch, dtype))
        assert "did you mean" not in str(caught.value)

    def test_buffers(self):
        plan = copy_plan()
        for given, side, words in (
            ((None, torch.empty(DIMS)), "src", "NoneType is no contiguous buffer of bytes: give bytes"),
            (([1.0], torch.empty(DIMS)), "src", r"list is no .*rl.tensor\(x\)"),
            ((torch.empty(DIMS), 3), "dst", "int is no contiguous buffer"),
        ):
            with pytest.raises(rl.LayoutError, match=f"reorder: {side} is f32:nchw.*{words}") as caught:
                plan(*given)
            assert "memoryview" not in str(caught.value)

    def test_a_flat_copy_of_a_channels_last_tensor(self):
        nhwc = rl.MemoryDesc(DIMS, "f32", "nhwc")
        for count in (119, 121):
            with pytest.raises(rl.LayoutError, match=f"must have 480 bytes, and it has {4 * count}"):
                rl.Reorder(nhwc, DESC)(torch.zeros(count), torch.zeros(DIMS))
        part = rl.tensor(torch.zeros(4, 6)[:, :3]).desc
        rl.Reorder(part, part)(torch.zeros(24), torch.zeros(4, 6)[:, :3])  # a part of a longer buffer

    def test_out_is_named(self):
        for out in (torch.empty(DIMS), np.empty(DIMS), rl.tensor(torch.empty(DIMS))):
            with pytest.raises(rl.LayoutError, match=r"to fill it, name it: rl.reorder\(x, out=...\)"):
                rl.reorder(torch.ones(DIMS), out)

    def test_arguments_of_a_convolution(self):
        from relayout.primitives import Convolution

        src, weights = torch.rand(1, 6, 5, 5), torch.rand(4, 3, 2, 2)
        one, two = rl.tensor(src).desc, rl.tensor(weights).desc
        with pytest.raises(rl.LayoutError, match=r"src must be a MemoryDesc, not torch.*rl.tensor\(x\).desc"):
            Convolution(src, two)
        with pytest.raises(TypeError, match=r"Convolution has no argument 'stride'; did you mean 'strides'?"):
            Convolution(one, two, stride=2)
        assert list(inspect.signature(Convolution).parameters)[:4] == ["src", "weights", "bias", "dst"]
        with pytest.raises(rl.LayoutError) as caught:
            Convolution(one, two)
        weights = eval(str(caught.value).partition("goihw: ")[2])
        made = Convolution(one, rl.tensor(weights).desc)(src, weights).torch()
        expected = torch.nn.functional.conv2d(src, weights.flatten(0, 1), groups=2)
        torch.testing.assert_close(made, expected)
