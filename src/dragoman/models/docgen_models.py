"""Generator of ``docs/models.md`` from the families: ``python -m dragoman.models.docgen_models > docs/models.md``.

The fields that a family's reader uses are found by running it on configs that record every accessed field. Text that
is not about one family is in this file.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import AccessedFields, Config
from dragoman.models.families import FAMILIES, MISSING, REFUSED, Family
from dragoman.models.rope_config import SCALINGS

HEAD = """\
# Models

<!-- Written by `make docs` from src/dragoman/models/families; text in src/dragoman/models/docgen_models.py. -->

A model is a folder or a repository on the hub whose `config.json` names one of these architectures. Another one is
refused by name, with this list, and so is every field of a config that would change the output and that a family does
not support: *refused* are those that are read for no other purpose. Fields that are neither read nor refused concern
training or tokens, and have no effect on a decoder. `dragoman doctor MODEL` says what would be loaded.
"""

TAIL = """\
## Files and precisions

Weights are read from `*.safetensors`, single or in shards with `model.safetensors.index.json`, stored as float32,
float16 or bfloat16, or quantized ([quantized.md](quantized.md)). Pickled files (`*.bin`, `*.pt`) are refused: opening
one runs the code in it. `--precision` is the same for every family:

| precision | weights | products |
|---|---|---|
| `float32` | as they are stored | float32 |
| `bfloat16` | rounded, unless stored as bfloat16 | inputs rounded to bfloat16, sums in float32 |
| `int8` | groups of 32 share a float16 scale | inputs in int8, 128 to a scale; exact sums of groups |
| `int4` | the same in 4 bits; embedding and output projection as in `int8` | the same |
| `auto` | as they are stored; float16 becomes bfloat16 | |

Norms, biases, tables of positions, the routers of experts, weights of short convolutions and
[states](recurrent-state.md) are float32 in all of them.

## Tokenizers

`tokenizer.json` is read where there is one. Else the vocabulary comes from the file that the publisher uploaded, with
`tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` beside it. Code of the repository is not run:
how a class splits texts is known by its name, `tokenizer_class`.

| files | form |
|---|---|
| `tokenizer.model`, `spiece.model`, `sentencepiece.bpe.model` | SentencePiece, BPE or unigram |
| `tiktoken.model`, `qwen.tiktoken`, `hy.tiktoken`, `tokenizer.model` | tiktoken: each line a token and its rank |
| `tekken.json` | Mistral's |
| `vocab.json` and `merges.txt` | byte-level BPE |
| `vocab.txt` | WordPiece |

* SentencePiece's classes whose ids are not those of the file are refused, but for T5's and XLM-RoBERTa's, which are
  known. Two settings matter where they are absent: without `add_bos_token` a text begins with BOS, as in Llama's first
  class; and without `legacy`, or with `true`, a space comes before the text after each special token.
* `tekken.json`: a text begins with BOS too, unless `add_bos_token` is `false`. With tiktoken's files and byte-level BPE
  it does so only if that is `true`; ChatGLM4's, RoBERTa's and BART's classes put their own tokens around a text.
* tiktoken's: `TikTokenTokenizer` (Kimi, Moonlight), `QWenTokenizer`, `HYTokenizer` (Hunyuan) and `ChatGLM4Tokenizer`.
* Byte-level BPE: GPT-2's, CodeGen's, GPT-NeoX's, Qwen 2's, RoBERTa's and BART's.
* WordPiece: BERT's, DistilBERT's and ELECTRA's.

Ids are those of the libraries `sentencepiece`, `tiktoken` and `mistral-common`. Another form or class is refused with
the command that converts it. So is a file of more than 64 MiB, 1,048,576 tokens or merges, 16,384 special tokens, or of
tokens that are longer than any that are published: reading it would take long.

## Mixtures of experts

A layer's router chooses a few experts for each token, and the weights of the others are not read for it: one stream is
as fast as on a dense model of the chosen experts' size. The rows of a step are grouped by expert, and
each expert that any of them uses is read once; eight streams read the experts that eight tokens choose, which may be
most of them. All experts stay in memory. The result for a token does not depend on the others in its step: none is
dropped when many choose the same expert, and the results of its experts are added in the order of their numbers.

Experts may be stored one by one, or stacked in tensors of three dimensions. Adapters can change the attention of such a
model, but neither routers nor experts.

## Latent attention

Of a token, models with multi-head latent attention (DeepSeek, GLM-4.7-Flash and others) keep one vector and the rotated
part of keys for all heads: 512 + 64 numbers in a layer of DeepSeek V3. These are what `--kv-precision` rounds and
`dragoman plan` counts. Queries are multiplied by the matrix of keys, and results by that of values, for prompts as for
decoded tokens: so the bits of a token do not depend on how its text was divided. Attention of a prompt has 3.4 times
the multiplications of expanded heads in DeepSeek's sizes, in place of their expansion.

