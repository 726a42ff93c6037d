"""What the fields of Ollama's and of llama.cpp's dialect become."""

from __future__ import annotations

from typing import Any

from translation_cases import TOOLS, YES, Case, begins_calmly, has_weather

from dragoman.core.constraint import JsonObject, JsonSchema, Lark
from dragoman.core.request import FillPrompt
from dragoman.core.sampling import LogprobParams

LOCAL_CASES: dict[str, Any] = {
    "ollama": {
        "model": Case("another", {"model": "another"}),
        "format": Case("json", {"constraint": JsonObject(), "constraint_param": "format"}),
        "logprobs": Case(True, {"logprobs": LogprobParams}),
        "top_logprobs": Case(3, {"logprobs.top": 3}, {"logprobs": True}),
        "options.temperature": Case(0.25, {"sampling.temperature": 0.25, "sampling.temperature_last": True}),
        "options.top_k": Case(12, {"sampling.top_k": 12}),
        "options.top_p": Case(0.5, {"sampling.top_p": 0.5}),
        "options.min_p": Case(0.125, {"sampling.min_p": 0.125}),
        "options.typical_p": Case(0.5, {"sampling.typical_p": 0.5}),
        "options.repeat_penalty": Case(1.25, {"sampling.repetition_penalty": 1.25}),
        "options.repeat_last_n": Case(32, {"sampling.penalty_last_n": 32}),
        "options.presence_penalty": Case(0.75, {"sampling.presence_penalty": 0.75}),
        "options.frequency_penalty": Case(-0.5, {"sampling.frequency_penalty": -0.5}),
        "options.seed": Case(11, {"seeds": [11]}),
        "options.stop": Case("end", {"ending.stop": ["end"]}),
        "options.num_predict": Case(7.9, {"ending.max_tokens": 7}),
        "options.mirostat": Case(2, {"sampling.mirostat_mode": 2, "sampling.top_k": 0, "sampling.top_p": 1.0}),
        "options.mirostat_tau": Case(3.0, {"sampling.mirostat_tau": 3.0}),
        "options.mirostat_eta": Case(0.25, {"sampling.mirostat_eta": 0.25}),
    },
    "ollama /api/generate": {
        "prompt": Case("Say", {"prompt.messages": [{"role": "user", "content": "Say"}]}),
        "suffix": Case(" end", {"prompt": FillPrompt(prefix="Say", suffix=" end")}, {"prompt": "Say"}),
        "system": Case("Calm.", {"prompt.messages": begins_calmly}),
    },
    "ollama /api/chat": {
        "messages": Case(YES, {"prompt.messages": YES}),
        "tools": Case(TOOLS, {"prompt.tools": has_weather}),
    },
    "ollama /api/embed": {"input": Case(["Say"], {"prompt.text": "Say"})},
    "ollama /api/embeddings": {"prompt": Case("Say", {"prompt.text": "Say"})},
    "llamacpp": {
        **dict.fromkeys(("n_predict", "max_tokens", "max_completion_tokens"), Case(7, {"ending.max_tokens": 7})),
        "stop": Case("end", {"ending.stop": ["end"]}),
        "ignore_eos": Case(True, {"ending.ignore_eos": True}),
        "grammar": Case('root ::= "a"', {"constraint": Lark('root ::= "a"'), "constraint_param": "grammar"}),
        "json_schema": Case({"type": "object"}, {"constraint": JsonSchema('{"type":"object"}')}),
        "temperature": Case(0.25, {"sampling.temperature": 0.25, "sampling.temperature_last": True}),
        "top_k": Case(12, {"sampling.top_k": 12}),
        "top_p": Case(0.5, {"sampling.top_p": 0.5}),
        "min_p": Case(0.125, {"sampling.min_p": 0.125}),
        "typical_p": Case(0.5, {"sampling.typical_p": 0.5}),
        "repeat_penalty": Case(1.25, {"sampling.repetition_penalty": 1.25}),
        "repeat_last_n": Case(32, {"sampling.penalty_last_n": 32}),
        "presence_penalty": Case(0.75, {"sampling.presence_penalty": 0.75}),
        "frequency_penalty": Case(-0.5, {"sampling.frequency_penalty": -0.5}),
        "dry_multiplier": Case(0.5, {"sampling.dry_multiplier": 0.5}),
        "dry_base": Case(2.0, {"sampling.dry_base": 2.0}),
        "dry_allowed_length": Case(5, {"sampling.dry_allowed_length": 5}),
        "dry_penalty_last_n": Case(64, {"sampling.dry_penalty_last_n": 64}),
        "dry_sequence_breakers": Case(["."], {"sampling.dry_sequence_breakers": ["."]}),
        "xtc_probability": Case(0.5, {"sampling.xtc_probability": 0.5}),
        "xtc_threshold": Case(0.25, {"sampling.xtc_threshold": 0.25}),
        "mirostat": Case(2, {"sampling.mirostat_mode": 2, "sampling.top_k": 0, "sampling.top_p": 1.0}),
        "mirostat_tau": Case(3.0, {"sampling.mirostat_tau": 3.0}),
        "mirostat_eta": Case(0.25, {"sampling.mirostat_eta": 0.25}),
        "seed": Case(11, {"seeds": [11]}),
        **dict.fromkeys(("n_probs", "logprobs"), Case(2, {"logprobs.top": 2})),
        "post_sampling_probs": Case(True, {"logprobs.mode": "processed"}, {"n_probs": 1}),
        "model": Case("another", {"model": "another"}),
    },
    "llamacpp /completion": {"prompt": Case("Say", {"prompt.text": "Say"})},
    "llamacpp /infill": {
        "input_suffix": Case(" end", {"prompt.suffix": " end"}),
        "input_extra": Case([{"text": "x"}], {"prompt.files": [["tmp", "x"]]}),
    },
    "llamacpp /tokenize": {
        "content": Case("Say", {"prompt.text": "Say"}),
        "add_special": Case(True, {"prompt.add_special_tokens": True}),
        "parse_special": Case(False, {"prompt.parse_special_tokens": False}),
        "model": Case("another", {"model": "another"}),
    },
    "llamacpp /detokenize": {
        "tokens": Case([6], {"prompt.token_ids": [6]}),
        "model": Case("another", {"model": "another"}),
    },
    "llamacpp /apply-template": {
        "messages": Case(YES, {"prompt.messages": YES}),
        "tools": Case(TOOLS, {"prompt.tools": has_weather}),
        "add_generation_prompt": Case(False, {"prompt.add_generation_prompt": False}),
        "chat_template_kwargs": Case({"mood": "calm"}, {"prompt.template_kwargs": {"mood": "calm"}}),
        "model": Case("another", {"model": "another"}),
    },
}
