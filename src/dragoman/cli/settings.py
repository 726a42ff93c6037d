"""Settings of the commands, besides those of the server, the model and the engine's schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from dragoman.core.errors import BadRequest
from dragoman.core.regular_file import FileName
from dragoman.core.sampling import BeamParams, EndingParams, SamplingParams, both_spellings, within
from dragoman.core.sampling_defaults import DEFAULTABLE
from dragoman.engine.settings import SchedulerSettings
from dragoman.models.settings import ModelSettings, RequestedPrecision
from dragoman.server.settings import DialectName

if TYPE_CHECKING:
    from dragoman.models.topology import Placement

POSITIONAL = {"positional": True, "twin": "--model"}
GIVEN = {"positional": True, "configurable": False}
HERE_ONLY = {"configurable": False}

Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # msgspec supports no larger bound
Count = Annotated[int, Meta(ge=1)]

STOPPING: dict[str, bool | Literal["never"]] = {"false": False, "true": True, "never": "never"}
"""The condition that ends a beam search, by its name on the command line."""

OMITTED: dict[type[msgspec.Struct], dict[str, str]] = {
    ModelSettings: {
        "name": "the server's --name says it",
        "max_tokens": "the engine's --step-tokens says it",
        "max_logit_rows": "follows --max-sequences",
    },
    SchedulerSettings: {
        "max_running": "follows --max-sequences",
        "max_waiting": "the server's --max-waiting comes before it",
    },
}
"""Fields of other packages' settings that are no options, each with the reason."""


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The model.

    Attributes:
        model: folder, GGUF file, hub id (owner/name) or short name; by default the embedded model.
    """

    PANEL = "Model"

    model: Annotated[FileName | None, Meta(extra=POSITIONAL)] = None


class ModelOption(msgspec.Struct, frozen=True, kw_only=True):
    """The model, for a command whose argument is something else.

    Attributes:
        model: folder, GGUF file, hub id (owner/name) or short name; by default the embedded model.
    """

    PANEL = "Model"

    model: FileName | None = None


class RemoteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The server to ask, instead of the command's own engine.

    Attributes:
        url: address of a running server to ask instead of loading a model here.
        api_key: the key that this server asks for.
    """

    PANEL = "Model"

    url: str | None = None
    api_key: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"RemoteSettings(url={self.url!r}, api_key=<{len(self.api_key)}>)"


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a conversation, and its display.

    Attributes:
        system: the system message.
        generate: as LocalLab's chat answers. chat with the conversation so far; stream, simple (when it is whole) and
            batch each message by itself. Without it: with the conversation, as the answer comes.
        timeout: seconds that a server may be silent; by default 30 when it is called on, and 300 in an answer.
        verbose: tell how long each answer is, and took, and its tokens per second.
        plain: show answers as they are, not their Markdown.
        image: a file of an image that goes with the first message, for a model that sees; several times for several.
    """

    PANEL = "Conversation"

    system: str | None = None
    generate: Annotated[Literal["stream", "simple", "chat", "batch"] | None, Meta(extra=HERE_ONLY)] = None
    timeout: Annotated[float, Meta(gt=0)] | None = None
    verbose: Annotated[bool, Meta(extra=HERE_ONLY)] = False
    plain: Annotated[bool, Meta(extra=HERE_ONLY)] = False
    image: Annotated[tuple[FileName, ...], Meta(extra=HERE_ONLY)] = ()


class PromptSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The text to continue.

    Attributes:
        prompt: text to go on from; - reads it from standard input.
    """

    PANEL = "Prompt"

    prompt: Annotated[str, Meta(extra=GIVEN)]


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The question.

    Attributes:
        prompt: a question; what standard input brings is put behind it. Without one, and at a terminal, a conversation
            begins.
    """

    PANEL = "Conversation"

    prompt: Annotated[str, Meta(extra=GIVEN)] = ""


class ExplainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The request.

    Attributes:
        file: file with the request; - reads standard input. An HTTP request as text, an object with body and path, or
            the body alone.
        dialect: the dialect of the request, where the file does not say it; auto: told by path and body.
        path: the path that it is for, where the file does not say it.
        json: the whole explanation as JSON.
    """

    PANEL = "Request"

    file: Annotated[FileName, Meta(extra=GIVEN)]
    dialect: Annotated[DialectName, Meta(extra=HERE_ONLY)] = "auto"
    path: Annotated[str | None, Meta(extra=HERE_ONLY)] = None
    json: Annotated[bool, Meta(extra=HERE_ONLY)] = False


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The capsules.

    Attributes:
        capsules: a capsule, or a folder of them.
        html: file to write a report with pictures to.
        json: one JSON object for each capsule.
        top: alternatives of each token whose probabilities are compared.
        lora_adapters: adapters that capsules ran with, a list with commas: REPOSITORY, NAME=FOLDER, as for serve.
    """

    PANEL = "Capsules"

    capsules: Annotated[FileName, Meta(extra=GIVEN)]
    html: Annotated[FileName | None, Meta(extra=HERE_ONLY)] = None
    json: Annotated[bool, Meta(extra=HERE_ONLY)] = False
    top: Annotated[int, Meta(ge=1, le=1024, extra=HERE_ONLY)] = 32
    lora_adapters: Annotated[FileName | None, Meta(extra=HERE_ONLY)] = None


class CompareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The two sides.

    Attributes:
        first: a model, as --model takes it; embedded is the embedded one. Or a folder of capsules, of another version.
        second: the model that is compared with it.
        prompts: file of prompts, one on each line; or JSON with prompt or messages.
        precision_a: precision of the first model.
        precision_b: precision of the second one.
        html: file to write a report with pictures to.
        json: one JSON object for each prompt.
        top: alternatives of each token whose probabilities are compared.
    """

    PANEL = "Comparison"

    first: Annotated[FileName, Meta(extra=GIVEN)]
    second: Annotated[FileName, Meta(extra=GIVEN)]
    prompts: Annotated[FileName | None, Meta(extra=HERE_ONLY)] = None
    precision_a: Annotated[str | None, Meta(extra=HERE_ONLY)] = None
    precision_b: Annotated[str | None, Meta(extra=HERE_ONLY)] = None
    html: Annotated[FileName | None, Meta(extra=HERE_ONLY)] = None
    json: Annotated[bool, Meta(extra=HERE_ONLY)] = False
    top: Annotated[int, Meta(ge=1, le=1024, extra=HERE_ONLY)] = 32


class TopOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The display.

    Attributes:
        interval: seconds between two readings.
        once: print one reading and leave; exit code 1 where no server answers.
        json_output: one JSON object for each reading.
    """

    PANEL = "Display"

    interval: Annotated[float, Meta(ge=0.1, le=3600, extra=HERE_ONLY)] = 2.0
    once: Annotated[bool, Meta(extra=HERE_ONLY)] = False
    json_output: Annotated[bool, Meta(extra=HERE_ONLY)] = False


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The loads to measure.

    Attributes:
        streams: requests at a time; may be given several times.
        prompt_tokens: length of the prompts; may be given several times.
        output_tokens: length of the answers.
        rounds: requests of each stream.
        image: pixels of an image, as 1024x768, whose time to the first token is measured beside what the multiplier
            allows; may be given several times.
        json: one JSON object for each load instead of a table.
        html: file to write a report with charts to, beside what the machine allows.
    """

    PANEL = "Load"

    streams: tuple[Count, ...] = (1, 8)
    prompt_tokens: tuple[Count, ...] = (128,)
    output_tokens: Count = 64
    rounds: Count = 2
    image: tuple[str, ...] = ()
    json: bool = False
    html: Annotated[FileName | None, Meta(extra=HERE_ONLY)] = None


class MachineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's use of the machine.

    Attributes:
        threads: threads that compute; by default one for each physical core that is not an efficiency core.
        cpus: processors that the engine may use, such as 0-15,32; by default one of each of those cores.
    """

    PANEL = "Engine"

    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    cpus: str | None = None

    def placement(self) -> Placement:
        """Return what computes on this machine. Raises ModelError for processors that are not there."""
        from dragoman.models.topology import place

        return place(self.threads, self.cpus)


class DraftChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The draft model, or the head, that is served with a model.

    Attributes:
        draft_model: a smaller model that is to guess what the model says next, as in serve.
        draft_heads: have the model's own head draft, as in serve.
        draft_eagle: an EAGLE-3 head that drafts, as in serve.
        draft_precision: of its weights, as precision; auto: as stored, and of a draft_eagle the model's.
        draft_context: tokens of the longest sequences that it drafts for; by default max_context, or 8192.
    """

    PANEL = "Engine"

    draft_model: FileName | None = None
    draft_heads: bool = False
    draft_eagle: FileName | None = None
    draft_precision: RequestedPrecision = "auto"
    draft_context: Count | None = None


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling parameters and stop conditions. Those not given are the model's own, or the server's.

    Attributes:
        max_new_tokens: most tokens of an answer; by default as many as the context has room for.
        temperature: logits are divided by it; 0 always takes the likeliest token.
        top_k: keep the k likeliest tokens; 0 is off.
        top_p: keep the smallest set of tokens whose probability reaches p; 1 is off.
        min_p: drop tokens less likely than min_p times the likeliest one; 0 is off.
        repetition_penalty: makes tokens that occurred less likely, by a factor; 1 is off.
        frequency_penalty: makes generated tokens less likely with every use; 0 is off.
        presence_penalty: makes generated tokens less likely once; 0 is off.
        typical_p: keep the tokens whose surprise is nearest to the entropy until their probability reaches p; 1 is off.
        xtc_probability: how often to drop the likeliest tokens, all but one; 0 is off.
        xtc_threshold: how likely a token has to be for that.
        mirostat_mode: 1 or 2 hold the surprise of the text at a target, in place of top-k to XTC; 0 is off.
        mirostat_tau: that target, in bits per token.
        mirostat_eta: how fast it is learned.
        no_repeat_ngram_size: no n tokens in a row occur twice; 0 is off.
        dry_multiplier: makes it less likely to go on with a repetition; 0 is off.
        dry_base: how fast that grows with every token of the repetition.
        dry_allowed_length: shorter repetitions cost nothing.
        dry_penalty_last_n: the newest tokens in which repetitions are looked for; -1 is all.
        bad_words: text that is not generated; may be given several times.
        num_beams: texts that a beam search follows at a time, to show the best; 1 is none.
        beam_search_type: how it chooses; deterministic goes with no temperature nor truncation.
        length_penalty: above 0 a beam search prefers long texts, below 0 short ones.
        early_stopping: when a beam search ends: with num_beams texts (true), or when no better is to be expected.
        seed: the same seed gives the same text; by default a new one each time.
        stop: text that ends the answer; may be given several times.
    """

    PANEL = "Sampling"

    max_new_tokens: Annotated[int, within("ending.max_tokens", minimum=1)] | None = None
    temperature: Annotated[float, within("sampling.temperature", maximum=100)] | None = None
    top_k: Annotated[int, within("sampling.top_k")] | None = None
    top_p: Annotated[float, within("sampling.top_p", above=0)] | None = None
    min_p: Annotated[float, within("sampling.min_p")] | None = None
    repetition_penalty: Annotated[float, within("sampling.repetition_penalty", maximum=100)] | None = None
    frequency_penalty: Annotated[float, within("sampling.frequency_penalty", minimum=-100, maximum=100)] = 0.0
    presence_penalty: Annotated[float, within("sampling.presence_penalty", minimum=-100, maximum=100)] = 0.0
    typical_p: Annotated[float, within("sampling.typical_p")] | None = None
    xtc_probability: Annotated[float, within("sampling.xtc_probability")] | None = None
    xtc_threshold: Annotated[float, within("sampling.xtc_threshold")] | None = None
    mirostat_mode: Annotated[int, within("sampling.mirostat_mode")] | None = None
    mirostat_tau: Annotated[float, within("sampling.mirostat_tau", maximum=100)] | None = None
    mirostat_eta: Annotated[float, within("sampling.mirostat_eta", maximum=1)] | None = None
    no_repeat_ngram_size: Annotated[int, within("sampling.no_repeat_ngram_size")] | None = None
    dry_multiplier: Annotated[float, within("sampling.dry_multiplier", maximum=1000)] = 0.0
    dry_base: Annotated[float, within("sampling.dry_base", maximum=100)] = 1.75
    dry_allowed_length: Annotated[int, within("sampling.dry_allowed_length")] = 2
    dry_penalty_last_n: Annotated[int, within("sampling.dry_penalty_last_n")] = -1
    bad_words: tuple[str, ...] = ()
    num_beams: Annotated[int, within("beams.num_beams")] = 1
    beam_search_type: Literal["deterministic", "sampling", "stochastic"] = "deterministic"
    length_penalty: float = 1.0
    early_stopping: Literal["false", "true", "never"] = "false"
    seed: Seed | None = None
    stop: tuple[str, ...] = ()

    def sampling(self) -> SamplingParams:
        """Return the sampling parameters for the engine. Raises BadRequest for a bad word without a character."""
        if "" in self.bad_words:
            raise BadRequest("a bad word must not be empty", param="bad_words")
        given = msgspec.structs.asdict(self) | {"bad_words": both_spellings(self.bad_words)}
        names = set(SamplingParams.__struct_fields__).difference(self.unset_sampling)
        return SamplingParams(**{name: value for name, value in given.items() if name in names})

    @property
    def unset_sampling(self) -> tuple[str, ...]:
        """Return the names of the sampling parameters that are left to the model."""
        return tuple(name for name in DEFAULTABLE if getattr(self, name) is None)

    def beams(self) -> BeamParams | None:
        """Return the beam search's parameters; None without one. Raises BadRequest where its options are given
        without one."""
        if self.num_beams > 1:
            stochastic = self.beam_search_type == "stochastic"
            return BeamParams(
                num_beams=self.num_beams,
                kind=self.beam_search_type,
                length_penalty=self.length_penalty,
                early_stopping=STOPPING[self.early_stopping],
                pre_normalization=not stochastic,
                post_normalization=stochastic,
            )
        for name in ("beam_search_type", "length_penalty", "early_stopping"):
            if getattr(self, name) != getattr(SamplingSettings(), name):
                raise BadRequest(f"--{name.replace('_', '-')} needs --num-beams above 1", param=name)
        return None

    def ending(self) -> EndingParams:
        """Return the stop conditions."""
        return EndingParams(max_tokens=self.max_new_tokens, stop=self.stop)
