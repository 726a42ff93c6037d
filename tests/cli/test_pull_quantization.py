"""``dragoman pull --quantization``: which file of a GGUF repository is fetched, and what the others' names are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from fake_hub import FakeHub, fake_hub
from forked_command import run_forked
from gguf_files import add_tokens

PARTS = [f"tiny-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)]
PROJECTOR = "mmproj-F16.gguf"  # of the images, for a file of any quantization
THERE = "tiny-F16.gguf, tiny-Q4_K_M.gguf, tiny-Q8_0-00001-of-00002.gguf"
SEVERAL = f"owner/model has 3 GGUF models: name one of {THERE}, as in owner/model:tiny-F16.gguf"


def write_tiny(path: Path, **options: int) -> None:
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    add_tokens(writer)
    for name in ("token_embd.weight", "output.weight"):
        writer.add_tensor(name, np.ones((31, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    folder = tmp_path_factory.mktemp("repository")
    write_tiny(folder / "tiny-F16.gguf")
    write_tiny(folder / "tiny-Q4_K_M.gguf")
    write_tiny(folder / "tiny-Q8_0.gguf", split_max_tensors=1)
    (folder / PROJECTOR).write_bytes(b"an image projector")
    assert sorted(path.name for path in folder.glob("tiny-Q8_0*")) == PARTS
    with fake_hub(folder) as running:
        yield running


def pull(hub: FakeHub, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    hub.requests.clear()
    folders = {"HF_HOME": str(home), "DRAGOMAN_CACHE": str(home / "dragoman")}
    return run_forked("pull", *arguments, environment=os.environ | folders | {"HF_ENDPOINT": hub.url})


def fetched(hub: FakeHub) -> list[str]:
    return sorted(
        {line.rpartition("/")[2] for line in hub.requests if line.startswith("GET") and line.endswith(".gguf")}
    )


@pytest.mark.parametrize(("quantization", "files"), [("q4_k_m", ["tiny-Q4_K_M.gguf"]), ("Q8_0", PARTS)])
def test_the_files_of_one_quantization_are_fetched(
    hub: FakeHub, tmp_path: Path, quantization: str, files: list[str]
) -> None:
    done = pull(hub, tmp_path, "owner/model", "--quantization", quantization)
    assert done.returncode == 0, done.stderr
    assert fetched(hub) == [PROJECTOR, *files]
    assert sorted(path.name for path in tmp_path.glob("hub/*/snapshots/*/*.gguf")) == [PROJECTOR, *files]
    assert f"dragoman run owner/model:{quantization} " in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--quantization", "Q5_K_M"), f"owner/model has no GGUF file Q5_K_M; there are: {THERE}"),
        ((), SEVERAL),
        (("--quantization", "int4"), SEVERAL),
    ],
)
def test_a_choice_that_is_not_there_is_answered_with_those_that_are(
    hub: FakeHub, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    done = pull(hub, tmp_path, "owner/model", *options)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {said}")
    assert "Traceback" not in done.stderr
    assert fetched(hub) == []
