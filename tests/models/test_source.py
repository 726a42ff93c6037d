"""Where models come from: folders, the embedded one, and a hub (a small one of our own on 127.0.0.1)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import COMMIT, fake_hub
from small_models import VARIANTS, make_folder

from dragoman.core.errors import ModelError
from dragoman.models import describe, embedded_path
from dragoman.models.safetensors_file import read_safetensors
from dragoman.models.short_names import repository_of, similar_names
from dragoman.models.source import find_source, find_weights, open_files, source_name
from dragoman.text.tokenizer_files import read_tokenizer_files

FIND = """
import sys
from dragoman.core.errors import ModelError
from dragoman.models import describe, embedded_path
from dragoman.models.source import find_weights
revision, token, weights = (argument or None for argument in sys.argv[1:])
try:
    described = describe("owner/model", revision=revision, token=token)
    told = []
    progress = lambda stage, share: told.append((stage, share))
    source = find_weights(described.source, token=token, progress=progress) if weights else described.source
    print(*told, file=sys.stderr)
    print(source.name, source.revision, *sorted(path.name for path in source.folder.iterdir()))
except ModelError as error:
    print("ModelError:", error)
"""


def find(
    url: str, cache: Path, *, revision: str = "", token: str = "", weights: bool = True, offline: bool = False
) -> str:
    """What a process of its own finds: hub address and cache are settings of the environment."""
    environment = os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "1" if offline else "0"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("HF_TOKEN", None)
    command = [sys.executable, "-c", FIND, revision, token, "weights" if weights else ""]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    # Downloaded or not: what is said of it ends with all of it.
    assert "downloading" not in done.stderr or "('downloading', 1.0)" in done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("hub"), VARIANTS["llama"], "BF16", shard_bytes=60_000)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("not needed")
    (folder / "pytorch_model.bin").write_bytes(b"never fetched")
    return folder


def test_describing_a_hub_model_fetches_no_weights(repository: Path, tmp_path: Path) -> None:
    with fake_hub(repository) as hub:
        found = find(hub.url, tmp_path, weights=False)
    assert found.split()[:2] == ["owner/model", COMMIT]
    assert "tokenizer.json" in found
    assert not [request for request in hub.requests if request.endswith((".safetensors", ".bin", "README.md"))]


def test_scheme_of_a_quantized_hub_model_is_known_before_its_weights_are_fetched(
    repository: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(repository, tmp_path / "quantized")
    (folder / "quantize_config.json").write_text('{"bits": 5, "group_size": 128}')
    with fake_hub(folder) as hub:
        assert find(hub.url, tmp_path).startswith("ModelError: quantize_config.json: bits 5 is not supported")
    assert not [request for request in hub.requests if request.endswith(".safetensors")]


def test_hub_model_is_fetched_whole_then_found_offline(repository: Path, tmp_path: Path) -> None:
    with fake_hub(repository) as hub:
        fetched = find(hub.url, tmp_path)
        hub.requests.clear()
        assert find(hub.url, tmp_path) == fetched
        assert not [request for request in hub.requests if "/resolve/" in request]
    shards = [path.name for path in repository.glob("*.safetensors")]
    assert len(shards) > 1
    assert set(shards) < set(fetched.split())
    assert not {"pytorch_model.bin", "README.md"} & set(fetched.split())
    assert find("http://127.0.0.1:9", tmp_path, offline=True) == fetched
    assert find("http://127.0.0.1:9", tmp_path) == fetched  # the hub is down


def test_revision_is_resolved_to_its_commit(repository: Path, tmp_path: Path) -> None:
    with fake_hub(repository) as hub:
        assert COMMIT in find(hub.url, tmp_path, revision="v1", weights=False)
        assert find(hub.url, tmp_path, revision="v9").startswith("ModelError: owner/model has no revision v9")


def test_private_model_needs_its_token(repository: Path, tmp_path: Path) -> None:
    with fake_hub(repository, token="hf_secret") as hub:
        refused = find(hub.url, tmp_path)
        assert refused.startswith("ModelError: owner/model is neither a folder here nor on the hub")
        assert "token" in refused
        assert COMMIT in find(hub.url, tmp_path, token="hf_secret")


def test_model_that_is_nowhere_offline_says_so(tmp_path: Path) -> None:
    said = find("http://127.0.0.1:9", tmp_path, offline=True)
    assert said.rstrip() == (
        "ModelError: owner/model is no folder here and not in the hub's cache on this machine, "
        "and HF_HUB_OFFLINE forbids asking the hub"
    )


def test_pickled_hub_model_is_refused_before_it_is_fetched(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "config.json").write_bytes((repository / "config.json").read_bytes())
    (folder / "pytorch_model.bin").write_bytes(b"never fetched")
    with fake_hub(folder) as hub:
        said = find(hub.url, tmp_path)
    assert said.startswith("ModelError: owner/model: pytorch_model.bin is a pickle file")
    assert not [request for request in hub.requests if request.endswith(".bin")]


def test_local_folder_is_used_where_it_lies(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["gpt2"], "F16")
    source = find_weights(find_source(str(folder)))
    assert (source.name, source.folder, source.repository) == (folder.name, folder, None)
    assert source.weight_files == ("model.safetensors",)


def test_description_tells_eos_and_bos_ids(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["gpt2"])
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 5], "bos_token_id": null}')
    described = describe(folder)
    assert described.eos_token_ids == (7, 5)
    assert described.bos_token_id == 1  # the config's, where the generation config has none
    (folder / "generation_config.json").unlink()
    assert describe(folder).eos_token_ids == (2,)
    (folder / "generation_config.json").write_text('{"eos_token_id": 131}')
    with pytest.raises(ModelError, match=r"config\.json: eos_token_id 131 is beyond the vocabulary of 131"):
        describe(folder)


def test_what_is_no_model_folder_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        describe(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: is not valid JSON"):
        describe(tmp_path)
    with pytest.raises(ModelError, match="is a file; name the folder"):
        describe(tmp_path / "config.json")


def test_an_empty_name_is_not_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert find_source(".").folder == Path()
    with pytest.raises(ModelError, match="the model has no name"):
        find_source("")


def test_a_repository_without_its_owner_is_told_with_it() -> None:
    assert similar_names("qwen3-0.6B") == "; is Qwen/Qwen3-0.6B meant, in short qwen3:0.6b?"
    assert similar_names("qwen3:9b").startswith("; short names are qwen3:0.6b, ")
    assert similar_names("nothing") == "; `dragoman models suggest` lists short names"


@pytest.mark.parametrize(
    ("address", "name"),
    {
        "https://huggingface.co/Qwen/Qwen3-0.6B": "Qwen/Qwen3-0.6B",
        "huggingface.co/Qwen/Qwen3-0.6B/": "Qwen/Qwen3-0.6B",
        "https://huggingface.co/Qwen/Qwen3-0.6B/tree/main?library=x": "Qwen/Qwen3-0.6B",
        "https://hf.co/o/n-GGUF/blob/main/Q4/n.gguf": "o/n-GGUF:Q4/n.gguf",
        "https://huggingface.co/o/n/resolve/main/config.json": "o/n",
        "hf.co/o/n-GGUF:Q4_K_M": "o/n-GGUF:Q4_K_M",
        "https://huggingface.co/o/n/tree/v2": "",
        "https://example.org/o/n": "",
        "o/n@v2": "",
    }.items(),
)
def test_an_address_of_the_hub_is_its_model(address: str, name: str) -> None:
    if name:
        assert repository_of(address) == source_name(address) == name
        return
    with pytest.raises(ModelError, match=r"named as owner/name, with a branch, tag or commit by --revision"):
        find_source(address)


def test_a_folder_that_is_something_else_is_told_as_what_it_is(tmp_path: Path) -> None:
    def refusal() -> str:
        with pytest.raises(ModelError) as refused:
            describe(tmp_path)
        return refused.value.message.partition("it is not a model folder")[2]

    (tmp_path / "logs").mkdir()
    assert refusal() == ""
    for commit in ("0" * 40, "1" * 40):  # the folder of a repository in the hub's cache
        (tmp_path / "snapshots" / commit).mkdir(parents=True)
        (tmp_path / "snapshots" / commit / "config.json").write_text("{}")
        last = tmp_path / "snapshots" / commit
        assert refusal() in (f"; is {last} meant?", f"; name one inside of it, as {last}")
    shutil.rmtree(tmp_path / "snapshots")
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "checkpoint-500" / "model.Q4_0.gguf").write_bytes(b"")
    assert refusal() == f"; is {tmp_path / 'checkpoint-500'} meant?"
    (tmp_path / "params.json").write_text("{}")
    assert "layout of its maker" in refusal()
    for name in ("manifests", "blobs"):
        (tmp_path / name).mkdir()
    assert "ollama show --modelfile NAME" in refusal()
    (tmp_path / "adapter_config.json").write_text("{}")
    assert refusal().endswith(f"with --lora-adapters NAME={tmp_path}")


def test_a_path_at_which_nothing_is_says_so_and_what_is_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    for path, hint in {
        "./nowhere": "",
        "./my-modle": f"; is {tmp_path}/my-model meant?",
        "my-model/at/all": f", of its path only {tmp_path}/my-model is there",
        "-model": f"; is {tmp_path}/my-model meant?",
        "owner/..name": f", of its path only {tmp_path} is there",
    }.items():
        with pytest.raises(ModelError) as refused:
            describe(path)
        start = f"there is no folder or file {path}{hint} (a model of the hub"
        assert refused.value.message.startswith(start)


def test_a_web_page_in_the_place_of_a_file_is_told_as_one(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"])
    page = b"\n<!DOCTYPE html>\n<html><head><title>model.safetensors</title></head></html>" * 9
    for name in ("tokenizer.json", "a.gguf", "model.safetensors", "config.json"):
        (folder / name).write_bytes(page)
    for name, read in {
        "a.gguf": lambda: describe(folder / "a.gguf"),
        "tokenizer.json": lambda: read_tokenizer_files(folder),
        "model.safetensors": lambda: read_safetensors(folder, ["model.safetensors"]),
        "config.json": lambda: describe(folder),
    }.items():
        with pytest.raises(ModelError, match=rf"{name}: is a web page, .* addresses of files have /resolve/"):
            read()


def test_a_link_to_nothing_is_told_as_one(tmp_path: Path) -> None:
    """As a copy of a folder of the hub's cache has them."""
    folder = make_folder(tmp_path, VARIANTS["llama"])
    (folder / "tokenizer.json").write_text("{}")
    (folder / "a.gguf").symlink_to("../../blobs/gone")
    told = "is a link to ../../blobs/gone, which is not there; copy its folder with cp -rL"
    for path, read in {
        "a.gguf": lambda: describe(folder / "a.gguf"),
        "tokenizer.json": lambda: read_tokenizer_files(folder),
        "model.safetensors": lambda: open_files(find_weights(find_source(folder))),
        "config.json": lambda: describe(folder),
    }.items():
        (folder / path).unlink()
        (folder / path).symlink_to("../../blobs/gone")
        with pytest.raises(ModelError) as refused:
            read()
        assert refused.value.message.startswith(f"{folder / path}: {told}")
        if path == "a.gguf":
            (folder / path).unlink()


