"""One vLLM server: whether it can be used now, how busy it is, and the requests that it runs."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable

from dragoman.core.errors import ModelError
from dragoman.engine_client.vllm.http import HttpClient, HttpFailure
from dragoman.engine_client.vllm.model import RemoteModel
from dragoman.engine_client.vllm.probe import Probe
from dragoman.engine_client.vllm.protocol import HEALTH, METRICS
from dragoman.engine_client.vllm.settings import Address
from dragoman.engine_client.vllm.translation import Traits

log = logging.getLogger(__name__)

CHECK_S = 1.0
CHECK_TIMEOUT_S = 5.0
MISSED_CHECKS = 3
"""Failed checks of its health in a row before a server that still streams counts as dead."""
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 10.0

_SAMPLE = re.compile(rb"^vllm:(\w+)(?:\{([^}]*)\})? ([0-9.eE+-]+)$", re.MULTILINE)
_BLOCKS = re.compile(rb'num_gpu_blocks="(\d{1,15})"')
_BLOCK_SIZE = re.compile(rb'block_size="(\d{1,15})"')


class Figures:
    """What a server's ``/metrics`` says, as far as it is used here. Zero where it says nothing, or no number."""

    def __init__(self, text: bytes = b"") -> None:
        self.values: dict[str, float] = {}
        self.blocks = self.block_size = 0
        for name, labels, value in _SAMPLE.findall(text):
            key = name.decode()
            self.values[key] = self.values.get(key, 0.0) + _number(value)
            if key == "cache_config_info":
                self.blocks += int(found[1]) if (found := _BLOCKS.search(labels)) else 0
                self.block_size = int(found[1]) if (found := _BLOCK_SIZE.search(labels)) else 0

    @property
    def used_blocks(self) -> int:
        return round(self.blocks * min(1.0, self.values.get("kv_cache_usage_perc", 0.0)))


def _number(text: bytes) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


class Upstream:
    """One vLLM server.

    ``on_change`` is called when it can be used again, and when it cannot any more: with None, or with the reason.
    ``running``: sequences that it computes for this client.
    """

    def __init__(
        self,
        address: Address,
        model: RemoteModel,
        api_key: str | None,
        on_change: Callable[[Upstream, str | None], None],
    ) -> None:
        self.address = address
        self.http = HttpClient(address, api_key)
        self.running = 0
        self.is_ready = False
        self.problem = "it has not answered yet"
        self.down_since = 0.0
        self.figures = Figures()
        self._traits: Traits | None = None
        self._probe = Probe(self.http, model)
        self._on_change = on_change
        self._lost = asyncio.Event()
        self._missed = 0
        self._confirming = asyncio.Lock()

    @property
    def traits(self) -> Traits:
        """What the server is, once it has been asked."""
        assert self._traits is not None
        return self._traits

    async def open(self) -> None:
        """Find out what the server is. Raises ModelError where it is unsuitable, or cannot be reached."""
        try:
            self._traits = await self._probe.traits()
        except HttpFailure as error:
            raise ModelError(f"--engine: the server at {self.address} cannot be used: {error.message}") from None
        await self._read_figures()
        self.is_ready, self.problem = True, ""

    async def watch(self) -> None:
        """Check the server's health for good: while it can be used, and until it can be used again."""
        while True:
            try:
                await self._watch()
            except Exception:  # otherwise a lost server would stay lost
                log.exception(
                    "an answer of the vLLM server at %s cannot be understood; it is asked again", self.address
                )
                await asyncio.sleep(CHECK_S)

    async def _watch(self) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            if self.is_ready:
                wait_s = FIRST_WAIT_S
                try:
                    async with asyncio.timeout(CHECK_S):
                        await self._lost.wait()
                except TimeoutError:
                    await self._check()
                self._lost.clear()
            else:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                await self._try_again()

    def lose(self, reason: str) -> None:
        """Take the server out of use until it answers again."""
        if self.is_ready:
            self.is_ready, self.problem = False, reason
            self.down_since = asyncio.get_running_loop().time()
            self.http.close()
            self._lost.set()
            self._on_change(self, reason)

    async def confirm(self) -> None:
        """Check the server's health now: a request to it has failed."""
        async with self._confirming:
            if self.is_ready:
                try:
                    await self._ask_health()
                except HttpFailure as error:
                    self.lose(error.message)

    async def _check(self) -> None:
        try:
            await self._ask_health()
            await self._read_figures()
            self._missed = 0
        except HttpFailure as error:
            self._missed += 1
            # One that refuses connections has ended; one that is silent may only be busy.
            if not error.is_silence or self._missed >= MISSED_CHECKS:
                self.lose(error.message)

    async def _ask_health(self) -> None:
        async with self.http.send("GET", HEALTH, timeout_s=CHECK_TIMEOUT_S) as answer:
            await answer.read(CHECK_TIMEOUT_S)
        if answer.status != 200:
            raise HttpFailure(f"it answers {HEALTH} with status {answer.status}")

    async def _read_figures(self) -> None:
        async with self.http.send("GET", METRICS, timeout_s=CHECK_TIMEOUT_S) as answer:
            text = await answer.read(CHECK_TIMEOUT_S)
        self.figures = Figures(text if answer.status == 200 else b"")

    async def _try_again(self) -> None:
        try:
            await self._ask_health()
            traits = await self._probe.traits()
        except HttpFailure as error:
            self.problem = error.message
            return
        except ModelError as error:
            self._report(error.message)
            return
        if self._traits is not None and (difference := _difference(self._traits, traits)):
            self._report(f"--engine: the server at {self.address} is back as another: {difference}")
            return
        self._traits = traits
        self._missed = 0
        self.is_ready, self.problem = True, ""
        self._on_change(self, None)

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            log.error("%s; it gets no requests", problem)
        self.problem = problem


def _difference(before: Traits, now: Traits) -> str:
    """Return how the server differs from the one that requests were checked against; empty where it does not."""
    for name in before.__struct_fields__:
        was, found = getattr(before, name), getattr(now, name)
        if name != "version" and was != found:
            return f"its {name.replace('_', ' ')} is {found or 'none'}, and was {was or 'none'}"
    return ""
