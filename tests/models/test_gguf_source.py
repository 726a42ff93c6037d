"""Where GGUF models come from: files, folders, and a hub (a small one of our own on 127.0.0.1)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from fake_hub import fake_hub
from gguf import GGMLQuantizationType as Type
from gguf_files import write_gguf
from small_models import VARIANTS, make_folder
from test_gguf_models import LLAMA, back_llama, change_llama, describe_llama

from dragoman.core.errors import ModelError
from dragoman.models import describe
from dragoman.models.source import find_source, source_name

FIND = """
import sys
from dragoman.core.errors import ModelError
from dragoman.models import describe
try:
    told = []
    from dragoman.models.source import find_source
    source = find_source(sys.argv[1], progress=lambda stage, share: told.append((stage, share)))
    print(source.name, len(source.revision), *(path.name for path in source.gguf))
    describe(sys.argv[1])
except ModelError as error:
    print("ModelError:", error)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("model")
    folder = make_folder(root, LLAMA.config)
    return write_gguf(
        root / "llama-Q8_0.gguf", folder, "llama", lambda name: Type.Q8_0, describe_llama, change_llama, back_llama
    )


def find(url: str, home: Path, source: str, *, offline: bool = False) -> str:
    """What a process of its own finds: hub address and cache are settings of the environment."""
    environment = os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1" if offline else "0"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("HF_TOKEN", None)
    done = subprocess.run(
        [sys.executable, "-c", FIND, source], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_file_is_named_after_itself(model: Path) -> None:
    described = describe(model)
    assert described.source.name == source_name(model) == "llama-Q8_0"
    assert described.spec.architecture == "LlamaForCausalLM"
    assert described.precision("auto") == "int8"
    assert described.eos_token_ids[0] == 2
    assert described.bos_token_id == 1


def test_a_folder_with_one_model_and_no_config_is_that_model(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    os.link(model, folder / "a.gguf")
    (folder / "mmproj-a.gguf").write_bytes(b"no model")
    assert describe(folder).source.gguf == (folder / "a.gguf",)
    assert describe(folder).source.name == "mine"
    os.link(model, folder / "b.gguf")
    with pytest.raises(ModelError, match=r"mine has 2 GGUF models: name one of a\.gguf, b\.gguf, as in .*/a\.gguf$"):
        find_source(folder)
    for one in ("a", "a.gguf"):  # as of a repository on the hub
        found = find_source(f"{folder}:{one}")
        assert (found.name, found.gguf) == (f"mine:{one}", (folder / "a.gguf",))
        assert source_name(f"{folder}:{one}") == f"mine:{one}"
    with pytest.raises(ModelError, match=r"mine has no GGUF file c; there are: a\.gguf, b\.gguf"):
        find_source(f"{folder}:c")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=f"has its GGUF files in folders: name one of them, as {folder}$"):
        find_source(tmp_path)


def test_a_folder_with_a_config_is_a_gguf_model_unless_it_has_safetensors(model: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"])
    os.link(model, folder / "a.gguf")
    assert describe(folder).source.gguf == ()
    (folder / "model.safetensors").unlink()  # as repositories of GGUF files are, which describe the model too
    assert describe(folder).source.gguf == (folder / "a.gguf",)


def test_file_is_known_by_how_it_begins_whatever_its_name(model: Path, tmp_path: Path) -> None:
    unnamed = tmp_path / "sha256-4d7a2146"  # as a store of blobs has them
    unnamed.write_bytes(model.read_bytes())
    assert find_source(unnamed).gguf == (unnamed,)
    assert source_name(unnamed) == "sha256-4d7a2146"
    assert describe(unnamed).spec == describe(model).spec


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGML")
    with pytest.raises(ModelError, match=r"x\.gguf: is not a GGUF file"):
        find_source(tmp_path / "x.gguf")
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"x\.bin is a file; name the folder .* or a GGUF file"):
        find_source(tmp_path / "x.bin")
    with pytest.raises(ModelError, match="there is no folder or file"):
        find_source(tmp_path / "missing.gguf")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "adapter",
            "general.type is 'adapter': it is not a model that can be served; adapters are read in PEFT's layout",
        ),
        ("mmproj", "general.type is 'mmproj': it is not a model that can be served; name the model that it goes with"),
        ("model", "general.architecture 'rwkv7' is not"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    kind: str, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "rwkv7")
    writer.add_type(kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tmp_path / "mmproj-x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=words):
        find_source(tmp_path / "x.gguf")
    assert "text only" not in caplog.text


def test_keys_and_tensors_of_no_known_use_are_refused(tmp_path: Path) -> None:
    def with_key(writer: gguf.GGUFWriter, config: dict[str, object]) -> None:
        describe_llama(writer, config)
        writer.add_float32("llama.attention.twist", 0.5)

    def with_tensor(writer: gguf.GGUFWriter, config: dict[str, object]) -> None:
        describe_llama(writer, config)
        writer.add_tensor("blk.0.attn_twist.weight", np.ones(32, np.float32))

    folder = make_folder(tmp_path, LLAMA.config)
    for describing, words in (
        (with_key, r"llama\.attention\.twist is not known"),
        (with_tensor, "attn_twist.weight: is"),
    ):
        file = write_gguf(tmp_path / "x.gguf", folder, "llama", lambda name: Type.F32, describing, change_llama)
        with pytest.raises(ModelError, match=words):
            describe(file)


def test_a_hub_repository_with_one_model_is_that_model(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    os.link(model, folder / "llama-Q8_0.gguf")
    (folder / "README.md").write_text("not needed")
    (folder / "config.json").write_text('{"model_type": "llama"}')  # as many such repositories have
    with fake_hub(folder) as hub:
        home = tmp_path / "home"
        assert find(hub.url, home, "owner/model") == "owner/model 40 llama-Q8_0.gguf"
        assert not any("README" in request for request in hub.requests)
        assert find(hub.url, home, "owner/model:q8_0") == "owner/model:q8_0 40 llama-Q8_0.gguf"
        assert "has no GGUF file Q4_0; there are: llama-Q8_0.gguf" in find(hub.url, home, "owner/model:Q4_0")
    assert find(hub.url, home, "owner/model", offline=True) == "owner/model 40 llama-Q8_0.gguf"


def test_of_several_on_the_hub_one_has_to_be_named(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    os.link(model, folder / "llama-Q8_0.gguf")
    (folder / "llama-Q4_0.gguf").write_bytes(b"never fetched")
    with fake_hub(folder) as hub:
        said = find(hub.url, tmp_path / "home", "owner/model")
        assert (
            "owner/model has 2 GGUF models: name one of llama-Q4_0.gguf, llama-Q8_0.gguf, "
            "as in owner/model:llama-Q4_0.gguf" in said
        )
        named = find(hub.url, tmp_path / "home", "owner/model:llama-Q8_0.gguf")
        assert named == "owner/model:llama-Q8_0.gguf 40 llama-Q8_0.gguf"
        assert not any("Q4_0.gguf" in request for request in hub.requests)
