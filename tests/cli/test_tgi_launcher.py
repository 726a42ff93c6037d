"""The options and variables of TGI's launcher, each where it belongs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from dragoman.cli import console
from dragoman.cli.app import cli
from dragoman.cli.logs import LogSettings
from dragoman.cli.serve_settings import ServeSettings
from dragoman.cli.settings import ModelChoice
from dragoman.cli.tgi_launcher import NOTHING_HERE, LauncherSettings, prespawned, variables
from dragoman.core.errors import DragomanError
from dragoman.dialects.tgi.settings import TgiSettings
from dragoman.engine.settings import SchedulerSettings
from dragoman.models.settings import ModelSettings
from dragoman.server.keys import KeySettings
from dragoman.server.settings import ServerSettings
from dragoman.server.tracing import TracingSettings
from dragoman.serving.settings import WorkSettings

# Every flag of the launcher, with a value that it takes; None: it takes none.
FLAGS: dict[str, str | None] = {
    "--model-id": "folder",
    "--revision": "main",
    "--trust-remote-code": None,
    "--dtype": "bfloat16",
    "--kv-cache-dtype": "fp8_e5m2",
    "--speculate": "2",
    "--max-concurrent-requests": "64",
    "--max-best-of": "3",
    "--max-stop-sequences": "6",
    "--max-top-n-tokens": "7",
    "--max-input-tokens": "100",
    "--max-total-tokens": "200",
    "--max-batch-prefill-tokens": "256",
    "--max-batch-total-tokens": "4096",
    "--waiting-served-ratio": "0.3",
    "--max-waiting-tokens": "20",
    "--max-batch-size": "8",
    "--max-client-batch-size": "5",
    "--validation-workers": "4",
    "--disable-grammar-support": None,
    "--enable-prefill-logprobs": None,
    "--hostname": "127.0.0.1",
    "-p": "0",
    "--prometheus-port": "0",
    "--api-key": "secret",
    "--cors-allow-origin": "https://a.example",
    "--payload-limit": "1000",
    "--max-image-fetch-size": "1",
    "--watermark-gamma": "0.25",
    "--watermark-delta": "1.5",
    "-g": "10",
    "--rope-scaling": "dynamic",
    "--rope-factor": "2",
    "--usage-stats": "off",
    "-e": None,
    "--sharded": "false",
    "--num-shard": "1",
    "--master-addr": "localhost",
    "--master-port": "29500",
    "--shard-uds-path": "/tmp/x",
    "--cuda-graphs": "1,2,4",
    "--cuda-memory-fraction": "0.9",
    "--disable-custom-kernels": None,
    "--huggingface-hub-cache": "/tmp/hub",
    "--weights-cache-override": "/tmp/weights",
    "--ngrok": None,
    "--ngrok-authtoken": "t",
    "--ngrok-edge": "e",
    "--tokenizer-config-path": "tokenizer_config.json",
}


class Served(Exception):
    """What the server would have been started with."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``dragoman serve`` up to where the server starts, and returns what it would start with, by struct."""
    monkeypatch.setenv("HF_HUB_CACHE", "")  # so that what is set here ends with the test
    for name in ("HOSTNAME", "PORT", "MODEL_ID", "DRAGOMAN_DIALECT"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, **environment: str) -> dict[type, Any]:
        found: dict[type, Any] = {}

        def serve(settings: ServeSettings, prespawned: object, notes: Iterable[str] = ()) -> None:
            console.remarks(notes)
            for each in msgspec.structs.astuple(settings):
                found.update({type(each): each} if isinstance(each, msgspec.Struct) else {TgiSettings: each["tgi"]})

        monkeypatch.setattr("dragoman.cli.app.run_server", serve)
        result = CliRunner().invoke(cli.typer, ["serve", *arguments], env=environment)
        assert result.exit_code == 0, result.output + result.stderr
        return {**found, str: result.stderr}  # type: ignore[dict-item]

    return run


def start(**dialect: Any) -> ServeSettings:
    return ServeSettings(server=ServerSettings(dialect="tgi"), dialects={"tgi": TgiSettings(**dialect)})


