"""One request of this dialect from its validation to its last token, for every endpoint."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from time import perf_counter
from typing import NamedTuple

from dragoman.core.entropy import random_bits, token_hex
from dragoman.core.errors import (
    BadRequest,
    GenerationCancelled,
    GenerationFailed,
    GenerationTimeout,
    Overloaded,
    PayloadTooLarge,
)
from dragoman.core.events import FinishReason, GenerationDone, PromptReady, TextDelta, Timings, Token
from dragoman.core.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from dragoman.core.serving import Serving
from dragoman.dialects.api import RequestContext
from dragoman.dialects.tgi.errors import Incomplete, InvalidInput
from dragoman.dialects.tgi.settings import TgiSettings
from dragoman.dialects.tgi.translate import (
    Parameters,
    adapter_of,
    check_grammar,
    check_parameters,
    generation_request,
    token_budget,
)

REMEMBERED = 20
"""The number of requests, approximately, that the mean covers."""


class Permits:
    """So many sequences may be in flight: from before their validation until their answer has been sent.

    ``held_s``: for how long a permit is held, on average of the newest.
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = perf_counter) -> None:
        self.most = most
        self.taken = 0
        self.held_s = 0.0
        self._clock = clock

    @contextmanager
    def take(self, count: int = 1) -> Iterator[None]:
        """Hold ``count`` permits for the duration. Raises Overloaded when there are not enough left."""
        if self.taken + count > self.most:
            # The expected time until enough permits are released, where all are taken.
            raise Overloaded("Model is overloaded", retry_after_s=self.held_s * count / self.most)
        self.taken += count
        began = self._clock()
        try:
            yield
        finally:
            self.taken -= count
            held_s = self._clock() - began
            self.held_s += (held_s - self.held_s) / REMEMBERED if self.held_s else held_s


class TgiState:
    """Made once by ``make``; every operation of the dialect has it.

    Attributes:
        healthy: whether the last generation did not fail inside.
    """

    def __init__(self, settings: TgiSettings) -> None:
        settings.check()
        self.settings = settings
        self.quirks = settings.quirks()
        self.permits = Permits(settings.max_concurrent_requests)
        self.healthy = True

    def permit(self, context: RequestContext, count: int = 1) -> AbstractContextManager[None]:
        """Return the context in which ``count`` permits are held; none for a request that is only explained. Raises
        Overloaded on entry."""
        return nullcontext() if context.explains else self.permits.take(count)


UNFINISHED = "\ufffd"
"""The text that bytes of an incomplete character are decoded to."""


class Piece(NamedTuple):
    """A token and the text that it adds: empty while a character of several tokens is incomplete."""

    token: Token
    text: str

    @property
    def shown(self) -> str:
        """The text that the step adds to the answer; empty for special tokens."""
        if not self.token.special:
            return self.text
        # Bytes before it that turned out to be no character.
        own = self.token.text
        return self.text.removesuffix(own) if self.text.endswith(own) else ""


