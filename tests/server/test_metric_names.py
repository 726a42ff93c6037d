"""One set of measurements, shown under the names that an operator asks for."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from stub_runtime import DIALECTS, FOLDER, QUICK, STUB, local_server, running_server

from dragoman.core.errors import DragomanError
from dragoman.engine.messages import WorkerSettings
from dragoman.server import lifecycle
from dragoman.server.accounts import Accounts
from dragoman.server.app_context import named_in_metrics
from dragoman.server.metrics import PoolsCollector
from dragoman.serving.settings import WorkSettings
from dragoman.serving.worker_pool import WorkerPools
from dragoman.text import ChatTemplate

BODY = {"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True}


@pytest.mark.parametrize(
    ("dialect", "names", "shown"),
    [
        ("openai", (), set()),
        ("auto", (), set()),
        ("locallab", (), set()),
        ("tgi", (), {"tgi"}),
        ("friendli", (), {"friendli"}),
        ("openai", ("tgi", "friendli"), {"tgi", "friendli"}),
        ("openai", ("friendli", "friendli"), {"friendli"}),
        ("friendli", ("tgi",), {"tgi"}),
        ("tgi", ("none",), set()),
    ],
)
@pytest.mark.anyio
async def test_names_are_those_of_the_operators_dialect_unless_others_are_asked_for(
    template: ChatTemplate, dialect: str, names: tuple[str, ...], shown: set[str]
) -> None:
    settings = msgspec.structs.replace(QUICK, dialect=dialect, metric_names=names)
    async with local_server(template, settings) as runtime:
        await runtime.client.post("/openai/v1/completions", json=BODY)
        for path in ("/metrics", "/tgi/metrics"):
            text = (await runtime.client.get(path)).text
            found = re.findall(r"^# TYPE ([a-z]+)_(\S+) ", text, flags=re.MULTILINE)
            assert {prefix for prefix, _ in found} == {"dragoman", *shown}
            assert len(found) == len(set(found))


def test_llama_servers_names_have_a_colon() -> None:
    with running_server(msgspec.structs.replace(QUICK, metric_names=("llamacpp",))) as server:
        before = httpx.get(f"{server.url}/llamacpp/metrics").text
        assert "llamacpp:predicted_tokens_seconds 0\n" in before
        httpx.post(f"{server.url}/v1/completions", json=BODY)
        text = httpx.get(f"{server.url}/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    values = {name: family.samples[0].value for name, family in families.items() if name.startswith("llamacpp:")}
    assert values["llamacpp:tokens_predicted"] == 4
    assert values["llamacpp:prompt_tokens"] > 0
    assert values["llamacpp:n_decode"] >= 4
    assert 0 < values["llamacpp:n_busy_slots_per_decode"] <= 1
    assert values["llamacpp:prompt_seconds"] > 0
    assert values["llamacpp:requests_processing"] == 0


@pytest.mark.anyio
async def test_pages_agree(template: ChatTemplate) -> None:
    settings = msgspec.structs.replace(QUICK, metric_names=("tgi", "friendli"))
    async with local_server(template, settings) as runtime:
        for _ in range(3):
            await runtime.client.post("/v1/completions", json=BODY)
        text = (await runtime.client.get("/metrics")).text
    found = {name: float(value) for name, value in re.findall(r"^([a-z_]+)(?:\{\})? (\S+)$", text, flags=re.MULTILINE)}
    assert found["dragoman_prompt_tokens_total"] == found["tgi_request_input_length_sum"]
    assert found["tgi_request_input_length_sum"] == found["friendli_input_lengths_sum"] > 0
    assert found["dragoman_generated_tokens_total"] == found["tgi_request_generated_tokens_sum"] == 12
    assert found["friendli_output_lengths_sum"] == 12
    assert found["tgi_request_count"] == found["tgi_request_success"] == found["friendli_responses_total"] == 3
    assert found["dragoman_time_to_first_token_seconds_count"] == found["friendli_requests_ttft_count"] == 3


def test_names_for_routers_agree_with_the_others() -> None:
    settings = msgspec.structs.replace(QUICK, metric_names=("vllm",), name='a "quoted" model')
    with running_server(settings) as server:
        for _ in range(3):
            httpx.post(f"{server.url}/v1/completions", json={**BODY, "prompt": "Once upon a time " * 40})
        text = httpx.get(f"{server.url}/metrics").text
    found = {
        sample.name: (sample.value, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    labels = {"model_name": 'a "quoted" model', "engine": "0"}
    for theirs, ours in (
        ("vllm:kv_cache_usage_perc", "dragoman_kv_cache_usage"),
        ("vllm:gpu_cache_usage_perc", "dragoman_kv_cache_usage"),
        ("vllm:num_requests_running", "dragoman_requests_running"),
        ("vllm:num_requests_waiting", "dragoman_requests_waiting"),
        ("vllm:num_preemptions_total", "dragoman_preemptions_total"),
        ("vllm:prompt_tokens_total", "dragoman_prompt_tokens_total"),
        ("vllm:prefix_cache_hits_total", "dragoman_cached_prompt_tokens_total"),
        ("vllm:gpu_prefix_cache_hits_total", "dragoman_cached_prompt_tokens_total"),
        ("vllm:gpu_prefix_cache_queries_total", "dragoman_prompt_tokens_total"),
        ("vllm:generation_tokens_total", "dragoman_generated_tokens_total"),
        ("vllm:time_to_first_token_seconds_sum", "dragoman_time_to_first_token_seconds_sum"),
        ("vllm:inter_token_latency_seconds_count", "dragoman_inter_token_seconds_count"),
    ):
        assert found[theirs] == (found[ours][0], labels), theirs
    assert found["dragoman_cached_prompt_tokens_total"][0] > 0
    assert found["vllm:cache_config_info"][1]["block_size"] == "32"
    assert found["vllm:e2e_request_latency_seconds_count"][0] == 3
    assert "vllm:lora_requests_info" not in found


def test_usage_of_the_cache_is_a_share() -> None:
    def usage(url: str) -> dict[str, float]:
        text = httpx.get(f"{url}/metrics").text
        return {name: float(value) for name, value in re.findall(r"^dragoman_(kv_\w+) (\S+)$", text, re.MULTILINE)}

    body = {**BODY, "max_tokens": 150, "stream": True}
    with running_server(QUICK, msgspec.structs.replace(STUB, step_s=0.05)) as server:
        assert usage(server.url)["kv_cache_usage"] == 0
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            next(answer.iter_lines())
            state = usage(server.url)
    assert state["kv_cache_usage"] == state["kv_blocks_used"] / state["kv_blocks"]
    assert 0 < state["kv_cache_usage"] < 1


@pytest.mark.anyio
async def test_nothing_is_measured_for_names_that_are_not_shown(template: ChatTemplate) -> None:
    async with local_server(template) as runtime:
        observers = runtime.metrics.observers
        assert [type(each).__name__ for each in observers] == [
            "GenerationMeasurements",
            Accounts.__name__,
            "RunningRequests",
        ]
        assert not observers.step
        assert not observers.arrived


@pytest.mark.parametrize("names", [("openai",), ("tgi", "none"), ("prometheus",)])
def test_names_that_there_are_not_are_refused(names: tuple[str, ...]) -> None:
    settings = msgspec.structs.replace(QUICK, metric_names=names)
    with pytest.raises(
        DragomanError, match=r"--metric-names \w+: there is only tgi, friendli, llamacpp, vllm, and none alone"
    ):
        named_in_metrics(DIALECTS, settings)


@pytest.mark.anyio
async def test_they_are_refused_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(lifecycle, "start_runtime")
    settings = msgspec.structs.replace(QUICK, metric_names=("prometheus",))
    with pytest.raises(DragomanError, match="--metric-names prometheus"):
        await lifecycle.serve(settings, WorkerSettings(model=STUB), FOLDER)


def test_every_pool_is_shown() -> None:
    registry = CollectorRegistry()
    registry.register(PoolsCollector(WorkerPools(WorkSettings())))
    text = generate_latest(registry).decode()
    for name in ("text", "templates", "grammars", "disk", "models", "hub", "downloads"):
        assert f'dragoman_pool_queued{{pool="{name}"}} 0.0' in text
        assert f'dragoman_pool_wait_seconds_count{{pool="{name}"}} 0.0' in text


def test_the_manual_lists_all_pools() -> None:
    text = Path(__file__).parents[2].joinpath("docs", "operating.md").read_text("utf-8")
    listed = text.partition("| pool | does | threads |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", listed, re.M) == [pool.name for pool in WorkerPools(WorkSettings()).all]