def test_every_option_of_the_launcher_is_taken(started: Any) -> None:
    arguments = [part for flag, value in FLAGS.items() for part in ((flag,) if value is None else (flag, value))]
    found = started("--dialect", "tgi", *arguments)
    assert found[ModelChoice].model == "folder"
    model: ModelSettings = found[ModelSettings]
    assert (model.revision, model.precision, model.max_sequences, model.kv_tokens) == ("main", "bfloat16", 8, 4096)
    assert model.rope == {"rope_type": "dynamic", "factor": 2.0}
    scheduling: SchedulerSettings = found[SchedulerSettings]
    assert (scheduling.step_tokens, scheduling.speculation) == (256, 3)
    server: ServerSettings = found[ServerSettings]
    assert (server.host, server.port, server.drain_s) == ("127.0.0.1", 0, 10)
    assert found[WorkSettings].text_threads == 4
    assert found[KeySettings].api_key == ("secret",)
    tgi: TgiSettings = found[TgiSettings]
    assert (tgi.max_concurrent_requests, tgi.max_best_of, tgi.max_stop_sequences, tgi.max_top_n_tokens) == (64, 3, 6, 7)
    assert tgi.limits(1000) == (100, 200)
    assert (tgi.max_client_batch_size, tgi.payload_limit, tgi.cors_allow_origin) == (5, 1000, ("https://a.example",))
    assert (tgi.watermark_gamma, tgi.watermark_delta, tgi.disable_grammar_support) == (0.25, 1.5, True)
    # What says nothing here is said once each.
    for name in NOTHING_HERE:
        assert found[str].count(f"--{name.replace('_', '-')} has no effect") == 1
    assert "secret" not in found[str]


def test_the_launchers_variables_are_read_for_its_dialect_only(started: Any) -> None:
    environment = {
        "HOSTNAME": "3f2a9c0b1d",
        "PORT": "8123",
        "MODEL_ID": "folder",
        "MAX_BEST_OF": "7",
        "QUANTIZE": "bitsandbytes-nf4",
        "DISABLE_GRAMMAR_SUPPORT": "true",
        "HF_API_TOKEN": "hf",
        "PREFIX_CACHING": "0",
        "COMPUTE_TYPE": "8-cpu",
    }
    found = started("--dialect", "tgi", **environment)
    server: ServerSettings = found[ServerSettings]
    assert (server.host, server.port) == ("0.0.0.0", 8123)
    assert found[ModelChoice].model == "folder"
    assert (found[ModelSettings].precision, found[ModelSettings].token) == ("int4", "hf")
    assert found[SchedulerSettings].prefix_cache is False
    tgi: TgiSettings = found[TgiSettings]
    assert (tgi.max_best_of, tgi.disable_grammar_support, tgi.compute_type) == (7, True, "8-cpu")
    others = started(**environment)
    assert others[ServerSettings] == ServerSettings()
    assert others[ModelChoice].model is None
    assert others[TgiSettings] == TgiSettings()
    # However the dialect is chosen.
    assert started(**environment, DRAGOMAN_DIALECT="tgi")[ServerSettings].port == 8123
    assert started("--dialect=tgi", **environment)[ServerSettings].port == 8123


def test_the_command_line_wins_over_a_variable_and_our_own_variable_too(started: Any) -> None:
    found = started("--dialect", "tgi", "--max-best-of", "2", MAX_BEST_OF="7", PORT="8123", DRAGOMAN_PORT="8124")
    assert found[TgiSettings].max_best_of == 2
    assert found[ServerSettings].port == 8124


