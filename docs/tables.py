"""The tables of these pages, each made from the library: what a dialect says is asked from its module."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Sequence

import compiled
import measures
import narrowed
import standing
from measures import table

import relayout as rl
from relayout import errors, files
from relayout.draw import svg
from relayout.graph import plan as plan_of_networks
from relayout.graph import run as run_of_networks
from relayout.inspecting.matches import Guess, Match
from relayout.inspecting.verification import Verification
from relayout.kernels.conv.arithmetic import arithmetic_of, dots_of
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.weights import weights_text
from relayout.targets.machine import machine

MAIN = ("onednn", "openvino", "megengine", "pytorch", "tvm", "tensorrt")
OTHERS_SKIPPED = ("digits", "benchdnn", *MAIN)
DATA = (
    "nchw",
    "nhwc",
    "chwn",
    "nChw4c",
    "nChw8c",
    "nChw16c",
    "nChw32c",
    "nhCw4c",
    "Cnhw4c",
    "NChw16n16c",
    "ncdhw",
    "ndhwc",
    "nCdhw16c",
)
WEIGHTS = (
    "oihw", "ohwi", "hwio", "goihw", "Oihw16o", "OIhw16i16o", "OIhw8i16o2i", "OIhw4i16o4i", "OIhw4o4i",
    "Goihw16g", "openvino:os_is_yx_osv32_isv4_swizzled_by_2", "openvino:i_yxs_os_yxsv2_osv16",
)  # fmt: skip
MATRICES = (
    "CUBLASLT_ORDER_ROW", "CUBLASLT_ORDER_COL", "CUBLASLT_ORDER_COL32", "CUBLASLT_ORDER_COL4_4R2_8C",
    "CUBLASLT_ORDER_COL32_2R_4R4", "VNNI4", "VNNI2", "AMX_B_INT8", "AMX_B_BF16", "FRACTAL_NZ",
    "TILE_LAYOUT", "F8_128x4",
)  # fmt: skip
SAME = ("nchw", "nhwc", "nChw4c", "nChw8c", "nChw16c", "nChw32c")


def cell(text: str | None, dialect: str | None = None) -> str:
    """A name as code, or nothing; with a star where it only follows the grammar of its dialect."""
    if not text:
        return ""
    star = " \\*" if dialect is not None and not rl.notation.attested(text, dialect) else ""
    return f"`{text}`".replace("|", "\\|") + star


def spelled(format: rl.Format, dialect: str) -> str:
    """What a dialect calls a format, as a cell."""
    return cell(format.name(dialect), dialect)


def title(dialect: str) -> str:
    """What a system calls itself."""
    return rl.notation.dialect(dialect).TITLE


def names(formats: Sequence[str]) -> str:
    """Formats in rows, the main dialects in columns."""
    rows = []
    for text in formats:
        format = rl.Format(text)
        rows.append([cell(format.digits_text().partition("-> ")[2]), *(spelled(format, d) for d in MAIN)])
    return table(["digits, outermost first", *map(title, MAIN)], rows)


def other_names() -> str:
    """The remaining dialects in rows, usual formats of images in columns."""
    rows = []
    for dialect in rl.dialects():
        if dialect in OTHERS_SKIPPED or dialect in ("mlir", "qnn", "triton"):
            continue
        said = [spelled(rl.Format(text), dialect) for text in SAME]
        if any(said):
            rows.append([title(dialect), *said])
    return table(["system", *(f"`{text}`" for text in SAME)], rows)


def matrices() -> str:
    """Orders of matrices that have names, as digits."""
    rows = []
    for text in MATRICES:
        format = rl.Format(text)
        head, _, digits = format.digits_text().partition(" -> ")
        rows.append(
            [
                cell(text),
                title(format.dialect or "digits"),
                head.replace(" ", ", ") if " " in head else ", ".join(head),
                cell(digits),
                spelled(format, "onednn"),
            ]
        )
    return table(["name", "system", "axes", "digits, outermost first", "oneDNN"], rows)


EXAMPLES = {
    "onednn": ("nhwc", "OIhw4i16o4i", "aBcd16b", "ldigo"),
    "benchdnn": ("axb", "aBx16b"),
    "openvino": ("bfyx", "b_fs_yx_fsv16", "os_is_yx_osv32_isv4_swizzled_by_2"),
    "megengine": ("NCHW4", "NHWCD4", "KCRSc4k4", "NCHW44@weights"),
    "pytorch": ("contiguous_format", "channels_last", "channels_last_3d"),
    "digits": ("n, c//16, h, w, c%16", "oihw -> i, (h w)//2, o//16, (h w)%2, o%16"),
    "tvm": ("NCHW16c", "OIHW16i16o", "nhwc-8h2w32c2w"),
    "tensorrt": ("kCHW32", "kHWC8", "kDLA_HWC4"),
    "cudnn": ("CUDNN_TENSOR_NHWC", "NC/32HW32"),
    "cublaslt": ("CUBLASLT_ORDER_COL32", "CUBLASLT_ORDER_COL4_4R2_8C"),
    "xla": ("{1,3,2,0}", "{1,0:T(8,128)(2,1)}"),
    "onnxruntime": ("NCHWc (block 16)", "OIHWBiBo (B=16)"),
    "executorch": ("dim_order=(0,2,3,1)",),
    "ncnn": ("dims=3 elempack=4",),
    "mnn": ("NC4HW4", "NC4HW4@opencl"),
    "mindspore": ("NC4HW4", "NHWC4"),
    "rknn": ("RKNN_TENSOR_NC1HWC2 (C2=8)",),
    "ascend": ("NC1HWC0", "FRACTAL_NZ"),
    "qnn": ("R4CroutonLayout",),
    "acl": ("OHWIo4", "OHWIo8i4"),
    "x86": ("VNNI4", "AMX_B_INT8", "[K/4][N][4]"),
    "mx": ("F8_128x4",),
    "tenstorrent": ("TILE_LAYOUT",),
    "mlir": ("linalg.pack outer_dims_perm = [0, 1] inner_dims_pos = [0, 1] inner_tiles = [8, 4]",),
    "cute": ("((2,4),8):((1,16),2)",),
    "triton": ("#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>",),
    "tinygrad": ("dtypes.imageh((H, W*C/4, 4))",),
}


def dialects() -> str:
    """Every dialect with some of the texts that it reads."""
    rows = []
    for dialect in rl.dialects():
        texts = EXAMPLES.get(dialect) or tuple(rl.notation.dialect(dialect).names())[:2]
        for text in texts:
            rl.Format(text, dialect)  # it must be read
        rows.append([title(dialect), cell(dialect), ", ".join(map(cell, texts))])
    return table(["system", "dialect", "texts that it reads, for example"], rows)


def short_dialects() -> str:
    """The table of the README."""
    shown = ("onednn", "openvino", "megengine", "pytorch", "tvm", "tensorrt")
    rows = [
        [title(d), *(spelled(rl.Format(text), d) for text in ("nhwc", "nChw4c", "nChw16c", "nChw32c"))]
        for d in shown
    ]
    return table(["system", "channels last", "blocks of 4", "blocks of 16", "blocks of 32"], rows)


TRAINING = ("Trainer", "SGD", "Adam", "AdamW", "Cosine", "Stepwise")
MADE_BY_CALLING = (rl.Format, rl.Layout, rl.MemoryDesc, rl.Reorder)


def propagation() -> str:
    """What each backward primitive reads and writes, in the names of oneDNN's specification."""
    from relayout import primitives as p

    def f32(*dims: int) -> rl.MemoryDesc:
        return rl.MemoryDesc(dims, "f32", rl.Format("abcde"[: len(dims)]))

    x, bias, all_of = f32(2, 8, 4, 4), f32(8), {"scale": True, "shift": True}
    both = {"use_scale": True, "use_shift": True}
    states = dict.fromkeys(("src_iter", "src_iter_c"), f32(1, 1, 2, 8))
    weights = f32(1, 1, 8, 4, 8)
    layer = p.LSTM(f32(3, 2, 8), weights, weights, f32(1, 1, 4, 8), **states, workspace=True)
    forwards = (
        p.Convolution(x, f32(8, 8, 3, 3), bias),
        p.Deconvolution(x, f32(8, 8, 3, 3), bias),
        p.InnerProduct(x, f32(8, 8, 4, 4), bias),
        p.BatchNormalization(x, use_global_stats=False, **both),
        p.LayerNormalization(x, statistics=True, **all_of),
        p.GroupNormalization(x, groups=2, statistics=True, **all_of),
        p.LRN(x),
        p.Pooling(x, "max", 2, workspace=True),
        p.Eltwise(x, "relu"),
        p.PReLU(x, f32(1, 8, 1, 1)),
        p.Softmax(x, 1),
        p.Resampling(x, "linear", factors=2),
        p.Shuffle(x, 1, 2),
        layer,
    )
    rows = []
    for forward in forwards:
        for name in p.__all__:
            if name.startswith(f"{type(forward).__name__}Backward"):
                made = getattr(p, name)(forward)
                sides = (made.inputs, made.outputs)
                rows.append([f"`{name}`", *(", ".join(f"`{one}`" for one in side) for side in sides)])
    return table(["class", "reads", "writes"], rows)


