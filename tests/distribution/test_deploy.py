"""What deploy/ says of the server holds: its metrics, its options, its version. `make deploy-check` goes further."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import dragoman
from dragoman.cli.configuration import usual_places
from dragoman.dialects import made_dialects
from dragoman.server.accounts import Accounts
from dragoman.server.app_context import named_in_metrics
from dragoman.server.metrics import STATE, Metrics
from dragoman.server.settings import ServerSettings


@pytest.fixture
def deploy(root: Path) -> Path:
    return root / "deploy"


@pytest.fixture(scope="module")
def metrics() -> frozenset[str]:
    """Names of all series of a server with keys, besides those of the collectors."""
    found = {f"dragoman_{name}" for name in STATE} | {f"dragoman_{name}_total" for name in STATE}
    sources = (Path(dragoman.__file__).parent / "server").glob("*.py")
    text = "".join(path.read_text("utf-8") for path in sources)
    for name in re.findall(r'\(\s*"((?:holder|auth)_\w+)",', text):
        found |= {f"dragoman_{name}", f"dragoman_{name}_total"}
    page = Metrics()
    page.count_request("openai", "/v1/completions", 200)
    for name in re.findall(r'"dragoman_(pool_\w+)"', text):
        found |= {f"dragoman_{name}"}
    families = list(text_string_to_metric_families(page.render().decode()))
    found |= {sample.name for family in families for sample in family.samples} | {each.name for each in families}
    return frozenset(found | {"dragoman_sequences_finished_total"})


def documents(path: Path) -> list[Any]:
    return [each for each in yaml.safe_load_all(path.read_text("utf-8")) if each is not None]


def dashboard_of(deploy: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((deploy / "grafana" / "dashboards" / "dragoman.json").read_text("utf-8"))
    return read


def named(expression: str) -> set[str]:
    return set(re.findall(r"\bdragoman_\w+", expression))


def test_all_files_can_be_read(deploy: Path) -> None:
    plain = [path for path in deploy.rglob("*.y*ml") if "templates" not in path.parts]
    assert len(plain) >= 10
    for path in plain:
        assert documents(path), path
    assert documents(deploy / "compose.yaml")[0]["services"].keys() == {"dragoman", "prometheus", "grafana"}


def test_the_dashboard_and_the_alerts_name_metrics_of_the_server(deploy: Path, metrics: frozenset[str]) -> None:
    panels = dashboard_of(deploy)["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = documents(deploy / "prometheus" / "alerts.yml")[0]["groups"][0]["rules"]
    asked += [rule["expr"] for rule in rules]
    assert len(asked) > 40
    for expression in asked:
        assert named(expression) or expression.startswith("up{"), expression
        assert named(expression) <= metrics, named(expression) - metrics
    titles = {panel["title"] for panel in panels}
    assert {"Time to first token", "Time between tokens", "Queue", "Blocks", "Cache hits", "Restarts"} <= titles
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(rule["annotations"].keys() == {"summary", "action"} for rule in rules)
    tested = documents(deploy / "prometheus" / "alerts_test.yml")[0]["tests"][0]["alert_rule_test"]
    assert {each["alertname"] for each in tested} <= {rule["alert"] for rule in rules}


def test_a_metric_that_there_is_not_would_be_found(metrics: frozenset[str]) -> None:
    assert not named("rate(dragoman_requests_lost_total[5m])") <= metrics
    assert "dragoman_holder_tokens_total" in metrics


def test_holders_of_keys_are_shown_under_the_names_that_are_taken_from_the_sources(metrics: frozenset[str]) -> None:
    page = Metrics()
    Accounts().watch(page)
    shown = {family.name for family in text_string_to_metric_families(page.render().decode())}
    holders = {name for name in shown if "holder" in name}
    assert len(holders) >= 5
    assert holders <= metrics


def options_of(text: str) -> Iterator[str]:
    yield from re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)(?==|\s|\]|,|\"|'|$)", text)


@pytest.mark.parametrize(
    "path",
    ["systemd/dragoman.service", "kubernetes/dragoman.yaml", "kserve/runtime.yaml", "helm/templates/deployment.yaml"],
)
def test_options_are_those_of_the_server(root: Path, deploy: Path, path: str) -> None:
    text = (deploy / path).read_text("utf-8")
    if path.endswith(".service"):
        text = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    else:
        text = "\n".join(line for line in text.splitlines() if line.strip().startswith("- --"))
    options = set(options_of(text))
    assert len(options) >= 4
    known = re.findall(r"^\| `--([a-z0-9-]+)`", (root / "docs" / "configuration.md").read_text("utf-8"), re.MULTILINE)
    assert options <= set(known)


def test_the_version_is_the_packages(deploy: Path) -> None:
    chart = documents(deploy / "helm" / "Chart.yaml")[0]
    assert chart["appVersion"] == chart["version"] == dragoman.__version__
    for path in ("compose.yaml", "kubernetes/dragoman.yaml", "kserve/runtime.yaml"):
        images = re.findall(r"image: dragoman:(\S+)", (deploy / path).read_text("utf-8"))
        assert images == [dragoman.__version__], path


def test_the_charts_values_are_explained_and_checked(deploy: Path) -> None:
    text = (deploy / "helm" / "values.yaml").read_text("utf-8")
    values = yaml.safe_load(text)
    schema = json.loads((deploy / "helm" / "values.schema.json").read_text("utf-8"))
    assert schema["properties"].keys() - {"global"} == values.keys()
    used = "".join(path.read_text("utf-8") for path in (deploy / "helm" / "templates").iterdir())
    for name, value in values.items():
        assert f".Values.{name}" in used, name
        if isinstance(value, dict) and "properties" in schema["properties"][name]:
            assert schema["properties"][name]["properties"].keys() == value.keys(), name
            for part in value:
                assert f".Values.{name}.{part}" in used, f"{name}.{part}"
    for name in re.findall(r"\.Values\.(\w+)", used):
        assert name in values, name
    names = schema["properties"]["metrics"]["properties"]["names"]["items"]["enum"]
    settings = msgspec.structs.replace(ServerSettings(), metric_names=tuple(set(names) - {"none"}))
    assert set(named_in_metrics(made_dialects(), settings)) | {"none"} == set(names)


def test_the_image_is_made_of_what_is_there_and_runs_without_rights(
    root: Path, deploy: Path, script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(root / "scripts")
    steps = list(script("image_steps").instructions((deploy / "Dockerfile").read_text("utf-8")))
    for name, rest in steps:
        if name == "COPY" and not rest.startswith("--"):
            assert all((root / source).exists() for source in rest.split()[:-1]), rest
    ignored = (deploy / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    assert {"!src/", "!csrc/", "!scripts/", "!builtin/"} <= set(ignored)
    assert ("USER", "10001:10001") in steps
    last = [rest for name, rest in steps if name == "FROM"][-1]
    assert last == "server"


def test_the_unit_is_as_strict_as_it_says(root: Path, deploy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = (deploy / "systemd" / "dragoman.service").read_text("utf-8")
    for line in ("DynamicUser=true", "ProtectSystem=strict", "NoNewPrivileges=true", "CapabilityBoundingSet="):
        assert f"\n{line}\n" in unit
    # A file that DRAGOMAN_CONFIG names has to be there, and the steps of the page make none.
    assert "DRAGOMAN_CONFIG" not in unit
    home = re.search(r"^Environment=XDG_CONFIG_HOME=(\S+)$", unit, flags=re.MULTILINE)
    assert home is not None
    monkeypatch.setenv("XDG_CONFIG_HOME", home[1])
    place = str(usual_places()[-1])
    assert place in unit.partition("[Unit]")[0]
    assert f"`{place}`" in (root / "docs" / "deploy.md").read_text("utf-8")
    credential = re.search(r"^LoadCredential=(\w+):", unit, flags=re.MULTILINE)
    assert credential is not None
    assert f"${{CREDENTIALS_DIRECTORY}}/{credential[1]}" in unit
