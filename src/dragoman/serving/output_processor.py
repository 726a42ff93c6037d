"""One sequence's tokens as text: deltas, stop strings, and what each token contributed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from copy import copy

import msgspec

from dragoman.core.events import (
    FinishEvent,
    FinishReason,
    Predictions,
    PromptEvent,
    PromptReady,
    TextDelta,
    Token,
    TokenEvent,
    Usage,
)
from dragoman.core.request import EngineRequest, GenerationRequest, TextPrompt
from dragoman.core.sampling import EndingParams
from dragoman.serving.model import ServedModel
from dragoman.serving.reasoning import reasoning_begun
from dragoman.text import Detokenizer, StopMatcher, Tokenizer
from dragoman.text.stop import Matcher


def make_output_processors(
    model: ServedModel,
    count: int,
    prompt_ids: tuple[int, ...],
    ending: EndingParams,
    shown_tokens: Sequence[str] = (),
    *,
    resumable: bool = False,
    own_matcher: Callable[[StopMatcher], Matcher] = copy,
) -> list[OutputProcessor]:
    """Return one processor for each sequence. ``shown_tokens`` have text although they are special. ``resumable``: as
    in the request. ``own_matcher`` makes each sequence's own of the matcher of all stop strings.

    Raises BadRequest for stop strings that cannot be matched.
    """
    shown_ids = [token_id for token in shown_tokens if (token_id := model.tokenizer.token_id(token)) is not None]
    # The automaton of many long stop strings takes milliseconds to build; copies share it and have their own state.
    matcher = StopMatcher(ending.stop, ending.include_stop, ending.stop_at_token_ends) if ending.stop else None
    return [
        OutputProcessor(model, i, prompt_ids, ending, matcher and own_matcher(matcher), shown_ids, resumable=resumable)
        for i in range(count)
    ]


def usage_of(
    request: GenerationRequest, output_processors: Sequence[OutputProcessor], prompt_tokens: int, cached_tokens: int
) -> Usage:
    """Return the token counts of a request whose sequences these are."""
    predictions = sum((each.predictions for each in output_processors), Predictions())
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=sum(each.num_tokens for each in output_processors),
        cached_tokens=cached_tokens,
        predictions=predictions if request.prediction else None,
    )


class OutputProcessor:
    """The text of one sequence as it grows.

    Text passes the detokenizer (complete characters only) and then the stop matcher (nothing that may yet belong to a
    stop string). A token is delivered with the delta that releases the last character it completed.

    Attributes:
        num_tokens: tokens generated, the one that ended the sequence included.
        finish: None while the sequence runs.
        predictions: what of the client's prediction was tried.
    """

    def __init__(
        self,
        model: ServedModel,
        sequence: int,
        prompt_ids: tuple[int, ...],
        ending: EndingParams,
        matcher: Matcher | None,
        shown_ids: Sequence[int] = (),
        *,
        resumable: bool = False,
    ) -> None:
        self.sequence = sequence
        self.num_tokens = 0
        self.finish: FinishReason | None = None
        self.predictions = Predictions()
        self._ending = ending
        self._resumable = resumable
        self._pieces = model.pieces
        self._detokenizer = Detokenizer(
            model.tokenizer, prompt_ids, skip_special_tokens=ending.skip_special_tokens, shown_ids=shown_ids
        )
        self._matcher = matcher
        self._special_stops = _special_stops(model.tokenizer, ending, shown_ids)
        self._produced = 0
        self._released = 0
        self._earlier = 0
        """The number of characters that earlier calls have delivered."""
        self._pending: deque[tuple[int, Token]] = deque()

    def resume(self, token_ids: Sequence[int]) -> str:
        """Restore the state after these tokens of a saved sequence. Return the text that it had released."""
        parts = []
        for token_id in token_ids:
            text = self._detokenizer.push(token_id)
            self._produced += len(text)
            if self._matcher is not None:
                text, _ = self._matcher.push(text)
            parts.append(text)
        earlier = "".join(parts)
        self._released = self._earlier = len(earlier)
        return earlier

    def push(self, event: TokenEvent) -> TextDelta:
        """Add one more token. The delta may be empty, while text is held back."""
        self.num_tokens += 1
        if event.predictions is not None:
            self.predictions += event.predictions
        if event.token_id in self._special_stops and self._stop_strings_come_before(event.finish):
            return self._end_at_special_token(event)
        if event.finish is None:
            return self._push(event)
        if event.finish is FinishReason.LENGTH and self._resumable:
            delta = self._push(event)
            return delta if delta.finish else self._cut(FinishReason.LENGTH, before=delta)
        return self._push_last(event, event.finish)

    def end(self, event: FinishEvent) -> TextDelta:
        """End the sequence without a token, as the engine did."""
        return self.stop(event.finish, event.message)

    def stop(self, finish: FinishReason, message: str = "") -> TextDelta:
        """End the sequence here: text held back is released, unless a later request continues it."""
        if self._resumable and finish is not FinishReason.ERROR:
            return self._cut(finish)
        text, matched = self._flushed("")
        return self._end(text, FinishReason.STOP_STRING if matched else finish, matched, message)

    def _push(self, event: TokenEvent) -> TextDelta:
        text = self._detokenizer.push(event.token_id)
        self._produced += len(text)
        token = self._token(event, text)
        if self._matcher is None:
            self._released = self._produced
            return TextDelta(sequence=self.sequence, text=text, tokens=(token,))
        self._pending.append((self._produced, token))
        text, matched = self._matcher.push(text)
        if matched is not None:
            return self._end(text, FinishReason.STOP_STRING, matched)
        self._released += len(text)
        return TextDelta(sequence=self.sequence, text=text, tokens=self._due())

    def _cut(self, finish: FinishReason, before: TextDelta | None = None) -> TextDelta:
        """End the sequence here, with ``before`` as its last text. All its tokens are delivered, also those whose
        text is held back: the later request has none of these."""
        end = self._end("", finish, None)
        if before is None:
            return end
        return msgspec.structs.replace(end, text=before.text, tokens=before.tokens + end.tokens)

    def _push_last(self, event: TokenEvent, finish: FinishReason) -> TextDelta:
        """Add the token with which the engine ended the sequence. A stop token has no text, unless it is to be
        included; nor has an ordinary token that the request takes for an EOS token, unless those are shown."""
        hidden = (finish is FinishReason.STOP_TOKEN and not self._ending.include_stop) or (
            finish is FinishReason.EOS
            and self._ending.skip_special_tokens
            and event.token_id in (self._ending.end_token_ids or ())
        )
        before = "" if hidden else self._detokenizer.push(event.token_id)
        self._produced += len(before)
        # The token of an end that shows nothing comes after all text, including the text held back until now.
        token = self._token(event, before) if before else None
        # Ends that come first are ends also where their token's text completes a stop string, and nothing is cut.
        text, matched = self._flushed(before, look=self._stop_strings_come_before(finish))
        self._pending.append((self._produced, token or self._token(event, "")))
        if matched is not None:
            return self._end(text, FinishReason.STOP_STRING, matched)
        return self._end(text, finish, event.token_id if finish is FinishReason.STOP_TOKEN else None)

    def _stop_strings_come_before(self, finish: FinishReason | None) -> bool:
        """Return whether a stop string that the last token completes takes precedence over the engine's end."""
        return finish is None or (finish is FinishReason.LENGTH and not self._ending.length_first)

    def _end_at_special_token(self, event: TokenEvent) -> TextDelta:
        """End the sequence at a hidden special token that a stop string spells."""
        stop = self._special_stops[event.token_id]
        before, matched = self._flushed("")
        shown = stop if matched is None and self._ending.include_stop else ""
        self._produced += len(shown)
        self._pending.append((self._produced, self._token(event, shown)))
        return self._end(before + shown, FinishReason.STOP_STRING, stop if matched is None else matched)

    def _token(self, event: TokenEvent, text: str) -> Token:
        """Return the token, just after ``text`` was produced with it. Its own part of that is the end, where bytes
        held back, which turned out to be no character, came out before it."""
        own = self._pieces[event.token_id][0]
        length = len(own) if text.endswith(own) else len(text)
        return self._pieces.token(event.token_id, event.logprob, event.top, self._produced - self._earlier - length)

    def _flushed(self, text: str, *, look: bool = True) -> tuple[str, str | None]:
        """Return the text with all that was held back, cut at a stop string that is complete only now, unless not
        ``look``."""
        rest = self._detokenizer.flush()
        self._produced += len(rest)
        if self._matcher is None:
            return text + rest, None
        if not look:
            return self._matcher.flush() + text + rest, None
        text, matched = self._matcher.push(text + rest)
        return (text, matched) if matched is not None else (text + self._matcher.flush(), None)

    def _end(self, text: str, finish: FinishReason, stop: str | int | None, message: str = "") -> TextDelta:
        self.finish = finish
        tokens = tuple(token for _, token in self._pending)
        self._pending.clear()
        return TextDelta(sequence=self.sequence, text=text, tokens=tokens, finish=finish, stop=stop, message=message)

    def _due(self) -> tuple[Token, ...]:
        """Return the pending tokens whose text is released. One without text, after the last character, waits: the text
        may be cut there, unless the stop string stays in it."""
        pending, due, kept = self._pending, [], self._ending.include_stop
        while (
            pending
            and pending[0][0] <= self._released
            and (kept or pending[0][1].text_offset + self._earlier < self._released)
        ):
            due.append(pending.popleft()[1])
        return tuple(due)