def api(prefix: str, owner: object, wanted: Sequence[str] = ()) -> str:
    """Public names of a class or module: how they are called, and the first sentence about them."""
    listed = wanted or [name for name in getattr(owner, "__all__", ()) if not name.isupper()]
    rows = []
    for name in listed:
        member = inspect.getattr_static(owner, name) if inspect.isclass(owner) else getattr(owner, name)
        made = getattr(owner, name)
        if isinstance(member, classmethod):
            called = f"{prefix}{name}{signature(made)}"
        elif inspect.isclass(member):
            called = f"{prefix}{name}{signature(made) if made in MADE_BY_CALLING else ''}"
        elif inspect.isclass(owner):
            called = f".{name}{signature(made, bound=True) if inspect.isfunction(member) else ''}"
        else:
            called = f"{prefix}{name}{signature(made)}"
        rows.append([cell(called), first_sentence(member)])
    return table(["name", "what it is"], rows)


def rest(owner: type, prefix: str) -> str:
    """The members of a class, as further rows of its table."""
    return continued(api(prefix, owner, members(owner)))


def continued(rows: str) -> str:
    """A table's rows as further rows of another."""
    return "".join(f"\n{line}" for line in rows.splitlines()[2:])


def members(owner: type) -> list[str]:
    """The public members of a class in the order in which they are written."""
    return [
        name
        for name, made in vars(owner).items()
        if not name.startswith("_")
        and not isinstance(made, (bool, str, tuple, dict, type(None)))
        and first_sentence(made)
    ]


