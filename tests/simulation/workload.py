"""Requests of all dialects and kinds of sampling, and what of their answers has to be the same each time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.simulation.clients import Answer
from tests.simulation.engine_process import POISON

VOLATILE = frozenset(
    {"id", "created", "prompt_tokens_details", "request_id", "cached_tokens", "model", "modelId", "model_id"}
)
"""What two answers to the same request may differ in."""
COUNT = 96
SERIAL = "<serial>"


@dataclass(frozen=True)
class Template:
    """A request that clients send again and again. ``number`` names it in reports."""

    number: int
    kind: str
    path: str
    body: str

    def fields(self, serial: int) -> Any:
        """The body. ``serial``: another one is another generation where the dialect keeps those that were cut."""
        return json.loads(self.body.replace(SERIAL, str(serial)))


def comparable(answer: Answer) -> dict[str, list[str]]:
    """The answer by sequence: in a stream those of one request come in any order among themselves."""
    if not answer.is_stream:
        content = decoded(answer.body.decode())
        return {"whole": [json.dumps(_without_volatile(content), sort_keys=True)]}
    found: dict[str, list[str]] = {}
    for data in events_of(answer.body):
        content = decoded(data)
        found.setdefault(_sequence_of(content), []).append(json.dumps(_without_volatile(content), sort_keys=True))
    return found


def events_of(body: bytes) -> Iterator[str]:
    for block in body.decode().replace("\r\n", "\n").split("\n\n"):
        lines = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        if lines:
            yield "\n".join(lines)


def error_of(answer: Answer) -> str:
    """What went wrong behind the beginning of a stream, as it says; empty where nothing did."""
    if not answer.is_stream:
        return ""
    for data in events_of(answer.body):
        content = decoded(data)
        if isinstance(content, dict) and content.get("error"):
            return json.dumps(content)
    return ""


def usage_of(answer: Answer) -> tuple[int, int] | None:
    """Tokens of prompts and of answers, where an answer of OpenAI's kind tells them."""
    if answer.status != 200:
        return None
    texts = list(events_of(answer.body)) if answer.is_stream else [answer.body.decode()]
    for content in map(decoded, reversed(texts)):
        usage = content.get("usage") if isinstance(content, dict) else None
        if isinstance(usage, dict) and "completion_tokens" in usage:
            return usage["prompt_tokens"], usage["completion_tokens"]
    return None


def decoded(data: str) -> Any:
    """JSON, or the text itself where a dialect's events are plain text."""
    try:
        return json.loads(data)
    except ValueError:
        return data


def difference(got: dict[str, list[str]], due: dict[str, list[str]]) -> str:
    """The first of them, in words."""
    for sequence in sorted({*got, *due}):
        ours, theirs = got.get(sequence, []), due.get(sequence, [])
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            if one != other:
                return f"{sequence}, event {number}: {one[:400]} in place of {other[:400]}"
        if len(ours) != len(theirs):
            return f"{sequence}: {len(ours)} events in place of {len(theirs)}, the last {ours[-1:]}"
    return "none"


def _sequence_of(content: Any) -> str:
    if isinstance(content, dict):
        choices = content.get("choices")
        if choices:
            return f"choice {choices[0].get('index', 0)}"
        if "usage" in content:
            return "usage"
    return "rest"


def _without_volatile(content: Any) -> Any:
    if isinstance(content, dict):
        return {k: _without_volatile(v) for k, v in content.items() if k not in VOLATILE}
    if isinstance(content, list):
        return [_without_volatile(each) for each in content]
    return content


def templates() -> list[Template]:
    """Always the same."""
    rng = random.Random("templates")
    makers = (_completion, _completion, _chat, _tgi, _tgi, _friendli, _octoai, _locallab, _alexandria)
    return [makers[number % len(makers)](rng, number) for number in range(COUNT)]


def poisonous() -> Template:
    """Whoever computes it dies."""
    body = {"prompt": [5, 6, 7, *POISON, 8], "max_tokens": 4, "seed": 1}
    return Template(-1, "poison", "/v1/completions", json.dumps(body))


WORDS = ["once", "upon", "a", "time", "there", "was", "merchant", "who", "spoke", "no", "went", "far", "away"]
BLOCK = " ".join(WORDS * 3)


def _prompt(rng: random.Random) -> str:
    """Some share their beginning, so that blocks are shared."""
    start = rng.choice(["", "", BLOCK, BLOCK + " " + BLOCK])
    return (start + " " + " ".join(rng.choices(WORDS, k=rng.randint(1, 20)))).strip()


def _sampling(rng: random.Random) -> dict[str, Any]:
    """In OpenAI's words."""
    chosen: dict[str, Any] = rng.choice(
        [
            {"temperature": 0},
            {"temperature": 0},
            {"temperature": 1.0},
            {"temperature": 0.8, "top_p": 0.9},
            {"temperature": 0.3, "frequency_penalty": 0.9, "presence_penalty": 0.5},
            {"temperature": 0, "frequency_penalty": 1.5},
        ]
    )
    return {**chosen, "seed": rng.randrange(2**31)}