def _special_stops(tokenizer: Tokenizer, ending: EndingParams, shown_ids: Collection[int]) -> dict[int, str]:
    """Return the stop strings that spell special tokens without text, by those tokens' ids.

    The text of a generation never holds them, and clients that fill in code send them (``<|fim_pad|>``, ``<EOT>``).
    """
    if not ending.stop or not ending.skip_special_tokens:
        return {}
    ids = ((tokenizer.token_id(stop), stop) for stop in ending.stop)
    return {i: stop for i, stop in ids if i is not None and tokenizer.is_special(i) and i not in shown_ids}


def prompt_ready(
    model: ServedModel,
    request: GenerationRequest,
    submitted: EngineRequest,
    event: PromptEvent,
    earlier_text: str = "",
    adapter: str = "",
) -> PromptReady:
    """Return the first event of a request: with the prompt's text where it is echoed, and its tokens where either
    the echo or the prompt's log-probabilities are asked for. Those of an encoder-decoder model are what the decoder
    begins with."""
    text, tokens = "", tuple[Token, ...]()
    wanted = request.logprobs is not None and request.logprobs.prompt
    if wanted or (request.echo and not submitted.encoder_input):
        text, tokens = _decoded(model, submitted.prompt, request.ending.skip_special_tokens, event)
    if not request.echo:
        text = ""
    elif isinstance(request.prompt, TextPrompt):
        # A text prompt is returned as it was sent: a tokenizer may normalize what it reads.
        text = request.prompt.text
    elif submitted.encoder_input:
        text = model.tokenizer.decode(submitted.encoder_input, request.ending.skip_special_tokens)
    return PromptReady(
        prompt_tokens=submitted.prompt_tokens + sum(map(len, submitted.generated)),
        cached_tokens=event.cached_tokens,
        seeds=submitted.seeds,
        tokens=tokens,
        text=text,
        reasoning_begun=reasoning_begun(model, request, submitted.prompt),
        prompt_ids=submitted.encoder_input or submitted.prompt,
        earlier_text=earlier_text,
        adapter=adapter if request.resumable else "",
        images=submitted.images if request.resumable else (),
        pooled=event.pooled,
    )


def _decoded(
    model: ServedModel, token_ids: tuple[int, ...], skip_special_tokens: bool, event: PromptEvent
) -> tuple[str, tuple[Token, ...]]:
    detokenizer = Detokenizer(model.tokenizer, skip_special_tokens=skip_special_tokens)
    logprobs = event.logprobs or (None,) * len(token_ids)
    top = event.top or ((),) * len(token_ids)
    text, tokens = "", []
    for token_id, logprob, others in zip(token_ids, logprobs, top, strict=True):
        tokens.append(model.pieces.token(token_id, logprob, others, len(text)))
        text += detokenizer.push(token_id)
    return text + detokenizer.flush(), tuple(tokens)
