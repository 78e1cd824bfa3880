"""Logs of runtimes: what real runs have written is read whole, adds up, and survives any damage.

The files in ``tests/logs`` are of real programs (``make.py`` there); each is held to sums that are computed
here in another way than the readers do.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout import logs
from relayout.errors import LayoutError
from relayout.logs.advice import LITTLE
from relayout.logs.sides import permutation
from relayout.logs.sources import Source
from relayout.logs.streams import Elements
from strategies import examples

LOGS = sorted(path for path in (Path(__file__).parent / "logs").iterdir() if path.suffix != ".py")
HERE = {path.name: path for path in LOGS if path.is_file()}
KINDS = {
    "onednn": ("onednn",),
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino_graph", "openvino_counters"),
    "pytorch": ("pytorch",),
}


def content(name: str) -> bytes:
    data = HERE[name].read_bytes()
    return gzip.decompress(data) if name.endswith(".gz") else data


def document(name: str) -> Any:
    return json.loads(content(name))


@pytest.mark.parametrize("name", HERE)
def test_a_log_of_a_real_run_is_read_whole(name: str) -> None:
    assert len(HERE[name].read_bytes()) < 100_000
    log = logs.read(HERE[name])
    assert log.kind in KINDS[name.partition("-")[0]]
    assert log.problems == ()
    assert log.operations > 0
    assert sum(event.seconds for event in log.events) <= log.seconds
    assert log.events or name == "onednn-transformer.log"


@pytest.mark.parametrize("name", HERE)
def test_rows_add_up_to_the_events(name: str) -> None:
    found = logs.explain(HERE[name])
    assert sum(row.count for row in found.rows) == len(found.events)
    assert found.seconds == pytest.approx(sum(event.seconds for event in found.events))
    assert [row.seconds for row in found.rows] == sorted((row.seconds for row in found.rows), reverse=True)
    assert all(row.advice.endswith(".") and row.advice.count(". ") == 0 for row in found.rows)
    assert found.share == pytest.approx(sum(row.share for row in found.rows))


@pytest.mark.parametrize("name", [name for name in HERE if name.startswith("onednn")])
def test_onednn_totals(name: str) -> None:
    lines = [line for line in content(name).decode().splitlines() if ",exec," in line]
    log = logs.read(HERE[name])
    assert log.operations == len(lines)
    assert log.seconds == pytest.approx(sum(float(line.rpartition(",")[2]) for line in lines) * 1e-3)
    assert len(log.events) == sum(",reorder," in line for line in lines)
    assert log.calls == (4 if "transformer" in name else 3 if name == "onednn-resnet.log" else 2)


def test_onednn_weights_and_round_trips_of_eager_pytorch() -> None:
    """Each convolution packs its weights in each of 3 calls; between two of them runs batch normalisation in
    nchw, so that tensors go there and back."""
    found = logs.explain(HERE["onednn-resnet.log"])
    packed = [row for row in found.rows if row.weights]
    assert sum(row.count for row in packed) == content("onednn-resnet.log").count(b",convolution,")
    assert all(row.in_each_call for row in packed)
    assert all(row.for_each_use for row in packed)
    assert "packed anew each time" in packed[0].advice
    assert {str(row.dst) for row in packed} == {"Acdb16a", "ABcd16b16a"}
    assert found.trips
    for trip in found.trips:
        assert trip.out.src.desc == trip.back.dst.desc
        assert trip.out.dst.desc == trip.back.src.desc
    assert all(event.nbytes and event.same_bytes is False for event in found.events)


def test_weights_that_are_kept_are_not_packed_for_each_use() -> None:
    """A first call packs, the others read what it has written."""
    start = "onednn_verbose,v1,primitive,exec,cpu,"
    pack = f"{start}reorder,x,undef,src:f32::blocked:ab::f0 dst:f32::blocked:ba::f0,,,64x32,0.1"
    product = (
        f"{start}matmul,x,undef,src:f32::blocked:ab::f0 wei:f32::blocked:ba::f0 dst:f32::blocked:ab::f0,,,"
        "8x64:64x32,0.3"
    )
    (row,) = logs.explain("\n".join([pack, *[product] * 3]).encode()).rows
    assert (row.weights, row.count, row.uses, row.for_each_use) == (True, 1, 3, False)
    assert row.advice.endswith("somebody keeps them: nothing to do.")


def test_channels_last_needs_no_reorder_but_of_weights() -> None:
    found = logs.explain(HERE["onednn-resnet-channels-last.log"])
    assert all(row.weights for row in found.rows)
    assert not found.trips


@pytest.mark.parametrize("name", [name for name in HERE if name.startswith("onnxruntime")])
def test_onnxruntime_totals(name: str) -> None:
    events = document(name)
    kernels = [event for event in events if event["name"].endswith("_kernel_time")]
    log = logs.read(HERE[name])
    assert log.operations == len(kernels)
    assert log.seconds == pytest.approx(sum(event["dur"] for event in kernels) * 1e-6)
    runs = [event["dur"] for event in events if event["name"] == "model_run"]
    assert log.calls == len(runs)
    assert log.stated == pytest.approx(sum(runs) * 1e-6)
    assert log.seconds <= log.stated


def test_onnxruntime_transposes_by_their_shapes() -> None:
    found = logs.read(HERE["onnxruntime-transformer.json"])
    assert {event.operation for event in found.events} == {"transpose"}
    for event in found.events:
        assert event.src.desc is not None
        assert event.dst.desc is not None
        assert not event.same_bytes


def test_onnxruntime_reorder_of_one_pixel_moves_nothing() -> None:
    row = logs.explain(HERE["onnxruntime-resnet.json"]).rows[0]
    assert (str(row.src), str(row.dst), row.dims, row.same_bytes) == ("aBcd16b", "abcd", (2, 128, 1, 1), True)
    assert "the same bytes" in row.advice or row.share < LITTLE


@pytest.mark.parametrize("name", [name for name in HERE if name.endswith(".xml")])
def test_openvino_graph_totals(name: str) -> None:
    root = ElementTree.fromstring(content(name))
    times = [data.get("execTimeMcs", "") for data in root.iter("data")]
    log = logs.read(HERE[name])
    ran = [int(time) for time in times if time != "not_executed"]
    assert log.operations == len(ran)
    assert log.seconds == pytest.approx(sum(ran) * 1e-6)
    layers = {layer.get("id"): layer.get("name") for layer in root.iter("layer")}
    for event in log.events:
        (key,) = (k for k, layer in layers.items() if layer == event.name)
        maker, *_ = (e.get("from-layer") for e in root.iter("edge") if e.get("to-layer") == key)
        assert event.producer.endswith(str(layers[maker]))


@pytest.mark.parametrize("name", [name for name in HERE if name.endswith(".csv")])
def test_openvino_counters_totals(name: str) -> None:
    rows = list(csv.reader(io.StringIO(content(name).decode()), delimiter=";"))
    total = sum(float(row[4]) for row in rows if row and row[0] == "Total") * 1e-3
    log = logs.read(HERE[name])
    assert log.stated == pytest.approx(total)
    assert log.seconds == pytest.approx(total, abs=1e-6 * len(rows))  # each is rounded to microseconds


def test_openvino_info_and_printed_counters() -> None:
    log = logs.read(HERE["openvino-resnet-info.json"])
    spent = sum(one["real_time"] for one in document("openvino-resnet-info.json"))
    assert log.seconds == pytest.approx(spent * 1e-6)
    (event,) = log.events
    assert (str(event.src), str(event.dst)) == ("abcd", "acdb")
    printed = logs.read(HERE["openvino-resnet-printed.txt"])
    assert printed.stated == pytest.approx(printed.seconds, abs=1e-6 * printed.operations)


def nested(name: str) -> float:
    """Seconds of the outermost operators of a trace, by going through all of them."""
    events = [e for e in document(name)["traceEvents"] if e.get("cat") == "cpu_op"]
    total, end = 0.0, float("-inf")
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        if event["ts"] >= end:
            total, end = total + event["dur"], event["ts"] + event["dur"]
    return total * 1e-6


@pytest.mark.parametrize("name", [name for name in HERE if name.startswith("pytorch")])
def test_pytorch_totals(name: str) -> None:
    log = logs.read(HERE[name])
    assert log.seconds == pytest.approx(nested(name))
    copies = sum(e.get("name") == "aten::copy_" for e in document(name)["traceEvents"])
    assert 0 < len(log.events) <= copies


def test_pytorch_preprocessing() -> None:
    """A picture of bytes, permuted, made contiguous, made floating point: two conversions of one shape."""
    log = logs.read(HERE["pytorch-resnet.json.gz"])
    found = [(e.operation, e.name, str(e.src), str(e.dst), e.dst.dtype) for e in log.events]
    assert ("reorder", "aten::contiguous", "acdb", "abcd", "u8") in found
    assert any(operation == "convert" and dtype == "f32" for operation, *_, dtype in found)


# -- the words of older and other versions ----------------------------------------------------------------

NEW = "src_f32::blocked:abcd:f0 dst_f32::blocked:aBcd8b:f0,,,2x16x7x7,0.5"  # since DNNL 1
STRIDED = "src_f32::blocked:abcd::f0 dst_f32::blocked:aBcd8b::f0,,,2x16x7x7,0.5"  # since oneDNN 3
COLON = "src:f32::blocked:abcd::f0 dst:f32:p:blocked:aBcd8b::f0,attr-scratchpad:user,,2x16x7x7,0.5"
REORDERS = {
    "mkldnn_verbose,exec,reorder,jit:uni,undef,in:f32_nchw out:f32_nChw8c,num:1,2x16x7x7,0.5": "nChw8c",
    "mkldnn_verbose,exec,reorder,jit:uni,undef,in:f32_nchw out:f32_nChw8c,num:1,2x16x7x7,0,500": "nChw8c",
    f"dnnl_verbose,exec,cpu,reorder,jit:uni,undef,{NEW}": "aBcd8b",
    f"dnnl_verbose,1607393600.9,exec,cpu,reorder,jit:uni,undef,{NEW}": "aBcd8b",
    f"onednn_verbose,exec,cpu,reorder,jit:uni,undef,{NEW}": "aBcd8b",
    f"onednn_verbose,primitive,exec,cpu,reorder,jit:uni,undef,{STRIDED}": "aBcd8b",
    f"onednn_verbose,1700000000123.5,primitive,exec,gpu:0,reorder,ocl:any,undef,{STRIDED}": "aBcd8b",
    f"[rank 0] onednn_verbose,v1,1700.5,primitive,exec,cpu,reorder,jit:blk,undef,{COLON}": "aBcd8b",
}


@pytest.mark.parametrize("line", REORDERS)
def test_lines_of_all_versions(line: str) -> None:
    (event,) = logs.read(b"some output\n" + line.encode() + b"\r\nand more").events
    assert str(event.dst) == REORDERS[line]
    assert event.dims == (2, 16, 7, 7)
    assert event.seconds == pytest.approx(0.0005)
    assert event.src.desc == rl.MemoryDesc((2, 16, 7, 7), "f32", "nchw")
    assert event.dst.desc == rl.MemoryDesc((2, 16, 7, 7), "f32", "nChw8c")
    assert event.line == 2


def test_two_lines_in_one() -> None:
    """Threads that print at the same time."""
    line = next(iter(REORDERS))
    assert len(logs.read((line + line).encode()).events) == 2


def test_strides_flags_and_what_is_no_layout() -> None:
    start = "onednn_verbose,v1,primitive,exec,cpu,reorder,x,undef,"
    lines = (
        "src:f32::blocked:ab:128x1:f0 dst:f32::blocked:ab::f0,,,4x100,0.1",
        "src:s8::blocked:abcd::f0 dst:s8:p:blocked:ABcd4b16a4b::f8:zpm1,,,16x8x3x3,0.1",
        "src:f32::blocked:abcd::f0 dst:f32::wino:::f0,,,16x8x3x3,0.1",
        "src:f32::blocked:*:*:f0 dst:f32::blocked:ab::f0,,,*x*,0.1",
    )
    one, two, three, four = logs.read("\n".join(start + line for line in lines).encode()).events
    assert one.operation == "convert" or one.same_bytes is False
    assert one.src.desc is not None
    assert one.src.desc.strides == (128, 1)
    assert two.dst.desc == rl.MemoryDesc((16, 8, 3, 3), "s8", "ABcd4b16a4b")
    assert three.dst.desc is None
    assert str(three.dst) == "wino"
    assert four.dims is None


def node(name: str, ts: int, **args: Any) -> dict[str, Any]:
    """An event of ONNX Runtime."""
    return {"cat": "Node", "ts": ts, "dur": 5, "ph": "X", "tid": 1, "name": name, "args": args}


def test_channels_last_reorders_of_onnxruntime_and_proof_of_blocks() -> None:
    def kernel(op: str, before: list[int], after: list[int], ts: int) -> dict[str, Any]:
        args = {
            "op_name": op,
            "input_type_shape": [{"float": before}],
            "output_type_shape": [{"float": after}],
        }
        return {
            "cat": "Node",
            "ts": ts,
            "dur": 5,
            "ph": "X",
            "tid": 1,
            "name": f"{op}_kernel_time",
            "args": args,
        }

    events = [
        kernel("ReorderInput", [1, 6, 7, 20], [1, 24, 6, 7], 0),
        kernel("ReorderOutput", [1, 24, 6, 7], [1, 20, 6, 7], 10),
    ]
    log = logs.read(json.dumps(events).encode())
    assert [(str(e.src), str(e.dst), e.dims) for e in log.events] == [
        ("acdb", "aBcd8b", (1, 20, 6, 7)),
        ("aBcd8b", "abcd", (1, 20, 6, 7)),
    ]


@examples(100)
@given(st.permutations(range(4)), st.permutations([2, 3, 5, 7]))
def test_permutations_of_different_sizes_are_found(perm: list[int], sizes: list[int]) -> None:
    assert permutation(tuple(sizes), tuple(sizes[k] for k in perm)) == tuple(perm)


@examples(100)
@given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4))
def test_a_permutation_that_is_found_moves_what_the_true_one_moves(perm: list[int], sizes: list[int]) -> None:
    found = permutation(tuple(sizes), tuple(sizes[k] for k in perm))
    if found is not None:
        letters = ("".join("abcd"[k] for k in order) for order in (perm, found))
        one, two = (rl.Layout(tuple(sizes), text) for text in letters)
        assert one.same_bytes(two)


# -- streams ----------------------------------------------------------------------------------------------

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@examples(100)
@given(st.lists(plain, max_size=6), st.integers(1, 40), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_elements_are_those_of_the_document(
    values: list[Any], size: int, indent: int | str | None, within: bool
) -> None:
    """Whatever the pieces are that it comes in."""
    text = json.dumps({"v": 1, "events": values} if within else values, indent=indent, ensure_ascii=False)
    data = text.encode()
    elements = Elements(data[k : k + size] for k in range(0, len(data), size))
    found = list(elements)
    assert elements.problems == []
    assert found == ([("v", 1), *(("events", v) for v in values)] if within else [("", v) for v in values])


def test_large_files_are_streamed(tmp_path: Path) -> None:
    """Memory does not grow with what is not kept, and progress is told."""
    event = json.dumps({"ph": "X", "cat": "python_function", "name": "f" * 500, "ts": 1, "dur": 1})
    path = tmp_path / "trace.json"
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        for _ in range(20_000):
            file.write(event + ",")
        file.write(
            '{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
        )
    told: list[tuple[int, int | None]] = []
    import tracemalloc

    tracemalloc.start()
    log = logs.read(path, lambda read, size: told.append((read, size)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert log.operations == 1
    assert told[-1] == (path.stat().st_size, path.stat().st_size)
    assert most < path.stat().st_size


def test_pipes_and_compressed_members() -> None:
    text = next(iter(REORDERS)).encode() + b"\n"
    data = gzip.compress(text) + gzip.compress(text)
    assert len(logs.read(io.BytesIO(data)).events) == 2
    cut = logs.read(gzip.compress(text * 500)[:-30])
    assert cut.problems
    with pytest.raises(LayoutError, match="mode 'rb'"):
        Source(io.StringIO("text"))
    with pytest.raises(LayoutError, match="a log is a path"):
        logs.read(7)


# -- damage -----------------------------------------------------------------------------------------------

JUNK = (
    b"",
    b"   \n",
    b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 9,
    b"hello\nworld\n",
    b"{}",
    b"[1, 2, 3]",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"<html></html>",
    b"<?xml version='1.0'?><html></html>",
    b"\x1f\x8b" + b"junk" * 20,
    b"null",
)


@pytest.mark.parametrize("data", JUNK)
def test_what_is_no_log_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(LayoutError) as raised:
        logs.read(data)
    assert "\n" not in str(raised.value)


def test_entities_are_refused() -> None:
    bomb = b'<?xml version="1.0"?><!DOCTYPE net [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><net>&b;</net>'
    with pytest.raises(LayoutError, match="document type"):
        logs.read(bomb)


def attempt(data: bytes) -> logs.Explanation | None:
    """Explained in all ways, or refused in one line."""
    try:
        found = logs.explain(data)
    except LayoutError as error:
        if "\n" in str(error):
            raise
        return None
    assert found.text(3)
    assert found.html(3).startswith("<!doctype html>")
    json.dumps(found.json(), allow_nan=False)
    return found


@examples(60)
@given(st.sampled_from(sorted(HERE)), st.floats(0, 1))
def test_a_log_that_is_cut_gives_what_is_left(name: str, part: float) -> None:
    data = content(name)
    whole = logs.read(data)
    cut = attempt(data[: int(len(data) * part)])
    if cut is not None:
        assert cut.log.operations <= whole.operations
        assert len(cut.events) <= len(whole.events) + 1
        if name.endswith((".json", ".json.gz", ".xml")) and cut.log.operations < whole.operations:
            assert cut.log.problems


@examples(60)
@given(
    st.sampled_from(sorted(HERE)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=30),
)
def test_bytes_that_flip_never_raise(name: str, flips: list[tuple[float, int]]) -> None:
    data = bytearray(content(name))
    for place, value in flips:
        data[int(place * len(data))] = value
    attempt(bytes(data))


@examples(40)
@given(st.sampled_from(sorted(HERE)), st.data())
def test_pieces_in_another_order_never_raise(name: str, data: st.DataObject) -> None:
    text = content(name)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    attempt(b"".join(data.draw(st.permutations(pieces))))


@examples(40)
@given(st.data())
def test_any_number_in_a_line_never_raises(data: st.DataObject) -> None:
    """Sizes of thousands of digits, times that are none, axes that do not exist."""
    line = data.draw(st.sampled_from(sorted(REORDERS)))
    words = re.split(r"([0-9.]+)", line)
    for k in range(1, len(words), 2):
        if data.draw(st.booleans()):
            words[k] = data.draw(st.sampled_from(["0", "-1", "9" * 30, "9" * 5000, "1e999", "nan", "", "x"]))
    attempt("".join(words).encode())


# -- pages ------------------------------------------------------------------------------------------------


def _trace(*spans: tuple[float, float]) -> bytes:
    """A trace of copies from channels-last to plain order, by their starts and lengths."""
    args = {
        "Input Dims": [[2, 3, 4, 5], [2, 3, 4, 5], []],
        "Input type": ["float", "float", "Scalar"],
        "Input Strides": [[60, 20, 5, 1], [60, 1, 15, 3], []],
    }
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::copy_",
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": dur,
            "args": args,
        }
        for ts, dur in spans
    ]
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


def test_a_copy_within_a_copy_counts_once() -> None:
    found = logs.explain(_trace((0, 10), (1, 6), (2, 3), (20, 5)))
    assert found.log.seconds == pytest.approx(15e-6)
    assert sum(row.seconds for row in found.rows) == pytest.approx(15e-6)
    assert [event.seconds for event in found.log.events] == pytest.approx([4e-6, 3e-6, 3e-6, 5e-6])
    same = logs.explain(_trace(*[(0, 10)] * 11))
    assert sum(row.seconds for row in same.rows) == pytest.approx(same.log.seconds) == pytest.approx(10e-6)


def test_events_of_negative_time_are_left_out_and_counted() -> None:
    found = logs.explain(_trace((0, -10), (20, 5)))
    assert found.log.seconds == pytest.approx(5e-6)
    assert "1 events have no time" in found.log.problems[0]


def test_logs_of_two_programs_are_said_to_be_two() -> None:
    head = b"onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71)\n"
    assert any("begins 2 times" in note for note in logs.read(head * 2).notes)
    assert not any("begins" in note for note in logs.read(head).notes)


def test_utf16_says_how_to_convert_it() -> None:
    with pytest.raises(LayoutError, match=r"UTF-16.*Set-Content -Encoding utf8"):
        logs.explain("onednn_verbose,v1,info,oneDNN v3.12.0".encode("utf-16"))


def test_pages_escape_what_a_log_says() -> None:
    name = "<script>alert('x')</script>\"&"
    shapes = {"input_type_shape": [{name: [2, 3]}], "output_type_shape": [{"f": [3, 2]}]}
    events = [node(f"{name}_kernel_time", ts, op_name="Transpose", **shapes) for ts in (0, 9)]
    page = logs.explain(json.dumps(events).encode()).html()
    assert "alert(" in page
    assert "<script" not in page
    assert "http" not in page


def test_text_has_no_signs_that_steer_a_terminal() -> None:
    events = [node("\x1b[2J_kernel_time", 0, op_name="Cast")]
    assert "\x1b" not in logs.explain(json.dumps(events).encode()).text()
    assert "\x1b" not in logs.explain((next(iter(REORDERS)) + "\x1b[31m").encode()).text()


def test_a_profile_of_this_process(tmp_path: Path) -> None:
    """Operators add up to what the profiler itself adds up; lines of this file are named."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(2, 8, 16, 16)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True) as profiled:
        y = x.relu().permute(0, 2, 3, 1).contiguous()
        y.double().clone()
    path = tmp_path / "trace.json"
    profiled.export_chrome_trace(str(path))
    log = logs.read(path)
    own = sum(
        event.self_cpu_time_total for event in profiled.key_averages() if event.key.startswith("aten::")
    )
    assert log.seconds == pytest.approx(own * 1e-6, rel=0.02)
    assert [(e.operation, e.name, str(e.src), str(e.dst)) for e in log.events] == [
        ("reorder", "aten::contiguous", "adbc", "abcd"),
        ("convert", "aten::to", "abcd", "abcd"),
        ("copy", "aten::clone", "abcd", "abcd"),
    ]
    assert all("test_logs.py" in event.consumer for event in log.events)
