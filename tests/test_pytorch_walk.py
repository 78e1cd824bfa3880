"""What a PyTorch user does first: pictures in the workers of a DataLoader, bf16, weights of a convolution."""

from __future__ import annotations

import numpy as np
import pytest

import relayout as rl
from processes import is_done

torch = pytest.importorskip("torch")

PICTURES = """
    import sys

    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    import relayout as rl

    HEIGHT, WIDTH = 20, 31
    MEAN, SPREAD = np.array([124, 116, 104]), np.array([58.4, 57.1, 57.4])
    HOW = dict(src_zero_point=(MEAN, 1), src_scale=(1 / SPREAD, 1))


    def pixels(k):
        "As a decoder gives them: height, width, colours."
        return np.random.default_rng(k).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


    def expected(k):
        return ((pixels(k) - MEAN) / SPREAD).transpose(2, 0, 1).astype(np.float32)


    class Pictures(Dataset):
        "Pictures as they come, and normalised one by one by a plan of the worker's own."

        plan = None

        def __len__(self):
            return 10

        def __getitem__(self, k):
            if self.plan is None:
                dims = (1, 3, HEIGHT, WIDTH)
                self.plan = rl.Reorder(rl.MemoryDesc(dims, "u8", "nhwc"),
                                       rl.MemoryDesc(dims, torch.float32, torch.channels_last), **HOW)
            picture = torch.from_numpy(pixels(k))
            out = torch.empty(1, 3, HEIGHT, WIDTH, memory_format=torch.channels_last)
            self.plan(picture, out)
            return picture, out


    def collate(several):
        "The same batch in three ways: pictures joined, normalised into PyTorch's memory, and into ours."
        pictures, normalised = zip(*several)
        batch = torch.stack(pictures).permute(0, 3, 1, 2)
        out = torch.empty(batch.shape, memory_format=torch.channels_last)
        rl.reorder(batch, out=out, **HOW)
        ours = rl.reorder(batch, torch.channels_last, dtype=torch.float32, **HOW)
        return torch.cat(normalised), out, ours.torch(copy=False)


    if __name__ == "__main__":
        method = METHOD
        collate([Pictures()[0], Pictures()[1]])  # kernels and threads before a fork
        loader = DataLoader(Pictures(), 4, num_workers=2, collate_fn=collate, multiprocessing_context=method)
        count = 0
        for ways in loader:
            for batch in ways:
                assert batch.is_contiguous(memory_format=torch.channels_last)
                for k, one in enumerate(batch):
                    np.testing.assert_allclose(one.numpy(), expected(count + k), rtol=1e-6, atol=1e-6)
            count += len(batch)
        assert count == 10
        print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pictures_in_the_workers_of_a_data_loader(tmp_path, method):
    is_done(tmp_path, PICTURES.replace("METHOD", repr(method)))


class TestBfloat16:
    def test_there_and_back(self):
        x = torch.randn(2, 19, 5, 7, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
        packed = rl.tensor(x, "nChw16c")
        assert (packed.dtype, packed.padding_is_zero()) == ("bf16", True)
        again = packed.reorder(torch.channels_last).torch(copy=False)
        assert again.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(again, x)

    def test_rounding_is_that_of_pytorch(self):
        bits = np.random.default_rng(2).integers(0, 1 << 32, 1 << 16, np.uint32)
        bits[:64] = 0x3F800000 + np.arange(64) * 0x4000  # halves between two bf16
        x = torch.from_numpy(bits.view(np.float32))
        x = x[~x.isnan()]
        ours = rl.tensor(x, dtype=torch.bfloat16).torch()
        assert torch.equal(ours.view(torch.int16), x.to(torch.bfloat16).view(torch.int16))
        back = rl.tensor(ours, dtype="f32").torch()
        assert torch.equal(back, ours.float())


class TestWeights:
    @pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
    def test_packed_and_back(self, memory_format):
        conv = torch.nn.Conv2d(20, 36, 3).to(memory_format=memory_format)
        before = conv.weight.detach().clone()
        packed = rl.tensor(conv.weight, "OIhw16i16o")
        assert packed.desc.padded_dims == (48, 32, 3, 3)
        assert packed.padding_is_zero()
        assert packed.item(35, 19, 2, 1) == before[35, 19, 2, 1].item()
        with torch.no_grad():
            conv.weight.zero_()
            rl.reorder(packed, out=conv.weight)
        assert torch.equal(conv.weight.detach(), before)
        assert conv.weight.requires_grad
        assert conv.weight.stride() == before.stride()
        made = torch.nn.Parameter(packed.torch())
        assert torch.equal(made.detach(), before)

    def test_a_convolution_with_them(self):
        from relayout.primitives import Convolution

        conv = torch.nn.Conv2d(20, 36, 3, padding=1)
        x = torch.randn(2, 20, 9, 9).to(memory_format=torch.channels_last)
        with torch.no_grad():
            expected = conv(x)
        ours = Convolution(
            src=rl.tensor(x).desc,
            weights=rl.MemoryDesc(conv.weight.shape, conv.weight.dtype, "OIhw16i16o"),
            dst=rl.MemoryDesc(expected.shape, torch.float32, torch.channels_last),
            bias=rl.tensor(conv.bias).desc,
            padding=1,
        )
        out = torch.empty(expected.shape, memory_format=torch.channels_last)
        ours(x, rl.tensor(conv.weight, ours.weights), conv.bias, out=out)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
