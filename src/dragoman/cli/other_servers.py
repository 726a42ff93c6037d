"""Options of other servers, and what takes their place here: for whoever types them, and for ``docs/coming-from.md``.

Those of TGI's launcher are not among them: they are options of ours (``tgi_launcher``).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

NO_GPU = "nothing: there is no GPU; where one is, [vLLM computes](vllm.md)"
ONE_PROCESS = "nothing: one process computes everything, in `--threads` threads"
ALWAYS = "nothing: it is always on"
OF_REQUESTS = "a field of requests"
DEFAULTS = "`--generation-config`, a file with defaults for requests"
PARSERS = "nothing: how a model writes its calls and its reasoning is read from its chat template"


class Elsewhere(NamedTuple):
    """Options of another server that mean one thing. ``here``: what takes their place, in Markdown."""

    flags: tuple[str, ...]
    here: str


def _row(flags: str, here: str) -> Elsewhere:
    return Elsewhere(tuple(flags.split()), here)


SERVERS: dict[str, tuple[Elsewhere, ...]] = {
    "vLLM": (
        _row("--max-model-len", "`--max-context`"),
        _row("--served-model-name", "`--name`, and `--alias` for each further name"),
        _row("--max-num-seqs", "`--max-sequences`"),
        _row("--max-num-batched-tokens", "`--step-tokens`"),
        _row("--kv-cache-memory-bytes", "`--kv-bytes`"),
        _row("--num-gpu-blocks-override", "`--kv-tokens`"),
        _row("--quantization -q", "`--precision` int8 or int4; quantized checkpoints say it themselves"),
        _row("--enable-prefix-caching", "`--prefix-cache`, which is the default"),
        _row("--no-enable-prefix-caching", "`--no-prefix-cache`"),
        _row("--enable-lora --lora-modules", "`--lora-adapters` NAME=FOLDER,…"),
        _row("--max-loras --max-cpu-loras", "`--max-adapters`"),
        _row("--max-lora-rank --fully-sharded-loras", "nothing: an adapter of any rank is taken"),
        _row(
            "--speculative-config --speculative-model --num-speculative-tokens",
            "`--speculation` and `--draft-model`, `--draft-heads` or `--draft-eagle`",
        ),
        _row("--hf-token", "`--token`, or HF_TOKEN"),
        _row("--download-dir", "HF_HUB_CACHE, a variable"),
        _row("--override-generation-config", DEFAULTS),
        _row("--enable-auto-tool-choice --tool-call-parser --tool-parser-plugin --reasoning-parser", PARSERS),
        _row("--chat-template-content-format", "nothing: the template says it"),
        _row("--trust-request-chat-template", "nothing: requests bring no templates"),
        _row("--default-chat-template-kwargs", "`chat_template_kwargs`, a field of requests"),
        _row("--structured-outputs-config --guided-decoding-backend", "nothing: llguidance checks every grammar"),
        _row("--max-logprobs", "nothing: each dialect has its own bound"),
        _row("--logprobs-mode", "nothing: each dialect has its own"),
        _row("--ssl-certfile", "`--tls-cert`"),
        _row("--ssl-keyfile", "`--tls-key`"),
        _row("--allowed-origins", "`--cors-origin`"),
        _row("--allow-credentials --allowed-methods --allowed-headers", "nothing: `--cors-origin` is enough"),
        _row("--root-path", "nothing: [proxies](behind-a-proxy.md) may strip a prefix, and each dialect has its own"),
        _row("--uvicorn-log-level", "`--log-level`"),
        _row("--disable-uvicorn-access-log", "`--no-access-log`"),
        _row(
            "--enable-log-requests --disable-log-requests --max-log-len", "`--record`; no log line has anybody's text"
        ),
        _row("--disable-log-stats", "nothing: no statistics are logged; `GET /metrics` has them"),
        _row("--otlp-traces-endpoint", "`--otlp-endpoint`"),
        _row("--collect-detailed-traces", "nothing: traces are of requests"),
        _row("--kv-events-config", "`--kv-events` and the options after it"),
        _row("--enable-request-id-headers --enable-prompt-tokens-details", ALWAYS),
        _row("--enable-chunked-prefill --no-enable-chunked-prefill --long-prefill-token-threshold", ALWAYS),
        _row("--scheduling-policy", "nothing: callers have [fair shares](fairness.md), and requests a `priority`"),
        _row("--limit-mm-per-prompt --mm-processor-kwargs", "nothing: `--image-bytes` limits all images together"),
        _row("--allowed-local-media-path", "nothing: files of the server are never read for a request"),
        _row("--allowed-media-domains", "`--image-hosts`"),
        _row("--mm-processor-cache-gb", "`--image-cache-bytes`"),
        _row("--data-parallel-size -dp", "`dragoman cluster serve --replicas`, see [cluster](cluster.md)"),
        _row("--tensor-parallel-size -tp --pipeline-parallel-size -pp --distributed-executor-backend", ONE_PROCESS),
        _row("--api-server-count --nnodes --headless --enable-expert-parallel", ONE_PROCESS),
        _row("--gpu-memory-utilization --swap-space --cpu-offload-gb --kv-offloading-size", "`--memory-bytes`"),
        _row("--enforce-eager --compilation-config -O --attention-backend --device", NO_GPU),
        _row("--block-size --prefix-caching-hash-algo --disable-sliding-window --async-scheduling", "nothing"),
        _row(
            "--load-format --tokenizer --tokenizer-mode --config-format --hf-config-path",
            "nothing: the model's files say it",
        ),
        _row(
            "--hf-overrides", "nothing: `--rope-scaling` and `--rope-factor` change positions, nothing else is changed"
        ),
        _row("--skip-tokenizer-init --enable-prompt-embeds", "nothing: there are no prompt embeddings"),
        _row("--task --runner --convert --pooler-config", "nothing: one server generates, and [embeds](embeddings.md)"),
        _row("--response-role --seed", "nothing"),
        _row("--middleware --logits-processors --worker-extension-cls", "nothing: no code is loaded by name"),
    ),
    "llama-server": (
        _row("-m", "MODEL, as the command's argument: a GGUF file or a folder"),
        _row("--hf-repo -hf -hfr", "MODEL, as the command's argument: `owner/name:Q4_K_M`"),
        _row(
            "--hf-file -hff --model-url -mu --docker-repo -dr", "MODEL, a file on this machine or `owner/name:Q4_K_M`"
        ),
        _row("--hf-token -hft", "`--token`, or HF_TOKEN"),
        _row("--offline", "HF_HUB_OFFLINE=1, a variable"),
        _row("-c --ctx-size", "`--max-context`"),
        _row("-np --parallel", "`--max-sequences`"),
        _row("-b --batch-size -ub --ubatch-size", "`--step-tokens`"),
        _row("-t", "`--threads`"),
        _row("-tb --threads-batch", "nothing: `--threads` counts for prompts too"),
        _row("--cpu-range -Cr --cpu-mask -C --cpu-strict --numa", "`--cpus`"),
        _row("-a", "`--name`, and `--alias` for each further name"),
        _row("-ctk --cache-type-k -ctv --cache-type-v", "`--kv-precision` int8 or int4, for both"),
        _row("--cache-ram -cram --slot-save-path", "`--prefix-cache-folder` and `--prefix-cache-bytes`"),
        _row(
            "--cache-prompt --cache-reuse --slot-prompt-similarity -sps", "nothing: equal beginnings are always found"
        ),
        _row("--no-cache-prompt", "`--no-prefix-cache`"),
        _row("--chat-template-file", "`--chat-template`"),
        _row("--jinja --no-jinja --skip-chat-parsing", PARSERS),
        _row("--chat-template-kwargs", "`chat_template_kwargs`, a field of requests"),
        _row("--reasoning-format", "`--openai-separate-reasoning`; other dialects have their own way"),
        _row("--reasoning-budget --reasoning", "`reasoning_budget`, a field of requests"),
        _row("--lora --lora-scaled", "`--lora-adapters` NAME=FOLDER, in PEFT's format"),
        _row("-mm", "`--mmproj`"),
        _row("--no-mmproj", "`--mmproj none`"),
        _row("--mmproj-url --mmproj-offload --no-mmproj-offload", "`--mmproj`, a file on this machine"),
        _row("--model-draft -md --spec-draft-model --hf-repo-draft -hfd", "`--draft-model`"),
        _row("--draft-max --draft --draft-n --spec-draft-n-max", "`--speculation`"),
        _row("--ctx-size-draft -cd", "`--draft-context`"),
        _row(
            "--spec-type --draft-min --draft-p-min --draft-n-min",
            "nothing: `--draft-sources` says where drafts come from",
        ),
        _row("--rope-scale", "`--rope-factor`"),
        _row(
            "--rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor", "nothing: the model's files say it"
        ),
        _row("--no-mmap", "`--weights-memory copy`"),
        _row("--mmap", "`--weights-memory map`"),
        _row("--mlock --repack --no-repack --check-tensors --warmup --no-warmup", "nothing"),
        _row("--ssl-cert-file", "`--tls-cert`"),
        _row("--ssl-key-file", "`--tls-key`"),
        _row("--api-prefix", "nothing: each dialect has its own prefix, here `/llamacpp`"),
        _row("--threads-http", "nothing: one event loop serves all connections"),
        _row("-to", "`--write-timeout-s`, for clients that do not read; `--generation-timeout-s` for long answers"),
        _row("--models-dir", "`--models-folder`"),
        _row("--models-max", "nothing: models are unloaded where `--memory-bytes` is full"),
        _row("--sleep-idle-seconds", "`--idle-unload-s`"),
        _row("--metrics --embedding --embeddings --rerank --reranking", ALWAYS),
        _row("--slots --no-slots --props", "nothing: `GET /requests` shows what runs, to keys with the scope `admin`"),
        _row("--pooling", "nothing: [the model's files say it](embeddings.md)"),
        _row("--webui --no-webui --ui --no-ui --path", "nothing: [a page](playground.md) is always there"),
        _row("-cb --cont-batching -fa --flash-attn -kvu --kv-unified --swa-full", ALWAYS),
        _row("-ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu", NO_GPU),
        _row("-dev --device-draft --cpu-moe -cmoe --n-cpu-moe -ncmoe --override-tensor -ot --op-offload", NO_GPU),
        _row(
            "-n --predict --n-predict --keep -s --samplers --sampling-seq --temp --repeat-penalty --repeat-last-n",
            OF_REQUESTS,
        ),
        _row("--grammar --grammar-file -j --json-schema -jf --json-schema-file", OF_REQUESTS),
        _row("--context-shift --no-context-shift", "nothing: a text ends at the context's end"),
        _row("--spm-infill", "`--fill-order suffix`"),
        _row("-lv --verbosity --log-verbosity --log-verbose", "`--log-level debug`"),
        _row("--log-disable", "`--log-level error`"),
        _row("--log-file --log-colors --log-prefix --log-timestamps", "nothing: the log goes to standard error"),
    ),
    "SGLang": (
        _row("--model-path", "MODEL, as the command's argument"),
        _row("--context-length", "`--max-context`"),
        _row("--max-running-requests", "`--max-sequences`"),
        _row("--chunked-prefill-size --max-prefill-tokens", "`--step-tokens`"),
        _row("--max-total-num-tokens", "`--kv-tokens`"),
        _row("--mem-fraction-static", "`--memory-bytes`"),
        _row("--disable-radix-cache", "`--no-prefix-cache`"),
        _row("--lora-paths", "`--lora-adapters` NAME=FOLDER,…"),
        _row(
            "--speculative-algorithm --speculative-draft-model-path",
            "`--draft-model`, `--draft-heads` or `--draft-eagle`",
        ),
        _row("--grammar-backend", "nothing: llguidance checks every grammar"),
        _row("--tp --tp-size --dp --dp-size --pp-size --ep-size --nnodes --dist-init-addr", ONE_PROCESS),
        _row("--enable-metrics --enable-mixed-chunk", ALWAYS),
        _row("--log-requests", "`--record`; no log line has anybody's text"),
        _row("--disable-cuda-graph --enable-torch-compile --random-seed", "nothing"),
    ),
}
"""By server, its options with what is here in their place; none of them is an option of ours."""


def here_instead(arguments: Sequence[str], unknown: str) -> str | None:
    """Return whose option ``unknown`` is and what takes its place; None for one that nobody has.

    ``arguments``: the command's, for options of several letters after one dash, which arrive as their first letter.
    """
    known = _by_flag()
    given = [each.partition("=")[0] for each in arguments]
    clusters = [each for each in given if not each.startswith("--") and unknown[1:] in each[1:]]
    candidates = [unknown] if unknown in given or unknown.startswith("--") else [*clusters, unknown]
    flag = next(filter(known.__contains__, candidates), None)
    if flag is None:
        return None
    found = known[flag]
    here = "; ".join(dict.fromkeys(_plain(here) for _, here in found))
    said = (
        f"Here nothing takes its place{here.removeprefix('nothing')}" if here.startswith("nothing") else f"Here: {here}"
    )
    return f"{flag} is an option of {' and '.join(server for server, _ in found)}. {said}."


@functools.cache
def _by_flag() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for server, rows in SERVERS.items():
        for row in rows:
            for flag in row.flags:
                found.setdefault(flag, []).append((server, row.here))
    return found


def _plain(text: str) -> str:
    """Return the text without Markdown: for a terminal."""
    while (start := text.find("](")) >= 0:
        text = text[:start] + text[text.index(")", start) + 1 :]
    return text.replace("[", "").replace("`", "")
