"""The input of a batch: a file with a request on each line."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dragoman.core.batches import BatchFault, BatchFormat, BatchLine, ReadLine
from dragoman.server.body import BYTE_ORDER_MARK

MOST_FAULTS = 100


def read_input(
    path: Path, *, form: BatchFormat, endpoint: str, max_line_bytes: int
) -> tuple[list[BatchLine], str, list[BatchFault]]:
    """Return the lines of an input, the model that they name, and their faults, of which there are none or nothing is
    run."""
    lines: list[BatchLine] = []
    faults: list[BatchFault] = []
    seen: set[str] = set()
    model: str | None = None  # that of the first line without a fault of its own
    number = offset = 0
    with path.open("rb") as file:
        while (raw := file.readline(max_line_bytes + 2)) and len(faults) < MOST_FAULTS:
            number, start, offset = number + 1, offset, offset + len(raw)
            if len(raw.rstrip(b"\r\n")) > max_line_bytes:
                while not raw.endswith(b"\n") and (raw := file.readline(1 << 20)):
                    offset += len(raw)
                words = f"This line is longer than {max_line_bytes} bytes."
                faults.append(BatchFault(code="line_too_long", message=words, line=number))
                continue
            if number == 1 and raw.startswith(BYTE_ORDER_MARK):
                raw, start = raw.removeprefix(BYTE_ORDER_MARK), start + len(BYTE_ORDER_MARK)
            text = raw.strip()
            if not text:
                continue
            if len(lines) == form.max_lines:
                words = f"A batch has at most {form.max_lines} requests."
                faults.append(BatchFault(code="too_many_tasks", message=words, line=number))
                break
            found = form.read(text, endpoint)
            if model is None and found.fault is None:
                model = found.model
            if (fault := _fault_of(found, seen, model)) is not None:
                faults.append(msgspec.structs.replace(fault, line=number))
            seen.add(found.custom_id)
            lines.append(BatchLine(len(lines), found.custom_id, start + raw.index(text), len(text)))
    if not lines and not faults:
        faults.append(BatchFault(code="empty_file", message="The input file has no requests."))
    return lines, model or "", faults


def _fault_of(found: ReadLine, seen: set[str], model: str | None) -> BatchFault | None:
    if found.fault is not None:
        return found.fault
    if found.custom_id in seen:
        words = f"The custom_id '{found.custom_id}' is that of an earlier line."
        return BatchFault(code="duplicate_custom_id", message=words, param="custom_id")
    if model is not None and found.model != model:
        ours, theirs = (f"'{each[:256]}'" if each else "none" for each in (found.model, model))
        words = f"All lines of a batch name one model: this one names {ours}, the first one {theirs}."
        return BatchFault(code="model_mismatch", message=words, param="body.model")
    return None


def read_line(path: Path, *, line: BatchLine) -> bytes:
    """Return a line of an input."""
    with path.open("rb") as file:
        file.seek(line.offset)
        return file.read(line.length)


def is_as_checked(raw: bytes, *, form: BatchFormat, endpoint: str, line: BatchLine) -> bool:
    """Return whether a line is what it was when the input was checked, as far as that can be told."""
    try:
        found = form.read(raw, endpoint)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return found.fault is None and found.custom_id == line.custom_id
