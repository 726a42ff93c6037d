"""What a generation's observers are given, and what of it outlives its end."""

from __future__ import annotations

import contextvars
import gc
import weakref
from functools import partial

from dragoman.core.observer import ObservedGeneration, ObservedRequest, Observer, Observers, current_request
from dragoman.core.request import EngineRequest, GenerationRequest, TextPrompt
from dragoman.serving.generation_stats import GenerationStats


class Client:
    """In place of the engine's: it knows the model that it serves."""

    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self, _: str) -> None:
        self.cancelled += 1


class Cancels(Observer):
    """An observer that cancels each generation at its submission and at its end."""

    def submitted(self, generation: ObservedGeneration) -> None:
        generation.cancel()

    def finished(self, generation: ObservedGeneration) -> None:
        generation.cancel()


def generate(client: Client) -> None:
    """One generation of the current request, from its submission to its end."""
    stats = GenerationStats(Observers(Cancels()), GenerationRequest(request_id="r", prompt=TextPrompt(text="")), 1)
    submitted = EngineRequest(request_id="r", prompt=(1,), seeds=(0,), max_tokens=1)
    stats.submit(submitted, "m", partial(client.cancel, "r"), 0.0)
    stats.leave().cancel()


def test_a_context_that_knows_of_a_request_keeps_no_engine() -> None:
    """As that of a task that the request started, which runs for as long as the server does."""
    request = ObservedRequest()
    context = contextvars.copy_context()
    context.run(current_request.set, request)
    client = Client()
    context.run(generate, client)
    assert request.generations
    assert client.cancelled == 2, "not after its end"
    known = weakref.ref(client)
    del client
    gc.collect()
    assert known() is None
