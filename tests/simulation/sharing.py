"""What all worlds share because it takes long to start, and what is random elsewhere and here follows from the seed."""

from __future__ import annotations

import functools
import gc
import logging
import random
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from dragoman.core.request import ChatPrompt
from dragoman.core.vocabulary import Vocabulary
from dragoman.grammar.process import GrammarProcess
from dragoman.server import ledger
from dragoman.serving import batch_store, constraints, response_store, resume_store, runtime, worker_pool
from dragoman.serving import model_loader as loaded
from dragoman.text import ChatTemplate, Tokenizer
from tests.simulation.virtual_time import NoThread, VirtualQueue

FOLDER = Path(__file__).parents[2] / "builtin"


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(FOLDER)


@functools.cache
def chat_template() -> ChatTemplate:
    """One process for all worlds: to start one takes longer than a world does."""
    return ChatTemplate.load(FOLDER, tokenizer().special_tokens)


class _SharedTokenizer:
    @staticmethod
    def load(folder: Path, fill_order: str = "family") -> Tokenizer:
        return tokenizer()


class _SharedTemplate:
    """The template of all worlds, for who would start and end one."""

    @staticmethod
    def begin(folder: Path, **_: Any) -> _SharedTemplate:
        return _SharedTemplate()

    def compile(self, special_tokens: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def render(self, prompt: ChatPrompt) -> str:
        return _rendered(msgspec.json.encode(prompt))

    def __getattr__(self, name: str) -> Any:
        return getattr(chat_template(), name)


@functools.cache
def _rendered(prompt: bytes) -> str:
    return chat_template().render(msgspec.json.decode(prompt, type=ChatPrompt))


class _SharedGrammars:
    """One process for the grammars of all worlds, each tried out once."""

    def __init__(self, vocabulary: Vocabulary, **_: Any) -> None:
        self._vocabulary = vocabulary

    def check(self, constraint: Any, cancelled: Any = None) -> str:
        if constraint not in _grammars:
            if not _grammar_process:
                _grammar_process.append(GrammarProcess(self._vocabulary))
            _grammars[constraint] = _grammar_process[0].check(constraint)
        return _grammars[constraint]

    def close(self) -> None:
        pass


_grammars: dict[Any, str] = {}
_grammar_process: list[GrammarProcess] = []


def _start_none(executor: ThreadPoolExecutor, threads: int) -> None:
    """Leave the threads of stores to their first use, which does not come here."""


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """What is drawn at random is drawn from the seed; what takes long to start is shared with other worlds."""
    rng = random.Random(f"secrets {seed}")
    chat_template()
    changes = (
        (secrets, "token_hex", lambda nbytes=32: rng.randbytes(nbytes or 32).hex()),
        (loaded, "Tokenizer", _SharedTokenizer),
        (loaded, "ChatTemplate", _SharedTemplate),
        (constraints, "GrammarProcess", _SharedGrammars),
        (worker_pool, "SimpleQueue", VirtualQueue),
        (worker_pool, "threading", SimpleNamespace(Thread=NoThread)),
        (runtime, "_own_threads", nullcontext),
        *((store, "start_threads", _start_none) for store in (batch_store, response_store, resume_store)),
        (ledger, "threading", SimpleNamespace(Thread=NoThread, Lock=threading.Lock, Event=threading.Event)),
    )
    before = [getattr(owner, name) for owner, name, _ in changes]
    state = random.getstate()
    random.seed(seed)
    disabled = logging.root.manager.disable
    for owner, name, value in changes:
        setattr(owner, name, value)
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        random.setstate(state)
        logging.disable(disabled)
        for (owner, name, _), value in zip(changes, before, strict=True):
            setattr(owner, name, value)
