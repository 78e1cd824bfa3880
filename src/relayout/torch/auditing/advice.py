"""What to write instead: for each kind of operator that loses channels-last, one that keeps it.

Most operators that know nothing of formats work along one axis. Given a view with the channels behind,
``x.permute(0, 2, 3, 1)``, they find a contiguous tensor, and return one; the view back is channels-last
again. Nothing is copied on either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from relayout.pytorch import strides_for
from relayout.torch.auditing.seen import CHANNELS_LAST

if TYPE_CHECKING:
    from relayout.torch.auditing.judging import Finding

__all__ = ["REWRITES", "Rewrite", "advice"]


class Rewrite(NamedTuple):
    """An expression of ``x``, 4 axes in channels-last, and one with the same values that keeps the format."""

    before: str
    instead: str
    note: str = ""


THERE, BACK = ".permute(0, 2, 3, 1)", ".permute(0, 3, 1, 2)"

REWRITES: dict[str, Rewrite] = {
    "softmax": Rewrite("x.softmax(1)", f"x{THERE}.softmax(-1){BACK}"),
    "log_softmax": Rewrite("x.log_softmax(1)", f"x{THERE}.log_softmax(-1){BACK}"),
    "softmin": Rewrite("F.softmin(x, 1)", f"F.softmin(x{THERE}, -1){BACK}"),
    "layer_norm": Rewrite(
        "F.layer_norm(x, x.shape[1:])",
        "F.group_norm(x, 1)",
        "the same over C, H and W without weights; over the channels alone: "
        f"F.layer_norm(x{THERE}, (C,)){BACK}",
    ),
    "instance_norm": Rewrite("F.instance_norm(x)", "F.group_norm(x, x.shape[1])", "nn.GroupNorm(C, C)"),
    "index_select": Rewrite("x.index_select(1, index)", f"x{THERE}.index_select(-1, index){BACK}"),
    "index": Rewrite("x[:, index]", f"x{THERE}[..., index]{BACK}", "a slice, x[:, a:b], is a view"),
    "gather": Rewrite("x.gather(1, wide)", f"x{THERE}.gather(-1, wide{THERE}){BACK}"),
    "repeat": Rewrite("x.repeat(1, 2, 1, 1)", "torch.cat([x] * 2, 1)"),
    "tile": Rewrite("x.tile(1, 2, 1, 1)", "torch.cat([x] * 2, 1)"),
    "repeat_interleave": Rewrite("x.repeat_interleave(2, 1)", f"x{THERE}.repeat_interleave(2, -1){BACK}"),
    "topk": Rewrite("x.topk(2, 1)[0]", f"x{THERE}.topk(2, -1)[0]{BACK}"),
    "cumsum": Rewrite("x.cumsum(1)", f"x{THERE}.cumsum(-1){BACK}"),
    "cumprod": Rewrite("x.cumprod(1)", f"x{THERE}.cumprod(-1){BACK}"),
    "masked_fill": Rewrite("x.masked_fill(x > 0, 0.0)", "torch.where(x > 0, 0.0, x)"),
    "rrelu": Rewrite("F.rrelu(x, 0.1, 0.1)", "F.leaky_relu(x, 0.1)", "in evaluation, with the mean slope"),
    "contiguous": Rewrite("x.contiguous()", "x.contiguous(memory_format=torch.channels_last)"),
    "reshape": Rewrite(
        "x.view(2, 2, 4, 6, 6).transpose(1, 2).reshape(2, 8, 6, 6)",
        "F.channel_shuffle(x, 2)",
        "for a shuffle of channels; tokens are a view, x.flatten(2).transpose(1, 2)",
    ),
    "scatter": Rewrite("x.scatter(1, wide, 1.0)", f"x{THERE}.scatter(-1, wide{THERE}, 1.0){BACK}"),
    "index_add": Rewrite("x.index_add(1, index, part)", f"x{THERE}.index_add(-1, index, part{THERE}){BACK}"),
    "linear": Rewrite(
        "F.linear(x.transpose(1, 3), w).transpose(1, 3)",
        "F.conv2d(x, w[:, :, None, None])",
        f"for the channels; or F.linear(x{THERE}, w){BACK}",
    ),
    "mul": Rewrite("plain * x", "x * plain", "the first operand decides; best is a mask in channels-last"),
}

ELEMENTWISE = ("add", "sub", "mul", "div", "where", "maximum", "minimum", "pow", "addcmul", "lerp", "atan2")
MATRICES = ("matmul", "linear", "einsum", "bmm", "baddbmm", "scaled_dot_product_attention", "tensordot")
FLATTENED = ("reshape", "flatten", "view")
ALONG = (
    *("sum", "mean", "amax", "amin", "max", "min", "median", "logsumexp", "var", "std", "prod", "norm"),
    *("sort", "argsort", "kthvalue", "mode", "cummax", "cummin", "logcumsumexp", "take_along_dim"),
    *("index_copy", "scatter_add", "gumbel_softmax", "rms_norm", "cross", "unique", "bucketize"),
)


def advice(found: Finding) -> str:
    """What to write instead, in one or two sentences."""
    made = {"ambiguous": _ambiguous, "copy": _copied, "failed": _failed}.get(found.kind, _lost)(found)
    if found.src.format == "channels_last_3d" or found.dst == "channels_last_3d":
        made = made.replace(THERE, ".permute(0, 2, 3, 4, 1)").replace(BACK, ".permute(0, 4, 1, 2, 3)")
        made = made.replace("torch.channels_last)", "torch.channels_last_3d)")
        made = made.replace("[:, :, None, None]", "[:, :, None, None, None]").replace("conv2d", "conv3d")
    return made


def _said(name: str) -> str:
    rewrite = REWRITES[name]
    note = f" ({rewrite.note})" if rewrite.note else ""
    return f"for {rewrite.before} write {rewrite.instead}{note}"


AFTER = "bring the result back, once, before the next convolution: .to(memory_format=torch.channels_last)"


def _lost(found: Finding) -> str:
    name = found.operator
    if found.at.backward:
        return (
            "the backward pass of this operator returns a contiguous gradient; if others read it often, "
            "x.register_hook(lambda g: g.to(memory_format=torch.channels_last)) on its input"
        )
    plain = [one for one in found.at.inputs if one.format == "contiguous" and len(one.dims) >= 4]
    if name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"):
        if plain:
            sizes = "x".join(map(str, plain[0].dims))
            if found.cause is not None:
                return f"one of its tensors ({sizes}) has lost the format before: {found.root.where}"
            return (
                f"one of its tensors is contiguous ({sizes}): find what made it, or bring it into "
                "channels-last first, .to(memory_format=torch.channels_last)"
            )
        return AFTER
    if name.rstrip("_") in ELEMENTWISE and plain:
        return (
            f"{_said('mul')}: make the plain operand with zeros_like(x) and the like, or convert it "
            "once with .to(memory_format=torch.channels_last)"
        )
    if name in (*FLATTENED, "contiguous", "clone") and found.src.format == "strided":
        if len(found.src.dims) == 5:
            return f"a shuffle of channels keeps the format as F.channel_shuffle(x, {found.src.dims[2]})"
        return (
            "a transposed view is put into the order of its axes, the channels no longer side by side; "
            ".contiguous(memory_format=torch.channels_last) leaves them so"
        )
    if name in FLATTENED:
        if any(len(one.dims) == 2 for one in found.at.outputs):
            return (
                "flattening (N, C, H, W) has to copy; pool first, so that H = W = 1, or flatten "
                f"x{THERE} and permute the next layer's weight once"
            )
        return _said("reshape")
    if name in REWRITES:
        return _said(name)
    if name in MATRICES:
        return (
            "products work along the last axis: have the channels there, "
            f"(x{THERE} @ w){BACK}, or use a 1x1 convolution"
        )
    if name == "pad":
        return (
            "circular padding is assembled in contiguous memory; other modes keep the format. Otherwise "
            + AFTER
        )
    if name in ALONG:
        return f"along one axis, work on x{THERE}, the channels as axis -1, and view it {BACK}"
    return f"PyTorch has no kernel for channels-last here: {AFTER}"


def _failed(found: Finding) -> str:
    if found.operator == "view":
        return (
            "channels-last can't be viewed so. x.reshape copies; x.flatten(2).transpose(1, 2), tokens, is a "
            "view; before a linear layer, pool until H = W = 1"
        )
    return "the operator refuses this format: .contiguous() before it"


def _ambiguous(found: Finding) -> str:
    lies = found.src.format
    wanted = lies if lies in CHANNELS_LAST else "contiguous_format"
    strides = strides_for(found.src.dims, wanted)
    told = f"as_strided(x.shape, {strides}) writes the strides, without a copy; .contiguous() does not"
    if found.operator in ("unsqueeze", "index", "__getitem__") or found.tensor == "input":
        return f"add the batch axis before permute: image.unsqueeze(0){BACK}. Otherwise {told}"
    return told


def _copied(found: Finding) -> str:
    if found.cause is not None:
        root = found.root
        return f"a consequence of {root.where}: {root.advice}"
    if found.tensor == "weight":
        return "convert the weights once: model.to(memory_format=torch.channels_last)"
    if found.origin == "the model's input" and found.dst in CHANNELS_LAST:
        return "make the input in channels-last, in the data loader: x.to(memory_format=torch.channels_last)"
    if found.tensor == "gradient":
        return (
            "the gradient comes in another format than the input: x.register_hook(lambda g: "
            "g.to(memory_format=torch.channels_last)), or find the operator behind it that loses it"
        )
    if found.src.format == "gaps":
        return "a slice of the channels has gaps, and each reader packs it: split the weight instead"
    if found.operator == "contiguous" and found.src.format in CHANNELS_LAST:
        return _said("contiguous")
    if found.operator in MATRICES:
        return "a transposed operand is copied for the product; store it as it is read"
    return "the order of the axes changes here; permute, transpose and view alone copy nothing"
