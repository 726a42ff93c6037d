"""Checks of a model's files for contradictions and gaps: the findings of ``doctor``.

No weights are loaded: files are read as the server reads them, so that errors have the same messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from dragoman.cli import console
from dragoman.core.errors import BadRequest, DragomanError, ModelError
from dragoman.core.request import ChatPrompt
from dragoman.core.sampling_defaults import SamplingDefaults
from dragoman.models import MemoryPlan, ModelDescription, ModelSettings, describe, plan
from dragoman.models.checkpoint import Checkpoint
from dragoman.models.config import read_json
from dragoman.models.families import FAMILIES
from dragoman.models.generation_config import NONE, read_generation_config
from dragoman.models.layout import format_shares, plan_layout
from dragoman.models.parameters import parameter_count
from dragoman.models.source import find_weights, open_files
from dragoman.models.spec import DecoderSpec
from dragoman.text.chat_template import ChatTemplate
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.tool_calls import reasoning_of, tool_calls_of

_QUESTION = {"role": "user", "content": "What is the capital of France?"}
_ANSWER = {"role": "assistant", "content": "Paris."}
_EOS_LISTS = ("generation_config.json", "config.json")


class Problem(msgspec.Struct, frozen=True):
    """A finding for the user. ``error``: the model cannot be served; ``warning``: it may not work as intended."""

    severity: Literal["error", "warning"]
    text: str


class Examination(msgspec.Struct):
    """Rows about the model that would be loaded, by chapter, and the problems found."""

    chapters: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    problems: list[Problem] = msgspec.field(default_factory=list)
    described: ModelDescription | None = None
    tokenizer: Tokenizer | None = None

    @property
    def can_be_served(self) -> bool:
        """Return whether there is no error."""
        return not any(problem.severity == "error" for problem in self.problems)

    def warn(self, text: str) -> None:
        self.problems.append(Problem("warning", text))

    def fail(self, error: DragomanError) -> None:
        self.problems.append(Problem("error", error.message))


def examine(model: str | None, settings: ModelSettings) -> Examination:
    """Examine a model's files: weights, tokenizer, chat template, special tokens. Downloads missing files."""
    found = Examination()
    try:
        described = describe(model, **settings.describing)
        found.described = described
        _look_at_model(described, settings, found)
    except ModelError as error:
        found.fail(error)
    if found.described is not None:
        _look_at_sampling(found.described, settings, found)
        _look_at_text(found.described, found)
    return found


def _look_at_model(described: ModelDescription, settings: ModelSettings, found: Examination) -> None:
    source = find_weights(described.source, token=settings.token)
    weights = source.gguf or [source.folder / name for name in source.weight_files]
    stored = sum(path.stat().st_size for path in weights)
    found.chapters["files"] = {
        "model": source.name,
        "folder": str(source.gguf[0].parent if source.gguf else source.folder),
        **({"revision": source.revision} if source.revision else {}),
        "weights": f"{len(weights)} file{'s' * (len(weights) != 1)}, {console.size(stored)}",
    }
    spec, left_out = described.spec, described.quantization.notes if described.quantization else ()
    found.chapters["model"] = {
        "architecture": spec.architecture,
        "size": f"{console.count(parameter_count(spec))} parameters in {spec.layers} layers, {spec.width} wide",
        "attention": _attention(spec),
        "positions": _positions(described),
        **({"encoder": f"inputs of {described.encoder.context_tokens:,} tokens"} if described.encoder else {}),
        "stored as": described.stored_as,
        **({"left out": "; ".join(left_out)} if left_out else {}),
    }
    checkpoint = Checkpoint(open_files(source), FAMILIES[spec.architecture], spec)
    if checkpoint.text_only:
        found.chapters["model"]["left out"] = "; ".join([*left_out, checkpoint.text_only])
    if checkpoint.spec.tied != spec.tied:
        found.warn("the config calls embedding and output projection tied; the files hold two, and both are used")
    declared = _declared_dtype(source.folder)
    if declared and declared != described.stored_dtype and not checkpoint.formats:
        found.warn(f"the config says {declared}, most weights are {described.stored_dtype}: that is what is loaded")
    planned = plan(replace(described, source=source, spec=checkpoint.spec, formats=checkpoint.formats), settings)
    states = {}
    if planned.state_slots:
        states["states"] = f"float32, {console.size(planned.bytes_per_state)} a sequence, {planned.state_slots} of them"
    found.chapters["as served"] = {
        "precision": f"{planned.precision} ({_shares(checkpoint, planned)})",
        "keys and values": f"{planned.kv_precision}, {console.size(planned.kv_bytes_per_token)} a token",
        **states,
        "context": f"{planned.context_tokens:,} tokens, {planned.concurrency:.3g} at once",
        "memory": f"{console.size(planned.total_bytes)} of {console.size(planned.available_bytes)} available",
    }
    planned.require_fit()


def _look_at_sampling(described: ModelDescription, settings: ModelSettings, found: Examination) -> None:
    try:
        recommended = read_generation_config(described.tokenizer_folder, settings.generation_config)
    except ModelError as error:
        found.fail(error)
        return
    words = SamplingDefaults(model=recommended.sampling).words()
    off = settings.generation_config == NONE
    found.chapters["sampling"] = {
        "recommended": words.removeprefix("model: ") or ("not read (--generation-config none)" if off else "nothing"),
        **({"not applied": ", ".join(recommended.not_applied)} if recommended.not_applied else {}),
    }
    for name, value in recommended.not_applied.items():
        found.warn(f"the model recommends {name} {value}, which is not applied: requests ask for it themselves")


