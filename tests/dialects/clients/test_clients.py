"""Frameworks and clients that nobody here wrote, against the embedded model: whole, streamed, with tools and forms.

They come with some gigabytes of their own: ``make witness`` makes their environments and runs this. The checks of a
folder here run in the environment of its name, those in this folder in ``clients``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from environments import FOLDER as ENVIRONMENTS
from environments import names_of_checks, outcomes_of
from stub_runtime import FOLDER, RunningServer, running_server
from tiny_server import SETTINGS

from dragoman.engine.messages import LoadModel
from dragoman.models.settings import ModelSettings
from dragoman.serving.settings import BatchSettings, CatalogSettings

NODE = ENVIRONMENTS / "node"
HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.rglob("checks_*.py"))
CHECKS = [(script, check) for script in SCRIPTS for check in names_of_checks(script)]
MOST_S = 900


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The embedded model, also under a name that LlamaIndex's class for OpenAI takes."""
    model = LoadModel(source=str(FOLDER), settings=ModelSettings(max_sequences=8, max_context=2048, cache_bytes=0))
    settings = msgspec.structs.replace(SETTINGS, name="embedded", alias=("gpt-4o",))
    catalog, state = CatalogSettings(offer_cached=False), tmp_path_factory.mktemp("state")
    with running_server(settings, model, FOLDER, catalog=catalog, batches=BatchSettings(), state=state) as server:
        yield server


def python_of(script: Path) -> Path:
    """The interpreter that runs the checks of this script."""
    return ENVIRONMENTS / ("clients" if script.parent == HERE else script.parent.name) / "bin" / "python"


@pytest.fixture(scope="module")
def outcomes(server: RunningServer) -> dict[Path, dict[str, str]]:
    """By script, what each of its checks found; without those whose environment is not there."""
    here = [script for script in SCRIPTS if python_of(script).exists()]
    return {script: outcomes_of(script, python_of(script), server.url, most_s=MOST_S) for script in here}


@pytest.mark.parametrize(("script", "check"), CHECKS, ids=[f"{script.stem}-{check}" for script, check in CHECKS])
def test_a_client_finds_what_it_expects(request: pytest.FixtureRequest, script: Path, check: str) -> None:
    if not python_of(script).exists():
        pytest.skip("no environment with this client: `make witness` makes one")
    outcomes: dict[Path, dict[str, str]] = request.getfixturevalue("outcomes")
    assert outcomes[script][check] == ""


@pytest.mark.skipif(not (NODE / "node_modules").exists(), reason="no Node with clients: `make witness` installs them")
def test_clients_of_node_find_what_they_expect(server: RunningServer) -> None:
    script = Path(shutil.copy(HERE / "checks_node.mjs", NODE))  # packages are looked for above the script
    done = subprocess.run(
        ["node", str(script), server.url],
        capture_output=True,
        text=True,
        timeout=MOST_S,
        cwd=NODE,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > 20
    assert {name: problem for name, problem in found.items() if problem} == {}
