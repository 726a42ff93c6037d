"""A case for every field of every dialect: a value, and what has to reach the core."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from stub_runtime import TOKENIZER

from dragoman.core.constraint import Choice, JsonObject, JsonSchema, Lark, Regex
from dragoman.core.request import FillPrompt, TokenPrompt
from dragoman.core.sampling import LogprobParams

HI, YES = [{"role": "user", "content": "Hi"}], [{"role": "user", "content": "Yes"}]
TOOLS = [{"type": "function", "function": {"name": "weather"}}]
RESPONSE_TOOLS = [{"type": "function", "name": "weather", "strict": True}]
OWN_TOOLS = [{"name": "weather", "input_schema": {"type": "object"}}]
OWN_FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
VECTOR = struct.pack("=2f", 0.5, 0.25)


def tokens(text: str) -> TokenPrompt:
    """A prompt of the text's tokens."""
    return TokenPrompt(token_ids=tuple(TOKENIZER.encode(text)))


class Case(NamedTuple):
    """``value``: of the field. ``expected``: by parameter its value, class, or a test of it. ``beside``: fields that
    it needs."""

    value: Any
    expected: dict[str, Any]
    beside: Mapping[str, Any] = MappingProxyType({})

    def fits(self, found: dict[str, Any]) -> bool:
        """Whether these parameters are the expected ones."""
        return all(fits(found[name], expected) for name, expected in self.expected.items())


def plain(value: Any) -> Any:
    """With lists as tuples."""
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def fits(value: Any, expected: Any) -> bool:
    if isinstance(expected, type):
        return isinstance(value, expected)
    if callable(expected):
        return value is not None and bool(expected(value))
    return bool(plain(value) == plain(expected))


def is_most_of_7_000_000(seconds: float) -> bool:
    return 6_999_000 < seconds <= 7_000_000


def has_weather(tools: Any) -> bool:
    return any(tool["function"]["name"] == "weather" for tool in tools)


def has_no_way_out(schema: str) -> bool:
    return "no_tool" not in schema


def calls_once(constraint: Any) -> bool:
    return "call)*" not in constraint.grammar


def begins_calmly(messages: Any) -> bool:
    return bool(messages[0] == {"role": "system", "content": "Calm."})


def ends_with_call(messages: Any) -> bool:
    return bool(messages[-1]["content"].endswith("Call."))


BODIES = {
    "openai /v1/completions": {"prompt": "Once", "seed": 1},
    "openai /v1/chat/completions": {"messages": HI, "seed": 1},
    "openai /v1/responses": {"input": HI, "seed": 1},
    "friendli /serverless/v1/completions": {"model": "stub", "prompt": "Once upon"},
    "friendli /serverless/v1/chat/completions": {"model": "stub", "messages": HI},
    "openai /detokenize": {"tokens": [5]},
    "friendli /serverless/v1/tokenize": {"model": "stub", "prompt": "Once"},
    "friendli /serverless/v1/detokenize": {"model": "stub", "tokens": [5]},
    "friendli /serverless/v1/chat/render": {"model": "stub", "messages": HI},
    "octoai /v1/completions": {"model": "stub", "prompt": "Once"},
    "octoai /v1/chat/completions": {"model": "stub", "messages": HI},
    "tgi /tokenize": {"inputs": "Once"},
    "tgi /": {"inputs": "Once upon", "parameters": {}},
    "tgi /v1/completions": {"prompt": "Once"},
    "tgi /v1/chat/completions": {"messages": HI},
    "locallab /generate": {"prompt": "Once"},
    "locallab /generate/batch": {"prompts": ["Once"]},
    "locallab /chat": {"messages": HI},
    "alexandria /api/generate-one": {"request_id": "r", "prompt": "Once"},
    "alexandria /api/generate-batch": {"prompts": [{"request_id": "r", "prompt": "Once"}]},
    "anthropic /v1/messages": {"model": "stub", "messages": HI, "max_tokens": 9},
    "ollama /api/generate": {"model": "stub", "prompt": "Once"},
    "ollama /api/chat": {"model": "stub", "messages": HI},
    "ollama /api/embed": {"model": "stub", "input": "Once"},
    "ollama /api/embeddings": {"model": "stub", "prompt": "Once"},
    "llamacpp /completion": {"prompt": "Once"},
    "llamacpp /infill": {"input_prefix": "Once", "input_suffix": "a time"},
    "llamacpp /tokenize": {"content": "Once"},
    "llamacpp /detokenize": {"tokens": [5]},
    "llamacpp /apply-template": {"messages": HI},
}

