"""``dragoman replay`` and ``dragoman compare``: recorded generations run again, on this model or on another one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dragoman.cli.engine import own_runtime
from dragoman.cli.html_page import write_page
from dragoman.cli.replay_report import report, summary
from dragoman.cli.settings import CompareOptions, MachineSettings, ReplayOptions, SamplingSettings
from dragoman.core import capsule as capsules
from dragoman.core.capsule import Capsule
from dragoman.core.errors import DragomanError
from dragoman.core.regular_file import require_regular
from dragoman.core.request import ChatPrompt, GenerationRequest, TextPrompt
from dragoman.engine.settings import SchedulerSettings
from dragoman.models import ModelSettings
from dragoman.serving.recorder import Recorder
from dragoman.serving.replay import Outcome
from dragoman.serving.runtime import Runtime
from dragoman.serving.settings import AdapterSettings

EMBEDDED = "embedded"
"""The name of the embedded model, where a model has to be named."""

MOST_PROMPTS = 100_000
MOST_PROMPT_BYTES = 1 << 26
OUTPUT_TOKENS = 64
"""Tokens of an answer that is compared, where no number is given."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

Named = tuple[str, Capsule | str]
"""The name of a capsule and the capsule, or why it cannot be read."""


async def replay(
    options: ReplayOptions,
    model: str | None,
    settings: ModelSettings,
    machine: MachineSettings,
) -> int:
    """Replay the capsules of a file or a folder, and print the result. Returns the exit code: 0 where all are equal."""
    found = list(read_capsules(Path(options.capsules)))
    adapters = AdapterSettings(lora_adapters=options.lora_adapters)
    async with own_runtime(model, settings, SchedulerSettings(), machine, adapters=adapters) as runtime:
        outcomes = await replayed(runtime, found, options.top)
    return show(f"Replay of {options.capsules}", outcomes, html=options.html, json=options.json)


async def compare(
    options: CompareOptions, sampling: SamplingSettings, settings: ModelSettings, machine: MachineSettings
) -> int:
    """Compare two models on the same prompts, or a folder of capsules with a model. Returns as ``replay`` does."""
    first, second = options.first, options.second
    there = Path(first)
    if there.is_dir() and any(there.glob("*.json")) and not (there / "config.json").exists():
        found = list(read_capsules(there))
    else:
        if options.prompts is None:
            raise DragomanError(f"{first} is no folder of capsules: --prompts FILE is needed to compare models")
        asked = [request_of(prompt, i, sampling) for i, prompt in enumerate(read_prompts(Path(options.prompts)))]
        found = await recorded(asked, first, with_precision(settings, options.precision_a), machine, options.top)
    precision = with_precision(settings, options.precision_b)
    async with own_runtime(source_of(second), precision, SchedulerSettings(), machine) as runtime:
        outcomes = await replayed(runtime, found, options.top)
    title = f"{_shown(first, options.precision_a)} and {_shown(second, options.precision_b)}"
    return show(title, outcomes, html=options.html, json=options.json)


def source_of(name: str) -> str | None:
    """Return a model as ``--model`` takes it."""
    return None if name == EMBEDDED else name


def with_precision(settings: ModelSettings, precision: str | None) -> ModelSettings:
    """Return the settings with a precision of one of the two models."""
    if precision is None:
        return settings
    try:
        return msgspec.convert({**msgspec.structs.asdict(settings), "precision": precision}, ModelSettings)
    except msgspec.ValidationError as error:
        raise DragomanError(f"there is no precision {precision}: {error}") from None


def _shown(model: str, precision: str | None) -> str:
    return model if precision is None else f"{model} in {precision}"


# Capsules -------------------------------------------------------------------------------------------------------------


def read_capsules(path: Path) -> Iterator[Named]:
    """Yield the capsules of a file or of a folder, by name. Raises DragomanError where there are none."""
    if path.is_dir():
        files = sorted(each for each in path.glob("*.json") if each.is_file() and not each.is_symlink())
        if not files:
            raise DragomanError(f"{path} has no capsules")
    else:
        files = [path]
    for file in files:
        yield file.name, _read(file, alone=not path.is_dir())


def _read(file: Path, *, alone: bool) -> Capsule | str:
    try:
        require_regular(file)
        with file.open("rb") as opened:
            return capsules.decode(opened.read(capsules.MOST_BYTES + 1))
    except OSError as error:
        reason = error.strerror or str(error)
    except DragomanError as error:
        reason = error.message
    if alone:
        raise DragomanError(f"{file} cannot be replayed: {reason}")
    return reason


class _InMemory:
    """Keeps the capsules of a comparison."""

    def __init__(self) -> None:
        self.capsules: list[Capsule] = []

    def put(self, name: str, make: Callable[[], Capsule]) -> None:
        self.capsules.append(make())

    def counters(self) -> dict[str, float]:
        return {}


