"""Small networks in PyTorch, one for each way of building that real ones have, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


class Function(nn.Module):
    """A function of layers and inputs as a module."""

    def __init__(self, function: Callable[..., Any], *layers: Any) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*self.layers, *inputs)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)

    def forward(self, x: Any) -> Any:
        return x * F.hardsigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class UNet(nn.Module):
    def __init__(self, up: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.last = up, nn.Conv2d(8, 2, 1)

    def forward(self, x: Any) -> Any:
        fine = F.relu(self.first(x))
        coarse = F.relu(self.second(F.max_pool2d(fine, 2)))
        return self.last(torch.cat([fine, self.up(coarse)], 1))


class Block(nn.Module):
    """A block of a vision transformer, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Any, mask: Any) -> Any:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        query, key, value = (
            self.qkv(self.norm(x)).reshape(len(x), -1, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        )
        made = F.scaled_dot_product_attention(query, key, value, mask)
        x = x + self.proj(made.transpose(1, 2).flatten(2))
        return (x + self.mlp(x))[:, 0]


def written(x: Any, i: Any, j: Any) -> Any:
    """Writes to parts of a tensor, of every kind."""
    copies = [x.clone() for _ in range(7)]
    copies[0][i] = 1.0
    copies[1][:, i, j] = x[:, 0, :2]
    copies[2][:, 1:3] = 0
    copies[3][x > 0] = -1
    copies[4][:, 1] = x[:, 2]
    copies[5][:, ::2] = 7
    copies[6][i, :, j] = x[:2, :, 0]
    at = i.view(1, 2, 1).expand(3, 2, 5)
    scattered = torch.zeros_like(x).scatter(1, at, x[:, :2]), torch.zeros_like(x).scatter_add(1, at, x)
    return (
        *copies,
        *scattered,
        x.index_put((i, j), x[0, 0], accumulate=True),
        x.masked_fill(x > 0, -torch.inf),
    )


def models() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Networks with their inputs."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, 16, 12)
    ints = torch.arange(-5, 7).reshape(3, 4), torch.tensor([1, -2, 3, 2])
    three = torch.randn(3, 4, 5)
    steps = torch.randn(3, 7, 5)
    rows = torch.tensor([0, 2])
    mask = torch.rand(2, 1, 6, 5) > 0.2
    mask[0, 0, 2] = False  # a query that sees nothing
    found = {
        "residual": (
            nn.Sequential(nn.Conv2d(3, 8, 3, 2), Residual(8), Squeeze(8),
                          nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.AvgPool2d(2), nn.Flatten(),
                          nn.Linear(8 * 2 * 1, 5), nn.Softmax(-1)),
            (images,),
        ),
        "unet, transposed convolutions": (UNet(nn.ConvTranspose2d(8, 4, 2, 2)), (images,)),
        "unet, bilinear": (
            UNet(nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(8, 4, 1))),
            (images,),
        ),
        "vit": (Block(), (torch.randn(2, 4, 16), torch.rand(2, 1, 1, 5) > 0.2)),
        "transformer encoder": (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2,
                                  enable_nested_tensor=False),
            (torch.randn(2, 6, 8),),
        ),
        "dcgan": (
            nn.Sequential(nn.ConvTranspose2d(6, 8, 4), nn.BatchNorm2d(8), nn.ReLU(),
                          nn.ConvTranspose2d(8, 3, 4, 2, 1, output_padding=1, groups=1), nn.Tanh()),
            (torch.randn(2, 6, 1, 1),),
        ),
        "text": (
            nn.Sequential(nn.Embedding(10, 6), nn.Dropout(), nn.Linear(6, 4, bias=False), nn.Linear(4, 3)),
            (torch.randint(0, 10, (2, 5)),),
        ),
        "norms": (
            nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.InstanceNorm2d(4),
                          nn.LayerNorm([6, 7]), nn.BatchNorm2d(4, track_running_stats=False), nn.RMSNorm(7),
                          nn.LayerNorm(7, elementwise_affine=False), nn.LocalResponseNorm(3)),
            (torch.randn(3, 4, 6, 7),),
        ),
        "convolutions": (
            Function(
                lambda one, three, same, x, y, z: (one(x), three(y), same(z), same(z[0])),
                nn.Conv1d(3, 4, 3, stride=2), nn.Conv3d(2, 4, (1, 3, 3), padding=(0, 1, 1)),
                nn.Conv2d(3, 4, (4, 3), padding="same", dilation=2),
            ),
            (torch.randn(3, 9), torch.randn(1, 2, 4, 5, 6), images),
        ),
        "pools": (
            Function(lambda x: (
                F.adaptive_avg_pool2d(x, (3, 5)), F.adaptive_max_pool2d(x, (2, 4)),
                F.adaptive_avg_pool2d(x, (None, 5)),
                F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
                F.avg_pool2d(x, 2, divisor_override=3), F.max_pool2d(x, 2, dilation=2),
                F.lp_pool2d(x.abs(), 2, 2),
                F.adaptive_avg_pool1d(x[0], 4), F.adaptive_avg_pool2d(x, (13, 22)), F.max_pool1d(x[0, 0], 3),
            )),
            (torch.randn(2, 4, 11, 11),),
        ),
        "resampling": (
            Function(lambda x: (
                F.interpolate(x, scale_factor=2), F.interpolate(x, size=(7, 9)),
                F.interpolate(x, size=(7, 9), mode="bilinear"),
                F.interpolate(x, scale_factor=1.5, mode="bilinear"),
                F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
                F.interpolate(x, size=(7, 9), mode="bicubic"),
                F.interpolate(x, size=(7, 9), mode="nearest-exact"),
                F.interpolate(x, size=(4, 3), mode="bilinear", antialias=True),
                F.interpolate(x, size=(13, 17), mode="bicubic", antialias=True),
                F.interpolate(x[0], scale_factor=2, mode="linear"), F.interpolate(x, scale_factor=1.4),
                F.grid_sample(x, torch.tanh(x[..., :2].transpose(1, 2)), align_corners=False),
                F.grid_sample(x, x[..., :2].transpose(1, 2), "nearest", "border", align_corners=True),
            )),
            (torch.randn(2, 3, 5, 6),),
        ),
        "padding and shuffling": (
            Function(lambda x: (
                F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2), F.channel_shuffle(x, 4),
                F.pixel_shuffle(x[0], 2),
                F.pad(x, (1, 2, -1, 3)), F.pad(x, (1, 2, 2, 1), "reflect"),
                F.pad(x, (1, 2, 1, 0), "replicate"),
                F.pad(x, (1, 2, 0, 1), "circular"), F.pad(x, (1, 0), value=3.5),
                F.unfold(x, 3, padding=1, stride=2), F.fold(F.unfold(x, 2, stride=2), (4, 6), 2, stride=2),
            )),
            (torch.randn(2, 8, 4, 6),),
        ),
        "activations": (
            Function(lambda x: (
                F.relu(x), F.relu6(x), F.elu(x), F.selu(x), F.celu(x, 0.7), F.gelu(x),
                F.gelu(x, approximate="tanh"),
                F.silu(x), F.mish(x), F.hardsigmoid(x), F.hardswish(x), F.hardtanh(x), F.leaky_relu(x, 0.2),
                F.softplus(x), F.softplus(x, beta=2), F.softplus(x, 2, 1), F.logsigmoid(x), F.softsign(x),
                F.hardshrink(x), F.softshrink(x), F.threshold(x, 0.1, 20), F.glu(x), F.log_softmax(x, 1),
                F.tanhshrink(x),
                F.prelu(x, torch.tensor([0.2, 0.3, 0.4])), F.softmin(x, 1), torch.sigmoid(x), torch.tanh(x),
            )),
            (torch.randn(4, 3, 6) * 3,),
        ),
        "arithmetic": (
            Function(lambda x, y: (
                x + y, x - 2 * y, x * 3, x / y, x // y, x % y, torch.fmod(x, y), x**2, x**0.5, 2**x,
                torch.rsqrt(x),
                torch.erf(x), torch.log1p(x), torch.expm1(x), torch.log2(x), torch.log10(x), torch.exp2(x),
                torch.round(x), torch.trunc(x * 5), torch.sign(y), torch.clamp(x, 0.2, 0.5),
                torch.clamp(x, min=y),
                torch.maximum(x, y), torch.lerp(x, y, 0.3), torch.addcmul(x, x, y, value=2), 1 - x,
                torch.sub(x, y, alpha=2), torch.square(x), torch.reciprocal(y), torch.erfc(x),
                torch.logaddexp(x, y), torch.floor(y), torch.ceil(y), torch.isnan(x / 0),
                torch.where(x > y, x, 0.5),
            )),
            (torch.rand(3, 4) + 0.1, torch.rand(4) + 0.2),
        ),
        "whole numbers": (
            Function(lambda x, y: (
                x + y, x * 2.5, x / y, x // y, x % y, x & y, x | y, x ^ y, ~x, x > y, x != 3, x == 2.0,
                (x > 2) & (y > 2), ~(x > 2), x.float().sqrt(), x.sum(), (x > 2).sum(-1), x.cumsum(0),
                torch.remainder(x, 3), torch.div(x, y, rounding_mode="trunc"), x.bool(), x.clamp(min=1),
                (x > 1) + (y > 2), (x > 1) * (y > 2), x.to(torch.int32) * 2, x.abs(), x.max(), -x,
                (x > 1).to(torch.float16) * 2, torch.where(x > 2, x, 0.5),
            )),
            ints,
        ),
        "reductions": (
            Function(lambda x: (
                x.mean(), x.sum(1), x.mean((0, 2), keepdim=True), x.amax(1), x.amin((0, 1)), x.max(1)[0],
                x.max(1)[1],
                x.min(2), x.argmax(), x.argmax(1, keepdim=True), x.argmin(0), x.std(), x.var(1),
                x.var(1, unbiased=False), torch.std_mean(x, 2), x.norm(), x.norm(1, dim=1),
                torch.linalg.vector_norm(x, 3, dim=1), x.prod(1), x.logsumexp(1), x.cumsum(2), (x > 0).any(1),
                (x > 0).all(), F.normalize(x, dim=1), x.topk(2, 1), x.sort(1, descending=True), x.argsort(-1),
                F.cosine_similarity(x, x + 1, dim=1),
            )),
            (three,),
        ),
        "shapes": (
            Function(lambda x: (
                x.view(3, -1), x.permute(2, 0, 1), x.transpose(0, 1), x.flatten(), x[None], x[:, 1:3],
                x[..., ::2],
                x[:, -1], x.unbind(1)[2], x.chunk(3, 1), x.split([1, 3], 1), x.expand(2, 3, 4, 5),
                x.repeat(2, 1, 2),
                x.repeat_interleave(2, dim=1), x.roll((1, -2), (0, 2)), x.roll(3), x.flip(1, 2),
                torch.stack([x, x + 1], 1), torch.cat([x, x], 2), x.unfold(2, 3, 2), x.tile(2, 1),
                torch.tril(x),
                torch.triu(x, 1), x.narrow(1, 1, 2), x.unflatten(1, (2, 2)), x[:, :1].squeeze(),
                torch.meshgrid(x[0, 0], x[0, 0], indexing="ij"), x.contiguous().as_strided((2, 3), (1, 2)),
            )),
            (three,),
        ),
        "indices": (
            Function(lambda x, i, j: (
                x[i], x[:, i], x[i, j], x[:, i, j], x[i, :, j], x[i[:, None], j], x.index_select(1, i),
                torch.gather(x, 1, i.view(1, -1, 1).expand(2, 2, 4)), x[:, :, [0, 2]], F.embedding(i, x[0]),
                torch.take_along_dim(x, i.view(-1, 1, 1), 0), x[:, [0, 1], [2, 3]],
            )),
            (three, rows, torch.tensor([1, -1])),
        ),
        "writes": (Function(written), (three, rows, torch.tensor([1, -1]))),
        "products": (
            Function(lambda x, y: (
                torch.einsum("bij,bjk->bik", x, y), torch.einsum("b i j, b k j -> b i k", x, x),
                torch.bmm(x, y), x @ y,
                torch.addmm(x[0, :, :3], x[0], y[0, :, :3], beta=2, alpha=0.5), x[0] @ y[0, :, 0],
                torch.baddbmm(torch.ones(2, 3, 6), x, y, alpha=2), torch.outer(x[0, 0], y[0, 0]),
                F.linear(x, x[0]), x[0, 0] @ y[0, :, 0],
            )),
            (torch.randn(2, 3, 4), torch.randn(2, 4, 6)),
        ),
        "made of numbers": (
            Function(lambda x: (
                torch.arange(5) + x[0, 0], torch.full((2, 3), 0.5) * x[0, 0], torch.zeros_like(x) + 1,
                torch.eye(4) @ x[:, :4].T, torch.linspace(0, 1, 5) * x, x.new_ones(5) * x,
                torch.arange(0, 1, 0.25) + x[0, 0],
                torch.tensor([1.0, 2, 3, 4, 5]) * x, x.shape[0] * x, x, torch.ones(2, 3), x,
            )),
            (torch.randn(3, 5),),
        ),
        "attention": (
            Function(lambda q, k, v, mask, bias: (
                F.scaled_dot_product_attention(q, k, v, mask),
                F.scaled_dot_product_attention(q, k, v, is_causal=True),
                F.scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0], scale=0.3),
                F.scaled_dot_product_attention(q, k, v, bias),
                F.scaled_dot_product_attention(q[None], k[None], v[None]),
                F.scaled_dot_product_attention(q, k[:, :1], v[:, :1]),
                F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
            )),
            (torch.randn(2, 4, 6, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 3), mask,
             torch.randn(6, 5)),
        ),
        "rnn": (nn.RNN(5, 4, nonlinearity="relu"), (steps, torch.randn(1, 7, 4))),
    }  # fmt: skip
    for first in (False, True):
        for layers, both in ((1, False), (2, True)):
            kind = {"num_layers": layers, "batch_first": first, "bidirectional": both}
            found[f"lstm {layers} {first}"] = nn.LSTM(5, 4, **kind), (steps,)
            found[f"gru {layers} {first}"] = nn.GRU(5, 4, **kind, bias=first), (steps,)
    return found
