"""Running capsules again, and telling whether and why the tokens differ."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec

from dragoman.core import capsule as capsules
from dragoman.core.capsule import Capsule, Environment, RecordedSequence
from dragoman.core.constraint import Constraint, Lark
from dragoman.core.errors import DragomanError, GenerationFailed
from dragoman.core.events import EngineEvent, FinishEvent, FinishReason, TokenEvent, TokenLogprob
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import LogprobParams, SamplingParams
from dragoman.models import AdapterInfo
from dragoman.serving.model import ServedModel

TOP = 32
"""Alternatives whose log-probabilities are compared at every position, by default."""

LEAST = 1e-9
"""Least probability of all tokens that are not compared one by one."""

ENDS = frozenset({FinishReason.EOS, FinishReason.STOP_TOKEN, FinishReason.LENGTH})
"""Ends that the engine decides; others depend on clients, clocks and texts."""

_FLOAT32 = struct.Struct("<f")
_numbers = itertools.count(1)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A token at the first position that differs. ``token_id`` None: the sequence ended there.

    ``logprob``: its log-probability now, by the model's own logits. ``recorded``: as it was recorded.
    """

    token_id: int | None
    text: str = ""
    logprob: float | None = None
    recorded: float | None = None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference: of which sequence, and at which position of its output, from 0.

    ``gap``: how much larger the logit of the token of now is than that of the recorded one, now; None: one of them is
    an end.
    """

    sequence: int
    position: int
    recorded: Candidate
    now: Candidate
    gap: float | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a capsule with its replay.

    Attributes:
        equal: all tokens and ends are the same. error: why it was not replayed; then nothing is compared.
        tokens: recorded ones. same: leading tokens of each sequence that are the same, of all together.
        logprob_difference: largest difference of log-probabilities of the same tokens; None: none were recorded.
        reasons: what is not as it was, or that nothing is.
        kl: by position, a lower bound in nats of the divergence of the distribution of now from the recorded one, both
            after the recorded tokens; averaged over sequences.
    """

    name: str
    equal: bool = False
    error: str = ""
    tokens: int = 0
    same: int = 0
    difference: Difference | None = None
    logprob_difference: float | None = None
    reasons: tuple[str, ...] = ()
    kl: tuple[float, ...] = ()


class Stream(Protocol):
    """The events of one request. Closing early cancels it."""

    def __aiter__(self) -> AsyncIterator[EngineEvent]: ...
    async def aclose(self) -> None: ...


Submit = Callable[[EngineRequest], Stream]
CheckGrammar = Callable[[Constraint, str], Awaitable[str | None]]
"""Tries a grammar out in a confined process. Raises BadRequest."""


