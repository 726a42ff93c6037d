"""Bodies of HTML forms with a file (``multipart/form-data``), read piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from dragoman.core.errors import BadRequest
from dragoman.dialects.api import WrongMediaType

MAX_BOUNDARY_BYTES = 70
"""As RFC 2046, section 5.1.1, has it."""
MAX_PARTS = 16
MAX_FIELD_BYTES = 4096
MAX_HEADERS = 16
MAX_HEADER_BYTES = 8192
"""Of one header of a part, with the others of the part."""

FORM_BYTES = 256 * 1024
"""More than what a form within these limits takes in addition to its file."""


class Form(NamedTuple):
    """A form that was read. ``filename``: of its file; None: it has none."""

    fields: Mapping[str, str]
    filename: str | None


async def read_form(
    pieces: AsyncIterator[bytes], content_type: str, *, file: str, write: Callable[[bytes], Awaitable[None]]
) -> Form:
    """Return the fields of a form, whose part named ``file`` is written as it comes.

    Raises WrongMediaType for other content types, BadRequest for what is no form or has too much, and what ``pieces``
    and ``write`` raise.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data":
        raise WrongMediaType(f"The content type must be multipart/form-data, not '{content_type[:64]}'.")
    if not boundary:
        raise WrongMediaType("The content type multipart/form-data has no boundary; HTTP clients add it by themselves.")
    if len(boundary) > MAX_BOUNDARY_BYTES:
        raise WrongMediaType(f"The boundary of the form is longer than {MAX_BOUNDARY_BYTES} bytes.")
    reader = _FormReader(file)
    try:
        parser = MultipartParser(
            boundary, reader.callbacks, max_header_count=MAX_HEADERS, max_header_size=MAX_HEADER_BYTES
        )
        async for piece in pieces:
            parser.write(piece)
            for data in reader.take_file():
                await write(data)
        parser.finalize()
    except MultipartParseError as error:
        raise BadRequest(f"The body is not a valid form: {error}.") from None
    if not reader.is_complete:
        raise BadRequest("The body is not a valid form: it has no end.")
    return Form({name: _text(value, name) for name, value in reader.fields.items()}, reader.filename)


class _FormReader:
    """Collects what the parser finds."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._header, self._value = b"", b""
        self._disposition = b""
        self._name: str | None = None
        self._pending: list[bytes] = []
        self._parts = self._header_bytes = 0
        self.fields: dict[str, bytearray] = {}
        self.filename: str | None = None
        self.is_complete = False

    @property
    def callbacks(self) -> Any:
        """Return the parser's callbacks."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._on_header,
            "on_header_value": self._on_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._on_data,
            "on_end": self._end,
        }

    def take_file(self) -> list[bytes]:
        """Return the bytes of the file that have come since the last call."""
        pending, self._pending = self._pending, []
        return pending

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise BadRequest(f"The form has more than {MAX_PARTS} parts.")
        self._disposition, self._name, self._header_bytes = b"", None, 0

    def _on_header(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._value += data[start:end]

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise BadRequest(f"The headers of a part of the form are larger than {MAX_HEADER_BYTES} bytes.")

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header, self._value = b"", b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if not name:
            raise BadRequest("A part of the form has no name.")
        if name in self.fields or (name == self._file and self.filename is not None):
            raise BadRequest(f"The form has '{name[:64]}' twice.", param=name[:64])
        if name == self._file:
            filename = options.get(b"filename")
            if filename is None:
                raise BadRequest(f"'{name}' must be a file: its part has no filename.", param=name)
            self.filename = filename.decode("utf-8", "replace")[:255]
        else:
            self.fields[name] = bytearray()

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        assert self._name is not None
        if self._name == self._file:
            self._pending.append(data[start:end])
            return
        field = self.fields[self._name]
        field += data[start:end]
        if len(field) > MAX_FIELD_BYTES:
            raise BadRequest(f"'{self._name[:64]}' is larger than {MAX_FIELD_BYTES} bytes.", param=self._name[:64])

    def _end(self) -> None:
        self.is_complete = True


def _text(value: bytearray, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"'{name[:64]}' is not valid UTF-8.", param=name[:64]) from None
