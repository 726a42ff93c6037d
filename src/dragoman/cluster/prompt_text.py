"""Names of a prompt's text, for routing: of equal beginnings in whatever dialect they come.

An ingress has no tokenizer. It names pieces of the text as the request states it, and learns from the answer's header
which blocks of the cache they became.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.routing import compile_path

from dragoman.dialects.api import Dialect

PIECE = 256
"""Characters of one piece of a long text: about two blocks of the cache."""
MOST_PIECES = 2048
FIELDS = ("messages", "contents", "prompt", "inputs", "prompts", "input", "text")
"""Fields that hold the prompt, in the bodies of all dialects."""
CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "x-friendli-token")
"""Headers whose callers do not share prefixes."""
CONTEXT = (
    "model",
    "tools",
    "tool_choice",
    "toolConfig",
    "tool_config",
    "systemInstruction",
    "system_instruction",
    "template_kwargs",
    "chat_template_kwargs",
    "adapter_id",
    "peft",
    "cache_salt",
)
"""Fields that precede the prompt in what the model reads, or decide who may share it."""

_MESSAGE = frozenset({"role", "content", "parts"})
"""Members of which a message has one."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(order="sorted").encode


class PromptText(msgspec.Struct, frozen=True):
    """A prompt's text by names, and the model that the request asks for.

    Attributes:
        names: of the text's beginnings, from the shortest to the whole. ends: how many characters each has.
        model: the model or adapter, as the request says; None where it does not.
    """

    names: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()
    model: str | None = None


NO_TEXT = PromptText()


class ModelPaths:
    """The paths that name the model, in place of the body."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._patterns = [
            (compile_path(prefix + operation.path)[0], operation.model_param)
            for dialect in dialects
            for operation in dialect.operations
            if operation.model_param
            for prefix in ("", f"/{dialect.name}")
        ]

    def model_in(self, path: str) -> str | None:
        """Return the model that a path names; None where it names none."""
        return next((found[name] for pattern, name in self._patterns if (found := pattern.match(path))), None)


def prompt_text(body: bytes, headers: Mapping[str, str], model: str | None = None) -> PromptText:
    """Return the names of the prompt in a JSON body; none where there is no prompt that can be read. ``model``: that
    which the path names, if it does."""
    try:
        content = _decode(body)
    except (ValueError, RecursionError):
        return NO_TEXT
    if not isinstance(content, dict):
        return NO_TEXT
    if model is not None:
        content["model"] = model
    prompt = next((content[name] for name in FIELDS if content.get(name)), None)
    if isinstance(content.get("parameters"), dict):
        content = {**content["parameters"], **content}
    # What it needs loaded: an adapter by its own field, or a model or adapter as most dialects name both.
    needed = content.get("adapter_id") or content.get("peft") or content.get("model")
    context = [content.get(name) for name in CONTEXT] + [headers.get(name) for name in CREDENTIALS]
    names, ends = _named(_encode(context), _texts(prompt))
    return PromptText(names, ends, needed if isinstance(needed, str) else None)


def _texts(prompt: Any) -> Iterable[str]:
    """Return the texts of a prompt in order: of each message one; of several prompts the first."""
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, list) or not prompt:
        return ()
    first = prompt[0]
    if isinstance(first, dict) and not _MESSAGE.isdisjoint(first):
        return (f"{each.get('role')}\0{_content(each)}" for each in prompt if isinstance(each, dict))
    if isinstance(first, dict):
        return _texts(next((first[name] for name in FIELDS if first.get(name)), None))
    if isinstance(first, int):
        return (" ".join(map(str, prompt)),)
    return _texts(first)


def _content(message: Mapping[str, Any]) -> str:
    content = message["parts"] if "parts" in message else message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    calls = message.get("tool_calls")
    return f"{content}{_encode(calls).decode() if calls else ''}"


def _named(context: bytes, texts: Iterable[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    parent = hashlib.blake2b(context, digest_size=8).digest()
    names, ends, total = [], [], 0
    for text in texts:
        for start in range(0, max(1, len(text)), PIECE):
            piece = text[start : start + PIECE]
            parent = hashlib.blake2b(piece.encode("utf-8", "surrogatepass"), key=parent, digest_size=8).digest()
            total += len(piece)
            names.append(parent.hex())
            ends.append(total)
            if len(names) == MOST_PIECES:
                return tuple(names), tuple(ends)
        # A message that ends here is not the beginning of a longer one.
        parent = hashlib.blake2b(b"\0", key=parent, digest_size=8).digest()
    return tuple(names), tuple(ends)
