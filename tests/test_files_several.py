"""Files of several arrays: listed, written one by one, converted by name; nothing in them is lost."""

from __future__ import annotations

import json
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from processes import is_done
from relayout import files
from strategies import examples
from test_files import counting, made, mutations

SEVERAL = (".npz", ".safetensors")
CONV = counting((20, 18, 3, 3))
BIAS = counting((20,))


def checkpoint(path, **others):
    """Weights and biases of two layers."""
    for k in (1, 2):
        files.write(path, rl.tensor(CONV + k), name=f"layer{k}.weight", force=True)
        files.write(path, rl.tensor(BIAS + k), name=f"layer{k}.bias", force=True)
    for name, tensor in others.items():
        files.write(path, tensor, name=name, force=True)
    return path


def names(path):
    return [array.name for array in files.info(path).arrays]


def content(path):
    """All arrays, by name, as logical arrays of f64."""
    return {name: files.read(path, name=name).numpy().astype(np.float64) for name in names(path)}


@pytest.fixture(params=SEVERAL)
def several(request, tmp_path):
    return checkpoint(tmp_path / f"in{request.param}", packed=made((1, 17, 2, 2), "nChw8c"))


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


class TestTheOthersStay:
    def test_one_is_replaced(self, several):
        before = content(several)
        files.write(several, rl.tensor(BIAS * 3), name="layer1.bias", force=True)
        after = content(several)
        assert sorted(after) == sorted(before)
        assert np.array_equal(after.pop("layer1.bias"), BIAS * 3)
        assert all(np.array_equal(array, before[name]) for name, array in after.items())
        assert files.info(several).arrays[names(several).index("packed")].format == "nChw8c"

    def test_the_descriptor_of_one_that_is_replaced_goes(self, several):
        files.write(several, rl.tensor(BIAS), name="packed", force=True)
        assert np.array_equal(files.read(several, name="packed").numpy(), BIAS)

    def test_without_a_name_nothing_is_guessed(self, several):
        before = several.read_bytes()
        with pytest.raises(rl.LayoutError, match=r"holds 5 arrays: .* stays; say which one"):
            files.write(several, rl.tensor(BIAS), force=True)
        with pytest.raises(FileExistsError):
            files.write(several, rl.tensor(BIAS), name="new")
        assert several.read_bytes() == before

    def test_unless_the_caller_says_so(self, several):
        files.write(several, rl.tensor(BIAS), name="b", force=True, only=True)
        assert names(several) == ["b"]

    def test_a_damaged_file_is_replaced_only_then(self, several):
        several.write_bytes(several.read_bytes()[:-50])
        with pytest.raises(rl.LayoutError, match="nothing else"):
            files.write(several, rl.tensor(BIAS), name="b", force=True)
        files.write(several, rl.tensor(BIAS), name="b", force=True, only=True)
        assert names(several) == ["b"]

    def test_an_empty_file_has_nothing_to_lose(self, tmp_path):
        for suffix in SEVERAL:
            (tmp_path / f"x{suffix}").touch()
            files.write(tmp_path / f"x{suffix}", rl.tensor(BIAS), force=True)
            assert np.array_equal(files.read(tmp_path / f"x{suffix}").numpy(), BIAS)

    def test_what_is_no_array_stays_too(self, tmp_path):
        path = tmp_path / "x.npz"
        np.savez_compressed(path, a=np.array([{}], object), b=np.arange(3), c=np.array(["text"]))
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("readme.txt", "hello")
        files.write(path, rl.tensor(BIAS), name="b", force=True)
        with zipfile.ZipFile(path) as archive:
            assert archive.read("readme.txt") == b"hello"
        with np.load(path, allow_pickle=True) as archive:
            assert archive["a"].tolist() == [{}]
            assert archive["c"].tolist() == ["text"]
            assert np.array_equal(archive["b"], BIAS)

    def test_metadata_and_types_that_are_not_ours_stay(self, tmp_path):
        torch, numpy = (pytest.importorskip(name) for name in ("torch", "safetensors.torch"))
        path = tmp_path / "x.safetensors"
        tensors = {"mask": torch.tensor([True, False]), "w": torch.ones(3), "z": torch.ones(2) * 1j}
        numpy.save_file(tensors, path, metadata={"format": "pt"})
        files.write(path, rl.tensor(BIAS), name="w", force=True)
        assert files.info(path).metadata == {"format": "pt"}
        back = numpy.load_file(path)
        assert torch.equal(back["mask"], tensors["mask"])
        assert torch.equal(back["z"], tensors["z"])
        assert np.array_equal(back["w"].numpy(), BIAS)

    @pytest.mark.parametrize("name", ["\udcff", "a\0b", ""])
    def test_names_that_an_archive_cannot_hold(self, tmp_path, name):
        if name:
            with pytest.raises(rl.LayoutError, match="can't be called"):
                files.write(tmp_path / "x.npz", rl.tensor(BIAS), name=name)
        assert list(tmp_path.iterdir()) == []


