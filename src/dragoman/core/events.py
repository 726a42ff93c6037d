"""Events: the engine's in tokens, and serving's in text."""

from __future__ import annotations

import enum

import msgspec

from dragoman.core.images import PlacedImage


class FinishReason(enum.StrEnum):
    """Why a sequence ended."""

    EOS = "eos"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    ERROR = "error"


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token id and its natural log-probability."""

    token_id: int
    logprob: float


class Predictions(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of the client's prediction that steps tried: those ``accepted`` were drawn, those ``rejected`` were not.

    They depend on what else ran, and change no other count.
    """

    accepted: int = 0
    rejected: int = 0

    def __add__(self, other: Predictions) -> Predictions:
        return Predictions(self.accepted + other.accepted, self.rejected + other.rejected)


class TokenEvent(msgspec.Struct, frozen=True, array_like=True, tag="token"):
    """One new token of one sequence. The last of a sequence carries ``finish``.

    ``index`` is the token's position in the output, from 0: the client of the engine drops repeated ones.
    ``mirostat``: the sampler's state after the token, which does not follow from token ids: continuing the sequence
    later needs it. ``score``: of the whole sequence, on its last token, where it is a hypothesis of a beam search.
    ``predictions``: with the last token of a step that tried some.
    """

    request_id: str
    sequence: int
    index: int
    token_id: int
    finish: FinishReason | None = None
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
    mirostat: float | None = None
    score: float | None = None
    predictions: Predictions | None = None


class PromptEvent(msgspec.Struct, frozen=True, array_like=True, tag="prompt"):
    """The prompt is computed. Sent once per request, before its first token.

    ``cached_tokens``: how many prompt tokens came from the prefix cache. ``logprobs[i]`` belongs to prompt token i
    (None for the first), ``top[i]`` its alternatives; both empty unless requested. ``queue_s``: seconds that it
    waited in the engine before the first step that computed anything for the request. ``pooled``: the vector of a
    request with ``pooling``, in float32.
    """

    request_id: str
    cached_tokens: int = 0
    logprobs: tuple[float | None, ...] = ()
    top: tuple[tuple[TokenLogprob, ...], ...] = ()
    queue_s: float = 0.0
    pooled: bytes = b""


class ProgressEvent(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """Progress of a prompt that is not computed yet, for requests that ask for it. Not part of the replayed state.

    ``done`` of the ``total`` tokens are computed, cached ones included. ``position``: of a waiting request, from 1.
    """

    request_id: str
    done: int
    total: int
    position: int = 0


class FinishEvent(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """A sequence ended without a new token: none was requested (max_tokens 0), or the engine failed it."""

    request_id: str
    sequence: int
    finish: FinishReason
    message: str = ""


EngineEvent = TokenEvent | PromptEvent | ProgressEvent | FinishEvent


class BeamToken(msgspec.Struct, frozen=True, array_like=True):
    """One more token of a text of a beam search.

    ``parent`` is the index of the continued text among the live ones. ``score`` is the sum of the text's
    log-probabilities, ``key`` what its continuations are compared by. ``finish``: the text ends.
    """

    parent: int
    token_id: int
    score: float
    key: float
    finish: FinishReason | None = None
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


class BeamStep(msgspec.Struct, frozen=True, array_like=True):
    """One step of a beam search, its ``index``-th. The whole state of the search follows from its steps.

    ``tokens``: first the texts that are live from now on, in order, then those that ended.
    """

    request_id: str
    index: int
    tokens: tuple[BeamToken, ...]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one request; ``completion_tokens`` over all generations made. ``predictions``: None where the
    request has no prediction."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    predictions: Predictions | None = None


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of the phases of one request.

    ``validation_s``: until it was tokenized, checked and submitted to the engine. ``queue_s``: from there until the
    engine started it. ``inference_s``: from there to its last token.
    """

    validation_s: float = 0.0
    queue_s: float = 0.0
    inference_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.validation_s + self.queue_s + self.inference_s


class PromptToken(msgspec.Struct, frozen=True, gc=False):
    """A token of a text, and its bytes in the text's UTF-8: ``start`` to ``stop``, both 0 for a token that was
    added."""

    token_id: int
    text: str
    start: int
    stop: int


class Token(msgspec.Struct, frozen=True):
    """A token as the client sees it: ``text`` is its decoded piece, ``raw`` its exact bytes.

    ``logprob`` is None where none was requested or none exists (first prompt token). ``text_offset`` counts
    characters from the start of the generation's visible text.
    """

    token_id: int
    text: str
    raw: bytes
    logprob: float | None = None
    top: tuple[Token, ...] = ()
    text_offset: int = 0
    special: bool = False


class PromptReady(msgspec.Struct, frozen=True, kw_only=True):
    """First event of a request: the prompt as it was understood. ``tokens`` is filled only when echo, or prompt
    logprobs, were requested. ``reasoning_begun``: it ends with the mark that opens a reasoning block.

    ``prompt_ids``: its tokens. Of a request that is ``resumable``: the text that earlier calls delivered, and the
    fingerprint of its adapter; empty without one, and its ``images``. ``pooled``: as in ``PromptEvent``.
    """

    prompt_tokens: int
    cached_tokens: int
    seeds: tuple[int, ...]
    tokens: tuple[Token, ...] = ()
    text: str = ""
    reasoning_begun: bool = False
    prompt_ids: tuple[int, ...] = ()
    earlier_text: str = ""
    adapter: str = ""
    images: tuple[PlacedImage, ...] = ()
    pooled: bytes = b""


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New text of one generation; concatenated deltas equal the whole text. The last carries ``finish``.

    ``tokens`` are those whose text is released by this delta, in order; over all deltas each generated token appears
    once. ``stop`` is the stop string or stop token id that ended the generation, if any. ``score``: with the last,
    of a hypothesis of a beam search. ``token_ids``: of a request that is ``resumable``, those generated for this
    delta, whether or not it has their text; ``mirostat`` is the sampler's state after them.
    """

    sequence: int
    text: str
    tokens: tuple[Token, ...] = ()
    finish: FinishReason | None = None
    stop: str | int | None = None
    message: str = ""
    score: float | None = None
    token_ids: tuple[int, ...] = ()
    mirostat: float | None = None


class GenerationDone(msgspec.Struct, frozen=True, kw_only=True):
    """Last event of a request."""

    usage: Usage
    timings: Timings = Timings()


GenerationEvent = PromptReady | TextDelta | GenerationDone


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One whole generation, for answers that are not streamed. ``score``: where it is a hypothesis of a beam search.

    ``token_ids`` and ``mirostat``: as in ``TextDelta``.
    """

    index: int
    text: str
    tokens: tuple[Token, ...]
    finish: FinishReason
    seed: int
    stop: str | int | None = None
    score: float | None = None
    token_ids: tuple[int, ...] = ()
    mirostat: float | None = None


class GenerationResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer: the prompt, the ``n`` generations (best first when best_of > n), the counts."""

    prompt: PromptReady
    generations: tuple[Generation, ...]
    usage: Usage
    timings: Timings = Timings()
