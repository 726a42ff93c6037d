"""Saved generations: cut generations that a later request can resume.

Only token ids are saved, never text: the start of the next call's tokens, the text held back by the detokenizer and
the stop strings, the state of penalties and grammars all follow from them, and the random numbers from the seed and
the position in the output. So a generation that is cut into calls gives the text of one call.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from dragoman.core.errors import Conflict
from dragoman.core.events import FinishReason, Generation, GenerationEvent, GenerationResult, PromptReady, TextDelta
from dragoman.core.images import PlacedImage


class SavedSequence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One saved sequence.

    Attributes:
        prompt, output: token ids; the output of all calls so far.
        mirostat: the sampler's state after the last token, the only state that does not follow from the rest.
        mirostat_at: its states at the ends of earlier calls, each with the output's number of tokens.
        finished: it ended by itself, while others of its call were cut.
        adapter: fingerprint of its adapter; empty: the model without one.
        images: those of the prompt.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    seed: int
    mirostat: float | None = None
    finished: bool = False
    adapter: str = ""
    mirostat_at: tuple[tuple[int, float], ...] = ()
    images: tuple[PlacedImage, ...] = ()

    def rewound(self, tokens: int) -> SavedSequence:
        """Return the sequence as it was when its output had so many tokens, at most as many as now.

        Raises Conflict where the state at that point is not known.
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
    """The result of one call: its sequences, in order, and its parameters, in the dialect's form (any JSON value)."""

    sequences: tuple[SavedSequence, ...]
    config: Any = None


class ResumeKey(msgspec.Struct, frozen=True, array_like=True):
    """Key of a saved generation. Keys are equal when all fields are: ids are a list, and never joined.

    Attributes:
        dialect: and operation, where a dialect separates these.
        tenant: ``RequestContext.tenant``. model: ``ModelCard.fingerprint``.
        ids: the caller's names; one for each prompt of a batch.
    """

    dialect: str
    tenant: str
    model: str
    ids: tuple[str, ...]


class ResumeLock(Protocol):
    """Exclusive use of a key. ``saved``: the generation stored under it; None where there is none."""

    @property
    def saved(self) -> SavedGeneration | None: ...

    async def save(self, generation: SavedGeneration) -> bool:
        """Replace the stored generation. Return whether it is stored: an answer need not fail because a disk
        is full."""

    async def forget(self) -> bool:
        """Delete the stored generation. Return whether that succeeded."""


class ResumeStore(Protocol):
    """Store of cut generations, limited in time and size."""

    def hold(self, key: ResumeKey) -> AbstractAsyncContextManager[ResumeLock]:
        """Wait for the key, first come first served, and lock it until the context ends."""


class ResumeProgress:
    """State of a resumable request of one sequence, collected from its events or its result."""

    def __init__(self, resumed: SavedSequence | None = None) -> None:
        self.finish: FinishReason | None = None
        self.new_tokens = 0
        self._prompt = resumed.prompt if resumed else ()
        self._output = list(resumed.output) if resumed else []
        self._mirostat = resumed.mirostat if resumed else None
        self._seed = resumed.seed if resumed else 0
        self._adapter = resumed.adapter if resumed else ""
        self._mirostat_at = resumed.mirostat_at if resumed else ()
        self._images = resumed.images if resumed else ()
        if resumed and resumed.mirostat is not None and resumed.output:
            self._mirostat_at += ((len(resumed.output), resumed.mirostat),)

    @property
    def came_to_its_end(self) -> bool:
        """Whether the sequence ended by itself, so that nothing can be resumed."""
        return self.finish in (FinishReason.EOS, FinishReason.STOP_TOKEN, FinishReason.STOP_STRING)

    @property
    def sequence(self) -> SavedSequence:
        """The sequence as it can be resumed."""
        return SavedSequence(
            prompt=self._prompt,
            output=tuple(self._output),
            seed=self._seed,
            mirostat=self._mirostat,
            finished=self.came_to_its_end,
            adapter=self._adapter,
            mirostat_at=self._mirostat_at,
            images=self._images,
        )

    def note(self, event: GenerationEvent) -> None:
        """Record a delivered event."""
        if isinstance(event, PromptReady):
            self._prompt, (self._seed,), self._adapter = event.prompt_ids, event.seeds, event.adapter
            self._images = event.images
        elif isinstance(event, TextDelta):
            self._add(event)

    def note_result(self, result: GenerationResult) -> None:
        """Record the whole answer."""
        self.note(result.prompt)
        (generation,) = result.generations
        self._add(generation)

    def _add(self, part: TextDelta | Generation) -> None:
        self._output += part.token_ids
        self.new_tokens += len(part.token_ids)
        self.finish = part.finish
        if part.mirostat is not None:
            self._mirostat = part.mirostat
