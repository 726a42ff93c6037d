"""What a vLLM server is: asked at the start, and whenever it is back, before it gets requests."""

from __future__ import annotations

import logging
import re
import secrets
from typing import Any

import msgspec

from dragoman.core.decoding import UNDECODABLE
from dragoman.core.errors import ModelError
from dragoman.engine_client.vllm.http import HttpClient, HttpFailure
from dragoman.engine_client.vllm.model import RemoteModel
from dragoman.engine_client.vllm.plugin_protocol import (
    ANSWER_TOKENS,
    NO_GRAMMARS,
    PROTOCOL,
    QUESTION_ARGS,
    greeting_args,
    read_answer,
)
from dragoman.engine_client.vllm.protocol import (
    GENERATE,
    MODELS,
    VERSION,
    GenerateBody,
    ListedModel,
    ModelList,
    VersionAnswer,
    WholeAnswer,
    error_message,
)
from dragoman.engine_client.vllm.translation import Traits

log = logging.getLogger(__name__)

OLDEST = (0, 32)
"""The first release whose path streams log-probabilities by token id, and that this client is tested with."""
TIMEOUT_S = 30.0
FIRST_TOKEN_S = 300.0
"""Most time for a token: a server that has just started may compile for its first one."""
TOO_MANY = 2**31 - 1
_MAX_LOGPROBS = re.compile(r"max allowed: (\d+)")
_VOCAB_SIZE = re.compile(r"Vocabulary size: (\d+)")
_PLUGIN = re.compile(r"dragoman-vllm (\S{1,64}), protocol (\d+)")
_VERSION = re.compile(r"(\d+)\.(\d+)")


class UnsuitableServer(ModelError):
    """The vLLM server cannot run this model's requests, and would not after a restart either."""


