"""The list of models, with every key that some version of the SDK insists on."""

from __future__ import annotations

from typing import Any

from dragoman.core.serving import ModelCard

_PRICES = ("input", "output", "prompt", "completion")
_NO_PRICES = ("input_cache_read", "cache_write", "audio_minute")


def model(card: ModelCard) -> dict[str, Any]:
    """An entry of the list. What a server of one's own has no value for is empty: prices, dates, licenses."""
    calls = card.tool_calls is not None
    return {
        "id": card.name,
        "object": "model",
        "owned_by": "dragoman",
        "name": card.name,
        "created": card.created,
        "context_length": card.context_tokens,
        "max_completion_tokens": card.context_tokens,
        # Strings: the SDK's last versions take nothing else, its first ones read numbers from them.
        "pricing": {**dict.fromkeys(_PRICES, "0"), **dict.fromkeys(_NO_PRICES)},
        "functionality": {
            "tool_call": calls,
            "builtin_tool": False,
            "parallel_tool_call": calls,
            "structured_output": True,
            "tool_choice": calls,
            "system_messages": card.has_chat_template,
        },
        "description": "",
        "deprecation_date": None,
        "reasoning": card.reasoning is not None,
        "reasoning_options": None,
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "interleaved": "reasoning_content" if card.reasoning is not None else False,
        "base_model": None,
        "mode": "chat" if card.has_chat_template else "completion",
        "default_params": None,
        "hugging_face_id": "",
        "hugging_face_url": "https://huggingface.co/",
        "license": "https://huggingface.co/",
        "policy": None,
    }
