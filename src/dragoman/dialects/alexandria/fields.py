"""Every field of the Alexandria requests."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.dialects.field import Field, Table
from dragoman.dialects.field_types import Boolean, FieldError, FieldRule, Integer, ListOf, Number, Path, String, Wrapped

MAX_ID_CHARS = 1024
MAX_ROWS = 4096


class Lenient(Wrapped, frozen=True):
    """A kind of which everything else is accepted too, and taken for ``otherwise``."""

    otherwise: Any = None

    def accepts(self, value: Any) -> bool:
        return True

    def check(self, value: Any, path: Path) -> Any:
        return self.inner.check(value, path) if self.inner.accepts(value) else self.otherwise

    def words(self) -> str:
        return f"{self.inner.words()}; anything else counts as absent"


class Config(Wrapped, frozen=True):
    """An object without nulls, by its table; None where it is empty, or anything else that is falsy."""

    def accepts(self, value: Any) -> bool:
        return not value or self.inner.accepts(value)

    def check(self, value: Any, path: Path) -> dict[str, Any] | None:
        if not value:
            return None
        checked = self.inner.check(value, path)
        for name in checked:
            if name in value and value[name] is None:
                raise FieldError(FieldRule.TYPE, (*path, name), None)
        return {name: given for name, given in checked.items() if given is not None}


GENERATION_CONFIG = Table(
    name="generation_config",
    fields=(
        Field(name="num_beams", kind=Integer(), becomes="beams.num_beams", note="1 is plain decoding, by default."),
        Field(
            name="do_sample",
            kind=Boolean(),
            becomes="sampling.temperature",
            convert=lambda on: None if on else 0.0,
            note="`false` takes the most likely token; by default tokens are drawn.",
        ),
        Field(
            name="temperature",
            kind=Number(maximum=1e6),
            becomes="sampling.temperature",
            note="By default 1; 0 takes the most likely token.",
        ),
        Field(name="top_p", kind=Number(), becomes="sampling.top_p", note="By default 1, which is off."),
        Field(name="top_k", kind=Integer(), becomes="sampling.top_k", note="By default 50; 0 is off."),
        Field(
            name="max_new_tokens",
            kind=Integer(1),
            becomes="ending.max_tokens",
            note="Most tokens that this call adds, by default 2048; cut to what the context has room for.",
        ),
        Field(
            name="repetition_penalty",
            kind=Number(maximum=1e6),
            becomes="sampling.repetition_penalty",
            note="Over the prompt and all that was generated; by default 1, which is off.",
        ),
        Field(
            name="length_penalty",
            kind=Number(-1e6, 1e6),
            becomes="beams.length_penalty",
            note="Beams are compared by the sum of log-probabilities over length to this power; by default 1.",
        ),
        Field(name="stream", kind=Boolean(), note="Taken, and of no effect."),
        Field(
            name="maxLength",
            kind=Integer(1),
            becomes="ending.max_tokens",
            note="The older name of `max_new_tokens`; counts where that is absent.",
        ),
    ),
)

ROW_FIELDS: tuple[Field, ...] = (
    Field(
        name="request_id",
        kind=String(minimum=1, maximum=MAX_ID_CHARS),
        required=True,
        note="Names the generation: after a cut, the same ids in the same order go on with it.",
    ),
    Field(
        name="prompt",
        kind=Lenient(String()),
        becomes="prompt",
        note="Raw text, without a chat template. Not looked at where a generation goes on; required otherwise.",
    ),
)

CALL_FIELDS: tuple[Field, ...] = (
    Field(
        name="only_new_tokens",
        kind=Lenient(Boolean(), True),
        default=True,
        note="`false` shows first what there was before this call: the prompt, and what earlier calls have generated.",
    ),
    Field(
        name="generation_config",
        kind=Config(GENERATION_CONFIG),
        note="How tokens are chosen. Absent or empty: as in the call before, otherwise as the server does by default.",
    ),
)

STREAM = Field(
    name="stream_response",
    kind=Lenient(Boolean(), True),
    default=True,
    note="`false` answers in one piece.",
)

ROW = Table(name="prompt", fields=ROW_FIELDS)
PROMPTS = Field(name="prompts", kind=ListOf(ROW, minimum=1, maximum=MAX_ROWS), required=True, note="At least one.")

GENERATE_ONE = Table(name="generate one", fields=(*ROW_FIELDS, *CALL_FIELDS, STREAM))
GENERATE_BATCH = Table(
    name="generate batch",
    fields=(PROMPTS, *CALL_FIELDS, msgspec.structs.replace(STREAM, note="Taken, and of no effect.")),
)
MESSAGE = Table(name="message", fields=(PROMPTS, *CALL_FIELDS, STREAM))
