"""Settings of the engine. Imported by server and command line, so it must not import the engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec

from dragoman.core.regular_file import FileName
from dragoman.core.user_folders import expand_user, is_in_memory
from dragoman.models.settings import RequestedPrecision

Count = Annotated[int, msgspec.Meta(ge=1)]
DraftSourceName = Literal["prediction", "grammar", "lookup", "recent", "model", "heads"]
LEAST_GUESSES = 3
"""Tokens that a step must have room for, for each of its sequences, for a draft model to be asked: with less, what it
reads costs more than its guesses save (docs/performance.md)."""


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the schedule, within those of the runner.

    Attributes:
        max_running: maximum of sequences that own blocks at one time; None: as many as one step takes.
        step_tokens: tokens computed in one step; None: as many as one step takes.
        mixed_prefill_tokens: prompt tokens computed in one step with decode rows: limits how long streams pause for
            prompts.
        max_waiting: maximum of waiting sequences in addition to ``max_running``; more are refused.
        prefix_cache: share the blocks of equal prefixes.
        share_prefix_cache: share them between callers with different keys too. The time of the first token then shows
            one caller what others have sent: only for servers whose callers trust each other.
        speculation: rows that a step without prompts is filled up to with draft tokens; they save steps where they are
            guessed rightly, and change no token; 0 turns it off.
        draft_sources: where drafts come from: prediction (the client's), grammar (what one forces), lookup (in prompt
            and output), recent (outputs of the same caller), model (the one of draft_model), heads (with
            draft_heads or draft_eagle); may be given several times.
        draft_model: a smaller model that guesses what the model says next, where no other source does: a folder, a hub
            id or a GGUF file. Best of the same family, with the same tokenizer; other tokens are translated by their
            text. No token changes.
        draft_precision: of its weights, as precision; auto: as stored, and of a draft_eagle the model's.
        draft_heads: have the layer that guesses one token more (MTP), which checkpoints of Qwen3-Next, Qwen 3.5,
            DeepSeek V3 and GLM-4 have, guess what no other source does. No token changes.
        draft_eagle: an EAGLE-3 head, trained for the model and stored apart from it, that guesses what no other source
            does: a folder, a GGUF file or a hub id. No token changes.
        draft_context: tokens of the longest sequences that it drafts for; by default max_context, or 8192. It keeps
            keys and values, in int8, of twice as many.
    """

    max_running: Count | None = None
    step_tokens: Count | None = None
    mixed_prefill_tokens: Count = 128
    max_waiting: Annotated[int, msgspec.Meta(ge=0)] = 4096
    prefix_cache: bool = True
    share_prefix_cache: bool = False
    speculation: Annotated[int, msgspec.Meta(ge=0)] = 12  # as many rows as take hardly longer than one
    draft_sources: tuple[DraftSourceName, ...] = (
        "prediction",
        "grammar",
        "lookup",
        "recent",
        "model",
        "heads",
    )
    draft_model: FileName | None = None
    draft_heads: bool = False
    draft_eagle: FileName | None = None
    draft_precision: RequestedPrecision = "auto"
    draft_context: Count | None = None


class DiskCacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix cache on disk, which outlives the server.

    Attributes:
        prefix_cache_folder: folder of prompts' computed blocks, of this user alone; by default $DRAGOMAN_CACHE/prefixes
            or ~/.cache/dragoman/prefixes. Who can read it can learn what was in the prompts.
        prefix_cache_bytes: bytes that they may take, those of least worth removed first; by default a tenth of the
            disk's free part, at most 20 GB; 0 turns it off. By default none in a user's default folder that is in
            memory (tmpfs).
    """

    PANEL: ClassVar[str] = "Engine"

    prefix_cache_folder: FileName | None = None
    prefix_cache_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None

    @property
    def folder(self) -> Path:
        """Return the path of the folder."""
        if self.prefix_cache_folder:
            return expand_user(self.prefix_cache_folder)
        if root := os.environ.get("DRAGOMAN_CACHE"):
            return expand_user(root) / "prefixes"
        return expand_user(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dragoman" / "prefixes"

    @property
    def is_by_chance_in_memory(self) -> bool:
        """Whether nobody has asked for this cache, and it would not be on a disk."""
        is_asked = self.prefix_cache_folder or self.prefix_cache_bytes or os.environ.get("DRAGOMAN_CACHE")
        return not is_asked and is_in_memory(self.folder)


class RecoverySettings(msgspec.Struct, frozen=True, kw_only=True):
    """When an engine counts as hung, and for how long it is restarted.

    Attributes:
        hang_s: an engine that has work, sends nothing for so many seconds and does not compute is killed and
            restarted; one that computes gets ten times as long, as a step of a large model can be that slow.
        engine_give_up_s: when the engine could not be restarted for so many seconds the server ends, with exit code
            69, for its service manager to restart it; 0: it keeps trying.
        recovery_bytes: maximum memory for copies of the running requests' computed blocks, which the next engine
            uses after a crash; taken as they grow, within what the model leaves; 0: everything is computed again.
    """

    PANEL: ClassVar[str] = "Engine"

    # Processor time is told in hundredths of a second: within less, engines that start would count as hung.
    hang_s: Annotated[float, msgspec.Meta(ge=1)] = 60.0
    engine_give_up_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    recovery_bytes: Annotated[int, msgspec.Meta(ge=0)] = 256 * 1024 * 1024