class TestConvertArrays:
    @pytest.mark.parametrize("suffix", SEVERAL)
    def test_by_pattern(self, several, tmp_path, suffix):
        out = tmp_path / f"out{suffix}"
        done = []
        found = files.convert_arrays(
            several, out, "OIhw4i16o4i", names=["layer*.weight"], src_format="oihw", dtype="f16",
            progress=lambda *now: done.append(now),
        )  # fmt: skip
        assert [array.format for array in found.arrays if array.name.endswith("weight")] == [
            "OIhw4i16o4i"
        ] * 2
        assert {array.name: array.dtype for array in found.arrays} == {
            **dict.fromkeys(names(several), "f32"), "layer1.weight": "f16", "layer2.weight": "f16",
        }  # fmt: skip
        before, after = content(several), content(out)
        assert sorted(before) == sorted(after)
        assert all(np.array_equal(before[name], after[name]) for name in before)
        assert done[-1][0] == done[-1][1] >= 2 * CONV.size
        assert [now for now, _ in done] == sorted(now for now, _ in done)

    def test_the_order_of_the_file(self, tmp_path):
        source = checkpoint(tmp_path / "in.safetensors")
        found = files.convert_arrays(source, tmp_path / "o.safetensors", dtype="f64", names=["*.bias"])
        assert [array.name for array in found.arrays] == names(source)

    def test_only(self, several, tmp_path):
        out = checkpoint(tmp_path / "out.safetensors")
        files.convert_arrays(several, out, names=["layer1.*"], dtype="f64", only=True, force=True)
        assert sorted(names(out)) == ["layer1.bias", "layer1.weight"]

    def test_onto_itself(self, several):
        before = content(several)
        files.convert_arrays(several, several, dtype="f64", names=["*.weight"], force=True)
        after = content(several)
        assert all(np.array_equal(before[name], after[name]) for name in before)
        assert {a.name for a in files.info(several).arrays if a.dtype == "f64"} == {
            "layer1.weight", "layer2.weight",
        }  # fmt: skip

    def test_arrays_that_the_destination_has_stay(self, several, tmp_path):
        out = tmp_path / f"out{several.suffix}"
        files.write(out, rl.tensor(BIAS), name="own")
        files.convert_arrays(several, out, force=True)
        assert sorted(names(out)) == sorted(["own", *names(several)])

    def test_another_kind_of_file_and_nothing_else(self, several, tmp_path):
        other = tmp_path / ("o.npz" if several.suffix == ".safetensors" else "o.safetensors")
        files.convert_arrays(several, other)
        before, after = content(several), content(other)
        assert all(np.array_equal(before[name], after[name]) for name in before)

    def test_fortran_order_and_foreign_types(self, tmp_path):
        safe = pytest.importorskip("safetensors.numpy")
        arrays = {
            "fortran": np.asfortranarray(CONV),
            "mask": np.asfortranarray(CONV[0, 0] > 3),
            "ids": np.arange(5, dtype=np.uint32),
            "half": np.arange(5, dtype=np.float16),
        }
        np.savez(tmp_path / "in.npz", **arrays)
        files.convert_arrays(tmp_path / "in.npz", tmp_path / "o.safetensors")
        back = safe.load_file(tmp_path / "o.safetensors")
        assert all(np.array_equal(back[n], arrays[n]) and back[n].dtype == arrays[n].dtype for n in arrays)
        files.convert_arrays(tmp_path / "o.safetensors", tmp_path / "o.npz")
        with np.load(tmp_path / "o.npz") as archive:
            assert all(np.array_equal(archive[name], arrays[name]) for name in arrays)

    def test_types_without_a_name_there(self, tmp_path):
        np.savez(tmp_path / "in.npz", a=np.arange(3), text=np.array(["x"]))
        with pytest.raises(rl.Unsupported, match=r"in.npz: text holds .*no name; leave it out"):
            files.convert_arrays(tmp_path / "in.npz", tmp_path / "o.safetensors")
        source = checkpoint(tmp_path / "in.safetensors", bf=made((3,), "a", "bf16"))
        with pytest.raises(rl.Unsupported, match=r"bf holds bf16, .*--dtype.*safetensors"):
            files.convert_arrays(source, tmp_path / "o.npz")
        files.convert_arrays(source, tmp_path / "o.npz", names=["bf"], dtype="f32")
        assert files.info(tmp_path / "o.npz").nbytes == files.info(source).nbytes + 6

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ({"names": ["layer9*"]}, r"no array matches 'layer9\*'; it holds 5 arrays"),
            ({"names": ["layer1.wieght"]}, r"did you mean layer1.weight\?"),
            ({"dtype": "f16"}, r"name those to convert"),
            ({"names": ["*"], "format": "OIhw16i16o"}, r"layer1.weight.*nothing says what its axes mean"),
            (
                {"names": ["*"], "format": "OIhw16i16o", "src_format": "oihw"},
                r"packed .*contradicts|layer1.bias",
            ),
            ({"names": ["packed"], "format": "any"}, r"packed: .*has a layout"),
        ],
    )
    def test_refusals_write_nothing(self, several, tmp_path, words, message):
        with pytest.raises(rl.LayoutError, match=message):
            files.convert_arrays(several, tmp_path / "out.npz", **words)
        assert list(tmp_path.iterdir()) == [several]

    def test_files_of_one_array(self, several, tmp_path):
        with pytest.raises(rl.LayoutError, match="can hold one array only"):
            files.convert_arrays(several, tmp_path / "o.npy", names=["*"])

    @pytest.mark.turns(2)
    @pytest.mark.parametrize("suffix", SEVERAL)
    def test_memory_stays_bounded(self, tmp_path, suffix):
        """Two arrays of 96 MiB, one converted and one copied."""
        if not sys.platform.startswith("linux"):
            pytest.skip("ru_maxrss means other things elsewhere")
        is_done(
            tmp_path,
            f"""
            import resource, pathlib, sys
            import numpy as np, relayout as rl
            from relayout import files
            folder = pathlib.Path({str(tmp_path)!r})
            source = folder / "in{suffix}"
            desc = rl.MemoryDesc((24, 64, 128, 128), "f32", "abcd")
            for name in "xy":
                with files.create(source, desc, name=name, force=True):
                    pass
            most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            base = most()
            files.convert_arrays(source, folder / "out{suffix}", "acdb", names=["x"])
            assert most() - base < 80, most() - base
            print("done")
            """,
        )


