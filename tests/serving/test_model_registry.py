"""Which models may be loaded, and that a name never becomes a path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.core.errors import DragomanError, ModelNotFound
from dragoman.serving.model_registry import ModelRegistry, ModelSource, missing_offers
from dragoman.serving.settings import CatalogSettings

FIRST = ModelSource(name="first", source="/somewhere/first", aliases=("org/alias",))
ALONE = CatalogSettings(offer_cached=False)


def model_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    return folder


def names(registry: ModelRegistry) -> list[str]:
    return [source.name for source in registry.sources()]


def test_the_first_model_and_the_embedded_one_are_always_there() -> None:
    assert names(ModelRegistry(ALONE, FIRST)) == ["first", "embedded"]
    assert ModelRegistry(ALONE, FIRST).find("embedded").source is None


def test_what_an_operator_offers(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "Some-Model")
    registry = ModelRegistry(
        CatalogSettings(offer=(f"mine={folder}", str(folder), "org/hub"), offer_cached=False), FIRST
    )
    assert names(registry) == ["first", "mine", "Some-Model", "org/hub", "embedded"]
    found = registry.find("mine")
    assert (found.source, found.architecture, found.size_bytes) == (str(folder), "LlamaForCausalLM", 1000)
    assert registry.find("org/hub") == ModelSource(name="org/hub", source="org/hub")


def test_two_models_do_not_share_a_name(tmp_path: Path) -> None:
    one, two = model_folder(tmp_path / "one"), model_folder(tmp_path / "two")
    known = ModelSource(name="known", source=str(one), aliases=("other",))
    for offers in ((f"known={two}",), (f"other={two}",), (f"mine={one}", f"mine={two}")):
        with pytest.raises(DragomanError, match=f"--offer .*{two}: another model has the name"):
            ModelRegistry(CatalogSettings(offer=offers), known)
    again = ModelRegistry(
        CatalogSettings(offer=(f"known={one}",), models_folder=str(tmp_path), offer_cached=False), known
    )
    assert names(again) == ["known", "one", "two", "embedded"]
    # A folder that has the name of an alias is not listed beside it.
    (tmp_path / "two").rename(tmp_path / "other")
    again.look_again()
    assert names(again) == ["known", "one", "embedded"]


def test_what_is_offered_may_be_missing_and_may_not_be_impossible(tmp_path: Path) -> None:
    missing = CatalogSettings(offer=(f"x={tmp_path}/nope", "gpt2", "org/hub@main", str(tmp_path)))
    ModelRegistry(missing, FIRST)
    assert list(missing_offers(missing)) == [f"x={tmp_path}/nope"]
    for wrong in ("  ", "a\nb", "x=two words", "ü"):
        with pytest.raises(DragomanError, match="is no path, and no hub id"):
            ModelRegistry(CatalogSettings(offer=(wrong,)), FIRST)


@pytest.mark.parametrize("wrong", ["", "=x", "x="])
def test_an_offer_has_a_name_and_a_source(wrong: str) -> None:
    with pytest.raises(DragomanError, match="--offer"):
        ModelRegistry(CatalogSettings(offer=(wrong,)), FIRST)


def test_a_folder_of_models_is_looked_through_again(tmp_path: Path) -> None:
    now = 0.0
    model_folder(tmp_path / "one")
    (tmp_path / "no-model").mkdir()
    settings = CatalogSettings(models_folder=str(tmp_path), offer_cached=False)
    registry = ModelRegistry(settings, FIRST, clock=lambda: now)
    assert names(registry) == ["first", "one", "embedded"]
    model_folder(tmp_path / "two")
    assert "two" not in names(registry)
    now = 60.0
    assert names(registry) == ["first", "one", "two", "embedded"]


def test_gguf_files_are_models_too(tmp_path: Path) -> None:
    for file in ("small.Q8_0.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "mmproj-small.gguf"):
        (tmp_path / file).write_bytes(b"GGUF")
    for file in ("one/only.gguf", "two/x.Q4_0.gguf", "two/x.Q8_0.gguf"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"GGUF")
    (tmp_path / "one" / "config.json").write_text('{"model_type": "llama"}')
    registry = ModelRegistry(CatalogSettings(models_folder=str(tmp_path), offer_cached=False), FIRST)
    offered = {source.name: source.source for source in registry.sources()}
    del offered["first"], offered["embedded"]
    assert offered == {
        "big": str(tmp_path / "big-00001-of-00002.gguf"),
        "small.Q8_0": str(tmp_path / "small.Q8_0.gguf"),
        "one": str(tmp_path / "one" / "only.gguf"),
        "two:x.Q4_0.gguf": str(tmp_path / "two" / "x.Q4_0.gguf"),
        "two:x.Q8_0.gguf": str(tmp_path / "two" / "x.Q8_0.gguf"),
    }
    assert next(source for source in registry.sources() if source.name == "big").size_bytes == 8


def test_the_hubs_cache_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("models--org--tiny", "datasets--org--data"):
        folder = model_folder(tmp_path / kind / "snapshots" / ("0" * 40))
        (folder.parents[1] / "refs").mkdir()
        (folder.parents[1] / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path))
    registry = ModelRegistry(CatalogSettings(), FIRST)
    assert names(registry) == ["first", "org/tiny", "embedded"]
    folder = tmp_path / "models--org--tiny" / "snapshots" / ("0" * 40)
    assert registry.find("tiny").source == str(folder)
    (folder / "model.safetensors").rename(folder / "tiny.Q8_0.gguf")
    registry = ModelRegistry(CatalogSettings(), FIRST)
    assert registry.find("tiny").source == str(folder / "tiny.Q8_0.gguf")


@pytest.mark.parametrize(
    "name",
    ["/etc", "../models", "~/models", "one/../..", "/somewhere/first", ".", "", "a/b/c", "org/../x", "\x00", "nobody"],
)
@pytest.mark.parametrize("downloads", [False, True])
def test_a_name_never_becomes_a_path(tmp_path: Path, name: str, downloads: bool) -> None:
    model_folder(tmp_path / "one")
    settings = CatalogSettings(models_folder=str(tmp_path), offer_cached=False, offer_downloads=downloads)
    with pytest.raises(ModelNotFound, match="model not found"):
        ModelRegistry(settings, FIRST).find(name)


def test_a_download_goes_to_the_hub_only_when_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFound):
        ModelRegistry(ALONE, FIRST).find("org/unheard-of")
    allowed = CatalogSettings(offer_cached=False, offer_downloads=True)
    for name in ("org/unheard-of", "hf.co/org/unheard-of", "https://huggingface.co/org/unheard-of:latest"):
        assert ModelRegistry(allowed, FIRST).find(name).source == "org/unheard-of"
        assert ModelRegistry(allowed, FIRST).find_on_hub(name).source == "org/unheard-of"
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "org" / "unheard-of")
    with pytest.raises(ModelNotFound):
        ModelRegistry(allowed, FIRST).find("org/unheard-of")


def test_short_names_are_taken_where_only_one_fits(tmp_path: Path) -> None:
    registry = ModelRegistry(CatalogSettings(offer=("a/phi-2=x", "b/qwen=y", "c/qwen=z"), offer_cached=False), FIRST)
    assert registry.find("Phi-2").name == "a/phi-2"
    assert registry.find("alias").name == "first"
    with pytest.raises(ModelNotFound):
        registry.find("qwen")
