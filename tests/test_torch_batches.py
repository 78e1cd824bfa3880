"""``relayout.torch.Collate`` against PyTorch's operations, its ``default_collate`` and its ``DataLoader``."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relayout as rl

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset, default_collate  # noqa: E402

from relayout.torch import Collate, batches, memory  # noqa: E402
from strategies import tried  # noqa: E402

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FORMATS = [torch.channels_last, torch.contiguous_format]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def exactly(pictures: Any, mean: Any, std: Any, dtype: Any, memory_format: Any) -> Any:
    """What is promised: computed in f64, and rounded once."""
    x = torch.as_tensor(np.stack([np.asarray(one) for one in pictures])).permute(0, 3, 1, 2).double()
    factor, less = ((values / np.asarray(std)) * np.ones(x.shape[1]) for values in (1 / 255, np.array(mean)))
    x = x * torch.from_numpy(factor).reshape(-1, 1, 1) - torch.from_numpy(less).reshape(-1, 1, 1)
    x = x.contiguous()
    if dtype in (torch.float64, torch.float32):
        x = x.to(dtype)
    else:
        kind = rl.dtype(dtype)
        x = rl.tensor(rl.convert.convert(x.numpy(), kind)).torch()
    return x.contiguous(memory_format=memory_format).clone(memory_format=memory_format)


def alike(got: Any, wanted: Any) -> None:
    assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
    assert torch.equal(got, wanted)


@given(data=st.data(), dtype=st.sampled_from(DTYPES), memory_format=st.sampled_from(FORMATS))
@settings(deadline=None, max_examples=tried(60))
def test_batches_are_what_is_promised(data: st.DataObject, dtype: Any, memory_format: Any) -> None:
    many, height, width = (data.draw(st.integers(1, top)) for top in (4, 9, 40))
    channels = data.draw(st.integers(1, 4))
    each = st.lists(st.floats(0.01, 2), min_size=channels, max_size=channels)
    mean, std = data.draw(each | st.floats(-1, 1)), data.draw(each | st.floats(0.1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    pictures: Any = list(rng.integers(0, 256, (many, height, width, channels), dtype=np.uint8))
    if data.draw(st.booleans()):
        pictures = [torch.from_numpy(one) for one in pictures]
    got = Collate(mean, std, dtype=dtype, memory_format=memory_format)(pictures)
    alike(got, exactly(pictures, mean, std, dtype, memory_format))


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 224])
def test_all_bytes(dtype: Any, memory_format: Any, size: int) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (size, size, 3), dtype=np.uint8) for _ in range(3)]
    got = Collate(MEAN, STD, dtype=dtype, memory_format=memory_format)(pictures)
    alike(got, exactly(pictures, MEAN, STD, dtype, memory_format))
    x = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    usual = (x.float() / 255 - mean) / std
    if dtype.itemsize < 4:
        torch.testing.assert_close(got, usual.to(dtype), check_stride=False)
    else:
        assert (got - usual).abs().max() < 1e-6


def test_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randint(0, 256, (3, 5, 7, 3), dtype=torch.uint8)
    collate = Collate(MEAN, STD)
    for given_ in (x, x.numpy(), x.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)):
        alike(collate(given_), collate(list(x)))
    assert collate(x[:0]).shape == (0, 3, 5, 7)
    wanted = collate(x)
    batches._plan.cache_clear()
    monkeypatch.setattr(batches.Conversion, "between", lambda *args, **options: False)
    alike(collate(x), wanted)


@pytest.mark.parametrize("stacked", [0, 1 << 30])
def test_crops_flips_and_read_only_pictures(stacked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "STACKED", stacked)
    whole = np.random.default_rng(1).integers(0, 256, (50, 60, 3), dtype=np.uint8)
    pictures = [whole[:20, :30], whole[20:40, 7:37], whole[19::-1, 29::-1], whole[:40:2, :60:2].copy()]
    pictures[3].flags.writeable = False
    alike(Collate(MEAN, STD)(pictures), exactly(pictures, MEAN, STD, torch.float32, torch.channels_last))
    tensors = [torch.from_numpy(one) for one in pictures[:2]]
    alike(Collate(MEAN, STD)(tensors), Collate(MEAN, STD)(pictures)[:2].clone())


def test_images_of_pillow() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (3, 20, 30, 3), dtype=np.uint8)
    got = Collate(MEAN, STD)([(image.fromarray(one), 1) for one in pixels])[0]
    alike(got, Collate(MEAN, STD)(pixels))


@pytest.mark.parametrize("size", [8, 100])
def test_arrays_and_tensors_in_one_batch(size: int) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (3, size, size, 3), dtype=np.uint8)
    alike(Collate(MEAN, STD)([pixels[0], torch.from_numpy(pixels[1]), pixels[2]]), Collate(MEAN, STD)(pixels))
    with pytest.raises(rl.LayoutError, match="number 1 is Tensor of float32"):
        Collate(MEAN, STD)([pixels[0], torch.from_numpy(pixels[1]).float()])


class Sample(NamedTuple):
    picture: Any
    label: int


NESTS: Any = {
    "tuple": lambda x, k: (x, k),
    "list": lambda x, k: [x, float(k), "name"],
    "dictionary": lambda x, k: {"x": x, "box": torch.tensor([k, 1.5]), "more": {"mask": x[..., 0], "k": k}},
    "named tuple": lambda x, k: Sample(x, k),
    "deep": lambda x, k: ((x, [x, (k, np.float32(k))]), {"y": np.ones(3) * k}),
}


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("arrays", [False, True])
def test_everything_else_is_collated_as_pytorch_does(name: str, arrays: bool) -> None:
    pictures: Any = torch.randint(0, 256, (4, 6, 8, 3), dtype=torch.uint8)
    if arrays:
        pictures = pictures.numpy()
    collate = Collate(MEAN, STD)
    samples = [NESTS[name](one, k) for k, one in enumerate(pictures)]

    def same(got: Any, wanted: Any) -> None:
        assert type(got) is type(wanted)
        if isinstance(got, torch.Tensor):
            if wanted.dtype == torch.uint8 and wanted.dim() == 4:
                alike(got, collate(wanted))
            else:
                alike(got, wanted)
        elif isinstance(got, dict):
            assert got.keys() == wanted.keys()
            for key in got:
                same(got[key], wanted[key])
        elif isinstance(got, (list, tuple)):
            assert len(got) == len(wanted)
            for one, two in zip(got, wanted, strict=True):
                same(one, two)
        else:
            assert got == wanted

    same(collate(samples), default_collate(samples))


def test_objects_are_pickled_and_printed() -> None:
    collate = Collate(MEAN, np.array(STD), dtype=torch.bfloat16)
    assert repr(pickle.loads(pickle.dumps(collate))) == repr(copy.copy(collate)) == repr(collate)
    assert "std=[0.229, 0.224, 0.225], dtype=torch.bfloat16" in repr(collate)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mean": "half"}, "mean is a number, or one for each channel; got"),
        ({"mean": [0.5, float("nan")]}, "must be finite"),
        ({"mean": []}, "mean is a number"),
        ({"std": [1, 0, 1]}, "by which nothing can be divided"),
        ({"mean": [1, 2, 3], "std": [1, 2]}, "mean has 3 values and std 2"),
        ({"scale": [1, 2]}, "scale is a number; got"),
        ({"dtype": torch.int8}, "batches are of torch.float32"),
        ({"memory_format": torch.channels_last_3d}, "batches are in torch.channels_last or"),
    ],
)
def test_bad_parameters(arguments: Any, message: str) -> None:
    with pytest.raises(rl.LayoutError, match=message):
        Collate(**arguments)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            [torch.zeros(3, 4, 5, dtype=torch.uint8)],
            "no sample has a picture: .* 3; there are Tensor of uint8, 3x4x5",
        ),
        ([(1, 2)], "no sample has a picture"),
        ([], "a batch is made of one sample or more, got none"),
        ([np.zeros((4, 5, 3), np.float32)], "there are ndarray of float32, 4x5x3"),
        (np.zeros((1, 4, 5, 4), np.uint8), "ndarray of uint8, 1x4x5x4 is no batch of pictures"),
        (
            [np.zeros((4, 5, 3), np.uint8), np.zeros((4, 6, 3), np.uint8)],
            "number 1 is ndarray of uint8, 4x6x3",
        ),
        ([torch.zeros(4, 5, 3, dtype=torch.uint8, device="meta")], "one is on the device meta"),
    ],
)
def test_bad_samples(samples: Any, message: str) -> None:
    with pytest.raises(rl.LayoutError, match=message):
        Collate(MEAN, STD)(samples)


class Pictures(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return np.full((20, 30, 3), 25 * index, np.uint8), index


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore")
def test_workers(method: str) -> None:
    wanted = list(DataLoader(Pictures(), batch_size=4, collate_fn=Collate(MEAN, STD)))
    loader = DataLoader(
        Pictures(),
        batch_size=4,
        collate_fn=Collate(MEAN, STD),
        num_workers=2,
        multiprocessing_context=method,
    )
    for (x, labels), (y, expected) in zip(loader, wanted, strict=True):
        alike(x, y)
        assert labels.equal(expected)
        assert x.is_shared()


def test_batches_of_workers_are_made_in_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "get_worker_info", lambda: "a worker")
    for dtype in DTYPES:
        for memory_format in FORMATS:
            collate = Collate(MEAN, STD, dtype=dtype, memory_format=memory_format)
            pictures = [np.full((5, 6, 3), 7, np.uint8)] * 2
            monkeypatch.setattr(memory, "LARGE", 1)
            got = collate(pictures)
            assert got.is_shared()
            alike(got, exactly(pictures, MEAN, STD, dtype, memory_format))
