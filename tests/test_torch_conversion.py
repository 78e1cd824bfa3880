"""``relayout.torch.contiguous``, ``to`` and ``convert_model`` against PyTorch's own."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relayout as rl

torch = pytest.importorskip("torch")

from relayout.torch import contiguous, conversion, convert_model, moving, to  # noqa: E402
from relayout.torch.plain import is_plain  # noqa: E402
from strategies import tried  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit")

CONTIGUOUS, LAST, LAST_3D, PRESERVE = (
    torch.contiguous_format,
    torch.channels_last,
    torch.channels_last_3d,
    torch.preserve_format,
)
FORMATS = [CONTIGUOUS, LAST, LAST_3D]
WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MOVED = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64),
    *(torch.uint16, torch.uint32, torch.uint64),
]
PAIRS = [(given, asked) for given, several in moving.EXACT.items() for asked in several]

SAME_NANS = [
    *((torch.float64, torch.float32), (torch.float32, torch.float64), (torch.bfloat16, torch.float32)),
    *(pair for pair in PAIRS if not pair[0].is_floating_point),
]
"""The conversions in which PyTorch makes the same NaN of the same NaN, whichever of its kernels does it."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels do the first call already, and of any size."""
    monkeypatch.setattr(conversion, "LEAST", 0)
    monkeypatch.setattr(moving, "RENT", 0)
    moving.problem.cache_clear()
    yield
    moving.problem.cache_clear()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that kernels have done."""
    calls: list[str] = []
    made = moving.Problem.made

    def noted(self: Any, *args: Any) -> Any:
        calls.append("kernel")
        return made(self, *args)

    monkeypatch.setattr(moving.Problem, "made", noted)
    return calls


def patterns(dims: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    """Elements of any bits, infinities, subnormal numbers and NaNs with payload among them."""
    rng = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, dims, generator=rng).bool()
    width = torch.empty(0, dtype=dtype).element_size()
    words = torch.randint(0, 256, (*dims, width), generator=rng, dtype=torch.int64).to(torch.uint8)
    if width > 1 and words.numel():  # exponents of all ones, more often than by chance
        words[..., -1][torch.rand(dims, generator=rng) < 0.1] = 0x7F
        words[..., -2][torch.rand(dims, generator=rng) < 0.1] = 0xF0
    return words.view(dtype).reshape(dims)


def same_bits(got: Any, wanted: Any, any_nan: bool = False) -> None:
    """All that a tensor is, but for which memory it has."""
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    assert got.stride() == wanted.stride()
    assert got.storage_offset() == wanted.storage_offset() == 0
    if got.is_complex():
        got, wanted = torch.view_as_real(got), torch.view_as_real(wanted)
    width = WIDTHS[got.element_size()]
    differ = got.view(width) != wanted.view(width)
    if any_nan:
        differ &= ~(got.float().isnan() & wanted.float().isnan())
    assert not differ.any()


def attempt(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except (RuntimeError, TypeError) as error:
        return None, error


def either(mine: Callable[[], Any], theirs: Callable[[], Any], x: Any, any_nan: bool = False) -> None:
    """The same result, the same object, or the same error."""
    (got, error), (wanted, expected) = attempt(mine), attempt(theirs)
    assert (type(error), str(error)) == (type(expected), str(expected))
    if error is not None:
        return
    if wanted is x:
        assert got is x
    else:
        assert got is not x
        assert got.data_ptr() != x.data_ptr() or not x.numel()
        same_bits(got, wanted, any_nan)


@st.composite
def tensors(draw: st.DrawFn, dtypes: Any) -> Any:
    """Tensors as programs make them: slices, steps, transposes, broadcasts, odd strides of axes of size 1."""
    rank = draw(st.sampled_from([0, 1, 2, 3, 4, 4, 4, 4, 5, 5]))
    dims = tuple(draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 8, 17]), min_size=rank, max_size=rank)))
    x = patterns(dims, draw(dtypes), draw(st.integers(0, 9)))
    formats = [f for f, r in ((LAST, 4), (LAST_3D, 5)) if r == rank]
    if formats and draw(st.booleans()):
        x = x.contiguous(memory_format=formats[0])
    if rank and draw(st.booleans()):
        x = x.permute(draw(st.permutations(range(rank))))
    for axis in range(rank):
        what = draw(st.sampled_from(["", "", "", "slice", "step", "expand"]))
        if what == "slice" and x.shape[axis] > 1:
            x = x.narrow(axis, draw(st.integers(0, 1)), x.shape[axis] - 1)
        elif what == "step":
            x = x[(slice(None),) * axis + (slice(None, None, 2),)]
        elif what == "expand" and x.shape[axis] == 1:
            sizes = list(x.shape)
            sizes[axis] = draw(st.sampled_from([1, 3]))
            x = x.expand(sizes)
    ones = [axis for axis in range(x.dim()) if x.shape[axis] == 1]
    if ones and x.numel() and draw(st.booleans()):
        steps = list(x.stride())
        steps[draw(st.sampled_from(ones))] = draw(st.sampled_from([0, 1, 7, 1000]))
        x = x.as_strided(x.shape, steps, x.storage_offset())
    return x


@given(x=tensors(st.sampled_from(MOVED)), memory_format=st.sampled_from([*FORMATS, PRESERVE]))
@settings(deadline=None, max_examples=tried(150))
def test_contiguous_is_pytorchs(x: Any, memory_format: Any) -> None:
    either(
        lambda: contiguous(x, memory_format),
        lambda: x.contiguous(memory_format=memory_format),
        x,
    )


@given(
    x=tensors(st.sampled_from(MOVED)),
    memory_format=st.sampled_from([*FORMATS, PRESERVE, None]),
    copies=st.booleans(),
)
@settings(deadline=None, max_examples=tried(150))
def test_to_another_format_is_pytorchs(x: Any, memory_format: Any, copies: bool) -> None:
    either(
        lambda: to(x, memory_format=memory_format, copy=copies),
        lambda: x.to(memory_format=memory_format, copy=copies),
        x,
    )


@given(
    data=st.data(),
    pair=st.sampled_from(PAIRS),
    memory_format=st.sampled_from([*FORMATS, PRESERVE]),
    named=st.booleans(),
)
@settings(deadline=None, max_examples=tried(150))
def test_to_another_type_is_pytorchs(data: st.DataObject, pair: Any, memory_format: Any, named: bool) -> None:
    x = data.draw(tensors(st.just(pair[0])))
    args, options = ((), {"dtype": pair[1]}) if named else ((pair[1],), {})
    either(
        lambda: to(x, *args, memory_format=memory_format, **options),
        lambda: x.to(*args, memory_format=memory_format, **options),
        x,
        any_nan=pair not in SAME_NANS,
    )


def values(dtype: Any) -> Any:
    """Every value of up to 16 bits; of more bits those around ties, and any."""
    width = torch.empty(0, dtype=dtype).element_size()
    if width <= 2:
        return torch.arange(1 << 8 * width).to(WIDTHS[width]).view(dtype)
    if not dtype.is_floating_point:
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        powers = [(1 << k) + j for k in range(8 * width - 2) for j in (-1, 0, 1)]
        return torch.cat([torch.tensor([least, most, *powers]).to(dtype), patterns((40000,), dtype)])
    upper = torch.arange(1 << 16) << 16
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFF, 0x1000, 0x1001, 0x3000, 0xFFFF])
    single = (upper[:, None] + lower).flatten().to(torch.int32).view(torch.float32)
    if dtype == torch.float32:
        return single
    bits = single.double().view(torch.int64)
    return torch.cat([(bits + k).view(dtype) for k in (-1, 0, 1, 1 << 28)] + [patterns((40000,), dtype)])


@pytest.mark.parametrize(("given", "asked"), PAIRS)
def test_all_values_of_a_type_become_pytorchs(given: Any, asked: Any, kernels: list[str]) -> None:
    x = values(given)
    x = x[: x.numel() // 32 * 32].reshape(-1, 4, 2, 4)
    same_bits(to(x, asked), x.to(asked), any_nan=(given, asked) not in SAME_NANS)
    got, wanted = (call(x, asked, memory_format=LAST) for call in (to, torch.Tensor.to))
    same_bits(got, wanted, any_nan=(given, asked) not in SAME_NANS)
    assert kernels == ["kernel"] * 2


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (torch.float32, torch.int32),
        (torch.int32, torch.int8),
        (torch.float64, torch.bfloat16),
        (torch.float32, torch.float8_e4m3fn),
        (torch.float32, torch.bool),
        (torch.complex64, torch.complex128),
    ],
)
def test_conversions_with_other_rules_are_left_to_pytorch(given: Any, asked: Any, kernels: list[str]) -> None:
    x = (torch.arange(-60.0, 60).reshape(1, 2, 6, 10) * 37.77).to(given)
    same_bits(to(x, asked, memory_format=LAST), x.to(asked, memory_format=LAST))
    assert kernels == []


# -- what is not plain --------------------------------------------------------------------------------------

PICTURE = torch.rand(2, 3, 4, 5)


STRANGERS = {
    "complex, conjugated": lambda: torch.randn(2, 3, 4, 5, dtype=torch.complex64).conj(),
    "negated by a bit": lambda: torch.randn(2, 3, 4, 5, dtype=torch.complex64).conj().imag,
    "meta": lambda: PICTURE.to("meta"),
    "mkldnn": lambda: PICTURE.to_mkldnn(),
    "quantised": lambda: torch.quantize_per_tensor(PICTURE, 0.1, 3, torch.quint8),
    "zero tensor": lambda: torch._efficientzerotensor((2, 3, 4, 5)),
    "complex of 16 bytes": lambda: torch.randn(2, 3, 4, 5, dtype=torch.complex128),
}


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.filterwarnings("ignore")
def test_strangers_are_left_to_pytorch(name: str, kernels: list[str]) -> None:
    for mine, theirs in ((contiguous, torch.Tensor.contiguous), (to, torch.Tensor.to)):
        x = STRANGERS[name]()
        try:
            wanted = theirs(x, memory_format=LAST)
        except (RuntimeError, NotImplementedError) as error:
            with pytest.raises(type(error)):
                mine(x, memory_format=LAST)
            continue
        got = mine(x, memory_format=LAST)
        assert (got.layout, got.device, got.dtype) == (wanted.layout, wanted.device, wanted.dtype)
        assert (got.is_neg(), got.is_conj()) == (wanted.is_neg(), wanted.is_conj())
        if got.layout is torch.strided and got.device.type == "cpu":
            assert got.stride() == wanted.stride()
            assert torch.equal(*((y.dequantize() if y.is_quantized else y) for y in (got, wanted)))
    assert kernels == []


def test_sparse_tensors_get_pytorchs_answer(kernels: list[str]) -> None:
    x = PICTURE.to_sparse()
    assert to(x, torch.float64).to_dense().equal(PICTURE.double())
    assert kernels == []


class Wrapped(torch.Tensor):
    """A subclass that sees its calls."""


def test_subclasses_stay_what_they_are(kernels: list[str]) -> None:
    x = PICTURE.as_subclass(Wrapped)
    assert type(contiguous(x, LAST)) is type(x.contiguous(memory_format=LAST)) is Wrapped
    assert type(to(x, memory_format=LAST)) is Wrapped
    assert kernels == []


def test_inside_of_torch_func_conversions_are_pytorchs(kernels: list[str]) -> None:
    def each(x: Any) -> Any:
        assert not is_plain(x)
        return to(contiguous(x.mT), torch.float64) * 2

    assert torch.func.vmap(each)(PICTURE).equal(PICTURE.mT.double() * 2)
    gradient = torch.func.grad(lambda x: contiguous(x, LAST).pow(2).sum())(PICTURE)
    assert gradient.equal(2 * PICTURE)
    _, tangent = torch.func.jvp(lambda x: contiguous(x, LAST) * 3, (PICTURE,), (PICTURE,))
    assert tangent.equal(3 * PICTURE)
    assert kernels == []


def test_derivatives_that_are_carried_forward_are_not_lost() -> None:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        x = forward_ad.make_dual(PICTURE, PICTURE * 2)
        assert forward_ad.unpack_dual(contiguous(x, LAST)).tangent.equal(PICTURE * 2)


def test_modes_see_the_operators(kernels: list[str]) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watching():
        contiguous(PICTURE, LAST)
        to(PICTURE, torch.bfloat16)
    assert seen == ["aten.clone.default", "aten._to_copy.default"]
    assert kernels == []


def test_fake_tensors_stay_fake() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(contiguous(torch.empty(2, 3, 4, 5), LAST), FakeTensor)
        assert isinstance(contiguous(PICTURE, LAST), FakeTensor)


def test_traces_contain_the_conversion() -> None:
    traced = torch.jit.trace(lambda x: contiguous(x, LAST), PICTURE)
    assert traced(torch.ones(1, 2, 3, 4)).stride() == (24, 1, 8, 2)


@pytest.mark.parametrize("inference", [False, True])
def test_inference_tensors(inference: bool, kernels: list[str]) -> None:
    with torch.inference_mode():
        x = torch.rand(2, 3, 4, 5)
    with torch.inference_mode(inference):
        got, wanted = contiguous(x, LAST), x.contiguous(memory_format=LAST)
    same_bits(got, wanted)
    assert got.is_inference() == wanted.is_inference() == inference
    assert kernels == ["kernel"]


def test_freed_storages_are_left_to_pytorch(kernels: list[str]) -> None:
    x = torch.rand(2, 3, 4, 5)
    assert contiguous(x, LAST).equal(x)
    assert moving.converted(x[:0], torch.float32, LAST) is None
    assert kernels == ["kernel"]


def test_a_default_device_does_not_move_the_result() -> None:
    with torch.device("meta"):
        assert contiguous(PICTURE, LAST).device.type == "cpu"
    assert to(PICTURE, "cpu") is PICTURE
    assert to(PICTURE, torch.rand(1).double()).dtype is torch.float64
    assert to(PICTURE, "meta").device.type == "meta"


def test_bad_arguments_get_pytorchs_error() -> None:
    bad: list[Any] = [((), {"colour": 1}), ((), {"memory_format": 3})]
    for args, options in bad:
        with pytest.raises(TypeError) as wanted:
            PICTURE.to(*args, **options)
        with pytest.raises(TypeError) as got:
            to(PICTURE, *args, **options)
        assert str(got.value) == str(wanted.value)


def test_small_tensors_and_rare_problems_are_pytorchs(
    kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "LEAST", 1 << 15)
    monkeypatch.setattr(moving, "LOOK", 2 << 20)
    monkeypatch.setattr(moving, "RENT", 4 << 20)
    monkeypatch.setattr(moving, "at_hand", lambda *problem, **options: False)
    contiguous(torch.rand(1, 8, 8, 8), LAST)
    x = torch.rand(1, 16, 128, 128)  # a MiB
    for _ in range(4):
        contiguous(x, LAST)
    assert kernels == []
    assert contiguous(x, LAST).equal(x)
    assert kernels == ["kernel"]


def test_kernels_on_disk_are_used_earlier(tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "from relayout.torch import contiguous, moving\n"
        "made, calls = moving.Problem.made, []\n"
        "def noted(self, *args):\n"
        "    calls.append(turn)\n"
        "    return made(self, *args)\n"
        "moving.Problem.made = noted\n"
        "x = torch.rand(1, 16, 128, 128)\n"  # a MiB
        "for turn in range(70):\n"
        "    contiguous(x, torch.channels_last)\n"
        "print(calls[0])\n"
    )
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "RELAYOUT_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(int(done.stdout))
    assert found[0] == 64
    assert found[1] in (2, 64)  # where no kernels are kept


# -- autograd -----------------------------------------------------------------------------------------------


def loss(y: Any) -> Any:
    return (y.double() * torch.arange(120.0).reshape(2, 3, 4, 5)).sum()


@pytest.mark.parametrize(
    "convert",
    [
        lambda f, x: f.contiguous(x, memory_format=LAST),
        lambda f, x: f.to(x, torch.float16, memory_format=LAST),
        lambda f, x: f.to(x, torch.float64),
        lambda f, x: f.to(x, memory_format=LAST, copy=True),
    ],
)
@pytest.mark.parametrize("leaf", [True, False])
def test_gradients_are_pytorchs(convert: Any, leaf: bool, kernels: list[str]) -> None:
    import relayout.torch as mine

    results = []
    for functions in (mine, torch.Tensor):
        x = PICTURE.clone().requires_grad_()
        y = convert(functions, x if leaf else x * 2)
        assert y.requires_grad
        assert not y.is_leaf
        loss(y).backward()
        results.append((x.grad, y.detach()))
    (got, mine_out), (wanted, theirs_out) = results
    same_bits(got, wanted)
    same_bits(mine_out, theirs_out)
    assert kernels == ["kernel"]


def test_gradients_of_gradients() -> None:
    x = torch.rand(1, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: contiguous(x, LAST) ** 2, x)
    assert torch.autograd.gradgradcheck(lambda x: contiguous(x, LAST) ** 3, x)


def test_parameters(kernels: list[str]) -> None:
    p = torch.nn.Parameter(PICTURE.clone())
    y = contiguous(p, LAST)
    assert type(y) is torch.Tensor
    assert y.requires_grad
    assert contiguous(p) is p
    with torch.no_grad():
        assert not to(p, torch.float64).requires_grad
    assert kernels == ["kernel"] * 2


def test_results_have_a_version_of_their_own() -> None:
    x = PICTURE.clone().requires_grad_()
    y = contiguous(x, LAST)
    y.mul_(2)
    y.sum().backward()
    assert x.grad.equal(torch.full_like(PICTURE, 2))


# -- models -------------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.conv3 = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv3d(2, 4, 3)
        self.norm, self.linear = torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 4)
        self.register_buffer("grid", torch.rand(1, 2, 5, 5))
        self.shared = self.conv.weight


@pytest.mark.parametrize("memory_format", [LAST, LAST_3D, CONTIGUOUS])
def test_models_are_converted_in_place(memory_format: Any, kernels: list[str]) -> None:
    model = Model()
    if memory_format == CONTIGUOUS:
        model.conv.to(memory_format=LAST)
    before = dict(model.named_parameters())
    old = {name: x.clone() for name, x in model.state_dict().items()}
    assert convert_model(model, memory_format) is model
    assert {name: id(x) for name, x in model.named_parameters()} == {n: id(x) for n, x in before.items()}
    assert model.shared is model.conv.weight
    for name, x in model.state_dict().items():
        assert x.equal(old[name])
        fits = x.dim() in ((4, 5) if memory_format == CONTIGUOUS else (4,) if memory_format == LAST else (5,))
        assert not fits or x.is_contiguous(memory_format=memory_format), name
        assert fits or x.is_contiguous()
    assert kernels


def test_models_are_converted_as_pytorch_does() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4))
    wanted = copy.deepcopy(model).to(memory_format=LAST).state_dict()
    for name, x in convert_model(model).state_dict().items():
        assert x.equal(wanted[name])
        assert x.stride() == wanted[name].stride()


def test_no_model_is_an_error() -> None:
    with pytest.raises(TypeError, match="convert_model takes"):
        convert_model([])


# -- graphs -------------------------------------------------------------------------------------------------


def network(x: Any) -> Any:
    y = contiguous(x * 2, LAST)
    return to(y, torch.float64, memory_format=CONTIGUOUS) + 1, to(y, memory_format=LAST), contiguous(x)


@pytest.mark.filterwarnings("ignore")  # of what the check itself does
def test_the_operator_keeps_all_promises() -> None:
    for dtype, memory_format in [
        (torch.float32, LAST),
        (torch.float64, PRESERVE),
        (torch.float16, CONTIGUOUS),
    ]:
        x = torch.rand(2, 3, 4, 5).transpose(1, 2).requires_grad_()
        torch.library.opcheck(torch.ops.relayout.convert.default, (x, dtype, memory_format))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_graphs_contain_the_operator(dynamic: bool) -> None:
    torch._dynamo.reset()
    names: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        names.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    compiled = torch.compile(network, backend=backend, dynamic=dynamic, fullgraph=True)
    for dims in ((2, 3, 4, 5), (3, 4, 5, 6)):
        x = torch.rand(dims)
        for got, wanted in zip(compiled(x), network(x), strict=True):
            same_bits(got, wanted)
    assert names.count("relayout.convert.default") % 2 == 0
    assert "relayout.convert.default" in names


@pytest.mark.filterwarnings("ignore")
def test_compiled_graphs_have_gradients() -> None:
    torch._dynamo.reset()
    x = torch.rand(2, 3, 4, 5, requires_grad=True)
    compiled = torch.compile(lambda x: contiguous(x * x, LAST).sum(), backend="aot_eager", fullgraph=True)
    compiled(x).backward()
    assert x.grad.equal(2 * x.detach())


@pytest.mark.filterwarnings("ignore")
def test_exported_programs_contain_the_operator() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return contiguous(x, LAST) + 1

    program = torch.export.export(Net(), (PICTURE,))
    assert "relayout.convert" in str(program.graph)
    assert program.module()(PICTURE).equal(PICTURE + 1)
    (got,) = rl.load(program).compile()(PICTURE.numpy())
    assert torch.as_tensor(got).equal(PICTURE + 1)


@pytest.mark.parametrize("memory_format", [PRESERVE, CONTIGUOUS, LAST])
def test_the_operator_under_vmap(memory_format: Any) -> None:
    several = torch.rand(2, 3, 4, 5, 6)
    each = torch.vmap(lambda x: torch.ops.relayout.convert(x, torch.float64, memory_format), in_dims=2)
    got = each(several)
    assert got.equal(several.double().movedim(2, 0))
    assert memory_format != LAST or got[0].is_contiguous(memory_format=LAST)


def test_profilers_see_conversions() -> None:
    contiguous(PICTURE, LAST)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        contiguous(PICTURE, LAST)
    assert "relayout::convert" in {event.key for event in seen.key_averages()}
