"""Operations on what runs, wherever it does: every replica is asked, and the answers become one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.cluster.answer import Frames, head_of
from dragoman.cluster.upstream import ReplicaLost
from dragoman.core.decoding import UNDECODABLE
from dragoman.server.relay import BODY_FRAME, END_FRAME, HEAD_FRAME

PATH = "/requests"
log = logging.getLogger("dragoman.cluster")


class _Request(msgspec.Struct):
    age_s: float


class _Form(msgspec.Struct):
    """What is joined and added up: a list's entries are sorted by their age."""

    requests: list[_Request] = []
    cancelled: int = 0


_check_form = msgspec.json.Decoder(_Form).decode
_encode_head = msgspec.msgpack.Encoder().encode


def concerns_all(method: str, path: str) -> bool:
    """Return whether a request lists the running requests, or cancels one of them."""
    return (method == "GET" and path == PATH) or (method == "DELETE" and path.startswith(f"{PATH}/"))


def merged(answers: Sequence[Frames]) -> Frames:
    """Return the answer of all replicas: lists joined, the oldest request first, and counts added up. Where none has a
    list or a count, it is the answer of the first. Raises ReplicaLost where no answer can be read."""
    read = []
    for frames in answers:
        try:
            read.append((*_read(frames), frames))
        except ReplicaLost as error:
            log.warning("the answer of a replica to an operation on requests is left out: %s", error)
    if not read:
        raise ReplicaLost("no answer can be read")
    found = [content for status, _, content, _ in read if status == 200]
    if not found:
        return read[0][3]
    joined: dict[str, Any] = {}
    for content in found:
        for name, value in content.items():
            if name not in joined:
                joined[name] = value
            elif isinstance(value, int | list) and type(joined[name]) is type(value):
                joined[name] += value
    if isinstance(listed := joined.get("requests"), list):
        listed.sort(key=lambda each: -each["age_s"])
    headers = next(headers for status, headers, _, _ in read if status == 200)
    body = msgspec.json.encode(joined)
    headers = [(name, b"%d" % len(body) if name == b"content-length" else value) for name, value in headers]
    return [(HEAD_FRAME, _encode_head((200, headers))), (BODY_FRAME, body), (END_FRAME, b"")]


def _read(frames: Frames) -> tuple[int, list[tuple[bytes, bytes]], dict[str, Any]]:
    """Return the status, the headers and the content of a whole answer; of an error without content."""
    head = next((payload for kind, payload in frames if kind == HEAD_FRAME), b"")
    status, headers = head_of(head)
    if status != 200:
        return status, headers, {}
    try:
        body = b"".join(payload for kind, payload in frames if kind == BODY_FRAME)
        _check_form(body)
        return status, headers, msgspec.json.decode(body, type=dict[str, Any])
    except UNDECODABLE:
        raise ReplicaLost("its answer cannot be read") from None
