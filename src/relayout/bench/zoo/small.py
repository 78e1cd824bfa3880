"""Networks of a few lines, one for each way of building that no package above has."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any, TypeAlias

from relayout.bench.zoo.building import module_of

__all__ = ["build"]

Built: TypeAlias = "tuple[Any, tuple[Any, ...]]"


def build(_: str, name: str, batch: int, size: int | None = None) -> Built:
    """A network and its inputs."""
    return BUILDERS[name](batch)


def _torch() -> tuple[Any, Any, Any]:
    torch = import_module("torch")
    return torch, torch.nn, torch.nn.functional


def _convolution(inside: int, outside: int, size: int = 3, stride: int = 1, act: str = "SiLU") -> Any:
    """Convolution, normalisation and activation."""
    _, nn, _ = _torch()
    convolution = nn.Conv2d(inside, outside, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside), getattr(nn, act)())


# -- pictures --------------------------------------------------------------------------------------------


def _lenet(batch: int) -> Built:
    torch, nn, _ = _torch()
    front = (nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh())
    back = (nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))
    return nn.Sequential(*front, nn.AvgPool2d(2), nn.Flatten(), *back), (torch.randn(batch, 1, 28, 28),)


def _generator(batch: int) -> Built:
    torch, nn, _ = _torch()
    widths, layers = (100, 256, 128, 64, 32), []
    for k, (a, b) in enumerate(pairwise(widths)):
        stride, padding = (1, 0) if k == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    layers += [nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh()]
    return nn.Sequential(*layers), (torch.randn(batch, 100, 1, 1),)


def _discriminator(batch: int) -> Built:
    torch, nn, _ = _torch()
    widths, layers = (3, 32, 64, 128, 256), []
    for a, b in pairwise(widths):
        layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(256, 1, 4), nn.Sigmoid(), nn.Flatten()), (
        torch.randn(batch, 3, 64, 64),
    )


def _espcn(batch: int) -> Built:
    torch, nn, _ = _torch()
    layers = (nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.Tanh())
    last = nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3)
    return nn.Sequential(*layers, *last), (torch.randn(batch, 1, 64, 64),)


def _style(batch: int) -> Built:
    torch, nn, _ = _torch()

    def layer(inside: int, outside: int, size: int, stride: int, up: bool = False) -> list[Any]:
        norm = nn.InstanceNorm2d(outside, affine=True), nn.ReLU()
        convolution = nn.ReflectionPad2d(size // 2), nn.Conv2d(inside, outside, size, stride)
        return [*([nn.Upsample(scale_factor=2)] if up else []), *convolution, *norm]

    def residual() -> Any:
        return module_of(lambda f, x: x + f(x), nn.Sequential(*layer(128, 128, 3, 1)[:-1]))

    down = [*layer(3, 32, 9, 1), *layer(32, 64, 3, 2), *layer(64, 128, 3, 2), residual(), residual()]
    up = [*layer(128, 64, 3, 1, True), *layer(64, 32, 3, 1, True)]
    last = nn.ReflectionPad2d(4), nn.Conv2d(32, 3, 9)
    return nn.Sequential(*down, *up, *last), (torch.randn(batch, 3, 128, 128),)


def _unet(widths: tuple[int, ...], size: int, bilinear: bool) -> Callable[[int], Built]:
    def made(batch: int) -> Built:
        torch, nn, F = _torch()

        def block(a: int, b: int) -> Any:
            return nn.Sequential(_convolution(a, b, act="ReLU"), _convolution(b, b, act="ReLU"))

        pairs = list(zip(widths[-2::-1], widths[::-1], strict=False))
        down = nn.ModuleList(block(a, b) for a, b in zip((3, *widths), widths, strict=False))
        up = nn.ModuleList(
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            if bilinear
            else nn.ConvTranspose2d(b, a, 2, 2)
            for a, b in pairs
        )
        joined = nn.ModuleList(block(a + (b if bilinear else a), a) for a, b in pairs)

        def forward(down: Any, up: Any, joined: Any, last: Any, x: Any) -> Any:
            kept: list[Any] = []
            for k, one in enumerate(down):
                x = one(F.max_pool2d(x, 2) if k else x)
                kept.append(x)
            for u, j, skip in zip(up, joined, kept[-2::-1], strict=True):
                x = j(torch.cat([skip, u(x)], 1))
            return last(x)

        net = module_of(forward, down, up, joined, nn.Conv2d(widths[0], 2, 1))
        return net, (torch.randn(batch, 3, size, size),)

    return made


def _yolo(batch: int) -> Built:
    """A detector of three scales: a trunk of split blocks, features up and down, boxes decoded."""
    torch, nn, F = _torch()

    def split(a: int, b: int, times: int, shortcut: bool = True) -> Any:
        half = b // 2
        inner = nn.ModuleList(
            nn.Sequential(_convolution(half, half), _convolution(half, half)) for _ in range(times)
        )

        def forward(first: Any, inner: Any, last: Any, x: Any) -> Any:
            parts = list(first(x).chunk(2, 1))
            for one in inner:
                y = one(parts[-1])
                parts.append(parts[-1] + y if shortcut else y)
            return last(torch.cat(parts, 1))

        return module_of(forward, _convolution(a, b, 1), inner, _convolution((2 + times) * half, b, 1))

    def pyramid(front: Any, back: Any, x: Any) -> Any:
        parts = [front(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return back(torch.cat(parts, 1))

    def head(inside: int) -> Any:
        return nn.Sequential(_convolution(inside, 64), nn.Conv2d(64, 3 * (5 + 20), 1))

    def decoded(found: Any, stride: int) -> Any:
        n, _, h, w = found.shape
        found = found.view(n, 3, 25, h, w).permute(0, 1, 3, 4, 2).sigmoid()
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack((xs, ys), -1).to(found.dtype)
        where = (found[..., :2] * 2 - 0.5 + grid) * stride
        size = (found[..., 2:4] * 2) ** 2 * (4.0 * stride)
        return torch.cat((where, size, found[..., 4:]), -1).reshape(n, -1, 25)

    layers = nn.ModuleList(
        [
            nn.Sequential(_convolution(3, 16, 3, 2), _convolution(16, 32, 3, 2), split(32, 32, 1)),
            nn.Sequential(_convolution(32, 64, 3, 2), split(64, 64, 2)),
            nn.Sequential(_convolution(64, 128, 3, 2), split(128, 128, 2)),
            nn.Sequential(_convolution(128, 256, 3, 2), split(256, 256, 1)),
            module_of(pyramid, _convolution(256, 128, 1), _convolution(512, 256, 1)),
            split(384, 128, 1, False),
            split(192, 64, 1, False),
            _convolution(64, 64, 3, 2),
            split(192, 128, 1, False),
            _convolution(128, 128, 3, 2),
            split(384, 256, 1, False),
        ]
    )

    def forward(layers: Any, heads: Any, x: Any) -> Any:
        a = layers[1](layers[0](x))
        b = layers[2](a)
        c = layers[4](layers[3](b))
        d = layers[5](torch.cat((F.interpolate(c, scale_factor=2.0), b), 1))
        e = layers[6](torch.cat((F.interpolate(d, scale_factor=2.0), a), 1))
        f = layers[8](torch.cat((layers[7](e), d), 1))
        g = layers[10](torch.cat((layers[9](f), c), 1))
        found = [h(y) for h, y in zip(heads, (e, f, g), strict=True)]
        return torch.cat([decoded(y, s) for y, s in zip(found, (8, 16, 32), strict=True)], 1)

    heads = nn.ModuleList([head(64), head(128), head(256)])
    return module_of(forward, layers, heads), (torch.randn(batch, 3, 320, 320),)


def _attention(width: int, heads: int) -> Any:
    """Self-attention over the pixels of an image, normalised in groups."""
    _, nn, F = _torch()

    def forward(norm: Any, into: Any, out: Any, x: Any) -> Any:
        n, c, h, w = x.shape
        q, k, v = into(norm(x)).view(n, 3, heads, c // heads, h * w).transpose(3, 4).unbind(1)
        found = F.scaled_dot_product_attention(q, k, v)
        return x + out(found.transpose(2, 3).reshape(n, c, h, w))

    return module_of(
        forward, nn.GroupNorm(8, width), nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)
    )


def _residual(inside: int, outside: int, time: int = 0) -> Any:
    """A block of a diffusion network: normalised in groups, with the time added."""
    _, nn, _ = _torch()
    front = nn.Sequential(nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1))
    back = nn.Sequential(nn.GroupNorm(8, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1))
    skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()
    if not time:
        return module_of(lambda f, b, s, x: s(x) + b(f(x)), front, back, skip)
    added = nn.Sequential(nn.SiLU(), nn.Linear(time, outside))
    return module_of(
        lambda f, a, b, s, x, t: s(x) + b(f(x) + a(t)[:, :, None, None]), front, added, back, skip
    )


def _diffusion(batch: int) -> Built:
    torch, nn, F = _torch()
    blocks = nn.ModuleList(
        [_residual(32, 32, 64), _residual(32, 64, 64), _residual(64, 64, 64), _residual(128, 64, 64)]
    )
    others = nn.ModuleList(
        [
            nn.Conv2d(4, 32, 3, padding=1),
            nn.Conv2d(32, 32, 3, 2, 1),
            _attention(64, 4),
            nn.Conv2d(64, 32, 3, padding=1),
            _residual(64, 32, 64),
            nn.Sequential(nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 4, 3, padding=1)),
            nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64)),
        ]
    )

    def forward(blocks: Any, others: Any, x: Any, step: Any) -> Any:
        angles = step.float()[:, None] * torch.exp(torch.arange(16) * -0.5)
        time = others[6](torch.cat((angles.sin(), angles.cos()), -1))
        a = blocks[0](others[0](x), time)
        b = blocks[1](others[1](a), time)
        c = blocks[2](others[2](b), time)
        d = blocks[3](torch.cat((c, b), 1), time)
        e = others[3](F.interpolate(d, scale_factor=2.0, mode="nearest"))
        return others[5](others[4](torch.cat((e, a), 1), time))

    return module_of(forward, blocks, others), (
        torch.randn(batch, 4, 32, 32),
        torch.randint(0, 1000, (batch,)),
    )


def _decoder(batch: int) -> Built:
    torch, nn, _ = _torch()
    layers = [nn.Conv2d(4, 64, 3, padding=1), _residual(64, 64), _attention(64, 1), _residual(64, 64)]
    for a, b in ((64, 64), (64, 32)):
        layers += [nn.Upsample(scale_factor=2), nn.Conv2d(a, b, 3, padding=1), _residual(b, b)]
    last = nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 3, 3, padding=1)
    return nn.Sequential(*layers, *last), (torch.randn(batch, 4, 24, 24),)


def _edsr(batch: int) -> Built:
    torch, nn, _ = _torch()

    def residual() -> Any:
        inner = nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1)
        return module_of(lambda f, x: x + 0.1 * f(x), nn.Sequential(*inner))

    body = nn.Sequential(*(residual() for _ in range(4)), nn.Conv2d(48, 48, 3, padding=1))
    tail = nn.Sequential(nn.Conv2d(48, 192, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(48, 3, 3, padding=1))

    def forward(head: Any, body: Any, tail: Any, x: Any) -> Any:
        x = head(x)
        return tail(x + body(x))

    return module_of(forward, nn.Conv2d(3, 48, 3, padding=1), body, tail), (torch.randn(batch, 3, 48, 48),)


# -- sequences -------------------------------------------------------------------------------------------


def _recurrent(kind: str) -> Callable[[int], Built]:
    def made(batch: int) -> Built:
        torch, nn, _ = _torch()
        inner = getattr(nn, kind)(64, 128, 2, batch_first=True, bidirectional=True)
        return module_of(lambda r, last, x: last(r(x)[0]), inner, nn.Linear(256, 10)), (
            torch.randn(batch, 30, 64),
        )

    return made


def _tagger(batch: int) -> Built:
    torch, nn, _ = _torch()
    inner = nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)

    def forward(table: Any, inner: Any, last: Any, words: Any) -> Any:
        return last(inner(table(words))[0]).log_softmax(-1)

    return module_of(forward, nn.Embedding(5000, 128), inner, nn.Linear(512, 32)), (
        torch.randint(0, 5000, (batch, 64)),
    )


def _reader(batch: int) -> Built:
    """Lines of text in pictures: convolutions, then a recurrent layer over columns."""
    torch, nn, _ = _torch()
    layers: list[Any] = [_convolution(1, 32, act="ReLU"), nn.MaxPool2d(2), _convolution(32, 64, act="ReLU")]
    layers += [nn.MaxPool2d((2, 1)), _convolution(64, 128, act="ReLU"), nn.AdaptiveAvgPool2d((1, None))]

    def forward(front: Any, inner: Any, last: Any, x: Any) -> Any:
        columns = front(x).squeeze(2).permute(2, 0, 1)
        return last(inner(columns)[0]).log_softmax(2)

    return module_of(
        forward, nn.Sequential(*layers), nn.GRU(128, 64, bidirectional=True), nn.Linear(128, 40)
    ), (torch.randn(batch, 1, 32, 96),)


def _transformer(batch: int) -> Built:
    torch, nn, _ = _torch()
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(batch, 50, 128),)


def _temporal(batch: int) -> Built:
    torch, nn, F = _torch()
    layers = nn.ModuleList(nn.Conv1d(64 if k else 16, 64, 3, dilation=2**k) for k in range(5))

    def forward(layers: Any, last: Any, x: Any) -> Any:
        for k, one in enumerate(layers):
            y = F.relu(one(F.pad(x, (2 * 2**k, 0))))
            x = x + y if k else y
        return last(x[:, :, -1])

    return module_of(forward, layers, nn.Linear(64, 10)), (torch.randn(batch, 16, 200),)


def _separator(batch: int) -> Built:
    """Speakers in a recording: learnt filters, dilated depthwise blocks, masks, filters back."""
    torch, nn, _ = _torch()

    def block(dilation: int) -> Any:
        inner = nn.Conv1d(64, 64, 3, padding=dilation, dilation=dilation, groups=64), nn.PReLU()
        front = nn.Conv1d(32, 64, 1), nn.PReLU(), nn.GroupNorm(1, 64)
        return module_of(
            lambda f, x: x + f(x), nn.Sequential(*front, *inner, nn.GroupNorm(1, 64), nn.Conv1d(64, 32, 1))
        )

    masks = nn.Sequential(
        nn.GroupNorm(1, 64), nn.Conv1d(64, 32, 1), *(block(2**k) for k in range(4)), nn.Conv1d(32, 128, 1)
    )

    def forward(into: Any, masks: Any, out: Any, x: Any) -> Any:
        codes = into(x).relu()
        n, c, length = codes.shape
        both = codes[:, None] * masks(codes).view(n, 2, c, length).sigmoid()
        return out(both.reshape(2 * n, c, length)).view(n, 2, -1)

    ends = nn.Conv1d(1, 64, 16, 8, bias=False), nn.ConvTranspose1d(64, 1, 16, 8, bias=False)
    return module_of(forward, ends[0], masks, ends[1]), (torch.randn(batch, 1, 1600),)


def _conformer(batch: int) -> Built:
    """Speech: subsampling, then feed-forward, attention and convolution in turn."""
    torch, nn, _ = _torch()

    def wide() -> Any:
        layers = nn.LayerNorm(64), nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 64)
        return module_of(lambda f, x: x + 0.5 * f(x), nn.Sequential(*layers))

    def attention() -> Any:
        def forward(norm: Any, inner: Any, x: Any) -> Any:
            y = norm(x)
            return x + inner(y, y, y, need_weights=False)[0]

        return module_of(forward, nn.LayerNorm(64), nn.MultiheadAttention(64, 4, batch_first=True))

    def convolution() -> Any:
        depthwise = nn.Conv1d(64, 64, 15, padding=7, groups=64)
        inner = nn.Sequential(nn.Conv1d(64, 128, 1), nn.GLU(1), depthwise, nn.BatchNorm1d(64), nn.SiLU())
        last = nn.Conv1d(64, 64, 1)
        return module_of(
            lambda norm, f, g, x: x + g(f(norm(x).transpose(1, 2))).transpose(1, 2),
            nn.LayerNorm(64),
            inner,
            last,
        )

    blocks = [one() for _ in range(2) for one in (wide, attention, convolution, wide)]
    front = nn.Sequential(nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU())

    def forward(front: Any, into: Any, blocks: Any, x: Any) -> Any:
        found = front(x[:, None])
        n, c, length, bands = found.shape
        return blocks(into(found.transpose(1, 2).reshape(n, length, c * bands)))

    net = module_of(forward, front, nn.Linear(16 * 19, 64), nn.Sequential(*blocks, nn.LayerNorm(64)))
    return net, (torch.randn(batch, 160, 80),)


BUILDERS: dict[str, Callable[[int], Built]] = {
    "lenet5": _lenet,
    "dcgan_g": _generator,
    "dcgan_d": _discriminator,
    "espcn": _espcn,
    "style": _style,
    "unet_bilinear": _unet((16, 32, 64, 128), 128, True),
    "unet_convt": _unet((16, 32, 64, 128), 128, False),
    "unet": _unet((32, 64, 128, 256, 512), 256, False),
    "yolo": _yolo,
    "diffusion_unet": _diffusion,
    "vae_decoder": _decoder,
    "edsr": _edsr,
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
    "bilstm_tagger": _tagger,
    "crnn": _reader,
    "nn_transformer_encoder": _transformer,
    "tcn1d": _temporal,
    "conv_tasnet": _separator,
    "conformer": _conformer,
}
