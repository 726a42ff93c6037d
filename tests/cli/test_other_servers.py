"""Options and variables of other servers: what is said of the first, and what the second do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dragoman.cli.app import cli
from dragoman.cli.docgen_other_servers import page
from dragoman.cli.env_compat import LLAMACPP, OLLAMA, borrowed, useless
from dragoman.cli.other_servers import SERVERS, here_instead

ROOT = Path(__file__).parents[2]


def served() -> set[str]:
    """Every option that ``dragoman serve`` has, with those that switch off."""
    options = cli.commands["serve"]
    switches = {option.flag.replace("--", "--no-", 1) for option in options if option.annotation is bool}
    return {option.flag for option in options} | switches | {"--model"}


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(cli.typer, ["serve", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    return " ".join(re.findall(r"│ (.*?) *│", done.output))


def test_page_is_current() -> None:
    assert (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8") == page(), "run `make docs`"


def test_what_takes_the_place_of_an_option_exists() -> None:
    own = served() | {"--replicas"}
    for rows in SERVERS.values():
        for row in rows:
            named = set(re.findall(r"`(--[\w-]+)", row.here))
            assert named <= own, row
    assert {name for table in (OLLAMA, LLAMACPP) for name in table} - {"model"} <= {
        flag[2:].replace("-", "_") for flag in own
    }


def test_no_option_of_another_server_is_one_of_ours() -> None:
    flags = [flag for rows in SERVERS.values() for row in rows for flag in row.flags]
    short = {option.short for option in cli.commands["serve"] if option.short}
    assert not set(flags) & (served() | short | {"-h"})
    for rows in SERVERS.values():
        own = [flag for row in rows for flag in row.flags]
        assert len(own) == len(set(own))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-model-len", "4096"), "No such option. --max-model-len is an option of vLLM. Here: --max-context."),
        (("--max-model-len=4096",), "--max-model-len is an option of vLLM. Here: --max-context."),
        (("--port", "1", "-c", "4096"), "-c is an option of llama-server. Here: --max-context."),
        (("-ngl", "99"), "-ngl is an option of llama-server. Here nothing takes its place: there is no GPU"),
        (("-n", "9", "-ngl", "99"), "-n is an option of llama-server. Here: a field of requests."),
        (("-t8",), "-t is an option of llama-server. Here: --threads."),
        (("-tp", "2"), "-tp is an option of vLLM. Here nothing takes its place: one process computes everything"),
        (("--model-path", "m"), "--model-path is an option of SGLang. Here: MODEL, as the command's argument."),
        (("--max-contxt", "9"), "No such option: --max-contxt (Possible options: "),
        (("-x",), "No such option: -x"),
    ],
)
def test_an_option_of_another_server_is_refused_with_its_place_here(arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal(*arguments)


def test_what_is_said_has_no_markdown() -> None:
    for rows in SERVERS.values():
        for flag in [flag for row in rows for flag in row.flags]:
            said = here_instead([flag], flag)
            assert said is not None
            assert not re.search(r"[`\[\]]|\.md", said)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("0.0.0.0", "0.0.0.0", "11434"),
        ("127.0.0.1:1234", "127.0.0.1", "1234"),
        (":8080", "127.0.0.1", "8080"),
        ("http://gpu:8000/ollama", "gpu", "8000"),
        ("https://gpu", "gpu", "443"),
        ("[::1]:99", "::1", "99"),
        ("::1", "::1", "11434"),
    ],
)
def test_the_address_of_ollama_is_host_and_port(address: str, host: str, port: str) -> None:
    assert borrowed("ollama", {"OLLAMA_HOST": address}) == {"host": host, "port": port}


def test_variables_of_ollama() -> None:
    found = borrowed(
        "ollama",
        {
            "OLLAMA_KEEP_ALIVE": "5m",
            "OLLAMA_ORIGINS": "https://a.example,app://*",
            "OLLAMA_NUM_PARALLEL": "4",
            "OLLAMA_CONTEXT_LENGTH": "0",
            "OLLAMA_KV_CACHE_TYPE": "Q8_0",
            "OLLAMA_DEBUG": "1",
        },
    )
    assert found == {
        "ollama_keep_alive": "5m",
        "ollama_origins": "https://a.example app://*",
        "max_sequences": "4",
        "kv_precision": "int8",
        "log_level": "debug",
    }
    assert borrowed("ollama", {"OLLAMA_DEBUG": "2"}) == {"log_level": "debug"}
    assert borrowed("ollama", {"OLLAMA_DEBUG": "0"}) == {}
    others = {"OLLAMA_HOST": "::1", "OLLAMA_DEBUG": "1", "OLLAMA_LLM_LIBRARY": "", "PATH": "/bin"}
    said = useless("ollama", {"OLLAMA_MODELS": "/m", **others})
    assert said == ("OLLAMA_MODELS has no effect here",)


def test_variables_of_llama_server() -> None:
    found = borrowed(
        "llamacpp",
        {
            "LLAMA_ARG_HF_REPO": "owner/name:Q4_K_M",
            "LLAMA_ARG_CTX_SIZE": "4096",
            "LLAMA_ARG_N_PARALLEL": "-1",
            "LLAMA_ARG_CACHE_TYPE_K": "f16",
            "LLAMA_API_KEY": "one,two",
        },
    )
    assert found == {
        "model": "owner/name:Q4_K_M",
        "max_context": "4096",
        "kv_precision": "bfloat16",
        "api_key": "one two",
    }
    said = useless("llamacpp", {"LLAMA_ARG_PORT": "1", "LLAMA_ARG_N_GPU_LAYERS": "99", "LLAMA_SET_ROWS": "1"})
    assert said == ("LLAMA_ARG_N_GPU_LAYERS has no effect here",)


@pytest.mark.parametrize("dialect", ["openai", "auto", "locallab"])
def test_they_are_read_for_their_own_dialect_only(dialect: str) -> None:
    environment = {"OLLAMA_HOST": "0.0.0.0", "OLLAMA_MODELS": "/m", "LLAMA_ARG_PORT": "1"}
    assert borrowed(dialect, environment) == {}
    assert useless(dialect, environment) == ()


@pytest.mark.parametrize(
    ("dialect", "variable", "value"),
    [
        ("ollama", "OLLAMA_HOST", "127.0.0.1:99999"),
        ("ollama", "OLLAMA_KV_CACHE_TYPE", "q5_0"),
        ("llamacpp", "LLAMA_ARG_N_PARALLEL", "many"),
        ("locallab", "LOCALLAB_PORT", "http"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_the_variable_that_has_it(
    dialect: str, variable: str, value: str
) -> None:
    environment = {"COLUMNS": "200", "DRAGOMAN_CONFIG": "/dev/null", variable: value}
    done = CliRunner().invoke(cli.typer, ["serve", "--dialect", dialect], env=environment)
    assert done.exit_code == 2
    assert variable in done.output