class TestNumPyCannotSay:
    @pytest.mark.parametrize("suffix", [".npy", ".npz"])
    @pytest.mark.parametrize("dtype", ["bf16", "f8_e4m3", "f8_e5m2", "s4"])
    def test_refused_unless_told(self, tmp_path, suffix, dtype):
        source, out = tmp_path / "x.safetensors", tmp_path / f"out{suffix}"
        files.write(source, made((4, 6), "ab", dtype))
        with pytest.raises(rl.LayoutError, match=rf"can't say {dtype}, .*--dtype f32.*safetensors"):
            files.convert(source, out)
        assert not out.exists()
        files.convert(source, out, dtype=dtype)
        assert np.array_equal(files.read(out).numpy(), files.read(source).numpy())
        files.convert(source, out, dtype="f32", force=True)
        loaded = np.load(out)
        assert (loaded if suffix == ".npy" else loaded["arr_0"]).dtype == np.float32

    def test_what_it_can_say(self, tmp_path):
        files.write(tmp_path / "x.safetensors", made((4, 6), "ab", "s8"))
        files.convert(tmp_path / "x.safetensors", tmp_path / "x.npy")
        assert np.load(tmp_path / "x.npy").dtype == np.int8


class TestInfo:
    def test_every_kind(self, tmp_path):
        tensor = made((1, 17, 2, 2), "nChw8c")
        for suffix in (".npy", ".npz", ".safetensors", ".bin"):
            path = tmp_path / f"x{suffix}"
            files.write(path, tensor)
            found = files.info(path)
            (array,) = found.arrays
            assert (array.dtype, array.dims, array.format, array.nbytes) == (
                "f32", (1, 17, 2, 2), "nChw8c", 384,
            )  # fmt: skip
            assert found.nbytes == 384
            assert json.loads(json.dumps(found.to_json()))["arrays"][0]["dims"] == [1, 17, 2, 2]
        found = files.info(tmp_path / "x.bin.layout.json")
        assert (found.kind, found.arrays[0].name, found.arrays[0].desc) == (
            "descriptor",
            "x.bin",
            tensor.desc,
        )

    def test_without_descriptors(self, tmp_path):
        np.savez(tmp_path / "x.npz", a=CONV, mask=CONV > 3)
        one, two = files.info(tmp_path / "x.npz").arrays
        assert (one.name, one.dtype, one.dims, one.format, one.desc) == ("a", "f32", CONV.shape, None, None)
        assert (two.dtype, two.nbytes) == ("BOOL", CONV.size)
        (tmp_path / "x.raw").write_bytes(bytes(7))
        assert files.info(tmp_path / "x.raw").arrays[0][:5] == ("", "bytes", (7,), None, 7)

    def test_pictures(self, tmp_path):
        pytest.importorskip("PIL")
        files.write(tmp_path / "x.png", made((1, 3, 4, 5), "nhwc", "u8"))
        assert files.info(tmp_path / "x.png").arrays[0][:5] == ("", "u8", (1, 3, 4, 5), "nhwc", 60)

    def test_nothing_is_unpacked(self, tmp_path, monkeypatch):
        np.savez_compressed(tmp_path / "x.npz", a=CONV)
        monkeypatch.setattr("relayout.files.npz._unpacked", pytest.fail)
        assert files.info(tmp_path / "x.npz").nbytes == CONV.nbytes

    def test_strides(self, tmp_path):
        files.write(tmp_path / "x.bin", rl.tensor(CONV)[:, 2:, ::2])
        (array,) = files.info(tmp_path / "x.bin").arrays
        assert array.dims == (20, 16, 2, 3)
        assert "strides" in array.to_json()["descriptor"]