CASES = {
    "openai": {
        "temperature": Case(0.25, {"sampling.temperature": 0.25}),
        "top_p": Case(0.5, {"sampling.top_p": 0.5}),
        "n": Case(3, {"n": 3}),
        "presence_penalty": Case(0.75, {"sampling.presence_penalty": 0.75}),
        "frequency_penalty": Case(-0.5, {"sampling.frequency_penalty": -0.5}),
        "logit_bias": Case({"5": 1.5}, {"sampling.logit_bias": {5: 1.5}}),
        "seed": Case(11, {"seeds": [11]}),
        "top_k": Case(12, {"sampling.top_k": 12}),
        "min_p": Case(0.125, {"sampling.min_p": 0.125}),
        "repetition_penalty": Case(1.25, {"sampling.repetition_penalty": 1.25}),
        "stop": Case(["end"], {"ending.stop": ["end"]}),
        "model": Case("another", {"model": "another"}),
        "max_tokens": Case(9, {"ending.max_tokens": 9}),
        "min_tokens": Case(2, {"ending.min_tokens": 2}, {"max_tokens": 9}),
        "ignore_eos": Case(True, {"ending.ignore_eos": True}),
        "stop_token_ids": Case([6], {"ending.stop_token_ids": [6]}),
        "include_stop_str_in_output": Case(True, {"ending.include_stop": True}),
        "skip_special_tokens": Case(False, {"ending.skip_special_tokens": False}),
        "priority": Case(-3, {"priority": -3}),
        "cache_salt": Case("salt", {"cache_salt": "salt"}),
        "prediction.content": Case("a b", {"prediction": "a b"}, {"prediction": {"type": "content", "content": "x"}}),
        "typical_p": Case(0.5, {"sampling.typical_p": 0.5}),
        "xtc_probability": Case(0.5, {"sampling.xtc_probability": 0.5}),
        "xtc_threshold": Case(0.25, {"sampling.xtc_threshold": 0.25}),
        "mirostat_mode": Case(2, {"sampling.mirostat_mode": 2}),
        "mirostat_tau": Case(3.0, {"sampling.mirostat_tau": 3.0}),
        "mirostat_eta": Case(0.25, {"sampling.mirostat_eta": 0.25}),
        "bad_words": Case(["bad"], {"sampling.bad_words": ["bad", " bad"]}),
        "bad_word_token_ids": Case([[3, 4]], {"sampling.banned_phrases": [[3, 4]]}),
        "no_repeat_ngram_size": Case(3, {"sampling.no_repeat_ngram_size": 3}),
        "dry_multiplier": Case(0.5, {"sampling.dry_multiplier": 0.5}),
        "dry_base": Case(2.0, {"sampling.dry_base": 2.0}),
        "dry_allowed_length": Case(5, {"sampling.dry_allowed_length": 5}),
        "dry_penalty_last_n": Case(64, {"sampling.dry_penalty_last_n": 64}),
        "dry_sequence_breakers": Case(["."], {"sampling.dry_sequence_breakers": ["."]}),
        "dry_sequence_breaker_ids": Case([8], {"sampling.dry_breaker_ids": [8]}),
        "watermark": Case(True, {"sampling.watermark": True}),
        "watermark_gamma": Case(0.25, {"sampling.watermark_gamma": 0.25}),
        "watermark_delta": Case(1.0, {"sampling.watermark_delta": 1.0}),
        "min_total_tokens": Case(3, {"ending.min_total_tokens": 3}),
        "max_total_tokens": Case(40, {"ending.max_total_tokens": 40}),
        "clamp_to_context": Case(True, {"ending.clamp_to_context": True}),
        "penalty_last_n": Case(32, {"sampling.penalty_last_n": 32}),
        "temperature_last": Case(True, {"sampling.temperature_last": True}),
        "frequency_share": Case(True, {"sampling.frequency_share": True}),
        "truncate_prompt_tokens": Case(7, {"truncate": 7}),
        "end_token_ids": Case([9], {"ending.end_token_ids": [9]}),
        "length_first": Case(True, {"ending.length_first": True}),
        "stop_at_token_ends": Case(True, {"ending.stop_at_token_ends": True}),
        "stop_in_answer": Case(True, {"ending.stop_in_answer": True}),
        "forced_output_tokens": Case([5, 6], {"sampling.forced_tokens": [5, 6]}),
        "use_beam_search": Case(True, {"beams.num_beams": 2}, {"n": 2}),
        "num_beams": Case(3, {"beams.num_beams": 3}),
        "beam_search_type": Case("sampling", {"beams.kind": "sampling"}, {"num_beams": 3}),
        "length_penalty": Case(0.5, {"beams.length_penalty": 0.5}, {"num_beams": 3}),
        "early_stopping": Case(True, {"beams.early_stopping": True}, {"num_beams": 3}),
        "beam_normalization": Case("both", {"beams.post_normalization": True}, {"num_beams": 3}),
        "response_format": Case(
            {"type": "json_object"}, {"constraint": JsonObject(), "constraint_param": "response_format"}
        ),
        "guided_json": Case(
            {"type": "object"}, {"constraint": JsonSchema('{"type":"object"}'), "constraint_param": "guided_json"}
        ),
        "guided_regex": Case("[a-z]+", {"constraint": Regex("[a-z]+"), "constraint_param": "guided_regex"}),
        "open_schemas": Case(True, {"open_schemas": True}),
        "guided_choice": Case(
            ["yes", "no"], {"constraint": Choice(("yes", "no")), "constraint_param": "guided_choice"}
        ),
        "guided_grammar": Case('start: "a"', {"constraint": Lark('start: "a"'), "constraint_param": "guided_grammar"}),
        "structured_outputs": Case(
            {"regex": "[0-9]+"}, {"constraint": Regex("[0-9]+"), "constraint_param": "structured_outputs"}
        ),
    },
    "openai /v1/completions": {
        "prompt": Case("Say", {"prompt.text": "Say"}),
        "suffix": Case(" end", {"prompt": FillPrompt(prefix="Say", suffix=" end")}, {"prompt": "Say"}),
        "best_of": Case(4, {"best_of": 4}),
        "echo": Case(True, {"echo": True, "logprobs.prompt": True}, {"logprobs": 2}),
        "logprobs": Case(2, {"logprobs.top": 2}),
        "logprobs_mode": Case("processed", {"logprobs.mode": "processed"}, {"logprobs": 2}),
        "add_special_tokens": Case(False, {"prompt.add_special_tokens": False}, {"prompt": "Say"}),
        "token_index_to_replace": Case(
            [1], {"embeddings.token_indices": [1]}, {"embedding_to_replace": [0.5, 0.25], "prompt": "Once upon"}
        ),
        "embedding_to_replace": Case(
            [0.5, 0.25], {"embeddings.values": VECTOR}, {"token_index_to_replace": [1], "prompt": "Once upon"}
        ),
    },
    "openai /v1/chat/completions": {
        "messages": Case(YES, {"prompt.messages": YES}),
        "max_completion_tokens": Case(8, {"ending.max_tokens": 8}),
        "logprobs": Case(True, {"logprobs": LogprobParams}),
        "top_logprobs": Case(3, {"logprobs.top": 3}, {"logprobs": True}),
        "logprobs_mode": Case("processed", {"logprobs.mode": "processed"}, {"logprobs": True}),
        "add_generation_prompt": Case(False, {"prompt.add_generation_prompt": False}),
        "continue_final_message": Case(True, {"prompt.continue_final_message": True}),
        "chat_template_kwargs": Case({"mood": "calm"}, {"prompt.template_kwargs": {"mood": "calm"}}),
        "tools": Case(TOOLS, {"prompt.tools": has_weather}),
        "tool_choice": Case("required", {"constraint": Lark}, {"tools": TOOLS}),
        "parallel_tool_calls": Case(False, {"constraint": Lark}, {"tools": TOOLS}),
    },
    "openai /v1/responses": {
        "input": Case("Yes", {"prompt.messages": YES}),
        "instructions": Case("Calm.", {"prompt.messages": begins_calmly}),
        "max_output_tokens": Case(8, {"ending.max_tokens": 8}),
        "continue_final_message": Case(
            True, {"prompt.continue_final_message": True}, {"input": [*HI, {"role": "assistant", "content": "A"}]}
        ),
        "chat_template_kwargs": Case({"mood": "calm"}, {"prompt.template_kwargs": {"mood": "calm"}}),
        "reasoning_budget": Case(5, {"reasoning_budget": 5}),
        "text.format": Case(
            {"type": "json_object"}, {"constraint": JsonObject(), "constraint_param": "text.format.schema"}
        ),
        "tools": Case(RESPONSE_TOOLS, {"prompt.tools": has_weather}),
        "tool_choice": Case("none", {"prompt.tools": []}, {"tools": RESPONSE_TOOLS}),
        "parallel_tool_calls": Case(False, {"constraint": calls_once}, {"tools": RESPONSE_TOOLS}),
    },
    "tgi": {
        "temperature": Case(0.25, {"sampling.temperature": 0.25}),
        "top_p": Case(0.5, {"sampling.top_p": 0.5}),
        "presence_penalty": Case(0.75, {"sampling.presence_penalty": 0.75}),
        "frequency_penalty": Case(-0.5, {"sampling.frequency_penalty": -0.5}),
        "logit_bias": Case({"5": 1.5}, {"sampling.logit_bias": {5: 1.5}}),
        "seed": Case(11, {"seeds": [11]}),
        "repetition_penalty": Case(1.25, {"sampling.repetition_penalty": 1.25}),
        "stop": Case(["end"], {"ending.stop": ["end"]}),
        "model": Case("adapter", {"adapter": "adapter"}),
        "max_tokens": Case(9, {"ending.max_tokens": 9}),
    },
    "tgi /tokenize": {
        "inputs": Case("Say", {"prompt.text": "Say"}),
    },
    "tgi /": {
        "inputs": Case("Say", {"prompt": tokens("Say")}),
        "parameters.temperature": Case(0.25, {"sampling.temperature": 0.25}),
        "parameters.repetition_penalty": Case(1.25, {"sampling.repetition_penalty": 1.25}),
        "parameters.frequency_penalty": Case(-0.5, {"sampling.frequency_penalty": -0.5}),
        "parameters.top_k": Case(12, {"sampling.top_k": 12}),
        "parameters.top_p": Case(0.5, {"sampling.top_p": 0.5}),
        "parameters.typical_p": Case(0.75, {"sampling.typical_p": 0.75}),
        "parameters.max_new_tokens": Case(9, {"ending.max_tokens": 9}),
        "parameters.stop": Case(["end"], {"ending.stop": ["end"]}),
        "parameters.stop_sequences": Case(["fin"], {"ending.stop": ["fin"]}),
        "parameters.truncate": Case(1, {"prompt": tokens(" upon")}),
        "parameters.watermark": Case(True, {"sampling.watermark": True}),
        "parameters.decoder_input_details": Case(True, {"logprobs.prompt": True}),
        "parameters.seed": Case(11, {"seeds": [11]}),
        "parameters.top_n_tokens": Case(3, {"logprobs.top": 3}),
        "parameters.grammar": Case({"type": "regex", "value": "[a-z]+"}, {"constraint": Regex("[a-z]+")}),
        "parameters.adapter_id": Case("adapter", {"adapter": "adapter"}),
        "parameters.best_of": Case(2, {"n": 2}, {"parameters.do_sample": True}),
    },
    "tgi /v1/completions": {
        "prompt": Case("Say", {"prompt": tokens("Say")}),
        "logprobs": Case(2, {"logprobs.top": 2}),
    },
    "tgi /v1/chat/completions": {
        "messages": Case(YES, {"prompt.messages": YES}),
        "max_completion_tokens": Case(8, {"ending.max_tokens": 8}),
        "logprobs": Case(True, {"logprobs": LogprobParams}),
        "top_logprobs": Case(3, {"logprobs.top": 3}),
        "tools": Case(TOOLS, {"prompt.tools": has_weather}),
        "tool_choice": Case("required", {"constraint.schema": has_no_way_out}, {"tools": TOOLS}),
        "tool_prompt": Case("Call.", {"prompt.messages": ends_with_call}, {"tools": TOOLS}),
        "response_format": Case({"type": "regex", "value": "[a-z]+"}, {"constraint": Regex("[a-z]+")}),
        "guideline": Case("Kind.", {"prompt.template_kwargs": {"guideline": "Kind."}}),
        "continue_final_message": Case(True, {"prompt": tokens("<|im_start|>user\nHi")}),
    },
    "openai /detokenize": {
        "tokens": Case([6], {"prompt": TokenPrompt(token_ids=(6,))}),
    },
    "friendli": {
        "temperature": Case(0.25, {"sampling.temperature": 0.25}),
        "top_p": Case(0.5, {"sampling.top_p": 0.5}),
        "n": Case(3, {"n": 3}),
        "presence_penalty": Case(0.75, {"sampling.presence_penalty": 0.75}),
        "frequency_penalty": Case(-0.5, {"sampling.frequency_penalty": -0.5}),
        "seed": Case(11, {"seeds": [11]}),
        "top_k": Case(12, {"sampling.top_k": 12}),
        "min_p": Case(0.125, {"sampling.min_p": 0.125}),
        "repetition_penalty": Case(1.25, {"sampling.repetition_penalty": 1.25}),
        "stop": Case(["end"], {"ending.stop": ["end"]}),
        "model": Case("another", {"model": "another"}),
        "max_tokens": Case(9, {"ending.max_tokens": 9}),
        "min_tokens": Case(2, {"ending.min_tokens": 2}),
        "xtc_threshold": Case(0.25, {"sampling.xtc_threshold": 0.25}),
        "xtc_probability": Case(0.5, {"sampling.xtc_probability": 0.5}),
        "timeout_microseconds": Case(7_000_000_000_000, {"timeout_s": is_most_of_7_000_000}),
        "eos_token": Case([9], {"ending.end_token_ids": [9]}),
        "response_format": Case({"type": "json_object"}, {"constraint": JsonObject()}),
    },
    "friendli /serverless/v1/completions": {
        "prompt": Case("Say", {"prompt.text": "Say"}),
        "tokens": Case([5, 6], {"prompt": TokenPrompt(token_ids=(5, 6))}, {"prompt": None}),
        "max_total_tokens": Case(40, {"ending.max_total_tokens": 40}),
        "min_total_tokens": Case(3, {"ending.min_total_tokens": 3}),
        "no_repeat_ngram": Case(3, {"sampling.no_repeat_ngram_size": 3}),
        "encoder_repetition_penalty": Case(1.5, {"sampling.encoder_repetition_penalty": 1.5}),
        "encoder_no_repeat_ngram": Case(4, {"sampling.encoder_no_repeat_ngram_size": 4}),
        "bad_words": Case(["bad"], {"sampling.bad_words": ["bad"]}),
        "bad_word_tokens": Case([{"tokens": [3, 4]}], {"sampling.banned_phrases": [[3, 4]]}),
        "stop_tokens": Case([{"tokens": [6]}], {"ending.stop_token_ids": [6]}),
        "forced_output_tokens": Case([5, 6], {"sampling.forced_tokens": [5, 6]}),
        "token_index_to_replace": Case([1], {"embeddings.token_indices": [1]}, {"embedding_to_replace": [0.5, 0.25]}),
        "embedding_to_replace": Case([0.5, 0.25], {"embeddings.values": VECTOR}, {"token_index_to_replace": [1]}),
        "logprobs": Case(2, {"logprobs.top": 2}),
        "include_output_logprobs": Case(True, {"logprobs": LogprobParams}),
        "num_beams": Case(3, {"beams.num_beams": 3}),
        "length_penalty": Case(
            0.5, {"beams.length_penalty": 0.5}, {"num_beams": 3, "beam_compat_pre_normalization": True}
        ),
        "early_stopping": Case(
            True, {"beams.early_stopping": True}, {"num_beams": 3, "beam_compat_pre_normalization": True}
        ),
        "beam_search_type": Case("NAIVE_SAMPLING", {"beams.kind": "sampling"}, {"num_beams": 3}),
        "beam_compat_pre_normalization": Case(True, {"beams.pre_normalization": True}, {"num_beams": 3}),
        "beam_compat_no_post_normalization": Case(
            True, {"beams.post_normalization": False}, {"num_beams": 3, "beam_compat_pre_normalization": True}
        ),
    },
    "friendli /serverless/v1/chat/completions": {
        "messages": Case(YES, {"prompt.messages": YES}),
        "max_completion_tokens": Case(8, {"ending.max_tokens": 8}),
        "logit_bias": Case({"5": 1.5}, {"sampling.logit_bias": {5: 1.5}}),
        "logprobs": Case(True, {"logprobs": LogprobParams}),
        "top_logprobs": Case(3, {"logprobs.top": 3}, {"logprobs": True}),
        "tools": Case(TOOLS, {"prompt.tools": has_weather}),
        "tool_choice": Case("required", {"constraint": Lark}, {"tools": TOOLS}),
        "parallel_tool_calls": Case(False, {"constraint": Lark}, {"tools": TOOLS}),
        "chat_template_kwargs": Case({"mood": "calm"}, {"prompt.template_kwargs": {"mood": "calm"}}),
        "reasoning_effort": Case("low", {"prompt.template_kwargs": {"reasoning_effort": "low"}}),
        "reasoning_budget": Case(5, {"reasoning_budget": 5}),
    },
    "friendli /serverless/v1/chat/render": {
        "messages": Case(YES, {"prompt.messages": YES}),
        "tools": Case(TOOLS, {"prompt.tools": has_weather}),
        "chat_template_kwargs": Case({"mood": "calm"}, {"prompt.template_kwargs": {"mood": "calm"}}),
        "reasoning_effort": Case("low", {"prompt.template_kwargs": {"reasoning_effort": "low"}}),
    },
    "octoai": {
        "temperature": Case(0.25, {"sampling.temperature": 0.25}),
        "top_p": Case(0.5, {"sampling.top_p": 0.5}),
        "n": Case(3, {"n": 3}),
        "presence_penalty": Case(0.75, {"sampling.presence_penalty": 0.75}),
        "frequency_penalty": Case(-0.5, {"sampling.frequency_penalty": -0.5}),
        "logit_bias": Case({"5": 1.5}, {"sampling.logit_bias": {5: 1.5}}),
        "seed": Case(11, {"seeds": [11]}),
        "min_p": Case(0.125, {"sampling.min_p": 0.125}),
        "repetition_penalty": Case(1.25, {"sampling.repetition_penalty": 1.25}),
        "stop": Case(["end"], {"ending.stop": ["end"]}),
        "model": Case("another", {"model": "another"}),
        "max_tokens": Case(9, {"ending.max_tokens": 9}),
        "ignore_eos": Case(True, {"ending.ignore_eos": True}),
        "loglikelihood": Case(True, {"logprobs.prompt": True}),
        "peft": Case("adapter", {"model": "adapter"}),
    },
    "octoai /v1/completions": {
        "prompt": Case("Say", {"prompt.text": "Say"}),
        "suffix": Case(" end", {"prompt": FillPrompt(prefix="Say", suffix=" end")}, {"prompt": "Say"}),
        "best_of": Case(4, {"best_of": 4}),
        "echo": Case(True, {"echo": True}),
        "logprobs": Case(2, {"logprobs.top": 2}),
    },
    "octoai /v1/chat/completions": {
        "messages": Case(YES, {"prompt.messages": YES}),
        "logprobs": Case(True, {"logprobs": LogprobParams}),
        "top_logprobs": Case(3, {"logprobs.top": 3}, {"logprobs": True}),
        "octoai.loras": Case(["adapter"], {"model": "adapter"}),
        "octoai.vllm.best_of": Case(4, {"best_of": 4}),
        "octoai.vllm.ignore_eos": Case(True, {"ending.ignore_eos": True}),
        "octoai.vllm.top_k": Case(12, {"sampling.top_k": 12}),
        "octoai.vllm.stop_token_ids": Case([6], {"ending.stop_token_ids": [6]}),
        "octoai.vllm.skip_special_tokens": Case(False, {"ending.skip_special_tokens": False}),
        "response_format": Case(
            {"type": "json_object"}, {"constraint": JsonObject(), "constraint_param": "response_format"}
        ),
        "tools": Case(TOOLS, {"prompt.tools": has_weather}),
        "tool_choice": Case("required", {"constraint": Lark}, {"tools": TOOLS}),
    },
    "locallab": {
        "model_id": Case("another", {"model": "another"}),
        "modelId": Case("another", {"model": "another"}),
        "max_length": Case(9, {"ending.max_tokens": 9}),
        "max_tokens": Case(9, {"ending.max_tokens": 9}),
        "max_new_tokens": Case(9, {"ending.max_tokens": 9}),
        "maxLength": Case(9, {"ending.max_tokens": 9}),
        "do_sample": Case(False, {"sampling.temperature": 0.0}),
        "doSample": Case(False, {"sampling.temperature": 0.0}),
        "temperature": Case(0.25, {"sampling.temperature": 0.25}),
        "top_p": Case(0.5, {"sampling.top_p": 0.5}),
        "topP": Case(0.5, {"sampling.top_p": 0.5}),
        "top_k": Case(12, {"sampling.top_k": 12}),
        "topK": Case(12, {"sampling.top_k": 12}),
        "repetition_penalty": Case(1.25, {"sampling.repetition_penalty": 1.25}),
        "repetitionPenalty": Case(1.25, {"sampling.repetition_penalty": 1.25}),
        "max_time": Case(7.0, {"timeout_s": 7.0}),
        "maxTime": Case(7.0, {"timeout_s": 7.0}),
        "system_prompt": Case("Calm.", {"prompt.messages": begins_calmly}),
        "system_instructions": Case("Calm.", {"prompt.messages": begins_calmly}),
        "systemPrompt": Case("Calm.", {"prompt.messages": begins_calmly}),
    },
    "locallab /generate": {
        "prompt": Case("Say", {"prompt.messages": [{"role": "user", "content": "Say"}]}),
    },
    "locallab /generate/batch": {
        "prompts": Case(["Say"], {"prompt.messages": [{"role": "user", "content": "Say"}]}),
    },
    "locallab /chat": {
        "messages": Case(YES, {"prompt.messages": YES}),
    },
    "alexandria": {
        "generation_config.num_beams": Case(3, {"beams.num_beams": 3}),
        "generation_config.do_sample": Case(False, {"sampling.temperature": 0.0}),
        "generation_config.temperature": Case(0.25, {"sampling.temperature": 0.25}),
        "generation_config.top_p": Case(0.5, {"sampling.top_p": 0.5}),
        "generation_config.top_k": Case(12, {"sampling.top_k": 12}),
        "generation_config.max_new_tokens": Case(9, {"ending.max_tokens": 9}),
        "generation_config.maxLength": Case(9, {"ending.max_tokens": 9}),
        "generation_config.repetition_penalty": Case(1.25, {"sampling.repetition_penalty": 1.25}),
        "generation_config.length_penalty": Case(
            0.5, {"beams.length_penalty": 0.5}, {"generation_config.num_beams": 3}
        ),
    },
    "alexandria /api/generate-one": {
        "prompt": Case("Say", {"prompt": tokens("Say")}),
    },
    "anthropic": {
        "model": Case("another", {"model": "another"}),
        "messages": Case(YES, {"prompt.messages": YES}),
        "system": Case("Calm.", {"prompt.messages": begins_calmly}),
        "max_tokens": Case(7, {"ending.max_tokens": 7}),
        "stop_sequences": Case(["end"], {"ending.stop": ["end"]}),
        "temperature": Case(0.25, {"sampling.temperature": 0.25}),
        "top_p": Case(0.5, {"sampling.top_p": 0.5}),
        "top_k": Case(12, {"sampling.top_k": 12}),
        "min_p": Case(0.125, {"sampling.min_p": 0.125}),
        "repetition_penalty": Case(1.25, {"sampling.repetition_penalty": 1.25}),
        "seed": Case(11, {"seeds": [11]}),
        "tools": Case(OWN_TOOLS, {"prompt.tools": has_weather}),
        "tool_choice": Case({"type": "none"}, {"prompt.tools": []}, {"tools": OWN_TOOLS}),
        "thinking.budget_tokens": Case(5, {"reasoning_budget": 5}, {"thinking": {"type": "enabled"}}),
        "output_config.format": Case(OWN_FORMAT, {"constraint": JsonSchema('{"type":"object"}')}),
        "output_format": Case(OWN_FORMAT, {"constraint": JsonSchema('{"type":"object"}')}),
        "chat_template_kwargs": Case({"mood": "calm"}, {"prompt.template_kwargs": {"mood": "calm"}}),
    },
}
