"""Our Thrift structs against the contract's bytes, and against another library that reads the interface description."""

from __future__ import annotations

import io
from importlib.resources import as_file, files
from typing import Any

import pytest
import thriftpy2
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.transport import TMemoryBuffer

from dragoman.dialects.alexandria import thrift_structs as ours

with as_file(files("dragoman.dialects.alexandria") / "inference.thrift") as path:
    theirs = thriftpy2.load(str(path), module_name="inference_thrift")

NAMES = sorted(name for name, value in vars(ours).items() if isinstance(value, type) and hasattr(value, "thrift_spec"))
STRUCTS = [name for name in NAMES if name != "ThriftStruct"]

single = ours.ApiSinglePromptStream
VECTORS: list[tuple[str, ours.ThriftStruct]] = [
    ("0b00010000000320773000", ours.ApiSinglePromptStream(text=" w0")),
    (
        "0b00010000000272310b000200000002486902000300020004010c00050800010000000102000200"
        "0400033ff0000000000000080006000000040000",
        ours.ApiSinglePromptRequest(
            request_id="r1",
            prompt="Hi",
            stream_response=False,
            only_new_tokens=True,
            generation_config=ours.GenerationConfig(num_beams=1, do_sample=False, temperature=1.0, max_new_tokens=4),
        ),
    ),
    (
        "0f00010c000000020b000100000001610b00020000000150000b0001000000016200020002000c0003080006000000020000",
        ours.ApiBatchPromptRequest(
            prompts=[ours.SinglePrompt(request_id="a", prompt="P"), ours.SinglePrompt(request_id="b")],
            only_new_tokens=False,
            generation_config=ours.GenerationConfig(max_new_tokens=2),
        ),
    ),
    (
        "0f00010c000000020b000100000001610b00030000000178000b000100000001620b000200000001500b000300000001790000",
        ours.ApiBatchPromptResponse(
            responses=[
                ours.ApiBatchPrompt(request_id="a", response="x"),
                ours.ApiBatchPrompt(request_id="b", prompt="P", response="y"),
            ]
        ),
    ),
    (
        "0f00010c000000010b00010000000274310b00020000000150000c0004080006000000010000",
        ours.WsInferenceRequest(
            prompts=[ours.SinglePrompt(request_id="t1", prompt="P")],
            generation_config=ours.GenerationConfig(max_new_tokens=1),
        ),
    ),
    (
        "0f00010c000000010c00010b0001000000027431000000",
        ours.WsInferenceResponse(
            events=[ours.WsInferenceEvent(acceptedEvent=ours.WsInferenceAcceptedEvent(request_id="t1"))]
        ),
    ),
    (
        "0f00010c000000010c00040b00010000000274310b000300000003207730000000",
        ours.WsInferenceResponse(
            events=[
                ours.WsInferenceEvent(progressEvent=ours.WsInferenceProgressEvent(request_id="t1", text=" w0")),
            ]
        ),
    ),
    (
        "0f00010c000000010c00050b00010000000274310b00030000000320773002000400080005000000010400063fe0000000000000000000",
        ours.WsInferenceResponse(
            events=[
                ours.WsInferenceEvent(
                    completionEvent=ours.WsInferenceCompletionEvent(
                        request_id="t1", text=" w0", is_eos=False, new_tokens_count=1, execution_time=0.5
                    )
                )
            ]
        ),
    ),
    (
        "0f00010c000000010c00070b000300000003626164000000",
        ours.WsInferenceResponse(events=[ours.WsInferenceEvent(wsErrorEvent=ours.WsInferenceErrorEvent(error="bad"))]),
    ),
]


@pytest.mark.parametrize(("wire", "value"), VECTORS, ids=lambda value: type(value).__name__)
def test_bytes_of_the_contract(wire: str, value: ours.ThriftStruct) -> None:
    assert ours.encoded(value).hex() == wire
    assert ours.decoded(type(value), bytes.fromhex(wire)) == value


