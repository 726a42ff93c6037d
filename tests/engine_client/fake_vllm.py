"""A server that speaks vLLM's token-in, token-out path as ``recorded_vllm`` has it, with tokens that follow from the
request alone: of a hash in place of a model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dragoman.engine_client.vllm.plugin_protocol import answer_tokens, is_question, read_row, version_message

if TYPE_CHECKING:
    from fake_plugin import FakePlugin

END = "the stream ends here"


def drawn(vocab_size: int, *parts: object) -> int:
    """Return a token that follows from the parts; never one of the first 16, which tests use as ends."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return 16 + int.from_bytes(digest, "little") % (vocab_size - 16)


def error(status: int, message: str, kind: str = "BadRequestError") -> JSONResponse:
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return JSONResponse(body, status)


class FakeVllm:
    """One server. ``requests`` holds the bodies that it was sent, without those of probes.

    ``step_s``: time of a token. ``forced``: tokens by the number of tokens before them in prompt and output.
    ``cut_after``: streams break after so many tokens, once. ``stalls_after``: they fall silent.
    ``drips``: the answer to ``/health`` comes byte by byte, without end.
    ``plugin``: the ``FakePlugin`` that its workers run. ``front``: what the plugin in its front says for its version.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 199,
        max_model_len: int = 600,
        version: str = "0.32.0",
        name: str = "tiny",
        root: str = "/elsewhere/tiny",
        has_path: bool = True,
        is_disabled: bool = False,
        logprob_mode: str = "raw",
        max_logprobs: int = 20,
        api_key: str | None = None,
        step_s: float = 0.0,
        salt: str = "",
        plugin: FakePlugin | None = None,
        front: str = "",
    ) -> None:
        self.vocab_size, self.max_model_len, self.version = vocab_size, max_model_len, version
        self.name, self.root, self.salt = name, root, salt
        self.has_path, self.is_disabled, self.api_key = has_path, is_disabled, api_key
        self.logprob_mode, self.max_logprobs = logprob_mode, max_logprobs
        self.step_s = step_s
        self.plugin, self.front = plugin, front or (version_message("0.2.0") if plugin is not None else "")
        self.forced: dict[int, int] = {}
        self.cut_after: int | None = None
        self.stalls_after: int | None = None
        self.fails_with: tuple[int, str] | None = None
        self.error_in_stream: tuple[int, str] | None = None
        self.finish_reason: str | None = None
        self.is_healthy, self.drips = True, False
        self.requests: list[dict[str, Any]] = []
        self.running = 0
        self.most_running = 0
        self.aborted = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        return f"vllm=http://127.0.0.1:{self.port}"

    # The process -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        routes = [
            Route("/version", self._version),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/v1/models", self._models),
        ]
        if self.has_path:
            routes.append(Route("/inference/v1/generate", self._generate, methods=["POST"]))
        config = uvicorn.Config(Starlette(routes=routes), port=self.port, lifespan="off", log_config=None, ws="none")
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._task = asyncio.create_task(self._server._serve())
        while not self._server.started:
            await asyncio.sleep(0.001)

    async def die(self) -> None:
        """End as a killed process does: all connections are reset."""
        for listener in self._server.servers:
            listener.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        self._server.should_exit = self._server.force_exit = True
        await self._task

    # What it serves --------------------------------------------------------------------------------------------------

    def _denied(self, request: Request) -> Response | None:
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        return None

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": self.version})

    async def _health(self, request: Request) -> Response:
        if self.drips:
            return StreamingResponse(self._endless(), 200)
        return Response(status_code=200 if self.is_healthy else 503)

    @staticmethod
    async def _endless() -> AsyncIterator[bytes]:
        while True:
            yield b"a"
            await asyncio.sleep(0.01)

    async def _metrics(self, request: Request) -> Response:
        labels = f'engine="0",model_name="{self.name}"'
        text = (
            f"vllm:num_requests_running{{{labels}}} {float(self.running)}\n"
            f"vllm:kv_cache_usage_perc{{{labels}}} 0.25\n"
            f"vllm:num_preemptions_total{{{labels}}} 3.0\n"
            f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="100"}} 1.0\n'
        )
        return Response(text, media_type="text/plain")

    async def _models(self, request: Request) -> Response:
        if denied := self._denied(request):
            return denied
        listed = {"id": self.name, "object": "model", "owned_by": "vllm", "root": self.root, "parent": None}
        return JSONResponse({"object": "list", "data": [listed | {"max_model_len": self.max_model_len}]})

    async def _generate(self, request: Request) -> Response:
        if denied := self._denied(request):
            return denied
        if self.is_disabled:
            message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
            return error(403, message, "PermissionDeniedError")
        body = await request.json()
        if body["request_id"] != "dragoman-probe":
            self.requests.append(body)
            if self.fails_with is not None:
                return error(*self.fails_with)
        params = body["sampling_params"]
        if self.front and is_question(params.get("extra_args")):
            return error(400, self.front)
        if self.plugin is not None:
            try:
                read_row(params.get("extra_args"))
            except ValueError as problem:
                return error(400, str(problem))
        if refusal := self._refusal(body, params):
            return error(400, refusal)
        if not body.get("stream"):
            return JSONResponse(self._whole(body, params))
        return StreamingResponse(self._stream(body, params), media_type="text/event-stream")

    def _refusal(self, body: dict[str, Any], params: dict[str, Any]) -> str:
        for name in ("logprobs", "prompt_logprobs"):
            if (params.get(name) or 0) > self.max_logprobs:
                kind = "sample" if name == "logprobs" else "prompt"
                return (
                    f"Requested {kind} logprobs of {params[name]}, which is greater than max allowed: "
                    f"{self.max_logprobs} (parameter={name}, value={params[name]})"
                )
        beyond = [each for each in params.get("stop_token_ids", ()) if each >= self.vocab_size]
        if beyond:
            return (
                f"token_id(s) {beyond} in stop_token_ids contain out-of-vocab token ids. "
                f"Vocabulary size: {self.vocab_size} (parameter=stop_token_ids, value={beyond})"
            )
        if body["model"] != self.name:
            return f"The model `{body['model']}` does not exist. Valid aliases: {self.name}."
        if params["max_tokens"] < 1:
            return f"max_tokens must be at least 1, got {params['max_tokens']}."
        return ""

    def _token(self, body: dict[str, Any], params: dict[str, Any], output: list[int]) -> int:
        """Return the next token: with a temperature it depends on the seed and the number of tokens drawn since, with
        penalties on which tokens are the output's."""
        history = (*body["token_ids"], *output)
        if (forced := self.forced.get(len(history))) is not None:
            return forced
        parts: list[object] = [self.salt, history]
        if params["temperature"]:
            parts += [params["seed"], len(output)]
        if params.get("frequency_penalty") or params.get("presence_penalty"):
            parts.append(tuple(output))
        return drawn(self.vocab_size, *parts)

    def _logprobs(self, token_id: int, params: dict[str, Any]) -> dict[str, Any] | None:
        """Return the log-probabilities of a step: of the tokens from the drawn one on, each half as likely."""
        asked = params.get("logprobs")
        if asked is None:
            return None
        is_forced = self.logprob_mode == "processed" and params.get("logit_bias")
        own = 0.0 if is_forced else -math.log(2)
        ids = [(token_id + i) % self.vocab_size for i in range(max(asked, 1))]
        top = [{"token_id": each, "logprob": own - i * math.log(2), "rank": i + 1} for i, each in enumerate(ids)]
        return {"content": [{**top[0], "top_logprobs": top}]}

    def _whole(self, body: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        token_id = self._token(body, params, [])
        token_ids = [token_id] * params["max_tokens"]
        asked = read_row(params.get("extra_args")) if self.plugin is not None else None
        if self.plugin is not None and isinstance(asked, int):
            token_ids = list(answer_tokens(asked, self.plugin.digest))
        elif self.plugin is not None and asked is not None:
            token_ids = []
            choose = self.plugin.begin(body, token_ids)
            while choose is not None and len(token_ids) < params["max_tokens"]:
                token_ids.append(choose())
        if params.get("logit_bias"):
            token_id = max(((bias, int(each)) for each, bias in params["logit_bias"].items()))[1]
        choice = {
            "index": 0,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": token_ids,
            "logprobs": self._logprobs(token_id, params),
        }
        prompt_logprobs: list[Any] | None = None
        if (asked := params.get("prompt_logprobs")) is not None:
            prompt_logprobs = [None]
            for each in body["token_ids"][1:]:
                row = {str(each): {"logprob": -1.5, "rank": 2, "decoded_token": None}}
                row |= {
                    str((each + 1 + i) % self.vocab_size): {"logprob": -0.5 - 2 * i, "rank": 1, "decoded_token": None}
                    for i in range(asked)
                }
                prompt_logprobs.append(row)
        return {
            "request_id": f"generate-tokens-{body['request_id']}",
            "choices": [choice],
            "prompt_logprobs": prompt_logprobs,
        }

    async def _stream(self, body: dict[str, Any], params: dict[str, Any]) -> AsyncIterator[bytes]:
        output: list[int] = []
        choose = self.plugin.begin(body, output) if self.plugin is not None else None
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            while True:
                await asyncio.sleep(self.step_s)
                if self.error_in_stream is not None and output:
                    status, message = self.error_in_stream
                    yield self._event({"error": {"message": message, "type": "x", "param": None, "code": status}})
                    break
                output.append(token_id := choose() if choose is not None else self._token(body, params, output))
                is_stop = token_id in params.get("stop_token_ids", ()) and len(output) >= params.get("min_tokens", 0)
                finish = "stop" if is_stop else "length" if len(output) == params["max_tokens"] else None
                choice = {
                    "index": 0,
                    "finish_reason": finish if self.finish_reason is None else self.finish_reason,
                    "stop_reason": token_id if is_stop else None,
                    "token_ids": [token_id],
                    "routed_experts": None,
                    "sampling_mask": None,
                    "weight_versions": None,
                    "logprobs": self._logprobs(token_id, params),
                }
                yield self._event(
                    {
                        "request_id": f"generate-tokens-{body['request_id']}",
                        "usage": None,
                        "output_mode": "tokens",
                        "choices": [choice],
                    }
                )
                if choice["finish_reason"] is not None:
                    break
                if self.stalls_after == len(output):
                    self.stalls_after = None
                    await asyncio.sleep(3600)
                if self.cut_after == len(output):
                    self.cut_after = None
                    raise ConnectionError(END)
            yield b"data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1

    @staticmethod
    def _event(content: dict[str, Any]) -> bytes:
        return f"data: {json.dumps(content)}\n\n".encode()


@asynccontextmanager
async def served(*fakes: FakeVllm) -> AsyncIterator[None]:
    """Start the servers, and end them."""
    for fake in fakes:
        await fake.start()
    try:
        yield
    finally:
        for fake in fakes:
            if not fake._task.done():
                await fake.die()