class Replayer:
    """Runs capsules on one model. ``check_grammar``: grammars are as hostile as what they come in. ``adapters``: those
    loaded, by name."""

    def __init__(
        self,
        submit: Submit,
        model: ServedModel,
        check_grammar: CheckGrammar,
        adapters: Mapping[str, AdapterInfo],
        *,
        top: int = TOP,
    ) -> None:
        self._submit, self._model, self._check_grammar, self._adapters = submit, model, check_grammar, adapters
        self._top = min(top, model.vocab_size)

    async def replay(self, name: str, capsule: Capsule) -> Outcome:
        """Return how a replay of the capsule differs; with ``error`` where there can be none."""
        recorded = capsule.request
        tokens = sum(len(output.token_ids) for output in capsule.outputs)
        adapter = self._adapter(capsule)
        if recorded.adapter is not None and adapter is None:
            missing = f"it ran with the adapter {recorded.adapter[:64]!r}, which --lora-adapters does not name"
            return Outcome(name=name, tokens=tokens, error=missing)
        fingerprint = "" if adapter is None else self._adapters[adapter].fingerprint
        now = msgspec.structs.replace(self._model.environment, adapter=fingerprint)
        reasons = list(differences(capsule.environment, now))
        try:
            if recorded.grammar is not None:
                await self._check_grammar(Lark(recorded.grammar), "grammar")
            recorded = msgspec.structs.replace(recorded, adapter=adapter)
            request, changed = self._fitted(capsules.engine_request(f"replay.{next(_numbers)}", recorded))
            reasons += changed
            found = await self._run(request, [len(output.token_ids) for output in capsule.outputs])
            difference = first_difference(capsule.outputs, found)
            forced = [await self._forced(request, i, output.token_ids) for i, output in enumerate(capsule.outputs)]
            if difference is not None:
                difference = await self._candidates(request, capsule.outputs, forced, difference)
        except DragomanError as error:
            return Outcome(name=name, tokens=tokens, error=error.message, reasons=tuple(reasons))
        if difference is not None and not reasons:
            reasons.append(UNEXPLAINED)
        is_raw = recorded.logprobs is not None and recorded.logprobs.mode == "raw"
        return Outcome(
            name=name,
            equal=difference is None,
            tokens=tokens,
            same=sum(map(_same, capsule.outputs, found)),
            difference=difference,
            logprob_difference=_logprob_difference(capsule.outputs, found),
            reasons=tuple(reasons),
            kl=_mean_by_position([_divergences(*pair) for pair in zip(capsule.outputs, forced, strict=True)])
            if is_raw
            else (),
        )

    def _adapter(self, capsule: Capsule) -> str | None:
        """Return the name of the loaded adapter that the capsule ran with: the same one, under whatever name, or else
        another one of its name. None where there is neither."""
        name, fingerprint = capsule.request.adapter, capsule.environment.adapter
        if name is None:
            return None
        same = (each for each, info in self._adapters.items() if fingerprint and info.fingerprint == fingerprint)
        return next(same, name if name in self._adapters else None)

    def _fitted(self, request: EngineRequest) -> tuple[EngineRequest, list[str]]:
        """Return the request for the context of this model, and what had to be changed."""
        model = self._model
        room = model.context_tokens - (0 if model.encoder is not None else len(request.prompt))
        if request.max_tokens <= room or room <= 0:
            return request, []
        changed = f"parameters: max_tokens was {request.max_tokens}, and the context has room for {room}"
        return msgspec.structs.replace(request, max_tokens=room, min_tokens=min(request.min_tokens, room)), [changed]

    async def _run(self, request: EngineRequest, counts: Sequence[int]) -> list[list[TokenEvent]]:
        """Return the first tokens of each sequence, as many as ``counts`` says. Raises GenerationFailed."""
        found: list[list[TokenEvent]] = [[] for _ in counts]
        waiting = {place for place, count in enumerate(counts) if count}
        if not waiting:
            return found
        async with aclosing(self._submit(request)) as events:
            async for event in events:
                if isinstance(event, FinishEvent):
                    if event.finish is FinishReason.ERROR:
                        raise GenerationFailed(event.message or "the generation failed")
                    waiting.discard(event.sequence)
                elif isinstance(event, TokenEvent):
                    own = found[event.sequence]
                    if len(own) < counts[event.sequence]:
                        own.append(event)
                    if event.finish is not None or len(own) >= counts[event.sequence]:
                        waiting.discard(event.sequence)
                if not waiting:
                    break
        return found

    async def _forced(self, request: EngineRequest, sequence: int, token_ids: Sequence[int]) -> list[TokenEvent]:
        """Return the given tokens as this model sees them: with their log-probabilities, and those of others."""
        if not token_ids:
            return []
        before = request.generated[sequence] if request.generated else ()
        tokens = (*before, *token_ids)
        forced = EngineRequest(
            request_id=f"replay.{next(_numbers)}",
            prompt=request.prompt,
            encoder_input=request.encoder_input,
            embeddings=request.embeddings,
            images=request.images,
            adapter=request.adapter,
            seeds=(0,),
            max_tokens=len(tokens),
            sampling=SamplingParams(forced_tokens=tokens),
            logprobs=LogprobParams(top=self._top),
        )
        (found,) = await self._run(forced, [len(tokens)])
        return found[len(before) :]

    async def _candidates(
        self,
        request: EngineRequest,
        outputs: Sequence[RecordedSequence],
        forced: Sequence[Sequence[TokenEvent]],
        difference: Difference,
    ) -> Difference:
        """Return the difference with the texts and the log-probabilities of both tokens."""
        place, position = difference.sequence, difference.position
        output, then, now = outputs[place], difference.recorded, difference.now
        if then.token_id is not None:
            seen = forced[place][position].logprob if position < len(forced[place]) else None
            logprob = output.logprobs[position] if position < len(output.logprobs) else None
            then = msgspec.structs.replace(then, text=self._text(then.token_id), logprob=seen, recorded=logprob)
        if now.token_id is not None:
            changed = await self._forced(request, place, (*output.token_ids[:position], now.token_id))
            earlier = {each.token_id: each.logprob for each in output.top[position]} if output.top else {}
            now = msgspec.structs.replace(
                now,
                text=self._text(now.token_id),
                logprob=changed[position].logprob,
                recorded=earlier.get(now.token_id),
            )
        both = now.logprob is not None and then.logprob is not None
        gap = now.logprob - then.logprob if both else None  # type: ignore[operator]  # both are there
        return msgspec.structs.replace(difference, recorded=then, now=now, gap=gap)

    def _text(self, token_id: int) -> str:
        return self._model.tokenizer.token_text(token_id)


