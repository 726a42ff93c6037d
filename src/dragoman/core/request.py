"""What is asked: the request as a dialect states it, and as the engine runs it."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.constraint import Constraint
from dragoman.core.events import BeamStep
from dragoman.core.resume import SavedSequence
from dragoman.core.sampling import BeamParams, EndingParams, LogprobParams, SamplingParams


class TextPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Plain text. ``add_special_tokens``: as the tokenizer's own post-processing does (BOS where the model has it)."""

    text: str
    add_special_tokens: bool = True


class TokenPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Token ids, taken verbatim."""

    token_ids: tuple[int, ...]


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="chat"):
    """Messages in the OpenAI shape, rendered by the model's chat template.

    ``messages`` are plain JSON values (role, content, tool_calls, …), already validated by the dialect, contents
    flattened to strings.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = {}


class FillPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="fill"):
    """Fill in the middle: text before and after the gap. Refused when the tokenizer has no FIM tokens."""

    prefix: str
    suffix: str


Prompt = TextPrompt | TokenPrompt | ChatPrompt | FillPrompt


class PromptEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors in place of the embedding layer's output at some tokens of the prompt, before positions are added.

    The token ids at those places still count for penalties.

    Attributes:
        token_indices: places in the prompt from 0, ascending.
        values: float32 in the machine's byte order, one row of the model's hidden size for each place.
    """

    token_indices: tuple[int, ...]
    values: bytes


class ReasoningLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long the reasoning block that an output may begin with can be, for an engine that knows tokens only.

    Attributes:
        tokens: most of them between the marks, at least 1.
        opening, closing: the marks. The block begins with the first, where only white space precedes it.
        closing_ids: the tokens that write ``closing``.
        texts: what the tokens say, by id, that may be part of a mark, and those that are white space. No others are.
        begun: the prompt ended with ``opening``, so that the output begins inside of the block.
    """

    tokens: int
    opening: str
    closing: str
    closing_ids: tuple[int, ...]
    texts: dict[int, str]
    begun: bool = False


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and everything asked about it: the product of a dialect's ``translate``.

    Attributes:
        request_id: the id that the dialect shows, for logs and traces. Clients may have chosen it, several the same.
        model: the served model's name, or None for the default.
        adapter: the name of the loaded adapter to run the model with; None: the model as it is.
        n: generations returned. best_of: generations made (>= n); the best by mean token logprob are returned, best
            first. None: as many as are returned, in order.
        seeds: None: drawn from the operating system and reported; one seed: generation i uses (seed + i) mod 2**64;
            otherwise one per generation.
        beams: search for the ``n`` generations together, with the first seed for all; None: each is drawn for itself.
        constraint: what the generated text has to be; checked, or refused, before generation. constraint_param: the
            wire's name for it, for errors. constraint_behind_reasoning: it is that of the answer to a chat, which the
            model's reasoning block may precede; otherwise of all the text. eos_after_constraint: when it leaves nothing
            to add, the text ends with an EOS token that is generated like any other; otherwise with its own last token.
        shown_tokens: special tokens, as the vocabulary spells them, that have text whatever ``ending`` says.
        reasoning_budget: most tokens of the reasoning block that a text may begin with; None: any number. Nothing is
            counted where the model is not known to write such blocks.
        embeddings: what some of the prompt's tokens are embedded as.
        truncate: only the last so many tokens of the prompt are kept; None: all.
        echo: the prompt's text precedes the generated text.
        resumable: should the one generation be cut, a later request goes on with it: its events carry token ids, and
            what is held back then (the beginning of a stop string, or of a character) is the later request's to show.
        resumed: what to go on with; the prompt is then not looked at, and lengths are of what is generated now.
        priority: higher runs first. timeout_s: the whole generation's deadline.
        cache_salt: blocks of the prefix cache are shared only with requests of the same salt; empty: the caller's own.
    """

    request_id: str
    prompt: Prompt
    model: str | None = None
    adapter: str | None = None
    n: int = 1
    best_of: int | None = None
    seeds: tuple[int, ...] | None = None
    sampling: SamplingParams = SamplingParams()
    beams: BeamParams | None = None
    ending: EndingParams = EndingParams()
    logprobs: LogprobParams | None = None
    constraint: Constraint | None = None
    constraint_param: str = "constraint"
    constraint_behind_reasoning: bool = False
    eos_after_constraint: bool = False
    shown_tokens: tuple[str, ...] = ()
    reasoning_budget: int | None = None
    embeddings: PromptEmbeddings | None = None
    truncate: int | None = None
    echo: bool = False
    resumable: bool = False
    resumed: SavedSequence | None = None
    priority: int = 0
    timeout_s: float | None = None
    cache_salt: str = ""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The same request in the engine's terms: token ids, one seed per sequence, a length that fits the context.

    All ``len(seeds)`` sequences share the prompt's blocks. ``generated`` holds what each sequence had produced before
    (crash replay, continuing): generation goes on behind it, with the random numbers of those positions.
    ``mirostat``: the state that the last token of each sequence came with, where that sampler is on.
    ``grammar``: what the text has to follow, as the room ``grammar`` has made and checked it.
    ``reasoning``: how long each sequence may think before it answers; None: as long as the model likes.
    ``length_first``: as in ``EndingParams``. ``eos_after_grammar``: see ``GenerationRequest.eos_after_constraint``.
    ``beams``: the sequences are searched for together, with the first seed; ``beam_steps`` says how far that had come
    before. ``adapter``: the loaded adapter to run with.

    For an encoder-decoder model ``encoder_input`` is what the encoder reads, whose places ``embeddings`` name, and
    ``prompt`` what the decoder begins with: its start token. ``first_token_id`` and ``last_token_id`` are the first
    token of every output, and that which stands at its greatest length, where the model has such.

    ``tenant``: whose share of service it counts for (``Caller.share_key``); requests without a caller share one.
    ``weight``: that share beside the others'. ``max_running``: most of the tenant's sequences that are computed at one
    time; None: any number. ``service``: what it has had in earlier lives of the engine, in prompt tokens' worth.
    ``progress``: tell by ``ProgressEvent`` how far the prompt is.

    ``cache_salt``: sequences share blocks of the prefix cache only with those of equal salt.
    """

    request_id: str
    prompt: tuple[int, ...]
    seeds: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    min_tokens: int = 0
    length_first: bool = False
    eos_after_grammar: bool = False
    end_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: LogprobParams | None = None
    priority: int = 0
    generated: tuple[tuple[int, ...], ...] = ()
    finished: tuple[bool, ...] = ()
    mirostat: tuple[float | None, ...] = ()
    grammar: str | None = None
    reasoning: ReasoningLimit | None = None
    beams: BeamParams | None = None
    beam_steps: tuple[BeamStep, ...] = ()
    embeddings: PromptEmbeddings | None = None
    adapter: str | None = None
    encoder_input: tuple[int, ...] = ()
    first_token_id: int | None = None
    last_token_id: int | None = None
    tenant: str = ""
    weight: float = 1.0
    max_running: int | None = None
    cache_salt: str = ""
    service: float = 0.0
    progress: bool = False

    @property
    def prompt_tokens(self) -> int:
        """How many tokens were asked with: the encoder's input, where there is one."""
        return len(self.encoder_input or self.prompt)

    @property
    def num_sequences(self) -> int:
        """How many are computed at a time, at most."""
        return len(self.seeds) if self.beams is None else self.beams.num_beams