def signature(made: Callable[..., object], bound: bool = False) -> str:
    """Parameters by name, without types; what is optional has its default."""
    found = list(inspect.signature(made).parameters.values())
    if bound:
        found = found[1:]
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in found]
    return str(inspect.Signature(plain)).replace("relayout.", "")


def first_sentence(made: object) -> str:
    """The first sentence of a docstring, as Markdown."""
    text = (inspect.getdoc(made) or "").partition("\n\n")[0].replace("\n", " ")
    if isinstance(made, types.MemberDescriptorType) or not text:
        return ""
    text = re.sub(r":\w+:`~?(?:relayout\.)?([^`]*)`", r"`\1`", text).replace("``", "`")
    return re.split(r"(?<=[^.][.])\s+(?=[A-Z`])", text)[0].replace("|", "\\|")


PROCESSORS = {
    "AVX2, nothing else (Haswell to Skylake, Zen 1 to 3)": ("x86_64", "znver3"),
    "AVX-VNNI (Alder Lake to Meteor Lake)": ("x86_64", "alderlake"),
    "AVX-VNNI-INT8 (Arrow Lake, Lunar Lake, Sierra Forest)": ("x86_64", "arrowlake"),
    "AVX-512 (Skylake-X)": ("x86_64", "skylake-avx512"),
    "AVX-512 VNNI (Cascade Lake, Ice Lake)": ("x86_64", "cascadelake"),
    "AVX-512 VNNI and BF16 (Cooper Lake, Zen 4)": ("x86_64", "znver4"),
    "AMX (Sapphire Rapids to Granite Rapids)": ("x86_64", "sapphirerapids"),
    "AArch64, nothing else": ("aarch64", "generic"),
    "AArch64 dotprod (Neoverse N1, Apple M1)": ("aarch64", "neoverse-n1"),
    "AArch64 i8mm and bf16 (Neoverse V1, Apple M2)": ("aarch64", "neoverse-v1"),
}
"""Kinds of processors, and one of each by its LLVM name."""
NARROW = ("u8", "s8"), ("s8", "s8"), ("bf16", "bf16")


def instructions() -> str:
    """What each kind of processor adds up narrow products by, and in which format of weights."""
    layer = Geometry(1, 1, 256, 256, (1, 16, 16), (1, 14, 14), (1, 3, 3), *[(1, 1, 1)] * 2, (0, 0, 0))
    rows = []
    for kind, (family, cpu) in PROCESSORS.items():
        processor, cells = machine(cpu, f"{family}-unknown-linux-gnu"), []
        for pair in NARROW:
            src, weights = map(rl.dtype, pair)
            first = arithmetic_of(src, weights, layer, processor)
            assert first is not None
            found = dots_of(src, weights, layer, processor) or [first]
            usual = (
                {"s16": "pairs of s16", "f32": "multiply-add in f32"}[first.operand] if not first.dot else ""
            )
            words = [usual or f"`{how.dot}`" + " (source shifted)" * bool(how.shift) for how in found]
            form = weights_text(layer, first, processor, 2, False)
            cells.append(f"{', '.join(words)}; `{form}`")
        rows.append([kind, *cells])
    return table(["", *(" x ".join(pair) for pair in NARROW)], rows)


