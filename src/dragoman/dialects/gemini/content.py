"""Contents of Google's API as the conversation that a chat template takes."""

from __future__ import annotations

import base64
import binascii
import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.image_sources import ImageSource, image_part
from dragoman.core.images import Detail
from dragoman.core.serving import ModelCard
from dragoman.dialects import reasoning
from dragoman.dialects.field_types import Path, dotted
from dragoman.dialects.turns import IMAGE_BELOW, Turns, document, joined, pieces_of

DATA = ("text", "inlineData", "fileData", "functionCall", "functionResponse")
"""The members of a part of which it has one."""

DETAILS: Mapping[str, Detail] = {
    "MEDIA_RESOLUTION_LOW": "low",
    "MEDIA_RESOLUTION_HIGH": "high",
    "MEDIA_RESOLUTION_ULTRA_HIGH": "high",
}

Piece = str | dict[str, Any]


class Conversation(NamedTuple):
    """``continues``: the last content is the model's, and is left open. ``detailed``: the places of resolutions of
    images."""

    messages: tuple[dict[str, Any], ...]
    continues: bool
    detailed: tuple[str, ...] = ()


def conversation(
    system: Mapping[str, Any] | None,
    contents: Sequence[Mapping[str, Any]],
    card: ModelCard,
    resolution: str | None = None,
) -> Conversation:
    """Return the conversation for the model's chat template. ``resolution``: of images that have none of their own.

    Raises BadRequest, UnsupportedFeature with the place of the error.
    """
    reader = _Reader(card, resolution)
    head = "" if system is None else _system_text(system, ("systemInstruction",))
    for i, content in enumerate(contents):
        reader.content(content, ("contents", i))
    return reader.finish(head)


def plain_text(content: Mapping[str, Any], path: Path) -> str:
    """Return the text of a content that is nothing else. Raises UnsupportedFeature."""
    return joined(_text_of(part, (*path, "parts", i)) for i, part in enumerate(content["parts"]))


def signature_of(text: str) -> str:
    """Return the signature that holds the text of reasoning that is not shown: bytes, in base64."""
    return base64.b64encode(reasoning.hidden(text).encode()).decode()


def _system_text(system: Mapping[str, Any], path: Path) -> str:
    return joined(_text_of(part, (*path, "parts", i)) for i, part in enumerate(system["parts"]))


def _text_of(part: Mapping[str, Any], path: Path) -> str:
    kind = _kind(part, path)
    if kind != "text":
        place = dotted((*path, kind))
        raise UnsupportedFeature(f"'{place}' is not supported here: only texts are read.", param=place)
    return str(part["text"] or "")


def _kind(part: Mapping[str, Any], path: Path) -> str:
    """Return which of its members a part has. A signature may stand alone, with an empty text. Raises BadRequest."""
    given = [name for name in DATA if part[name] is not None]
    if len(given) > 1:
        message = f"Invalid value at '{dotted(path)}': '{given[0]}' and '{given[1]}' exclude each other in a part."
        raise BadRequest(message, param=dotted((*path, given[1])))
    if not given and part["thoughtSignature"] is None:
        message = f"Invalid value at '{dotted(path)}': a part has one of {', '.join(DATA)}."
        raise BadRequest(message, param=dotted(path))
    return given[0] if given else "text"