UNEXPLAINED = (
    "nothing that decides tokens differs: neither fingerprint, parameters, weights nor kernels. This contradicts the "
    "promise of equal tokens; please report it"
)


def differences(recorded: Environment, now: Environment) -> Iterator[str]:
    """Yield what computed the capsule otherwise than it would be computed now."""
    for name in ("weights", "precision", "kv_precision", "kernels", "version", "adapter"):
        then, here = getattr(recorded, name), getattr(now, name)
        if then != here and (then or here):
            yield f"{name}: {then or 'none'} then, {here or 'none'} now"
    if recorded.fingerprint != now.fingerprint:
        yield f"fingerprint: {recorded.fingerprint} then, {now.fingerprint} now"


def first_difference(recorded: Sequence[RecordedSequence], now: Sequence[Sequence[TokenEvent]]) -> Difference | None:
    """Return the first position, of the first sequence, where tokens or ends differ; None where none do."""
    for place, (output, events) in enumerate(zip(recorded, now, strict=True)):
        ids = [event.token_id for event in events]
        for position, token_id in enumerate(output.token_ids):
            here = ids[position] if position < len(ids) else None
            if here != token_id:
                then = Candidate(token_id=token_id)
                return Difference(sequence=place, position=position, recorded=then, now=Candidate(token_id=here))
        finish = events[-1].finish if events else None
        if output.token_ids and output.finish in ENDS and finish != output.finish:
            end = Candidate(token_id=None, text=f"({output.finish})")
            goes_on = Candidate(token_id=None, text=f"({finish or 'goes on'})")
            return Difference(sequence=place, position=len(ids), recorded=end, now=goes_on)
    return None


def divergence(recorded: Mapping[int, float], now: Mapping[int, float]) -> float:
    """Return a lower bound of the Kullback-Leibler divergence of two distributions over tokens, in nats.

    Each is known at some tokens, by log-probability. Those known in both are compared one by one, all others together:
    joining outcomes never enlarges the divergence.
    """
    known = recorded.keys() & now.keys()
    total, rest, other_rest = 0.0, 1.0, 1.0
    for token_id in known:
        p = math.exp(recorded[token_id])
        total += p * (recorded[token_id] - now[token_id])
        rest -= p
        other_rest -= math.exp(now[token_id])
    if rest > LEAST:
        total += rest * math.log(rest / max(other_rest, LEAST))
    return max(0.0, total)


def _divergences(output: RecordedSequence, forced: Sequence[TokenEvent]) -> list[float]:
    found = []
    for position, event in enumerate(forced):
        own = output.logprobs[position] if position < len(output.logprobs) else None
        if own is None or event.logprob is None:
            return []
        top = output.top[position] if output.top else ()
        then = _known(event.token_id, own, top)
        found.append(divergence(then, _known(event.token_id, event.logprob, event.top)))
    return found


def _known(token_id: int, logprob: float, top: Sequence[TokenLogprob]) -> dict[int, float]:
    return {each.token_id: each.logprob for each in top} | {token_id: logprob}


def _mean_by_position(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the mean of the rows at each position, over those that reach it."""
    columns = itertools.zip_longest(*rows)
    there = ([value for value in column if value is not None] for column in columns)
    return tuple(sum(values) / len(values) for values in there)


def _same(output: RecordedSequence, events: Sequence[TokenEvent]) -> int:
    pairs = zip(output.token_ids, (event.token_id for event in events), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _logprob_difference(recorded: Sequence[RecordedSequence], now: Sequence[Sequence[TokenEvent]]) -> float | None:
    """Return the largest difference of log-probabilities over the tokens that are the same."""
    found = []
    for output, events in zip(recorded, now, strict=True):
        count = _same(output, events)
        pairs = zip(output.logprobs[:count], (event.logprob for event in events[:count]), strict=False)
        found += [abs(_float32(then) - _float32(here)) for then, here in pairs if then is not None and here is not None]
    return max(found, default=None)


def _float32(value: float) -> float:
    """Return the value as it was computed: capsules have the shortest number that is the same in float32."""
    (rounded,) = _FLOAT32.unpack(_FLOAT32.pack(value))
    return float(rounded)