class Probe:
    """Questions to one server."""

    def __init__(self, http: HttpClient, model: RemoteModel) -> None:
        self._http, self._model = http, model

    async def traits(self) -> Traits:
        """Return what the server is. Raises UnsuitableServer, and HttpFailure where it cannot be asked."""
        version = await self._version()
        listed = await self._listed()
        name, context_tokens = listed.id, listed.max_model_len
        if context_tokens is None:
            raise self._refusal(f"does not say how long a context of {name} is")
        max_logprobs = await self._limit(name, {"logprobs": TOO_MANY}, _MAX_LOGPROBS)
        vocab_size = await self._limit(name, {"stop_token_ids": [TOO_MANY]}, _VOCAB_SIZE)
        if vocab_size != self._model.vocab_size:
            has = f"its {name} has {vocab_size} tokens in the vocabulary"
            raise self._refusal(f"runs another model: {has}, {self._model.name} {self._model.vocab_size}")
        longest = self._model.context_tokens
        if longest is not None and context_tokens > longest:
            has = f"its {name} has a context of {context_tokens} tokens"
            raise self._refusal(f"runs another model: {has}, {self._model.name} of {longest}")
        plugin, grammars = await self._plugin(name)
        return Traits(
            version=version,
            model=name,
            root=listed.root or name,
            context_tokens=context_tokens,
            vocab_size=vocab_size,
            logprob_mode=await self._logprob_mode(name),
            max_logprobs=max_logprobs,
            plugin=plugin,
            grammars=grammars,
        )

    def _refusal(self, reason: str) -> UnsuitableServer:
        return UnsuitableServer(f"--engine: the server at {self._http.address} {reason}")

    async def _get(self, path: str) -> bytes:
        async with self._http.send("GET", path, timeout_s=TIMEOUT_S) as answer:
            body = await answer.read(TIMEOUT_S)
        if answer.status in (401, 403):
            raise self._refusal("asks for another key than --engine-api-key")
        if answer.status >= 500:
            raise HttpFailure(f"it answers {path} with status {answer.status}")
        if answer.status != 200:
            raise self._refusal(f"is no vLLM server: it answers {path} with status {answer.status}")
        return body

    async def _version(self) -> str:
        try:
            version = msgspec.json.decode(await self._get(VERSION), type=VersionAnswer).version
        except UNDECODABLE:
            raise self._refusal(f"is no vLLM server: it does not answer {VERSION} with a version") from None
        found = _VERSION.match(version)
        if found is None or (int(found[1]), int(found[2])) < OLDEST:
            raise self._refusal(f"runs vLLM {version[:64]}, and {OLDEST[0]}.{OLDEST[1]} or newer is needed")
        return version[:64]

    async def _listed(self) -> ListedModel:
        """Return the entry of the model; the server may list adapters too."""
        try:
            models = msgspec.json.decode(await self._get(MODELS), type=ModelList).data
        except UNDECODABLE:
            raise self._refusal(f"does not answer {MODELS} as vLLM does") from None
        for listed in models:
            if listed.parent is None and {listed.id, listed.root} & self._model.names:
                return listed
        # Two machines rarely have a model at the same path.
        wanted = {last_part(name) for name in self._model.names}
        for listed in models:
            if listed.parent is None and {last_part(listed.id), last_part(listed.root or "")} & wanted:
                return listed
        has = ", ".join(each.id for each in models)[:200] or "none"
        raise self._refusal(
            f"runs another model than {self._model.name}: it has {has} (--engine-model says what its name is)"
        )

    async def _generate(self, model: str, params: dict[str, Any]) -> tuple[int, bytes]:
        """Return status and body of the answer to a request for one token."""
        body = GenerateBody(
            request_id="dragoman-probe",
            token_ids=(0,),
            model=model,
            sampling_params={"max_tokens": 1, "temperature": 0, "detokenize": False, **params},
        )
        async with self._http.send("POST", GENERATE, msgspec.json.encode(body), timeout_s=FIRST_TOKEN_S) as answer:
            content = await answer.read(TIMEOUT_S)
        if answer.status == 401:
            raise self._refusal("asks for another key than --engine-api-key")
        if answer.status in (403, 404, 405):
            raise self._refusal(f"has no {GENERATE}: start it with --tokens-only, or with --enable-scale-out")
        if answer.status >= 500:
            raise HttpFailure(f"it answers with status {answer.status}: {error_message(content)}")
        return answer.status, content

    async def _limit(self, model: str, params: dict[str, Any], pattern: re.Pattern[str]) -> int:
        """Return the number in the message by which the server refuses an excess. Nothing is generated."""
        status, content = await self._generate(model, params)
        found = pattern.search(error_message(content)) if status == 400 else None
        if found is None:
            raise self._refusal(f"does not refuse {', '.join(params)} of {TOO_MANY} as vLLM does (status {status})")
        return int(found[1])

    async def _plugin(self, model: str) -> tuple[str, str]:
        """Return the version of the plugin, and the digest of its grammars; both empty where its workers run none.

        vLLM alone takes extra arguments without a look at them. The plugin in its front refuses the question by its
        version; the one in its workers answers the greeting by tokens.
        """
        status, content = await self._generate(model, {"extra_args": QUESTION_ARGS})
        if status == 200:
            return "", ""
        found = _PLUGIN.search(error_message(content))
        if found is None:
            raise self._refusal(f"refuses extra arguments with status {status}: {error_message(content)[:200]}")
        version, protocol = found[1], int(found[2])
        if protocol != PROTOCOL:
            has = f"has dragoman-vllm {version}, which speaks protocol {protocol}, and this server {PROTOCOL}"
            raise self._refusal(f"{has}: install the same release in both places")
        nonce = secrets.randbits(63)
        params = {"extra_args": greeting_args(nonce), "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
        status, content = await self._generate(model, params)
        try:
            token_ids = msgspec.json.decode(content, type=WholeAnswer).choices[0].token_ids if status == 200 else None
        except (*UNDECODABLE, IndexError):
            token_ids = None
        grammars = read_answer(nonce, token_ids or ())
        if grammars is None:
            why = "with speculative decoding they do not"
            log.warning(
                "the server at %s has dragoman-vllm, but its workers do not run it (%s)", self._http.address, why
            )
            return "", ""
        return version, "" if grammars == NO_GRAMMARS else grammars.hex()

    async def _logprob_mode(self, model: str) -> str:
        """Return the mode of its log-probabilities: a bias changes those that are not the model's own."""
        plain, biased = [await self._first_logprobs(model, params) for params in ({}, {"logit_bias": {"0": 100.0}})]
        both = (*plain.values(), *biased.values())
        if max(both) > 1e-3:
            raise self._refusal("reports logits: start it with --logprobs-mode raw_logprobs or processed_logprobs")
        if 0 in biased and biased[0] > -1e-3 and plain.get(0, -100.0) < -1e-3:
            return "processed"
        return "raw"

    async def _first_logprobs(self, model: str, params: dict[str, Any]) -> dict[int, float]:
        status, content = await self._generate(model, {"logprobs": 1, **params})
        try:
            answer = msgspec.json.decode(content, type=WholeAnswer)
            logprobs = answer.choices[0].logprobs
        except (*UNDECODABLE, IndexError):
            logprobs = None
        if status != 200 or logprobs is None or not logprobs.content:
            raise self._refusal(f"does not generate: status {status}, {error_message(content)}")
        return {each.token_id: each.logprob for each in logprobs.content}


def last_part(path: str) -> str:
    """Return the last part of a path or a hub id, in lower case."""
    return path.rstrip("/").rpartition("/")[2].lower()