def test_the_variables_of_the_clouds() -> None:
    sagemaker = {"HF_MODEL_ID": "org/model", "HF_MODEL_REVISION": "v1", "SM_NUM_GPUS": "1", "HF_MODEL_QUANTIZE": ""}
    found = {"model_id": "org/model", "revision": "v1", "num_shard": "1", "port": "8080"}
    assert variables(sagemaker).items() >= found.items()
    vertex = {"AIP_HTTP_PORT": "8081", "AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
    found = {"port": "8081", "aip_predict_route": "/predict", "aip_health_route": "/health"}
    assert variables(vertex).items() >= found.items()
    others = {"PATH": "/bin", "HOME": "/root", "MODEL": "x"}
    assert variables(others) == {"otlp_service_name": "text-generation-inference.router"}


def test_logs_and_traces(started: Any) -> None:
    found = started("--dialect", "tgi", JSON_OUTPUT="true", LOG_LEVEL="warn", OTLP_ENDPOINT="http://collector:4317")
    assert found[LogSettings] == LogSettings(json_output=True, log_level="warn")
    endpoint, name = "http://collector:4317", "text-generation-inference.router"
    assert found[TracingSettings] == TracingSettings(otlp_endpoint=endpoint, otlp_service_name=name)
    named = started("--dialect", "tgi", "--otlp-service-name", "mine")
    assert named[TracingSettings].otlp_service_name == "mine"
    assert started()[TracingSettings] == TracingSettings()


def test_variables_that_mean_nothing_are_said(started: Any) -> None:
    assert "ATTENTION has no effect" in started("--dialect", "tgi", ATTENTION="paged")[str]
    assert "ATTENTION" not in started(ATTENTION="paged")[str]


def test_a_variable_of_the_wrong_kind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(cli.typer, ["serve", "--dialect", "tgi"], env={"MAX_BEST_OF": "many"})
    assert result.exit_code == 2
    assert "MAX_BEST_OF" in result.stderr


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"dtype": "bfloat16", "quantize": "fp8"}, "Only one of --dtype and --quantize"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused(asked: Any, message: str) -> None:
    with pytest.raises(DragomanError, match=message):
        prespawned(LauncherSettings(**asked), start())


def test_contradictions() -> None:
    with pytest.raises(DragomanError, match="Both `max_input_tokens` and `max_input_length` are set"):
        prespawned(LauncherSettings(max_input_length=5), start(max_input_tokens=5))
    (begun, _) = prespawned(LauncherSettings(max_input_length=5), start())
    tgi = begun.dialects["tgi"]
    assert isinstance(tgi, TgiSettings)
    assert tgi.max_input_tokens == 5
    with pytest.raises(DragomanError, match=r"`max_input_tokens`\(9\) must be < `max_total_tokens`\(9\)"):
        TgiSettings(max_input_tokens=9, max_total_tokens=9).check()
    with pytest.raises(DragomanError, match="another is to be served already"):
        prespawned(
            LauncherSettings(model_id="one"), msgspec.structs.replace(start(), choice=ModelChoice(model="another"))
        )


def test_an_open_server_says_so() -> None:
    begun, notes = prespawned(LauncherSettings(hostname="0.0.0.0"), start())
    assert begun.keys.insecure
    assert notes == ("open to everyone who reaches it, as the original: --api-key closes it",)
    guarded = msgspec.structs.replace(start(), keys=KeySettings(api_key=("k",)))
    begun, notes = prespawned(LauncherSettings(hostname="0.0.0.0"), guarded)
    assert (begun.keys.insecure, notes) == (False, ())
    # Who speaks another dialect keeps the server's own care.
    other = msgspec.structs.replace(start(), server=ServerSettings(host="0.0.0.0"))
    assert not prespawned(LauncherSettings(), other)[0].keys.insecure


@pytest.mark.parametrize("hostname", ["::", "10.0.0.1", "container-7"])
def test_a_hostname_that_is_no_address_is_every_address(hostname: str) -> None:
    begun, notes = prespawned(LauncherSettings(hostname=hostname), start())
    assert begun.server.host == ("0.0.0.0" if hostname == "container-7" else hostname)
    assert any("is no IP address" in note for note in notes) == (hostname == "container-7")


def test_names_of_precisions_that_vllm_has_are_taken_too() -> None:
    begun, notes = prespawned(LauncherSettings(dtype="half", kv_cache_dtype="fp8"), start())
    assert (begun.model.precision, begun.model.kv_precision) == ("bfloat16", "int8")
    assert "--dtype half: weights are bfloat16 here" in notes
    own = msgspec.structs.replace(start(), model=ModelSettings(precision="int8", kv_precision="int4"))
    begun, _ = prespawned(LauncherSettings(dtype="auto", kv_cache_dtype="auto"), own)
    assert (begun.model.precision, begun.model.kv_precision) == ("int8", "int4")
    begun, _ = prespawned(LauncherSettings(dtype="auto", quantize="eetq"), start())
    assert begun.model.precision == "int8"


def test_keys_and_values_in_eight_bits() -> None:
    begun, notes = prespawned(LauncherSettings(kv_cache_dtype="fp8_e5m2"), start())
    assert begun.model.kv_precision == "int8"
    assert "--kv-cache-dtype fp8_e5m2: keys and values are int8 here" in notes
    assert prespawned(LauncherSettings(), start())[0].model.kv_precision == "auto"
