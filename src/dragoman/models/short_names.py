"""Short names of small models that are known to work here, and what is known of them without a look at the hub."""

from __future__ import annotations

import re
from typing import NamedTuple

# Of the main branch: another one is named by --revision.
_ADDRESS = re.compile(
    r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/(?P<repository>[\w.-]+/[\w.-]+)"
    r"((?P<tag>:[\w.-]+)|/(tree|blob|resolve)/main(/(?P<path>[\w./-]*))?)?/?(\?.*)?",
    re.ASCII,
)


class KnownModel(NamedTuple):
    """A model of the hub.

    Attributes:
        name: short. repository: hub id; none of them asks for a licence to be accepted.
        parameters: in millions. layers, kv_heads, head_dim: what keys and values take.
        context: most tokens. good_at: in a few words.
    """

    name: str
    repository: str
    parameters: float
    layers: int
    kv_heads: int
    head_dim: int
    context: int
    good_at: str

    def weight_bytes(self, precision: str) -> float:
        """Of the weights, roughly."""
        return self.parameters * 1e6 * BYTES_PER_WEIGHT[precision]

    def kv_bytes(self, tokens: int) -> float:
        """Of keys and values in bfloat16."""
        return 4.0 * self.layers * self.kv_heads * self.head_dim * tokens


BYTES_PER_WEIGHT = {"bfloat16": 2.0, "int8": 1.02, "int4": 0.57}
"""With the scales of the quantized ones; embeddings and norms are a little more."""

KNOWN_MODELS = (
    KnownModel("smollm2:135m", "HuggingFaceTB/SmolLM2-135M-Instruct", 134.5, 30, 3, 64, 8192, "trying things out"),
    KnownModel("smollm2:360m", "HuggingFaceTB/SmolLM2-360M-Instruct", 361.8, 32, 5, 64, 8192, "short answers"),
    KnownModel("qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct", 494.0, 24, 2, 64, 32768, "many languages, tools"),
    KnownModel("qwen3:0.6b", "Qwen/Qwen3-0.6B", 596.0, 28, 8, 128, 40960, "reasoning, tools"),
    KnownModel("olmo2:1b", "allenai/OLMo-2-0425-1B-Instruct", 1485.0, 16, 16, 128, 4096, "open data and training"),
    KnownModel(
        "qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct", 1544.0, 28, 2, 128, 32768, "code, filling gaps"
    ),
    KnownModel("smollm2:1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", 1711.0, 24, 32, 64, 8192, "English chat"),
    KnownModel("qwen3:1.7b", "Qwen/Qwen3-1.7B", 1720.0, 28, 8, 128, 40960, "reasoning, tools"),
    KnownModel("granite3.3:2b", "ibm-granite/granite-3.3-2b-instruct", 2534.0, 40, 8, 64, 131072, "documents, tools"),
    KnownModel("qwen3:4b", "Qwen/Qwen3-4B-Instruct-2507", 4022.0, 36, 8, 128, 262144, "chat, code, tools"),
    KnownModel("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct", 7616.0, 28, 4, 128, 32768, "code, filling gaps"),
    KnownModel("qwen3:8b", "Qwen/Qwen3-8B", 8191.0, 36, 8, 128, 40960, "reasoning, code, tools"),
)
"""The smallest first."""

REPOSITORIES = {model.name: model.repository for model in KNOWN_MODELS}


def similar_names(name: str) -> str:
    """Return the end of a sentence about a name that stands for nothing: the short names that begin like it, or where
    to find them. Empty for the name of a hub's repository."""
    if "/" in name:
        return ""
    for model in KNOWN_MODELS:
        if model.repository.lower().endswith(f"/{name.lower()}"):
            return f"; is {model.repository} meant, in short {model.name}?"
    stem = name.lower().partition(":")[0]
    similar = [model.name for model in KNOWN_MODELS if model.name.startswith(stem)]
    return f"; short names are {', '.join(similar)}" if similar else "; `dragoman models suggest` lists short names"


def repository_of(name: str) -> str:
    """The hub id that a short name, or an address of the hub, stands for; any other name stands for itself."""
    name = hub_name(name)
    return REPOSITORIES.get(name.lower(), name)


def hub_name(name: str) -> str:
    """Return the name of a model whose page on the hub, or a file of it, is given by its address: ``owner/name``, or
    ``owner/name:file.gguf``. ``hf.co/owner/name:Q4_K_M``, as Ollama's users write, is one too. Any other name is
    returned as it is."""
    found = _ADDRESS.fullmatch(name)
    if found is None:
        return name
    path = found["path"] or ""
    return found["repository"] + (f":{path}" if path.endswith(".gguf") else found["tag"] or "")