TABLES: dict[str, Callable[[], str]] = {
    "instructions": instructions,
    "data": lambda: names(DATA),
    "weights": lambda: names(WEIGHTS),
    "others": other_names,
    "matrices": matrices,
    "dialects": dialects,
    "short": short_dialects,
    "networks-machine": measures.machine,
    "training": measures.steps,
    "torch": measures.conversions,
    "torch-machine": measures.conversions_machine,
    "compile-facts": compiled.FAMILIES.facts,
    "compile-means": compiled.FAMILIES.means,
    "compile-speeds": compiled.FAMILIES.speeds,
    "compile-times": compiled.FAMILIES.compiling,
    "compile-own": compiled.FAMILIES.own_parts,
    "compile-all-facts": compiled.ALL.facts,
    "compile-all-means": compiled.ALL.means,
    "compile-all-speeds": compiled.ALL.speeds,
    "compile-all-own": compiled.ALL.own_parts,
    "compile-xeon-facts": compiled.XEON.facts,
    "compile-xeon-means": compiled.XEON.means,
    "compile-xeon-speeds": compiled.XEON.speeds,
    "compile-xeon-times": compiled.XEON.compiling,
    "compile-xeon-own": compiled.XEON.own_parts,
    "networks-means": measures.means,
    "networks-short": measures.short_means,
    "standing": standing.standing,
    "networks-speeds": measures.speeds,
    "networks-costs": measures.costs,
    "census": measures.census,
    "propagation": propagation,
    "torch-operators": measures.torch_operators,
    "torch-operators-counts": measures.torch_operators_counts,
    "torch-operators-changes": measures.torch_operators_changes,
    **narrowed.TABLES,
    "formats-right": measures.in_right_formats,
    "formats-machine": measures.formats_measured_on,
    "primitives-formats": measures.in_formats,
    "primitives-layers": measures.layers,
    "primitives-whole": measures.whole,
    "primitives-gradients": measures.gradients,
    "primitives-machine": measures.measured_on,
    "api-format": lambda: api("rl.", rl, ["Format"]) + rest(rl.Format, "rl.Format."),
    "api-layout": lambda: api("rl.", rl, ["Layout"]) + rest(rl.Layout, "rl.Layout."),
    "api-desc": lambda: api("rl.", rl, ["MemoryDesc"]) + rest(rl.MemoryDesc, "rl.MemoryDesc."),
    "api-tensor": lambda: api("rl.", rl, ["tensor", "from_buffer", "Tensor"]) + rest(rl.Tensor, "rl.Tensor."),
    "api-reorder": lambda: api("rl.", rl, ["reorder", "Reorder"]) + rest(rl.Reorder, "rl.Reorder."),
    "api-inspecting": lambda: (
        api("rl.", rl, ["verify", "guess", "cost"])
        + rest(Verification, "")
        + rest(Guess, "")
        + rest(Match, "")
    ),
    "api-views": lambda: api("rl.views.", rl.views),
    "api-notation": lambda: api(
        "rl.notation.", rl.notation, ["dialects", "dialect", "parse", "render", "attested", "readings"]
    ),
    "api-dtypes": lambda: api("rl.", rl, ["dtype", "DType"]) + rest(rl.DType, "rl.DType."),
    "api-pytorch": lambda: api("rl.pytorch.", rl.pytorch),
    "api-files": lambda: api("files.", files),
    "api-stores": lambda: api("rl.", rl, ["open"]) + continued(api("stores.", rl.stores)),
    "api-lazy": lambda: api("stores.", rl.stores, ["LazyTensor"]) + rest(rl.stores.LazyTensor, "LazyTensor."),
    "api-plan": lambda: api("stores.", rl.stores, ["Plan"]) + rest(rl.stores.Plan, "Plan."),
    "api-graph": lambda: (
        api("rl.", rl, ["load"])
        + continued(api("rl.graph.", rl.graph, ["Graph", "Node", "Value"]))
        + rest(rl.graph.Graph, "Graph.")
    ),
    "api-run": lambda: api("", run_of_networks, ["Run", "MemoryUse"]) + rest(run_of_networks.Run, "Run."),
    "api-network-plan": lambda: api("", plan_of_networks, ["Plan"]) + rest(plan_of_networks.Plan, "Plan."),
    "api-training": lambda: (
        api("rl.training.", rl.training, TRAINING) + rest(rl.training.Trainer, "Trainer.")
    ),
    "api-svg": lambda: api("svg.", svg),
    "api-logs": lambda: api("rl.logs.", rl.logs),
    "api-errors": lambda: (
        api("rl.", rl, ["LayoutError", "UnknownFormat", "AmbiguousFormat", "Unsupported"])
        + continued(api("relayout.errors.", errors, ["TooLarge"]))
    ),
}
