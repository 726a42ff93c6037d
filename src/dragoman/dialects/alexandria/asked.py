"""Wire to core, as pure functions: what one call asks for, whichever encoding it came in."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from dragoman.core.sampling import BeamParams, EndingParams, SamplingParams
from dragoman.dialects.alexandria.errors import INVALID, BadCall
from dragoman.dialects.alexandria.settings import AlexandriaSettings


class Row(msgspec.Struct, frozen=True):
    """One prompt of a call. ``prompt`` None: none was given, or something that is none."""

    request_id: str
    prompt: str | None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One call. ``config`` None: the one of the call before, or the server's."""

    rows: tuple[Row, ...]
    only_new_tokens: bool = True
    streams: bool = True
    config: dict[str, Any] | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(row.request_id for row in self.rows)


class Choosing(msgspec.Struct, frozen=True, kw_only=True):
    """A config in the core's words; ``beams`` None: plain decoding."""

    sampling: SamplingParams
    ending: EndingParams
    beams: BeamParams | None


def asked_one(values: dict[str, Any]) -> Asked:
    """The checked body of ``generate-one``."""
    row = Row(values["request_id"], values["prompt"])
    return Asked(
        rows=(row,),
        only_new_tokens=values["only_new_tokens"],
        streams=values["stream_response"],
        config=values["generation_config"],
    )


def asked_batch(values: dict[str, Any], settings: AlexandriaSettings) -> Asked:
    """The checked body of ``generate-batch``, or a message. Raises BadCall."""
    rows = tuple(Row(row["request_id"], row["prompt"]) for row in values["prompts"])
    if len(rows) > settings.alexandria_max_rows:
        raise BadCall(f"Invalid Data Format: at most {settings.alexandria_max_rows} prompts")
    if len({row.request_id for row in rows}) < len(rows):
        # Nothing is ever kept under such ids, so a row without a prompt is malformed, which is said first.
        raise BadCall("Duplicate request_ids" if all(row.prompt is not None for row in rows) else INVALID)
    return Asked(
        rows=rows,
        only_new_tokens=values["only_new_tokens"],
        streams=values["stream_response"],
        config=values["generation_config"],
    )


def choosing(config: dict[str, Any], settings: AlexandriaSettings) -> Choosing:
    """The config, the server's values in the place of what it leaves out. Raises BadCall."""

    def value(name: str) -> Any:
        return config.get(name, getattr(settings, f"alexandria_{name}"))

    draws, num_beams = value("do_sample"), value("num_beams")
    if num_beams > settings.alexandria_max_beams:
        raise BadCall(f"Invalid Data Format: num_beams must be at most {settings.alexandria_max_beams}")
    temperature = value("temperature") if draws else 0.0
    beams = None
    if num_beams > 1:
        # Beams that nothing is drawn for are compared by the model's own distribution.
        beams = BeamParams(
            num_beams=num_beams,
            kind="sampling" if temperature > 0 else "deterministic",
            length_penalty=value("length_penalty"),
        )
    sampling = SamplingParams(
        temperature=1.0 if beams and temperature == 0 else temperature,
        top_p=value("top_p") if temperature > 0 else 1.0,
        top_k=value("top_k") if temperature > 0 else 0,
        repetition_penalty=value("repetition_penalty"),
    )
    length = config.get("max_new_tokens", config.get("maxLength", settings.alexandria_max_new_tokens))
    ending = EndingParams(max_tokens=length, clamp_to_context=True, skip_special_tokens=False)
    return Choosing(sampling=sampling, ending=ending, beams=beams)


def seed_of(settings: AlexandriaSettings, ids: tuple[str, ...], row: int) -> int:
    """The seed of one row: the same for the same server and ids, and for every other row another one."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(msgspec.msgpack.encode((settings.alexandria_seed, ids, row)))
    return int.from_bytes(digest.digest(), "little")