def _look_at_text(described: ModelDescription, found: Examination) -> None:
    folder = described.tokenizer_folder
    try:
        tokenizer = Tokenizer.load(folder)
    except ModelError as error:
        found.fail(error)
        return
    found.tokenizer = tokenizer
    _look_at_tokens(described, tokenizer, found)
    try:
        template = ChatTemplate.load(folder, tokenizer.special_tokens)
    except ModelError as error:
        found.fail(error)
        return
    try:
        _look_at_template(template, tokenizer, set(_ends(described, tokenizer)), found)
    finally:
        template.close()


def _look_at_tokens(described: ModelDescription, tokenizer: Tokenizer, found: Examination) -> None:
    vocabulary, ends = described.spec.vocab_size, _ends(described, tokenizer)
    found.chapters["tokens"] = {
        "vocabulary": f"{tokenizer.vocab_size:,} of the tokenizer, {vocabulary:,} of the model",
        **{name.replace("_", " "): text for name, text in tokenizer.special_tokens.items()},
        "ends a text": ", ".join(f"{i} {tokenizer.token(i)!r} ({', '.join(who)})" for i, who in ends.items()) or "–",
    }
    if tokenizer.vocab_size > vocabulary:
        found.warn(
            f"the tokenizer has ids up to {tokenizer.vocab_size - 1}, the model only {vocabulary}: a text that has one "
            "of the others is refused"
        )
    if not ends:
        found.warn("no file names a token that ends a text: every generation goes on until its length is reached")
    lists = [{i for i, names in ends.items() if who in names} for who in _EOS_LISTS]
    if all(lists) and lists[0] != lists[1]:
        found.warn(f"{' and '.join(_EOS_LISTS)} name different tokens that end a text: each of them does")
    if any(lists) and tokenizer.eos_id is not None and tokenizer.eos_id not in set().union(*lists):
        found.warn(f"the tokenizer's EOS, {tokenizer.eos_id}, is in no config: it ends a text all the same")
    for token_id in ends:
        if tokenizer.token(token_id) is None:
            found.warn(f"token {token_id}, which is said to end a text, is not in the tokenizer's vocabulary")
    bos = described.bos_token_id
    if None not in (bos, tokenizer.bos_id) and bos != tokenizer.bos_id:
        found.warn(f"the config's BOS is {bos}, the tokenizer's {tokenizer.bos_id}: the tokenizer's is used")


def _look_at_template(template: ChatTemplate, tokenizer: Tokenizer, ends: set[int], found: Examination) -> None:
    rows = found.chapters["chats"] = {"template": "none: it completes text"}
    if not template.available:
        found.warn("there is no chat template: requests with messages are refused (--chat-template gives one)")
        return
    try:
        prompt = template.render(ChatPrompt(messages=(_QUESTION,)))
        whole = template.render(ChatPrompt(messages=(_QUESTION, _ANSWER, _QUESTION)))
    except BadRequest as error:
        rows["template"] = "fails"
        found.warn(f"the chat template refuses a plain question and answer: {error.message}")
        return
    calls, reasoning = tool_calls_of(template, tokenizer), reasoning_of(template, tokenizer)
    rows |= {
        "template": "renders",
        "its process": f"confined by {', '.join(template.confined)}" if template.confined else "not confined here",
        "a question": repr(prompt),
        "tool calls": f"in the format {calls.format}" if calls else "–",
        "reasoning": f"between {reasoning.opening} and {reasoning.closing}" if reasoning else "–",
    }
    closing = _closing_token(whole, tokenizer)
    if closing is None:
        found.warn("the chat template puts no special token behind an answer: nothing tells the model where to end")
    elif closing not in ends:
        found.warn(
            f"the chat template ends an answer with {tokenizer.token(closing)!r} ({closing}), which ends no text: an "
            "answer goes on with the next turn"
        )


def _closing_token(conversation: str, tokenizer: Tokenizer) -> int | None:
    """Return the first special token after the answer."""
    ids = tokenizer.encode(conversation.partition(_ANSWER["content"])[2], add_special_tokens=False)
    return next((i for i in ids if tokenizer.is_special(i)), None)


def _ends(described: ModelDescription, tokenizer: Tokenizer) -> dict[int, list[str]]:
    """Return the ids that end a text, each with the files that declare it."""
    found: dict[int, list[str]] = {}
    folder = described.tokenizer_folder
    for name in _EOS_LISTS:
        value = _object(folder / name).get("eos_token_id")
        for token_id in value if isinstance(value, list) else [] if value is None else [value]:
            found.setdefault(token_id, []).append(name)
    for token_id in described.eos_token_ids:  # that of the decoder within a model
        found.setdefault(token_id, ["config.json"])
    if tokenizer.eos_id is not None:
        found.setdefault(tokenizer.eos_id, []).append("the tokenizer")
    return found


def _shares(checkpoint: Checkpoint, planned: MemoryPlan) -> str:
    """Return the share of the matrices in each packed format."""
    shares = format_shares(plan_layout(checkpoint.spec, planned.precision, planned.formats))
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items())


def _positions(described: ModelDescription) -> str:
    spec = described.spec
    windows = sorted({window for window in spec.windows if window})
    sliding = f", windows of {', '.join(map(str, windows))}" if windows else ""
    beside = f", inputs of the encoder of {spec.encoder.context:,}" if spec.encoder else ""
    return f"context of {spec.context:,} tokens{sliding}{beside}"


def _declared_dtype(folder: Path) -> str | None:
    config = _object(folder / "config.json")
    value = config.get("dtype") or config.get("torch_dtype")
    return value if isinstance(value, str) else None


def _object(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _attention(spec: DecoderSpec) -> str:
    if latent := spec.latent:
        return f"{spec.heads} heads on latents of {latent.rank} and keys of {latent.rotated} numbers"
    return f"{spec.heads} heads of {spec.head_dim}, {spec.kv_heads} of keys and values"