class TestCheckpointsOfPyTorch:
    @pytest.fixture
    def path(self, torch, tmp_path):
        conv = torch.tensor(CONV)
        state = {
            "weight": conv,
            "last": conv.to(memory_format=torch.channels_last),
            "part": conv[2:5, ::2],
            "wide": torch.ones(1, 1).expand(3, 4),
            "bf": conv.bfloat16(),
            "f8": conv.to(torch.float8_e4m3fn),
            "mask": conv > 3,
            "none": torch.empty(0, 3),
            "one": torch.tensor(3.0),
        }
        torch.save({"model": state, "epoch": 3, "steps": [torch.arange(3), None]}, tmp_path / "x.pt")
        return tmp_path / "x.pt"

    def test_list(self, path):
        found = {array.name: array for array in files.info(path).arrays}
        assert list(found)[-1] == "steps.0"
        assert found["model.weight"][1:5] == ("f32", CONV.shape, None, CONV.nbytes)
        assert [found[f"model.{name}"].dtype for name in ("bf", "f8", "mask")] == ["bf16", "f8_e4m3", "BOOL"]

    @pytest.mark.parametrize("old", [False, True])
    def test_read(self, torch, path, old):
        if old:
            state = torch.load(path)
            del state["model"]["f8"]  # which the old form never had
            torch.save(state, path, _use_new_zipfile_serialization=False)
        for name in ("weight", "last", "bf", "f8")[: 3 if old else 4]:
            assert np.array_equal(files.read(path, name=f"model.{name}").numpy().astype(np.float32), CONV)
        assert np.array_equal(files.read(path, name="model.part").numpy(), CONV[2:5, ::2])
        assert np.array_equal(files.read(path, name="model.wide").numpy(), np.ones((3, 4)))
        assert files.read(path, name="model.none").dims == (0, 3)
        assert files.read(path, name="model.one").numpy() == 3
        assert files.read(path, "oihw", name="model.last").dims == CONV.shape

    def test_convert(self, path, tmp_path):
        load = pytest.importorskip("safetensors.torch").load_file
        out = tmp_path / "o.safetensors"
        files.convert_arrays(path, out, "OIhw16i16o", names=["model.[wl]*t"], src_format="oihw")
        back = load(out)
        for name in ("model.weight", "model.last"):
            assert np.array_equal(files.read(out, name=name).numpy(), CONV)
        assert np.array_equal(back["model.part"].numpy(), CONV[2:5, ::2])
        assert np.array_equal(back["model.wide"].numpy(), np.ones((3, 4)))
        assert np.array_equal(back["model.mask"].numpy(), CONV > 3)
        assert np.array_equal(back["model.f8"].float().numpy(), CONV)

    def test_not_written(self, tmp_path):
        with pytest.raises(rl.Unsupported, match="read only"):
            files.write(tmp_path / "x.pt", rl.tensor(BIAS))

    def test_code_is_not_run(self, torch, tmp_path):
        torch.save({"x": print}, tmp_path / "x.pt")
        with pytest.raises(rl.LayoutError, match="nothing but weights"):
            files.info(tmp_path / "x.pt")

    def test_lists_that_hold_each_other(self, torch, tmp_path):
        nested = [torch.ones(1)]
        for _ in range(28):
            nested = [nested, nested]
        torch.save(nested, tmp_path / "x.pt")
        with pytest.raises(rl.LayoutError, match="more than"):
            files.info(tmp_path / "x.pt")
        within = []
        within.append(within)
        torch.save(within, tmp_path / "x.pt")
        with pytest.raises(rl.LayoutError, match="containers within"):
            files.info(tmp_path / "x.pt")

    def test_sparse(self, torch, tmp_path):
        torch.save({"x": torch.ones(3, 3).to_sparse()}, tmp_path / "x.pt")
        with pytest.raises(rl.Unsupported, match="sparse"):
            files.info(tmp_path / "x.pt")

    def test_pytorch_is_not_installed(self, tmp_path, monkeypatch):
        (tmp_path / "x.pt").write_bytes(b"PK\3\4")
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(rl.Unsupported, match="pip install torch"):
            files.info(tmp_path / "x.pt")

    def test_named_as_raw_bytes(self, path, tmp_path):
        path.rename(tmp_path / "pytorch_model.bin")
        with pytest.raises(rl.LayoutError, match=r"name it \.pt"):
            files.read(tmp_path / "pytorch_model.bin")

    @examples(60)
    @given(damages=st.lists(mutations(), min_size=1, max_size=3), where=st.floats(0, 1))
    def test_damaged(self, torch, tmp_path_factory, damages, where):
        path = tmp_path_factory.mktemp("damaged") / "x.pt"
        torch.save({"w": torch.ones(2, 3), "b": [torch.zeros(4).bfloat16()]}, path)
        data = path.read_bytes()
        for damage in damages:
            data = damage(data)
        path.write_bytes(data)
        listed_or_refused(path)


