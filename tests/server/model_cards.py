"""The card of a model of which a test says only what it needs."""

from __future__ import annotations

from typing import Any

from dragoman.core.serving import ModelCard


def card_of(**fields: Any) -> ModelCard:
    """A small model with a chat template, without tokens that fill gaps."""
    usual = {
        "name": "m",
        "created": 0,
        "context_tokens": 64,
        "vocab_size": 16,
        "hidden_size": 8,
        "precision": "float32",
        "fingerprint": "f",
        "has_chat_template": True,
        "has_fill_tokens": False,
    }
    return ModelCard(**usual | fields)