def _length(rng: random.Random) -> int:
    return rng.choice([1, 4, 8, 12, 24])


def _completion(rng: random.Random, number: int) -> Template:
    body: dict[str, Any] = {"prompt": _prompt(rng), "max_tokens": _length(rng), **_sampling(rng), "ignore_eos": True}
    kind = rng.choice(["plain", "n", "logprobs", "beams", "regex", "stop", "mirostat", "repeat", "best_of"])
    if kind == "n":
        body |= {"n": rng.randint(2, 3), "temperature": 1.0}
    elif kind == "logprobs":
        body |= {"logprobs": rng.randint(1, 4), "echo": rng.random() < 0.3}
    elif kind == "beams":
        body |= {"use_beam_search": True, "n": 2, "temperature": 0, "max_tokens": min(body["max_tokens"], 8)}
        for name in ("top_p", "frequency_penalty", "presence_penalty"):
            body.pop(name, None)
    elif kind == "regex":
        body |= {"guided_regex": "[a-z]{1,4}( [a-z]{1,4}){3,9}!"}
    elif kind == "stop":
        body |= {"stop": ["e", "th"], "temperature": 1.0}
    elif kind == "mirostat":
        body |= {"mirostat_mode": 2, "mirostat_tau": 4.0, "temperature": 1.0}
        body.pop("top_p", None)
    elif kind == "repeat":
        body |= {"prompt": BLOCK, "temperature": 0, "max_tokens": 30}
    elif kind == "best_of":
        body |= {"best_of": 3, "n": 1, "temperature": 1.0}
    if rng.random() < 0.6 and kind not in ("beams", "best_of"):
        body |= {"stream": True}
        if rng.random() < 0.5:
            body |= {"stream_options": {"include_usage": True}}
    return Template(number, f"completion, {kind}", "/v1/completions", json.dumps(body))


def _chat(rng: random.Random, number: int) -> Template:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": _prompt(rng)}], "max_tokens": _length(rng)}
    body |= {**_sampling(rng), "ignore_eos": True, "stream": rng.random() < 0.7}
    kind = rng.choice(["plain", "logprobs", "json"])
    if kind == "logprobs":
        body |= {"logprobs": True, "top_logprobs": 2}
    elif kind == "json":
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        body |= {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
        body.pop("ignore_eos")
    return Template(number, f"chat, {kind}", "/v1/chat/completions", json.dumps(body))


def _tgi(rng: random.Random, number: int) -> Template:
    parameters: dict[str, Any] = {"max_new_tokens": _length(rng), "details": True, "seed": rng.randrange(2**31)}
    kind = rng.choice(["greedy", "sampled", "watermark", "prefill"])
    if kind != "greedy":
        parameters |= {"do_sample": True, "temperature": 0.9, "top_k": 20}
    if kind == "watermark":
        parameters |= {"watermark": True}
    if kind == "prefill":
        parameters |= {"decoder_input_details": True, "top_n_tokens": 2}
    path = rng.choice(["/generate", "/generate_stream"])
    if kind == "prefill":
        path = "/generate"
    return Template(
        number, f"tgi, {kind}", "/tgi" + path, json.dumps({"inputs": _prompt(rng), "parameters": parameters})
    )


def _friendli(rng: random.Random, number: int) -> Template:
    body = {
        "prompt": _prompt(rng),
        "max_tokens": _length(rng),
        "seed": [rng.randrange(2**31)],
        "stream": rng.random() < 0.5,
    }
    return Template(number, "friendli", "/friendli/v1/completions", json.dumps(body))


def _octoai(rng: random.Random, number: int) -> Template:
    messages = [{"role": "user", "content": _prompt(rng)}]
    body = {"model": "stub", "messages": messages, "max_tokens": _length(rng), "temperature": 0}
    body |= {"stream": rng.random() < 0.5}
    return Template(number, "octoai", "/octoai/v1/chat/completions", json.dumps(body))


def _locallab(rng: random.Random, number: int) -> Template:
    path = rng.choice(["/generate", "/chat"])
    body: dict[str, Any] = {"max_tokens": _length(rng), "do_sample": False, "stream": rng.random() < 0.5}
    body |= {"messages": [{"role": "user", "content": _prompt(rng)}]} if path == "/chat" else {"prompt": _prompt(rng)}
    return Template(number, "locallab", "/locallab" + path, json.dumps(body))


def _alexandria(rng: random.Random, number: int) -> Template:
    config = {"do_sample": False, "max_new_tokens": _length(rng)}
    rows = [{"request_id": f"r{i} of {SERIAL}", "prompt": f"{_prompt(rng)}"} for i in range(rng.randint(1, 3))]
    body = {"prompts": rows, "generation_config": config}
    return Template(number, "alexandria", "/alexandria/api/generate-batch", json.dumps(body))
