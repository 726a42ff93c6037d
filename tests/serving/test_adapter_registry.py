"""Which adapters a server may be told to load: what the operator names, and nothing that a client makes a path of."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.core.errors import AdapterNotFound, DragomanError
from dragoman.serving.adapter_registry import AdapterRegistry, AdapterSource, read_list
from dragoman.serving.settings import AdapterSettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("poems", "recipes"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
        (tmp_path / "adapters" / name / "adapter_config.json").write_text("{}")
    (tmp_path / "adapters" / "empty").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "adapter_config.json").write_text("{}")
    return tmp_path / "adapters"


@pytest.mark.parametrize(
    ("text", "offers"),
    [
        (None, ()),
        (" ", ()),
        ("org/poems", (AdapterSource("org/poems", "org/poems"),)),
        ("org/poems@v1", (AdapterSource("org/poems", "org/poems", "v1"),)),
        ("poems=/data/poems", (AdapterSource("poems", "/data/poems"),)),
        ("poems=org/poems@v1", (AdapterSource("poems", "org/poems", "v1"),)),
        (
            "org/poems, recipes=/data/recipes",
            (AdapterSource("org/poems", "org/poems"), AdapterSource("recipes", "/data/recipes")),
        ),
    ],
)
def test_the_list_of_the_start(text: str | None, offers: tuple[AdapterSource, ...]) -> None:
    assert read_list(text) == offers


@pytest.mark.parametrize("item", ["a@b@c", "n=a=b", "", "=a", "n=", "a@", "@b", "n=a@"])
def test_what_is_no_adapter_is_named(item: str) -> None:
    with pytest.raises(DragomanError, match=f"^Invalid LoRA adapter format: {item}$"):
        read_list(f"good,{item}")


def test_two_of_one_name() -> None:
    with pytest.raises(DragomanError, match="two adapters are called a"):
        read_list("a=/x,a=/y")


def test_the_folder_offers_what_holds_an_adapter(folder: Path) -> None:
    registry = AdapterRegistry(AdapterSettings(lora_adapters="poems=/elsewhere", adapters_folder=str(folder)))
    assert [(source.name, source.source) for source in registry.sources()] == [
        ("poems", "/elsewhere"),
        ("recipes", str(folder / "recipes")),
    ]
    assert registry.find("recipes").source == str(folder / "recipes")
    assert registry.find("mine", "recipes") == AdapterSource("mine", str(folder / "recipes"))
    assert registry.find("mine", str(folder / "recipes")) == AdapterSource("mine", str(folder / "recipes"))


@pytest.mark.parametrize("source", ["../secret", "{folder}/../secret", "/etc", "empty", "nothing", "org/poems", "."])
def test_a_client_s_words_never_become_a_path(folder: Path, source: str) -> None:
    registry = AdapterRegistry(AdapterSettings(adapters_folder=str(folder)))
    with pytest.raises(AdapterNotFound, match=r"to load\. There are: "):
        registry.find("mine", source.format(folder=folder))
    with pytest.raises(AdapterNotFound):
        registry.find(source.format(folder=folder))


def test_repositories_only_where_downloads_are_offered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = AdapterRegistry(AdapterSettings(), allow_downloads=True)
    assert registry.find("mine", "org/poems") == AdapterSource("mine", "org/poems")
    monkeypatch.chdir(folder.parent)
    with pytest.raises(AdapterNotFound):
        registry.find("mine", "adapters/poems")  # a folder here, and nobody's to name
