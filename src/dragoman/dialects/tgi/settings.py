"""Settings of the TGI dialect: its limits, under TGI's own names, and its quirks."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dragoman.core.errors import DragomanError

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]


class Quirks(msgspec.Struct, frozen=True, kw_only=True):
    """Behaviour of the original that is kept, although a better one is the default. All true: bug for bug.

    Attributes:
        empty_ids: every answer's ``id`` is the empty string.
        tool_finish_stop: a finished tool call ends with ``stop``, not with ``tool_calls``.
        unfinished_tool_streams: no chunk of a streamed tool call has a finish reason.
        presence_as_repetition: ``presence_penalty`` p is a repetition penalty of p + 2.
        frequency_as_share: ``frequency_penalty`` counts a token's share of prompt and output together.
        one_is_no_probability: 1.0 is refused for ``top_p`` and ``typical_p``.
        stream_errors_in_band: errors of streams under /v1 are events, also when known before the first token.
        stop_at_token_ends: a stop string is looked for only at the end of a token.
        stop_sequence_finish: chats and completions name the end by a stop string ``stop_sequence``, not ``stop``.
        eos_token_finish: streamed completions name their own end ``eos_token``, not ``stop``.
        special_text: streamed completions show the text of special tokens.
        unknown_adapter_is_base: the base model answers in place of an adapter that is not loaded.
    """

    empty_ids: bool = False
    tool_finish_stop: bool = False
    unfinished_tool_streams: bool = False
    presence_as_repetition: bool = False
    frequency_as_share: bool = False
    one_is_no_probability: bool = False
    stream_errors_in_band: bool = False
    stop_at_token_ends: bool = False
    stop_sequence_finish: bool = False
    eos_token_finish: bool = False
    special_text: bool = False
    unknown_adapter_is_base: bool = False


class TgiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of requests in the TGI dialect, under the names of its launcher.

    Attributes:
        max_concurrent_requests: sequences in flight; more are answered with status 429.
        max_best_of: most sequences that best_of may choose from.
        max_stop_sequences: most stop strings of one request.
        max_top_n_tokens: most alternatives reported for each token.
        max_input_tokens: most prompt tokens; by default one less than max_total_tokens.
        max_total_tokens: most tokens of prompt and output together; by default, and at most, the model's context.
        max_client_batch_size: most prompts of one completions request.
        validation_workers: threads that tokenize; shown by /info.
        default_max_new_tokens: tokens generated when a request says nothing; by default as many as there is room for.
        lenient_token_budget: max_new_tokens beyond the room is cut to it, as TGI 3 does, rather than refused.
        disable_grammar_support: refuse grammars.
        enable_prefill_logprobs: report the prompt's tokens to requests with decoder_input_details.
        payload_limit: largest body of a request in bytes; without it 2,000,000, and where a model in memory sees images
            as many as --max-image-body-bytes allows.
        cors_allow_origin: origin whose pages may call this dialect, beside those of --cors-origin, which has the
            patterns; may be given several times.
        watermark_gamma: share of the vocabulary that a watermark favours.
        watermark_delta: what a watermark adds to the logits of those tokens.
        compute_type: value of the header x-compute-type.
        aip_predict_route: one more path for POST /vertex, as Vertex AI gives its containers. Where the server has that
            path already, what has no instances is answered as before.
        insecure_predict: ask for no API key there, on a server that asks for one elsewhere: Vertex AI sends none, and
            lets in whom it knows itself.
        aip_health_route: one more path for GET /health, none that the server answers with anything else.
        docker_label: of the image that this runs in, for /info and the system_fingerprint of chats.
        tgi_strict: follow the original in everything, its bugs included: all of tgi_quirk.
        tgi_quirk: one thing in which to follow the original, by its name in docs/tgi.md; may be given several times.
    """

    PANEL = "Text Generation Inference"

    max_concurrent_requests: Count = 128
    max_best_of: Count = 2
    max_stop_sequences: Natural = 4
    max_top_n_tokens: Natural = 5
    max_input_tokens: Count | None = None
    max_total_tokens: Annotated[int, Meta(ge=2)] | None = None
    max_client_batch_size: Count = 4
    validation_workers: Count = 2
    default_max_new_tokens: Count | None = None
    lenient_token_budget: bool = False
    disable_grammar_support: bool = False
    enable_prefill_logprobs: bool = True
    payload_limit: Count | None = None
    cors_allow_origin: tuple[str, ...] = ()
    watermark_gamma: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    watermark_delta: float = 2.0
    compute_type: str = "gpu+optimized"
    docker_label: str | None = None
    aip_predict_route: str | None = None
    insecure_predict: bool = False
    aip_health_route: str | None = None
    tgi_strict: bool = False
    tgi_quirk: tuple[str, ...] = ()

    def quirks(self) -> Quirks:
        """Return the selected quirks. Raises DragomanError for an unknown name."""
        names = Quirks.__struct_fields__
        asked = [quirk.replace("-", "_") for quirk in self.tgi_quirk]
        for quirk in asked:
            if quirk not in names:
                known = ", ".join(name.replace("_", "-") for name in names)
                raise DragomanError(f"--tgi-quirk {quirk.replace('_', '-')}: there is only {known}")
        return Quirks(**dict.fromkeys(names if self.tgi_strict else asked, True))

    def check(self) -> None:
        """Raise DragomanError where two settings contradict each other, and for unknown quirks."""
        self.quirks()
        given, total = self.max_input_tokens, self.max_total_tokens
        if given is not None and total is not None and given >= total:
            raise DragomanError(f"`max_input_tokens`({given}) must be < `max_total_tokens`({total})")
        for name, route in (("predict", self.aip_predict_route), ("health", self.aip_health_route)):
            if route and not (route.startswith("/") and "{" not in route):
                raise DragomanError(f"--aip-{name}-route {route}: a path begins with /")

    def limits(self, context_tokens: int, encoder_tokens: int | None = None) -> tuple[int, int]:
        """Return ``(max_input_tokens, max_total_tokens)`` for a model with such a context.

        ``encoder_tokens``: of an encoder's input, which is none of that context.
        """
        if encoder_tokens is not None:
            most = encoder_tokens + context_tokens
            total = min(self.max_total_tokens or most, most)
            return min(self.max_input_tokens or encoder_tokens, encoder_tokens, total - 1), total
        total = min(self.max_total_tokens or context_tokens, context_tokens)
        return min(self.max_input_tokens or total - 1, total - 1), total

    def notes(self, context_tokens: int, encoder_tokens: int | None = None) -> tuple[str, ...]:
        """Return a sentence about each limit that is lowered because the model cannot hold it."""
        limits = self.limits(context_tokens, encoder_tokens)
        asked = (self.max_input_tokens, self.max_total_tokens)
        return tuple(
            f"max_{name}_tokens is {had}, not {wanted}: the model's context is {context_tokens}"
            for name, wanted, had in zip(("input", "total"), asked, limits, strict=True)
            if wanted is not None and wanted > had
        )
