"""Generates 64 tokens with the embedded model at each precision, and prints them with their log-probabilities as JSON.

    arm_tokens.py [FILE]

The kernels are those of ``DRAGOMAN_KERNELS``. ``FILE``: what this printed before; its tokens are then forced, so that
the log-probabilities of two runs can be compared token by token.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dragoman import LLM, SamplingParams

PRECISIONS = ("float32", "bfloat16", "int8", "int4")


def main() -> None:
    before = json.loads(Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else {}
    results = {}
    for precision in PRECISIONS:
        forced = {"forced_output_tokens": before[precision]["tokens"]} if before else {}
        with LLM(precision=precision, threads=2, max_context=256) as llm:
            params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, logprobs=1, **forced)
            [output] = llm.generate("The harbour lay still before dawn, and", params)[0].outputs
        assert output.logprobs is not None
        results[precision] = {
            "tokens": list(output.token_ids),
            "logprobs": [token.logprob for token in output.logprobs],
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