async def recorded(
    asked: Sequence[GenerationRequest], model: str, settings: ModelSettings, machine: MachineSettings, top: int
) -> list[Named]:
    """Return the capsules of requests that a model runs, one after the other."""
    sink = _InMemory()
    recorder = Recorder(sink, top=top)
    found: list[Named] = []
    async with own_runtime(source_of(model), settings, SchedulerSettings(), machine, recorder=recorder) as runtime:
        for request in asked:
            name = request.request_id
            try:
                await runtime.serving.generate(request)
            except DragomanError as error:
                found.append((name, error.message))
            else:
                found.append((name, sink.capsules.pop()))
    return found


async def replayed(runtime: Runtime, found: Sequence[Named], top: int) -> list[Outcome]:
    """Return the outcome of each capsule."""
    replayer = runtime.serving.replayer(top=top)
    outcomes = []
    for name, capsule in found:
        if isinstance(capsule, str):
            outcomes.append(Outcome(name=name, error=capsule))
        else:
            outcomes.append(await replayer.replay(name, capsule))
    return outcomes


# Prompts --------------------------------------------------------------------------------------------------------------


def read_prompts(path: Path) -> Iterator[TextPrompt | ChatPrompt]:
    """Yield the prompts of a file: each line a text, or JSON with ``prompt`` or ``messages``. Raises DragomanError."""
    require_regular(path)
    try:
        with path.open(encoding="utf-8-sig") as opened:
            text = opened.read(MOST_PROMPT_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise DragomanError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not 0 < len(lines) <= MOST_PROMPTS:
        raise DragomanError(f"{path} has {len(lines)} prompts; 1 to {MOST_PROMPTS} are compared")
    for number, line in enumerate(lines, 1):
        yield _prompt(line) if line.lstrip().startswith("{") else TextPrompt(text=line)
        if number > MOST_PROMPTS:
            return


def _prompt(line: str) -> TextPrompt | ChatPrompt:
    try:
        value: Any = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return TextPrompt(text=line)
    prompt, messages = value.get("prompt"), value.get("messages")
    if isinstance(prompt, str):
        return TextPrompt(text=prompt)
    if isinstance(messages, list) and messages and all(isinstance(each, dict) for each in messages):
        return ChatPrompt(messages=tuple(messages))
    raise DragomanError(f"a prompt in JSON has 'prompt' or 'messages': {line[:80]}")


def request_of(prompt: TextPrompt | ChatPrompt, number: int, options: SamplingSettings) -> GenerationRequest:
    """Return the request of a prompt, with the same seed for all of them where none is given."""
    ending = options.ending()
    if ending.max_tokens is None:
        ending = msgspec.structs.replace(ending, max_tokens=OUTPUT_TOKENS, clamp_to_context=True)
    return GenerationRequest(
        request_id=f"prompt {number + 1}",
        prompt=prompt,
        seeds=(options.seed or 0,),
        sampling=options.sampling(),
        unset_sampling=options.unset_sampling,
        beams=options.beams(),
        ending=ending,
    )


# Results --------------------------------------------------------------------------------------------------------------


def show(title: str, outcomes: Sequence[Outcome], *, html: str | None, json: bool) -> int:
    """Print the outcomes, and write the report where it is asked for. Returns 0 where all are equal, otherwise 1."""
    if html is not None:
        write_page(html, report(title, outcomes))
    if json:
        for each in outcomes:
            print(msgspec.json.encode(each).decode())
    else:
        for line in described(outcomes):
            print(line)
    return 0 if all(each.equal for each in outcomes) else 1


def described(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines about each outcome, and at the end those about all."""
    for each in outcomes:
        yield from _described(each)
    if len(outcomes) > 1:
        yield ""
        yield from summary(outcomes)


def _described(each: Outcome) -> Iterator[str]:
    name = _clean(each.name)
    if each.error:
        yield f"{name}: not replayed: {_clean(each.error)}"
    elif each.difference is None:
        exact = " and their log-probabilities" if each.logprob_difference == 0 else ""
        yield f"{name}: equal, all {each.tokens} tokens{exact}"
    else:
        found = each.difference
        then, now = (
            f"{_clean(candidate.text)!r}"
            + (f" ({candidate.token_id})" if candidate.token_id is not None else "")
            + (f", log-probability {candidate.logprob:.4f}" if candidate.logprob is not None else "")
            for candidate in (found.recorded, found.now)
        )
        where = f" of sequence {found.sequence}" if found.sequence else ""
        yield f"{name}: differs at token {found.position}{where}"
        yield f"  then  {then}"
        yield f"  now   {now}"
        if found.gap is not None:
            yield f"  gap   {found.gap:.4g} between their logits, now"
    yield from (f"  why   {_clean(reason)}" for reason in each.reasons if not each.equal)


def _clean(text: str) -> str:
    """Return a stranger's text without what would move a terminal's cursor or turn its writing."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
