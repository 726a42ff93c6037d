"""Cut generations, as they are kept to be gone on with by a later request.

What is kept is token ids, never text: where the tokens of the next call begin, what the detokenizer and the stop
strings hold back, what penalties have seen and where a grammar stands all follow from them, and the random numbers from
the seed and the place in the output. So a generation that is cut into calls gives the text of one call.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from dragoman.core.errors import Conflict
from dragoman.core.events import FinishReason, Generation, GenerationEvent, GenerationResult, PromptReady, TextDelta


class SavedSequence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence.

    Attributes:
        prompt, output: token ids; the output of all calls so far.
        mirostat: that sampler's state behind the last token, the only state that does not follow from the rest.
        mirostat_at: its states at the ends of earlier calls, each with the tokens of output that there were.
        finished: it came to its own end, while others of its call were cut.
        adapter: the fingerprint of the adapter that it was generated with; empty: the model as it is.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    seed: int
    mirostat: float | None = None
    finished: bool = False
    adapter: str = ""
    mirostat_at: tuple[tuple[int, float], ...] = ()

    def rewound(self, tokens: int) -> SavedSequence:
        """Return the sequence as it was when its output had so many tokens, at most as many as it has now.

        Raises Conflict where the state of that moment is not known.
        """
        if tokens == len(self.output):
            return self
        mirostat = dict(self.mirostat_at).get(tokens)
        if self.mirostat is not None and mirostat is None and tokens:
            known = ", ".join(str(count) for count, _ in ((0, 0.0), *self.mirostat_at)) + f", {len(self.output)}"
            raise Conflict(f"With mirostat, this generation can be continued from these numbers of tokens: {known}.")
        return msgspec.structs.replace(
            self,
            output=self.output[:tokens],
            mirostat=mirostat,
            finished=False,
            mirostat_at=tuple(each for each in self.mirostat_at if each[0] < tokens),
        )


class SavedGeneration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one call left behind: its sequences, in order, and what it asked for, in the words of its dialect (any JSON
    value)."""

    sequences: tuple[SavedSequence, ...]
    config: Any = None


class ResumeKey(msgspec.Struct, frozen=True, array_like=True):
    """Whose generation it is. Keys are equal when all of it is: ids are a list, and never joined.

    Attributes:
        dialect: and operation, where a dialect keeps these apart.
        tenant: ``Exchange.tenant``. model: ``ModelCard.fingerprint``.
        ids: as the caller names it; one for each prompt of a batch.
    """

    dialect: str
    tenant: str
    model: str
    ids: tuple[str, ...]


class ResumeLock(Protocol):
    """A key that nobody else uses meanwhile. ``saved``: what was kept under it, None where there is nothing."""

    @property
    def saved(self) -> SavedGeneration | None: ...

    async def save(self, generation: SavedGeneration) -> bool:
        """Keep this instead. Return whether it is kept: an answer need not fail because a disk is full."""

    async def forget(self) -> bool:
        """Keep nothing: the key is free again. Return whether that is done."""


class ResumeStore(Protocol):
    """Where cut generations are kept: for some time, and not more than fit."""

    def hold(self, key: ResumeKey) -> AbstractAsyncContextManager[ResumeLock]:
        """Wait for the key, first come first served, and have it until the context ends."""


class ResumeProgress:
    """What a resumable request of one sequence has come to, told by its events or its result."""

    def __init__(self, resumed: SavedSequence | None = None) -> None:
        self.finish: FinishReason | None = None
        self.new_tokens = 0
        self._prompt = resumed.prompt if resumed else ()
        self._output = list(resumed.output) if resumed else []
        self._mirostat = resumed.mirostat if resumed else None
        self._seed = resumed.seed if resumed else 0
        self._adapter = resumed.adapter if resumed else ""
        self._mirostat_at = resumed.mirostat_at if resumed else ()
        if resumed and resumed.mirostat is not None and resumed.output:
            self._mirostat_at += ((len(resumed.output), resumed.mirostat),)

    @property
    def came_to_its_end(self) -> bool:
        """Nothing is left to go on with."""
        return self.finish in (FinishReason.EOS, FinishReason.STOP_TOKEN, FinishReason.STOP_STRING)

    @property
    def sequence(self) -> SavedSequence:
        """What to go on with."""
        return SavedSequence(
            prompt=self._prompt,
            output=tuple(self._output),
            seed=self._seed,
            mirostat=self._mirostat,
            finished=self.came_to_its_end,
            adapter=self._adapter,
            mirostat_at=self._mirostat_at,
        )

    def note(self, event: GenerationEvent) -> None:
        """One more event has been delivered."""
        if isinstance(event, PromptReady):
            self._prompt, (self._seed,), self._adapter = event.prompt_ids, event.seeds, event.adapter
        elif isinstance(event, TextDelta):
            self._more(event)

    def note_result(self, result: GenerationResult) -> None:
        """The whole answer."""
        self.note(result.prompt)
        (generation,) = result.generations
        self._more(generation)

    def _more(self, part: TextDelta | Generation) -> None:
        self._output += part.token_ids
        self.new_tokens += len(part.token_ids)
        self.finish = part.finish
        if part.mirostat is not None:
            self._mirostat = part.mirostat
