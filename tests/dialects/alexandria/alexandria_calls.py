"""Short ways to say a call."""

from __future__ import annotations

from typing import Any

import msgspec
from stub_runtime import QUICK

HERE = msgspec.structs.replace(QUICK, dialect="alexandria", body_timeout_s=5.0, write_timeout_s=10.0)
"""Settings of a server whose bare paths are this dialect's."""

ONE, BATCH = "/api/generate-one", "/api/generate-batch"


def one(request_id: str = "a", **fields: Any) -> dict[str, Any]:
    config = {"max_new_tokens": 12, "do_sample": False} | fields.pop("config", {})
    return {"request_id": request_id, "prompt": "Once upon a time", "generation_config": config} | fields


def rows(*ids: str, prompt: Any = "Once upon a time") -> list[dict[str, Any]]:
    return [{"request_id": id, "prompt": prompt} for id in ids]


def batch(*ids: str, **fields: Any) -> dict[str, Any]:
    config = {"max_new_tokens": 12, "do_sample": False} | fields.pop("config", {})
    return {"prompts": rows(*ids), "generation_config": config} | fields