The matrices of keys and values are packed apart. Of a quantized file that has them as one, values keep their integers;
keys, whose matrix is used transposed, become bfloat16. Adapters can change all projections but that one, `kv_b_proj`.
"""

_MARK = "`{}`".format
_HEAD_NOTE = (
    "The layer that guesses one token more (MTP), where a checkpoint has one, "
    "[makes drafts](speculation.md#heads) with `--draft-heads`."
)
_FIRST = next(iter(FAMILIES))
_FEW = 4
_LAYERS = {"layer_types": ["full_attention"] * _FEW}
_VALUES: dict[str, Any] = {
    **_LAYERS,
    "layers_block_type": ["mamba", "attention", "moe", "mlp"],
    "hybrid_layer_pattern": [0, 1, 1, 1],
    "moe_layer_freq": [0, 1, 1, 1],
    "head_dim": 192,  # MiMo-V2.5 rotates a part that has to be even
    "v_head_dim": 128,
    "attention_types": [[["global", "local"], _FEW // 2]],
}
_MISSING = re.compile(r"(\w+) is missing$")


def page() -> str:
    """Return the whole page."""
    accessed = {architecture: fields_of(family) for architecture, family in FAMILIES.items()}
    sections = (line for architecture in FAMILIES for line in _section(architecture, accessed))
    return "\n".join([HEAD, *_overview(), *sections, *_missing(), TAIL]).rstrip() + "\n"


def _missing() -> list[str]:
    """Return the section about decoders that are refused."""
    rows = [f"| `{architecture}` | {needs} |" for architecture, needs in MISSING.items()]
    intro = "These are refused, and the error says what they need that is not there:"
    return ["## Not supported", "", intro, "", "| architecture | needs |", "|---|---|", *rows, ""]


def _overview() -> Iterator[str]:
    yield "| family | architecture | `model_type` | for example |"
    yield "|---|---|---|---|"
    for architecture, family in FAMILIES.items():
        examples = ", ".join(map(_MARK, family.examples))
        yield f"| {family.title} | `{architecture}` | `{family.model_type}` | {examples} |"
    shared = ", ".join(_refusal(key, harmless) for key, harmless in REFUSED.items())
    yield f"\nRefused in every family that does not read it: {shared}.\n"
    yield f"Kinds of `rope_scaling`, or `rope_parameters`: {', '.join(map(_MARK, SCALINGS))}.\n"


def _section(architecture: str, all_asked: dict[str, AccessedFields]) -> Iterator[str]:
    family, accessed, common = FAMILIES[architecture], all_asked[architecture], _common(all_asked)
    yield f"## {family.title or architecture}\n"
    if family.note:
        yield f"{family.note}\n"
    if family.head is not None:
        yield f"{_HEAD_NOTE}\n"
    if architecture == _FIRST:
        yield f"The *common fields*, read in most families: {_fields(common)}.\n"
    if common <= accessed.read:
        yield f"Read extra the common fields: {_fields(accessed.read - common) or 'none'}.\n"
    else:
        yield f"Read: {_fields(accessed.read)}.\n"
    if refused := sorted(accessed.refused.keys() - accessed.read):
        yield f"Refused: {', '.join(_refusal(key, accessed.refused[key]) for key in refused)}.\n"


def _common(all_asked: dict[str, AccessedFields]) -> set[str]:
    """Return the fields of the first family that more than half of all families read."""
    readers = {key: sum(key in accessed.read for accessed in all_asked.values()) for key in all_asked[_FIRST].read}
    return {key for key, count in readers.items() if 2 * count > len(all_asked)}


def _fields(keys: set[str]) -> str:
    return ", ".join(map(_MARK, sorted(keys)))


def _refusal(key: str, harmless: tuple[object, ...]) -> str:
    values = " or ".join(dict.fromkeys(_MARK(json.dumps(value)) for value in harmless if not isinstance(value, float)))
    return f"`{key}`" + (f" other than {values}" if values else "")


def fields_of(family: Family) -> AccessedFields:
    """Return the fields that a family's reader accesses in a minimal config, and in those that differ from it in one
    flag."""
    accessed, least = AccessedFields(), least_config(family)
    family.read(Config(least, accessed=accessed))
    for key, flag, extra in itertools.product(sorted(accessed.read), (True, False), ({}, _LAYERS)):
        with contextlib.suppress(ModelError):  # not a flag, or one that needs another field
            family.read(Config({**least, **extra, key: flag}, accessed=accessed))
    return accessed


def least_config(family: Family) -> dict[str, Any]:
    """Return the fields without which a family's configs cannot be read, with consistent sizes."""
    values: dict[str, Any] = {}
    while True:
        try:
            family.read(Config(values))
            return values
        except ModelError as error:
            missing = _MISSING.search(str(error))
            if missing is None or missing[1] in values:
                raise
            known = _VALUES.get(missing[1])
            values[missing[1]] = known or (_FEW if re.search("head|layer", missing[1]) else 1024)


if __name__ == "__main__":
    print(page(), end="")