class SequenceOutput:
    """Grows by the deltas of one sequence, whose text has its special tokens in it.

    Attributes:
        pieces: all tokens so far.
        finish: how it ended; None before the end.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.pieces: list[Piece] = []
        self.finish: FinishReason | None = None
        self._length = 0

    def push(self, delta: TextDelta) -> list[Piece]:
        """Return the new tokens, in order."""
        begins = [token.text_offset - self._length for token in delta.tokens]
        # Text before that of the first token belongs to it: bytes that are not part of a character.
        ends = [*begins[1:], *[len(delta.text)] * bool(begins)]
        begins[:1] = [0] * bool(begins)
        pieces = [
            Piece(token, delta.text[begin:end]) for token, begin, end in zip(delta.tokens, begins, ends, strict=True)
        ]
        self._length += len(delta.text)
        if delta.finish is not None and pieces:
            pieces[-1] = pieces[-1]._replace(text=pieces[-1].text.rstrip(UNFINISHED))
        self.pieces += pieces
        self.finish = delta.finish
        return pieces

    @property
    def text(self) -> str:
        """The text as it is answered: without an unfinished character at its end."""
        text = "".join([piece.shown for piece in self.pieces])
        return text if self.finish is None else text.rstrip(UNFINISHED)

    @property
    def mean_logprob(self) -> float:
        """By which the best of several is chosen."""
        known = [piece.token.logprob for piece in self.pieces if piece.token.logprob is not None]
        return sum(known) / len(known) if known else float("-inf")


class Step(NamedTuple):
    """One token of one sequence; ``is_last``: the sequence is finished with it."""

    sequence: SequenceOutput
    piece: Piece
    is_last: bool

    def delta(self, text: str) -> TextDelta:
        """Return the step as a delta of its sequence that adds this text."""
        finish = self.sequence.finish if self.is_last else None
        return TextDelta(sequence=0, text=text, tokens=(self.piece.token,), finish=finish)


class Generation:
    """Iterate ``steps``, or await ``whole``, once; then everything else is known.

    Attributes:
        text: of the prompt; its characters are what ``x-compute-characters`` counts.
        asked: the parameters; budget: the tokens they come to.
        input_tokens: how many the prompt is run with.
        prefill: those tokens, where requested.
        sequences: in the order of generation.
        timings: None until the end. Validation includes all work before the request was sent to the engine.
    """

    def __init__(
        self,
        state: TgiState,
        serving: Serving,
        context: RequestContext,
        asked: Parameters,
        prompt: TextPrompt,
        pictured: ChatPrompt | None = None,
    ) -> None:
        """``pictured``: a chat with images, of which ``prompt`` is the text."""
        self._pictured = pictured or (prompt if prompt.images else None)
        self.text, self.asked = prompt.text, asked
        self.budget = 0
        self.input_tokens = 0
        self.prefill: tuple[Token, ...] = ()
        self.sequences: list[SequenceOutput] = []
        self.timings: Timings | None = None
        self._state, self._serving, self._context, self._prompt = state, serving, context, prompt

    @property
    def best(self) -> int:
        """The place of the sequence of the highest mean log-probability; the first of equals."""
        return max(range(len(self.sequences)), key=lambda i: self.sequences[i].mean_logprob)

    @property
    def chosen(self) -> SequenceOutput:
        """The answer."""
        return self.sequences[self.best]

    @property
    def generated_tokens(self) -> int:
        """The number of generated tokens of the answer."""
        return len(self.chosen.pieces)

    async def whole(self) -> None:
        """Generate everything."""
        async with aclosing(self.steps()) as steps:
            async for _ in steps:
                pass

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Validate, then yield the steps of the generation. Closing it early cancels the generation.

        Raises InvalidInput and the core's errors; an internal failure leaves the state unhealthy.
        """
        settings, asked = self._state.settings, self.asked
        card = self._serving.model(None)
        limits = settings.limits(card.context_tokens, card.encoder_context_tokens)
        is_empty = not self.text and self._pictured is None
        check_parameters(asked, settings, self._state.quirks, limits[0], is_empty=is_empty)
        prompt = await self._read(limits[0])
        self.budget = token_budget(asked, self.input_tokens, settings, limits)
        if asked.core.get("ending.max_tokens") is None:
            self.budget = min(self.budget, card.room(self.input_tokens))
        check_grammar(asked, settings)
        adapter = adapter_of(asked, self._serving, self._state.quirks)
        seed = asked.core.get("seeds")
        if seed is None:
            seed = random_bits(64)
        request_id = f"tgi-{token_hex(12)}"
        asked = asked.deciding({"adapter": adapter})
        request = generation_request(request_id, prompt, asked, self.budget, seed, settings, self._state.quirks)
        before_s = self._context.elapsed_s
        try:
            async with aclosing(self._serving.stream(request)) as events:
                async for event in events:
                    match event:
                        case TextDelta():
                            sequence = self.sequences[event.sequence]
                            pieces = sequence.push(event)
                            _check_end(event)
                            for i, piece in enumerate(pieces):
                                is_last = event.finish is not None and i == len(pieces) - 1
                                yield Step(sequence, piece, is_last)
                        case PromptReady():
                            self.sequences = [SequenceOutput(seed) for seed in event.seeds]
                            self.prefill = event.tokens
                        case GenerationDone():
                            self.timings = _later(event.timings, before_s)
        except GenerationFailed as error:
            # A timeout set by the operator is a limit, and a cancellation a wish: neither is a failure.
            self._state.healthy &= isinstance(error, GenerationTimeout | GenerationCancelled)
            raise
        if self.timings is None or any(sequence.finish is None for sequence in self.sequences):
            raise Incomplete
        if not self._context.explains:
            self._state.healthy = True

    async def _read(self, max_input_tokens: int) -> Prompt:
        """Return the prompt, its length noted. Raises InvalidInput, and the errors of its images."""
        truncate = self.asked.core.get("truncate")
        if self._pictured is not None:
            if truncate is not None:
                raise InvalidInput("`truncate` is not supported for inputs with images")
            self.input_tokens = len(await self._serving.tokenize(self._pictured))
            return self._pictured
        try:
            ids = await self._serving.tokenize(self._prompt, bounded=False)
        except BadRequest as error:
            raise InvalidInput(f"tokenizer error {error.message}") from None
        except PayloadTooLarge:
            given = f"more than {self._serving.model(None).max_text_tokens}"
            raise InvalidInput(f"`inputs` must have less than {max_input_tokens} tokens. Given: {given}") from None
        ids = ids if truncate is None else ids[-truncate:]
        self.input_tokens = len(ids)
        return TokenPrompt(token_ids=ids)


def _check_end(delta: TextDelta) -> None:
    """Raise GenerationFailed where the end is a failure."""
    match delta.finish:
        case FinishReason.ERROR:
            raise GenerationFailed(delta.message or "The generation failed.")
        case FinishReason.TIMEOUT:
            raise GenerationTimeout(delta.message or "The generation did not finish in time.")
        case FinishReason.CANCELLED:
            raise GenerationCancelled(delta.message or "The generation was cancelled.")


def _later(timings: Timings, before_s: float) -> Timings:
    return Timings(
        validation_s=before_s + timings.validation_s, queue_s=timings.queue_s, inference_s=timings.inference_s
    )
