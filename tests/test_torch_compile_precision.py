"""``relayout.torch.compile(model, precision="bf16")``: products in the narrower type, the rest as it was."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import relayout as rl  # noqa: E402
from test_torch_compile import NETWORKS, _fresh, agree, image, resnet  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore::DeprecationWarning")

CLOSE = {"bf16": 0.05, "f16": 0.01}  # of the largest result


@pytest.mark.parametrize("precision", ["bf16", "f16"])
@pytest.mark.parametrize("name", ["resnet", "unet", "attention"])
def test_networks_agree_with_eager(name: str, precision: str) -> None:
    build, dims = NETWORKS[name]
    model, x = build(), image(*dims)
    made = rl.torch.compile(model, precision=precision)
    real = rl.torch.compile(model)
    with torch.inference_mode():
        wanted = model(x)
        agree(made(x), wanted, CLOSE[precision])
        agree(real(x), wanted)
        assert not torch.equal(made(x), real(x))


def test_it_is_an_option_of_pytorchs_function() -> None:
    model, x = resnet(), image(2, 3, 32, 32)
    made = torch.compile(model, backend="relayout", options={"precision": "bf16"})
    same = rl.torch.compile(model, precision="bf16")
    with torch.inference_mode():
        found, wanted = made(x), same(x)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("precision", [None, "f32"])
def test_f32_is_what_a_model_has(precision: str | None) -> None:
    model, x = resnet(), image(2, 3, 32, 32)
    made, real = rl.torch.compile(model, precision=precision), rl.torch.compile(model)
    with torch.inference_mode():
        assert torch.equal(made(x), real(x))


def test_gradients_are_those_of_the_models_own_types() -> None:
    model, x = resnet(), image(2, 3, 32, 32)
    found = []
    for precision in ("bf16", None):
        model.zero_grad()
        y = rl.torch.compile(model, precision=precision)(x)
        y.square().mean().backward()
        found.append([y.detach(), *(one.grad.clone() for one in model.parameters())])
        torch._dynamo.reset()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_other_precisions_are_refused() -> None:
    with pytest.raises(rl.LayoutError, match="precision 'int8' is none of f32, bf16, f16"):
        rl.torch.compile(resnet(), precision="int8")


@pytest.mark.parametrize("precision", ["bf16", "f16"])
@pytest.mark.parametrize("least", [torch.finfo(torch.float32).min, -torch.inf])
def test_rows_of_which_all_is_masked(precision: str, least: float) -> None:
    """A mask of the least number of f32 has none that is finite in bf16; its softmax is still no NaN."""

    def network(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask) @ v

    def plain(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return (q @ k.mT / 4 + mask).softmax(-1) @ v @ v

    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, 4, 16, 16, generator=generator) for _ in range(3)]
    mask = torch.zeros(2, 1, 16, 16)
    mask[:, :, 3] = least
    mask[:, :, 5, 7:] = least
    with torch.inference_mode():
        for function in (network, plain) if least > -torch.inf else (network,):
            made = rl.torch.compile(function, precision=precision)
            agree(made(*given, mask), function(*given, mask), CLOSE[precision])
            assert not made.explain().left
