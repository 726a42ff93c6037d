"""Settings of models and their serving. The command line is generated from these structs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from dragoman.core.regular_file import FileName
from dragoman.core.user_folders import expand_user

Count = Annotated[int, Meta(ge=1)]
Workers = Annotated[int, Meta(ge=1, le=1024)]
Seconds = Annotated[float, Meta(gt=0)]
MOST_NAME_CHARS = 512
"""Requests name no model with more."""


class ServingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The names and the chat template of the model, and the limits on how long requests may take.

    Attributes:
        name: name of the served model in answers and in GET /v1/models; by default the model's own.
        alias: one more name under which the model is served; may be given several times.
        chat_template: file with a chat template, Jinja or a tokenizer_config.json, in place of the model's own.
        unknown_models: what a name of a model means that is not served: refuse, an error; default, the default model,
            which the header x-dragoman-model of the answer then names, for clients that can only say gpt-4o.
        max_waiting: requests that wait for their first token; more are answered with status 429. Where all wait, those
            of the caller with the longest queue are the ones refused. A caller is who holds a key; without keys, an
            address.
        max_queue_s: seconds that a request may wait for its first token; then status 429, at once where it is certain.
        image_bytes: bytes of pixels that the images of all requests may take, from when they are read until their
            request ends; more are answered with status 429.
        generation_timeout_s: longest time for one generation in seconds; without it there is none.
        open_schemas: objects of JSON Schemas may have properties that the schema does not name, where it does not say
            otherwise. Without this they have none: a model could invent properties until the length ends.
        fill_order: what comes first in the prompt of a gap that is filled, the text before it (prefix) or the text
            after it (suffix); family: as the models have it that use these marks.
        image_hosts: host that images of requests may be fetched from, over https: images.example.com, or *.example.com
            for all below it; may be given several times. Without any, images come in the request itself.
        dedup: compute equal requests of one caller, with the same seed, once where they wait at the same time.
    """

    PANEL: ClassVar[str] = "Server"

    name: Annotated[str, Meta(min_length=1, max_length=MOST_NAME_CHARS)] | None = None
    alias: tuple[Annotated[str, Meta(min_length=1, max_length=MOST_NAME_CHARS)], ...] = ()
    chat_template: FileName | None = None
    unknown_models: Literal["refuse", "default"] = "refuse"
    max_waiting: Count = 256
    max_queue_s: Seconds | None = None
    image_bytes: Annotated[int, Meta(ge=0)] = 1 << 30
    generation_timeout_s: Seconds | None = None
    open_schemas: bool = False
    fill_order: Literal["family", "prefix", "suffix"] = "family"
    dedup: bool = False
    image_hosts: tuple[Annotated[str, Meta(min_length=1)], ...] = ()


class CatalogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The models that may be loaded while the server runs.

    Attributes:
        offer: another model that may be loaded, as NAME=SOURCE or SOURCE, a folder, a GGUF file or a hub id; may be
            given several times.
        models_folder: each folder in it that holds a model is offered under its own name, and each GGUF file.
        offer_cached: offer the models in the hub's cache on this machine.
        offer_downloads: let clients name any repository of the hub, which is then downloaded.
        fixed_model: always serve the model that the server starts with; nothing else is offered.
        memory_bytes: memory that the server and all its models share. Each model then plans its keys and values within
            half of it. By default what the machine, or the control group, has left less a tenth or 1 GiB, and a model
            plans as if it were alone.
        idle_unload_s: seconds after its last request at which a model is unloaded, where no request says otherwise; by
            default it stays until another one needs the memory.
        pin: name of a model that stays in memory once it is loaded; may be given several times.
        request_loads: who may have a model loaded by naming it in a request: keys with the scope admin, any request, or
            never. Ollama's dialect has its own, --ollama-load.
    """

    PANEL: ClassVar[str] = "Models"

    offer: tuple[FileName, ...] = ()
    models_folder: FileName | None = None
    offer_cached: bool = True
    offer_downloads: bool = False
    fixed_model: bool = False
    memory_bytes: Annotated[int, Meta(ge=256 << 20)] | None = None
    idle_unload_s: Annotated[float, Meta(ge=0)] | None = None
    pin: tuple[str, ...] = ()
    request_loads: Literal["admin", "any", "never"] = "admin"


class AdapterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The low-rank adapters that requests may name.

    Attributes:
        lora_adapters: adapters to load at the start, a list with commas: REPOSITORY, REPOSITORY@REVISION, NAME=FOLDER
            or NAME=REPOSITORY@REVISION, in PEFT's format.
        adapters_folder: each folder in it that holds an adapter may be loaded, under its own name, while the server
            runs.
    """

    PANEL: ClassVar[str] = "Models"

    lora_adapters: FileName | None = None
    adapters_folder: FileName | None = None


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of the sampling parameters, for requests and dialects that set none. These override the model's own
    recommendations (``ModelSettings.generation_config``).

    Attributes:
        temperature: logits are divided by it; 0 always takes the likeliest token.
        top_k: keep the k likeliest tokens; 0 is off.
        top_p: keep the smallest set of tokens whose probability reaches p; 1 is off.
        min_p: drop tokens less likely than min_p times the likeliest one; 0 is off.
        typical_p: keep the tokens whose surprise is nearest to the entropy until their probability reaches p; 1 is off.
        repetition_penalty: makes tokens that occurred less likely, by a factor; 1 is off.
    """

    PANEL: ClassVar[str] = "Sampling"

    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None

    @property
    def values(self) -> dict[str, float]:
        """Return the values that are set, by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class WorkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Threads and processes for work outside the engine. Each kind has its own pool, which callers share fairly.

    Attributes:
        text_threads: threads for checking long requests, tokenizing long prompts and encoding long answers.
        template_workers: processes that render chats; each starts when it is needed.
        grammar_workers: processes that try out grammars; each starts when it is needed.
        image_workers: processes that decode images; each starts when it is needed.
        hub_threads: threads that ask the Hugging Face hub and download from it.
        hub_timeout_s: seconds that a client's request waits for the hub to describe a model or to deliver an adapter.
        max_queued_work: pieces of work of one caller that may wait in a pool; more are answered with status 429.
        max_queued_grammars: the same of grammars to try out, which take up to a second each.
    """

    PANEL: ClassVar[str] = "Work beside the engine"

    text_threads: Workers = 3
    template_workers: Workers = 2
    grammar_workers: Workers = 2
    image_workers: Workers = 2
    hub_threads: Workers = 4
    hub_timeout_s: Seconds = 300.0
    max_queued_work: Count = 512
    max_queued_grammars: Count = 64


class ContinueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The store of saved generations that can be resumed.

    Attributes:
        state_dir: folder of what outlives the server; by default $XDG_STATE_HOME/dragoman or ~/.local/state/dragoman.
        continue_store: disk: a file in that folder, so that they outlive the server. memory: nothing is written.
        continue_ttl_s: seconds that each is kept after it was cut; 0: none is kept.
        continue_max_entries: how many are kept; beyond that the least recently used are forgotten.
        continue_max_bytes: bytes that all of them may take; beyond that the least recently used are forgotten.
    """

    PANEL = "Continuing"

    state_dir: FileName | None = None
    continue_store: Literal["disk", "memory"] = "disk"
    continue_ttl_s: Annotated[float, Meta(ge=0)] = 3600.0
    continue_max_entries: Annotated[int, Meta(ge=1)] = 16384
    continue_max_bytes: Annotated[int, Meta(ge=1)] = 256 * 1024 * 1024

    @property
    def file(self) -> Path | None:
        """Return the path of the database; None where it is in memory."""
        if self.continue_store == "memory":
            return None
        return self.folder / "continue.sqlite3"

    @property
    def folder(self) -> Path:
        """Return the folder of everything that outlives the server."""
        home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        folder = Path(self.state_dir) if self.state_dir else Path(home) / "dragoman"
        return expand_user(folder)


class ResponseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The store of responses (OpenAI's Responses API), which clients name again and generate in the background.

    Attributes:
        responses_store: disk: a file in --state-dir, so that they outlive the server. memory: nothing is written. off:
            none is kept, as if every request asked for that.
        responses_ttl_s: seconds that each is kept after it was made.
        responses_max_entries: how many are kept; beyond that the least recently used are forgotten.
        responses_max_bytes: bytes that all of them may take; beyond that the least recently used are forgotten.
        responses_max_background: how many may run or wait in the background, of all callers together.
    """

    PANEL = "Responses"

    responses_store: Literal["disk", "memory", "off"] = "disk"
    responses_ttl_s: Annotated[float, Meta(gt=0)] = 2_592_000.0
    responses_max_entries: Annotated[int, Meta(ge=1)] = 16384
    responses_max_bytes: Annotated[int, Meta(ge=65536)] = 1024 * 1024 * 1024
    responses_max_background: Annotated[int, Meta(ge=1)] = 256


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Files of clients, and batches of requests, which run while there is nothing else to do.

    Attributes:
        files_store: disk: in the folder of --state-dir, so that files and batches outlive the server. off: there are
            none, and their paths are unknown.
        files_max_bytes: largest file; larger ones are answered with status 413.
        files_max_total_bytes: bytes that the files of all callers and the results of batches may take.
        batch_parallel: lines of all batches that the engine has at one time.
    """

    PANEL = "Files and batches"

    files_store: Literal["disk", "off"] = "disk"
    files_max_bytes: Annotated[int, Meta(ge=1024)] = 200 * 1024 * 1024
    files_max_total_bytes: Annotated[int, Meta(ge=1024)] = 10 * 1024**3
    batch_parallel: Count = 32


class RecordSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Recording of generations as capsules, which `dragoman replay` runs again.

    Attributes:
        record: folder in which generations are recorded as token ids, log-probabilities and parameters.
        record_requests: all generations, or those asked for with the header x-dragoman-record.
        record_bytes: bytes that all capsules in the folder may take; beyond that the oldest are removed.
        record_text: record prompts and outputs as text too.
    """

    PANEL = "Recording"

    record: FileName | None = None
    record_requests: Literal["all", "asked"] = "all"
    record_bytes: Annotated[int, Meta(ge=65536)] = 256 * 1024 * 1024
    record_text: bool = False
