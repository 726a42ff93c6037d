"""``docs/coming-from.md``, generated from the tables: ``python -m dragoman.cli.docgen_other_servers``."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.cli.env_compat import LLAMACPP, OLLAMA, OLLAMA_ADDRESS, OLLAMA_DEBUG
from dragoman.cli.other_servers import SERVERS

HEAD = """\
# Coming from another server

<!-- Written by `make docs`. Change dragoman.cli.other_servers and dragoman.cli.env_compat instead. -->

Clients keep their code: the address is what changes ([dialects](dialects.md)). This page is for whoever has the command
line, the service file or the container of another server, and wants to know what its options are here.

| coming from | options | variables |
|---|---|---|
| TGI | each is taken by its own name: [tgi.md](tgi.md#the-launchers-options-and-variables) | with `--dialect tgi` |
| LocalLab | `dragoman start` has them: [locallab.md](locallab.md) | with `--dialect locallab` |
| Alexandria | it has none | with `--dialect alexandria`: [alexandria.md](alexandria.md) |
| Ollama | it has none | [with `--dialect ollama`](#ollamas-variables) |
| llama.cpp | [below](#llama-servers-options) | [with `--dialect llamacpp`](#llama-servers-variables) |
| vLLM | [below](#vllms-options) | none is read |
| SGLang | [below](#sglangs-options) | none is read |

`dragoman serve` knows the options of this page: it does not take them, and says what is here in their place. Options
that are not listed and have the same name here mean the same (`--host`, `--port`, `--revision`, `--dtype`,
`--mmproj`, `--alias` …), but for four: `--api-key-file` is [a file of another form](keys-and-limits.md),
`--generation-config vllm` is `none` here, `--chat-template` takes a file and no name, and `--rope-scaling` is
`linear` or `dynamic`. Where nothing takes the place of an option, nothing is to be set.
"""

OLLAMA_HEAD = f"""
## Ollama's variables

Read with `--dialect ollama` or `DRAGOMAN_DIALECT=ollama` only. Our own variables and the command line win. Any other
variable that begins with `OLLAMA_` is named at the start as one without effect. Ollama's models are not read:
`dragoman pull` downloads from the hub, and `--models-folder` offers GGUF files.

| variable | sets |
|---|---|
| `{OLLAMA_ADDRESS}` | `--host` and `--port`: an address, `HOST:PORT`, or its clients' URL; without a port 11434 |
| `{OLLAMA_DEBUG}` | `--log-level debug` |
"""

LLAMACPP_HEAD = """
## llama-server's variables

Read with `--dialect llamacpp` or `DRAGOMAN_DIALECT=llamacpp` only, as above. Any other variable that begins with
`LLAMA_ARG_` is named at the start.

| variable | sets |
|---|---|
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for server, rows in SERVERS.items():
        lines = [f"\n## {server}'s options\n\n| there | here |\n|---|---|\n"]
        lines += [f"| {', '.join(f'`{flag}`' for flag in row.flags)} | {row.here} |\n" for row in rows]
        parts += lines
    parts += [OLLAMA_HEAD, _variables(OLLAMA), LLAMACPP_HEAD, _variables(LLAMACPP)]
    return "".join(parts)


def _variables(table: Mapping[str, tuple[str, ...]]) -> str:
    options = {"model": "MODEL"}
    return "".join(
        f"| {', '.join(f'`{each}`' for each in names)} | `{options.get(name, '--' + name.replace('_', '-'))}` |\n"
        for name, names in table.items()
    )


if __name__ == "__main__":
    print(page(), end="")
