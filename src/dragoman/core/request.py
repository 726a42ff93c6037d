"""Requests: as a dialect states them, and as the engine runs them."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.constraint import Constraint
from dragoman.core.events import BeamStep
from dragoman.core.image_sources import ImageSource
from dragoman.core.images import ImageTiles, PlacedImage
from dragoman.core.pooling import PoolingParams
from dragoman.core.resume import SavedSequence
from dragoman.core.sampling import BeamParams, EndingParams, LogprobParams, SamplingParams


class TextPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Plain text. ``add_special_tokens``: as the tokenizer's own post-processing does (BOS where the model has it).

    ``parse_special_tokens``: special tokens spelled in it are these tokens; otherwise they are text like other text.
    ``image_places``: how many characters precede each of the request's images, ascending.
    ``images``: those that stand there, until serving has made the request's ``images`` of them.
    """

    text: str
    add_special_tokens: bool = True
    parse_special_tokens: bool = True
    image_places: tuple[int, ...] = ()
    images: tuple[ImageSource, ...] = ()


class TokenPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Token ids, used unchanged."""

    token_ids: tuple[int, ...]


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="chat"):
    """Messages in the OpenAI shape, rendered by the model's chat template.

    ``messages`` are plain JSON values (role, content, tool_calls, …), already validated by the dialect, contents
    flattened to strings. The content of a message with images is a list of its parts, text as ``{"type": "text",
    "text": …}`` and each image, in the order of the request's, as ``{"type": "image"}``, with its ``source`` until
    serving has made the request's ``images`` of these. ``token_ids``: what they were rendered to before, which holds
    whatever a template would give now; empty: nothing yet.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = {}
    token_ids: tuple[int, ...] = ()


class FillPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="fill"):
    """Fill in the middle: text before and after the gap. Refused when the tokenizer has no FIM tokens.

    ``files``: names and texts of other files, which the prompt begins with; None: without anything about files.
    """

    prefix: str
    suffix: str
    files: tuple[tuple[str, str], ...] | None = None


class PairPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="pair"):
    """A query and a document that are compared: joined as the model was trained to read them. Only for ``pooling``."""

    query: str
    document: str


Prompt = TextPrompt | TokenPrompt | ChatPrompt | FillPrompt | PairPrompt


class PromptEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors in place of the embedding layer's output at some tokens of the prompt, before positions are added.

    The token ids at those positions still count for penalties.

    Attributes:
        token_indices: positions in the prompt from 0, ascending.
        values: float32 in the machine's byte order, one row of the model's hidden size for each position.
    """

    token_indices: tuple[int, ...]
    values: bytes


class ReasoningLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limit of the reasoning block at the beginning of an output, in tokens, for the engine.

    Attributes:
        tokens: maximum number between the marks, at least 1.
        opening, closing: the marks. The block begins with ``opening``, after white space only.
        closing_ids: the tokens that write ``closing``.
        texts: texts by id of the tokens that can be part of a mark, and of those that are white space.
        begun: the prompt ended with ``opening``, so the output begins inside the block.
    """

    tokens: int
    opening: str
    closing: str
    closing_ids: tuple[int, ...]
    texts: dict[int, str]
    begun: bool = False


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and all its parameters: the result of a dialect's ``translate``.

    Attributes:
        request_id: the id that the dialect shows, for logs and traces. Clients may choose it, also the same one.
        model: the served model's name, or None for the default.
        adapter: the name of the loaded adapter to run the model with; None: the model as it is.
        n: generations returned. best_of: generations made (>= n); the best by mean token logprob are returned, best
            first. None: as many as are returned, in order.
        seeds: None: drawn from the operating system and reported; one seed: generation i uses (seed + i) mod 2**64;
            otherwise one per generation.
        unset_sampling: those of ``sampling`` that neither the client nor the dialect's contract sets: where the served
            model or the operator has a value for one, that holds.
        beams: search for the ``n`` generations together, with the first seed for all; None: each is drawn
            independently.
        constraint: constraint on the generated text; checked, or refused, before generation. constraint_param: its
            name on the wire, for errors. constraint_behind_reasoning: it applies to the answer of a chat, which the
            model's reasoning block may precede; otherwise to all of the text. eos_after_constraint: when it allows no
            more text, the text ends with an EOS token that is generated like any other; otherwise with its last token.
        open_schemas: objects of the constraint's schemas may have properties that these do not name, where they do not
            say otherwise; None: the operator's choice.
        shown_tokens: special tokens, as the vocabulary spells them, that have text whatever ``ending`` says.
        reasoning_budget: maximum tokens of a reasoning block at the beginning of a text; None: no limit. Ignored
            where the model is not known to write such blocks.
        embeddings: vectors in place of the embeddings of some prompt tokens.
        images: those of the prompt, in its order, as ``Serving.image_tiles`` made them for the model. images_param:
            the wire field that has them, for errors.
        pooling: nothing is generated: the answer is a vector of the prompt.
        truncate: only the last so many tokens of the prompt are kept, and with ``pooling`` the first; None: all.
        echo: the prompt's text precedes the generated text.
        resumable: if the one generation is cut, a later request can continue it: its events carry token ids, and
            text that is held back (the beginning of a stop string, or of a character) is delivered by the later
            request.
        resumed: the sequence to continue; the prompt is then ignored, and lengths count only new tokens.
        priority: higher runs first. timeout_s: the whole generation's deadline.
        prediction: a text that the generated one is expected to repeat much of. It changes no token, but how fast they
            come.
        cache_salt: blocks of the prefix cache are shared only between requests of equal salt; empty: the caller's own.
    """

    request_id: str
    prompt: Prompt
    model: str | None = None
    adapter: str | None = None
    n: int = 1
    best_of: int | None = None
    seeds: tuple[int, ...] | None = None
    sampling: SamplingParams = SamplingParams()
    unset_sampling: tuple[str, ...] = ()
    beams: BeamParams | None = None
    ending: EndingParams = EndingParams()
    logprobs: LogprobParams | None = None
    constraint: Constraint | None = None
    constraint_param: str = "constraint"
    constraint_behind_reasoning: bool = False
    open_schemas: bool | None = None
    eos_after_constraint: bool = False
    shown_tokens: tuple[str, ...] = ()
    reasoning_budget: int | None = None
    embeddings: PromptEmbeddings | None = None
    images: tuple[ImageTiles, ...] = ()
    images_param: str = "messages"
    pooling: PoolingParams | None = None
    truncate: int | None = None
    echo: bool = False
    resumable: bool = False
    resumed: SavedSequence | None = None
    priority: int = 0
    timeout_s: float | None = None
    prediction: str = ""
    cache_salt: str = ""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request in the engine's terms: token ids, one seed per sequence, a length that fits the context.

    All ``len(seeds)`` sequences share the prompt's blocks. ``generated`` holds earlier output of each sequence
    (crash recovery, resuming): generation continues after it, with the random numbers of those positions.
    ``mirostat``: the state after the last token of each sequence, where that sampler is on.
    ``grammar``: the grammar of the text, compiled and checked by the package ``grammar``.
    ``reasoning``: limit of each sequence's reasoning block; None: no limit.
    ``length_first``: as in ``EndingParams``. ``eos_after_grammar``: see ``GenerationRequest.eos_after_constraint``.
    ``beams``: the sequences are one beam search, with the first seed; ``beam_steps``: its earlier steps.
    ``adapter``: the loaded adapter to run with.
    ``images``: those of the prompt, in its order.
    ``pooling``: a vector of the prompt is made, and no token; ``max_tokens`` is 0.
    For an encoder-decoder model ``encoder_input`` is the encoder's input, whose positions ``embeddings`` refers to,
    and ``prompt`` the decoder's start token. ``first_token_id`` and ``last_token_id`` are the forced first token of
    every output, and the forced last one at its maximum length, where the model has them.
    ``tenant``: key of the share that its service counts for (``Caller.share_key``); requests without a caller share
    one. ``weight``: of that share. ``max_running``: maximum of the tenant's sequences computed at one time; None: no
    limit. ``service``: service before a restart of the engine, in prompt tokens.
    ``deferrable``: computed only while nothing else is, as lines of batches are.
    ``progress``: report the prompt's progress by ``ProgressEvent``.
    ``prediction``: tokens that the output is expected to repeat much of.
    ``cache_salt``: sequences share blocks of the prefix cache only with those of equal salt.
    ``seeded``: the client chose the seeds. ``resumable``: as in ``GenerationRequest``. Both are for engines elsewhere,
    whose random numbers do not follow from a token's position.
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
    images: tuple[PlacedImage, ...] = ()
    pooling: PoolingParams | None = None
    adapter: str | None = None
    encoder_input: tuple[int, ...] = ()
    first_token_id: int | None = None
    last_token_id: int | None = None
    tenant: str = ""
    weight: float = 1.0
    max_running: int | None = None
    cache_salt: str = ""
    service: float = 0.0
    deferrable: bool = False
    progress: bool = False
    prediction: tuple[int, ...] = ()
    seeded: bool = False
    resumable: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens: of the encoder's input, where there is one."""
        return len(self.encoder_input or self.prompt)

    @property
    def without_pixels(self) -> EngineRequest:
        """The same, its images told apart by their digests alone: for digests of requests."""
        if not self.images:
            return self
        return msgspec.structs.replace(self, images=tuple(image.without_pixels for image in self.images))

    @property
    def num_sequences(self) -> int:
        """Maximum number of sequences computed at a time."""
        return len(self.seeds) if self.beams is None else self.beams.num_beams
