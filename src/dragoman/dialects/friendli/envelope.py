"""What every answer, and every chunk of a stream, begins with."""

from __future__ import annotations

from typing import Any

import msgspec


class Envelope(msgspec.Struct, frozen=True):
    """``model`` None: the request named none, and the answer has no such key. ``counted``: the client asked for the
    token counts of a stream."""

    id: str
    model: str | None
    created: int
    counted: bool = False

    def body(self, kind: str, choices: list[Any], **more: Any) -> dict[str, Any]:
        """The answer or chunk with these choices."""
        model = {} if self.model is None else {"model": self.model}
        return {"id": self.id, **model, "object": kind, "choices": choices, **more, "created": self.created}