def listed_or_refused(path):
    """Whatever lies there: a list whose arrays can be read, or one of two errors."""
    try:
        found = files.info(path)
        for array in found.arrays:
            if array.nbytes < 1 << 20:
                files.read(path, name=array.name or None).numpy(copy=True)
        json.dumps(found.to_json())
    except (rl.LayoutError, OSError):
        pass


@examples(200)
@given(data=st.data(), damages=st.lists(mutations(), min_size=1, max_size=3))
def test_damaged_files_are_listed_or_refused(tmp_path_factory, data, damages):
    folder = tmp_path_factory.mktemp("damaged")
    suffix = data.draw(st.sampled_from((".npy", ".npz", ".safetensors", ".bin", ".layout.json")))
    path = folder / f"x{suffix}"
    if suffix == ".layout.json":
        path.write_text(files.descriptor_to_text(rl.MemoryDesc((2, 3), "f32", "ba")))
    elif suffix in SEVERAL:
        checkpoint(path, packed=made((1, 17, 2, 2), "nChw8c"))
    else:
        files.write(path, made((1, 17, 2, 2), "nChw8c"))
    content = path.read_bytes()
    for damage in damages:
        content = damage(content)
    path.write_bytes(content)
    listed_or_refused(path)
    if suffix in SEVERAL:
        try:
            files.convert_arrays(path, folder / "out.npz", dtype="f32", names=["*weight"])
        except (rl.LayoutError, OSError):
            assert not (folder / "out.npz").exists()


def test_a_name_that_could_fool_a_terminal(tmp_path):
    files.write(tmp_path / "x.safetensors", rl.tensor(BIAS), name="\x1b[2J\nw")
    with pytest.raises(rl.LayoutError) as error:
        files.read(tmp_path / "x.safetensors", name="y")
    assert "\\x1b[2J\\nw" in str(error.value)