def test_git_lfs_pointer_is_named_with_what_fetches_it(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345678\n"
    folder = make_folder(tmp_path, VARIANTS["llama"], "F16")
    for name in ("model.safetensors", "config.json"):
        (folder / name).write_bytes(pointer)
        with pytest.raises(ModelError) as refused:
            open_files(find_weights(describe(str(folder)).source))
        told = f"{folder / name}: is a Git LFS pointer, the file itself has not been fetched; fetch it with: "
        assert refused.value.message.startswith(f"{told}git -C {folder} lfs pull")
    for name in ("tokenizer.json", "a.gguf", "weights"):
        (folder / name).write_bytes(pointer)
    with pytest.raises(ModelError, match=r"tokenizer\.json: is a Git LFS pointer"):
        read_tokenizer_files(folder)
    for name in ("a.gguf", "weights"):
        with pytest.raises(ModelError, match=f"{name}: is a Git LFS pointer"):
            describe(str(folder / name))


def test_missing_weights_are_told_with_the_folder_that_lacks_them(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"], "BF16", shard_bytes=60_000)
    shard = min(folder.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(ModelError, match=f"^{folder}: {shard.name} is missing, which .* names; copy it into"):
        find_weights(find_source(folder))
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=f"^{folder}: {shard.name} is missing, one of [2-9] files; copy it into"):
        find_weights(find_source(folder))
    for path in folder.glob("*.safetensors"):
        path.rename(path.with_name(f"part{path.name[6:11]}.safetensors"))
    with pytest.raises(ModelError, match=r"safetensors files .* to join them; fetch that file from where"):
        find_weights(find_source(folder))
    for path in folder.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ModelError, match=f"^{folder}: has no weights: there is no"):
        find_weights(find_source(folder))


def test_parts_are_one_model_without_their_index_too(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"], "BF16", shard_bytes=60_000)
    indexed = find_weights(find_source(folder)).weight_files
    (folder / "model.safetensors.index.json").unlink()
    parts = find_weights(find_source(folder))
    assert len(parts.weight_files) > 1
    assert parts.weight_files == indexed
    assert open_files(parts).tensors


def test_one_file_counts_before_an_index_of_files_that_are_gone(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"])
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "model-00001-of-00002.safetensors"}}')
    assert find_weights(find_source(folder)).weight_files == ("model.safetensors",)


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_what_mlx_quantized_is_refused_as_such(key: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"] | {key: {"group_size": 64, "bits": 4}})
    with pytest.raises(ModelError, match=f"{key}: weights that MLX quantized are not supported; take the model"):
        describe(folder)


def test_an_unknown_architecture_is_told_with_what_may_be_wrong(tmp_path: Path) -> None:
    more = {"architectures": ["Mine"], "auto_map": {"AutoModel": "modeling.Mine"}}
    folder = make_folder(tmp_path, VARIANTS["llama"])
    (folder / "config.json").write_text(json.dumps(VARIANTS["llama"] | more))
    told = "is not supported; the model comes with code of its own.*; known: LlamaForCausalLM, "
    with pytest.raises(ModelError, match=told):
        describe(folder)


def test_a_config_that_names_no_architecture_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="names no architecture: it has neither architectures nor model_type"):
        describe(tmp_path)


def test_describing_needs_no_kernels_and_no_hub_client(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["llama"])
    code = (
        "import sys, dragoman.models as m; d = m.describe(sys.argv[1]); m.plan(d);"
        "print([n for n in ('dragoman.kernels', 'huggingface_hub.hf_api') if n in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_embedded_model_is_found_and_served_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    described = describe()
    assert described.source.name == "embedded"
    assert described.source.folder == embedded_path() == describe("embedded").source.folder
    assert described.spec.architecture == "LlamaForCausalLM"
    (tmp_path / "builtin").mkdir()
    (tmp_path / "builtin" / "config.json").write_text("{}")
    monkeypatch.setattr("importlib.resources.files", lambda _: tmp_path)  # an installed package comes before a checkout
    assert embedded_path() == tmp_path / "builtin"