class _OpenCalls:
    """The calls that have no response yet, each by its number: the id and the name."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, str]] = {}
        self._of_id: dict[str, deque[int]] = {}
        self._of_name: dict[str, deque[int]] = {}
        self._made = 0

    def add(self, id: str | None, name: str) -> str:
        """Add a call, and return its id: a new one where it has none."""
        self._made += 1
        id = id or f"call_{self._made}"
        self._calls[self._made] = id, name
        self._of_id.setdefault(id, deque()).append(self._made)
        self._of_name.setdefault(name, deque()).append(self._made)
        return id

    def answer(self, id: str | None, name: str) -> tuple[str, str] | None:
        """Return the first call that a response answers, which is then answered: that of the id, or of the name, as
        clients may leave ids out, or make up their own."""
        found = self._first(self._of_id, id) if id else None
        number = self._first(self._of_name, name) if found is None else found
        return None if number is None else self._calls.pop(number)

    def _first(self, numbers: Mapping[str, deque[int]], key: str) -> int | None:
        waiting = numbers.get(key, deque())
        while waiting and waiting[0] not in self._calls:
            waiting.popleft()
        return waiting[0] if waiting else None


class _Reader:
    """The conversation so far."""

    def __init__(self, card: ModelCard, resolution: str | None) -> None:
        self._card, self._resolution, self._turns = card, resolution, Turns(card)
        self._detailed: list[str] = []
        self._open = _OpenCalls()
        self._begun = False
        self._head: list[str] = []
        self._hidden_left = reasoning.MAX_HIDDEN_CHARS
        # The model's turn: streamed answers come back as many contents.
        self._texts, self._thoughts, self._calls = list[str](), list[str](), list[dict[str, Any]]()
        self._last = ""

    def content(self, content: Mapping[str, Any], path: Path) -> None:
        role, parts, at = content["role"], content["parts"], (*path, "parts")
        if role == "model":
            self._begun = True
            for i, part in enumerate(parts):
                self._model_part(part, (*at, i))
            return
        self._end_turn()
        if role == "system":
            self._system(_system_text(content, path))
        else:
            self._begun = True
            self._user(parts, at)

    def finish(self, head: str) -> Conversation:
        continues = bool(self._last)
        if continues and self._last != "text":
            what = "a function call" if self._last == "functionCall" else "a thought"
            message = f"Invalid value at 'contents': the last content of the model cannot end with {what}."
            raise BadRequest(message, param="contents")
        self._end_turn()
        self._turns.finish()
        self._turns.add_head(joined([head, *self._head]))
        return Conversation(tuple(self._turns.messages), continues, tuple(self._detailed))

    def _system(self, text: str) -> None:
        if not self._begun:
            self._head.append(text)
        elif text:
            self._turns.add_system(text)

    # The model's turns -----------------------------------------------------------------------------------------------

    def _model_part(self, part: Mapping[str, Any], path: Path) -> None:
        kind = _kind(part, path)
        if part["thoughtSignature"]:
            self._thoughts.append(self._revealed(part["thoughtSignature"], (*path, "thoughtSignature")))
        if kind == "functionCall":
            self._calls.append(self._call(part["functionCall"]))
        elif kind != "text":
            place = dotted((*path, kind))
            raise UnsupportedFeature(f"'{place}' is not supported in the model's turns.", param=place)
        elif part["thought"]:
            self._thoughts.append(part["text"] or "")
            kind = "thought"
        else:
            self._texts.append(part["text"] or "")
            if not part["text"]:
                return  # nothing that could be continued
        self._last = kind

    def _revealed(self, given: str, path: Path) -> str:
        """Return the reasoning that a signature holds; nothing for one that is not ours. Raises BadRequest."""
        place = dotted(path)
        try:
            held = _decoded(given).decode("ascii")
        except ValueError:
            return ""
        try:
            text = reasoning.revealed(held, self._hidden_left) or ""
        except reasoning.TooMuchHidden:
            message = f"The signatures of thoughts hold more than {reasoning.MAX_HIDDEN_CHARS} bytes of text."
            raise BadRequest(message, param=place) from None
        except ValueError:
            raise BadRequest(f"Invalid value at '{place}': the signature is damaged.", param=place) from None
        self._hidden_left -= len(text.encode("utf-8", "replace"))
        return text

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        id = self._open.add(call["id"], call["name"])
        return self._turns.call(id, call["name"], call["args"])

    def _end_turn(self) -> None:
        text, thought = "".join(self._texts), "".join(self._thoughts)
        if text or thought or self._calls:
            self._turns.add_assistant(text, thought, self._calls)
        self._texts, self._thoughts, self._calls, self._last = [], [], [], ""

    # The user's turns ------------------------------------------------------------------------------------------------

    def _user(self, parts: Sequence[Mapping[str, Any]], path: Path) -> None:
        pieces: list[Piece] = []
        for i, part in enumerate(parts):
            at = (*path, i)
            kind = _kind(part, at)
            if part["thought"] or kind == "functionCall":
                what = "functionCall" if kind == "functionCall" else "thought"
                place = dotted((*at, what))
                message = f"Invalid value at '{place}': it belongs to contents with the role 'model'."
                raise BadRequest(message, param=place)
            if kind == "functionResponse":
                pieces += self._response(part["functionResponse"], (*at, "functionResponse"))
            elif kind == "text":
                pieces.append(part["text"] or "")
            else:
                pieces.append(self._file(part, at))
        if content := pieces_of(pieces):
            self._turns.add_user(content)
        elif self._turns.last_role not in ("user", "tool"):
            self._turns.add_user("")

    def _response(self, response: Mapping[str, Any], path: Path) -> list[Piece]:
        """Add the result of a call, and return its images."""
        found = self._open.answer(response["id"], response["name"])
        if found is None:
            place, name = dotted(path), response["name"][:64]
            message = f"Invalid value at '{place}': there is no call of '{name}' that it could answer."
            raise BadRequest(message, param=place)
        texts, images = [_result_text(response["response"])], list[Piece]()
        for i, part in enumerate(response["parts"] or ()):
            piece = self._file(part, (*path, "parts", i))
            if isinstance(piece, str):
                texts.append(piece)
            else:
                images.append(piece)
                texts.append(IMAGE_BELOW)
        self._turns.add_result(found[0], found[1], joined(texts))
        return images

    def _file(self, part: Mapping[str, Any], path: Path) -> Piece:
        """Return a file as a document, or the part of a message that is an image. Raises BadRequest,
        UnsupportedFeature."""
        blob, file = part["inlineData"], part["fileData"]
        if blob is None and file is None:
            message = f"Invalid value at '{dotted(path)}': a part of a result has one of inlineData, fileData."
            raise BadRequest(message, param=dotted(path))
        name = "inlineData" if blob is not None else "fileData"
        given, at = (blob, file)[blob is None], (*path, name)
        kind = (given["mimeType"] or "image/").partition(";")[0].strip().lower()
        if blob is not None and kind.startswith("text/"):
            return _document(blob, at)
        if not kind.startswith("image/"):
            place = dotted((*at, "mimeType"))
            raise UnsupportedFeature(f"'{place}': files of type '{kind[:64]}' are not read.", param=place)
        if self._card.images is None:
            place = dotted(at)
            message = f"'{place}' is not supported: the model '{self._card.name}' reads text only."
            raise UnsupportedFeature(message, param=place)
        own = (part["mediaResolution"] or {}).get("level")
        if own in DETAILS:
            self._detailed.append(dotted((*path, "mediaResolution")))
        detail = DETAILS.get(own or self._resolution or "", "auto")
        if blob is not None:
            data = _standard(blob["data"])
            return image_part(ImageSource(data=data, detail=detail, param=dotted((*at, "data"))))
        place = dotted((*at, "fileUri"))
        if not file["fileUri"].lower().startswith(("https://", "http://", "data:")) or _is_googles(file["fileUri"]):
            message = f"'{place}': files of Google's are not there; send the file itself as 'inlineData'."
            raise UnsupportedFeature(message, param=place)
        return image_part(ImageSource(url=file["fileUri"], detail=detail, param=place))


def _is_googles(uri: str) -> bool:
    """Return whether an address is that of a file that was uploaded to the API itself."""
    return uri.lower().startswith("https://generativelanguage.googleapis.com/")


def _result_text(response: Mapping[str, Any]) -> str:
    """Return a function's result as text."""
    if len(response) == 1:
        ((name, value),) = response.items()
        if name in ("output", "result", "error"):
            text = value if isinstance(value, str) else _json(value)
            return f"Error: {text}" if name == "error" else text
    return _json(response)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _document(blob: Mapping[str, Any], path: Path) -> str:
    try:
        text = _decoded(blob["data"]).decode()
    except ValueError:
        place = dotted((*path, "data"))
        raise BadRequest(f"Invalid value at '{place}': expected UTF-8 text in base64.", param=place) from None
    return document(blob["displayName"], None, text)


def _standard(data: str) -> str:
    """Return base64 of either alphabet, padded or not, in the usual form."""
    found = data.translate({ord("-"): "+", ord("_"): "/"})
    return found + "=" * (-len(found) % 4)


def _decoded(data: str) -> bytes:
    """Return bytes from base64. Raises ValueError."""
    try:
        return base64.b64decode(_standard(data), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
