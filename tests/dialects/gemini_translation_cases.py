"""A case for every field of the Gemini dialect, as ``translation_cases`` has them for others."""

from __future__ import annotations

from translation_cases import YES, Case, begins_calmly, has_weather

from dragoman.core.constraint import JsonSchema
from dragoman.core.sampling import LogprobParams

CONTENTS, OTHER_CONTENTS = ([{"role": "user", "parts": [{"text": text}]}] for text in ("Hi", "Yes"))
DECLARED = [{"functionDeclarations": [{"name": "weather"}]}]

GEMINI_BODIES = {
    "gemini /v1beta/models/{model:path}:generateContent": {"contents": CONTENTS},
    "gemini /v1beta/models/{model:path}:countTokens": {"contents": CONTENTS},
    "gemini /v1beta/models/{model:path}:embedContent": {"content": CONTENTS[0]},
    "gemini /v1beta/models/{model:path}:batchEmbedContents": {"requests": [{"content": CONTENTS[0]}]},
}

GEMINI_CASES = {
    "gemini": {
        "model": Case("another", {"model": "another"}),
        "contents": Case(OTHER_CONTENTS, {"prompt.messages": YES}),
        "systemInstruction": Case({"parts": [{"text": "Calm."}]}, {"prompt.messages": begins_calmly}),
        "tools": Case(DECLARED, {"prompt.tools": has_weather}),
        "toolConfig.functionCallingConfig": Case({"mode": "NONE"}, {"prompt.tools": []}, {"tools": DECLARED}),
        "generationConfig.maxOutputTokens": Case(7, {"ending.max_tokens": 7}),
        "generationConfig.temperature": Case(0.25, {"sampling.temperature": 0.25}),
        "generationConfig.topP": Case(0.5, {"sampling.top_p": 0.5}),
        "generationConfig.topK": Case(12.0, {"sampling.top_k": 12}),
        "generationConfig.candidateCount": Case(3, {"n": 3}),
        "generationConfig.stopSequences": Case(["end"], {"ending.stop": ["end"]}),
        "generationConfig.seed": Case(11, {"seeds": [11]}),
        "generationConfig.presencePenalty": Case(0.75, {"sampling.presence_penalty": 0.75}),
        "generationConfig.frequencyPenalty": Case(-0.5, {"sampling.frequency_penalty": -0.5}),
        "generationConfig.responseLogprobs": Case(True, {"logprobs": LogprobParams()}),
        "generationConfig.logprobs": Case(
            3, {"logprobs": LogprobParams(top=3)}, {"generationConfig.responseLogprobs": True}
        ),
        "generationConfig.responseSchema": Case({"type": "OBJECT"}, {"constraint": JsonSchema('{"type":"object"}')}),
        "generationConfig.responseJsonSchema": Case(
            {"type": "object"}, {"constraint": JsonSchema('{"type":"object"}')}
        ),
        "generationConfig._responseJsonSchema": Case(
            {"type": "object"}, {"constraint": JsonSchema('{"type":"object"}')}
        ),
        "generationConfig.responseMimeType": Case("application/json", {"constraint": JsonSchema}),
        "generationConfig.thinkingConfig.thinkingBudget": Case(5, {"reasoning_budget": 5}),
    },
    "gemini /v1beta/models/{model:path}:countTokens": {
        "generateContentRequest.contents": Case(OTHER_CONTENTS, {"prompt.messages": YES}),
        "generateContentRequest.systemInstruction": Case(
            {"parts": [{"text": "Calm."}]},
            {"prompt.messages": begins_calmly},
            {"generateContentRequest.contents": CONTENTS},
        ),
        "generateContentRequest.tools": Case(
            DECLARED, {"prompt.tools": has_weather}, {"generateContentRequest.contents": CONTENTS}
        ),
        "generateContentRequest.toolConfig.functionCallingConfig": Case(
            {"mode": "NONE"},
            {"prompt.tools": []},
            {"generateContentRequest.contents": CONTENTS, "generateContentRequest.tools": DECLARED},
        ),
    },
    "gemini /v1beta/models/{model:path}:embedContent": {
        "content": Case(OTHER_CONTENTS[0], {"prompt.text": "Yes"}),
    },
    "gemini /v1beta/models/{model:path}:batchEmbedContents": {
        "requests": Case([{"content": OTHER_CONTENTS[0]}], {"prompt.text": "Yes"}),
    },
}