def test_flat_events_of_the_reference_server() -> None:
    flat = ours.FlatResponse([ours.WsInferenceProgressEvent(request_id="t1", text=" w0")])
    assert flat.data.hex() == "0f00010c000000010b00010000000274310b0003000000032077300000"


def same(mine: Any, other: Any) -> bool:
    """Whether a struct of ours and one of the other library say the same."""
    if isinstance(mine, list):
        return len(mine) == len(other) and all(map(same, mine, other))
    if isinstance(mine, ours.ThriftStruct):
        names = [spec[2] for spec in mine.thrift_spec if spec is not None]
        return all(same(getattr(mine, name), getattr(other, name)) for name in names)
    return bool(mine == other)


def values(kind: type[ours.ThriftStruct]) -> st.SearchStrategy[ours.ThriftStruct]:
    by_type: dict[int, st.SearchStrategy[Any]] = {
        ours.TType.STRING: st.text(max_size=20),
        ours.TType.BOOL: st.booleans(),
        ours.TType.I32: st.integers(-(2**31), 2**31 - 1),
        ours.TType.DOUBLE: st.floats(allow_nan=False),
    }
    fields = {}
    for spec in kind.thrift_spec:
        if spec is None:
            continue
        if spec[1] == ours.TType.STRUCT:
            of = values(spec[3][0])
        elif spec[1] == ours.TType.LIST:
            of = st.lists(values(spec[3][1][0]), max_size=3)
        else:
            of = by_type[spec[1]]
        fields[spec[2]] = st.none() | of if spec[2] != "request_id" else of
    return st.builds(kind, **fields)


@pytest.mark.parametrize("name", STRUCTS)
@given(data=st.data())
def test_another_library_reads_what_we_write_and_writes_what_we_read(name: str, data: st.DataObject) -> None:
    mine = data.draw(values(getattr(ours, name)))
    wire = ours.encoded(mine)
    other = getattr(theirs, name)()
    other.read(TBinaryProtocol(TMemoryBuffer(wire)))
    assert same(mine, other)
    buffer = TMemoryBuffer()
    other.write(TBinaryProtocol(buffer))
    assert buffer.getvalue() == wire
    assert ours.decoded(type(mine), wire) == mine


@pytest.mark.parametrize("name", ["ApiSinglePromptRequest", "ApiBatchPromptRequest", "WsInferenceRequest"])
@given(noise=st.binary(max_size=200), data=st.data())
def test_bytes_that_are_anything_are_a_struct_or_are_refused(name: str, noise: bytes, data: st.DataObject) -> None:
    kind = getattr(ours, name)
    valid = ours.encoded(data.draw(values(kind)))
    place = data.draw(st.integers(0, len(valid)))
    for wire in (noise, valid[:place], valid[:place] + noise, valid[:place] + noise + valid[place + len(noise) :]):
        try:
            read = ours.decoded(kind, wire)
        except ours.NotThrift:
            continue
        assert isinstance(read, kind)


@pytest.mark.parametrize(
    "wire",
    [
        "0b00017fffffff",  # a string of two gigabytes
        "0f00010c7fffffff",  # a list of two billion structs
        "0f00010c00000001" * 200,  # lists in lists
        "0c0063" * 5000,  # unknown structs in each other
        "0b0001ffffffff",
    ],
)
def test_lengths_that_lie_are_refused(wire: str) -> None:
    with pytest.raises(ours.NotThrift):
        ours.decoded(ours.ApiBatchPromptRequest, bytes.fromhex(wire))


def test_unknown_fields_are_passed_over() -> None:
    wire = io.BytesIO()
    wire.write(bytes.fromhex("0b0063000000056f74686572"))  # 99: "other"
    wire.write(ours.encoded(ours.SinglePrompt(request_id="a", prompt="P")))
    assert ours.decoded(ours.SinglePrompt, wire.getvalue()) == ours.SinglePrompt(request_id="a", prompt="P")
