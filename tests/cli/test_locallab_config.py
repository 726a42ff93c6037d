"""``dragoman config`` asks for what ``dragoman start`` reads, as LocalLab's command of that name did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dragoman.cli.app import cli
from dragoman.cli.env_compat import borrowed
from dragoman.cli.locallab_config import NONE, QUESTIONS
from dragoman.cli.locallab_start import texts_by_option


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_LOCALLAB_FOLDER", str(tmp_path / "lab"))
    return tmp_path / "lab" / "config.json"


def config(*arguments: str, typed: str = "", code: int = 0) -> Result:
    result = CliRunner().invoke(cli.typer, ["config", *arguments], input=typed)
    assert result.exit_code == code, result.output
    return result


def answers(**given: str) -> str:
    """What is typed: yes, change it; then the keys' answers, and Enter for the others."""
    return "".join(f"{line}\n" for line in ("y", *(given.get(key, "") for key in QUESTIONS)))


def saved(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_text())
    assert isinstance(found, dict)
    return found


def test_answers_are_saved_for_start_and_for_the_owner_alone(file: Path) -> None:
    given = {"model_id": "org/one", "port": "8111", "temperature": "0", "top_p": "0.5", "use_ngrok": "no"}
    config(typed=answers(**given, huggingface_token="hf_secret", enable_quantization="yes", quantization_type="int4"))
    assert saved(file) == {
        "model_id": "org/one",
        "huggingface_token": "hf_secret",
        "enable_quantization": True,
        "quantization_type": "int4",
        "port": 8111,
        "temperature": 0.0,
        "top_p": 0.5,
        "use_ngrok": False,
    }
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(file.parent.iterdir()) == [file]
    options = texts_by_option({}, str(file.parent))
    assert (options["model"], options["port"], options["precision"]) == ("org/one", "8111", "int4")


def test_every_question_has_an_effect() -> None:
    values = {bool: "true", int: "12", float: "1.5", str: "text"}
    switched_on = {"LOCALLAB_ENABLE_QUANTIZATION": "true"}
    for key, (kind, _) in QUESTIONS.items():
        if key not in ("ngrok_auth_token", "enable_quantization", "quantization_type"):
            value = values[kind] if isinstance(kind, type) else kind[-1]
            assert value in _options({key: value}).values(), key
    assert borrowed("locallab", switched_on)["precision"] == "int8"


def _options(values: dict[str, Any]) -> dict[str, str]:
    from dragoman.cli.locallab_start import _variables

    return borrowed("locallab", _variables(values))


def test_enter_keeps_and_a_dash_forgets(file: Path) -> None:
    file.parent.mkdir()
    file.write_text(json.dumps({"port": 8111, "top_k": 3, "model_timeout": 3600}))
    config(typed=answers(top_k=NONE))
    assert saved(file) == {"port": 8111, "model_timeout": 3600}


@pytest.mark.parametrize(
    ("key", "wrong", "right", "said"),
    [
        ("port", "abc", "81", "whole number"),
        ("temperature", "9", "1.5", "<= 2.0"),
        ("quantization_type", "int9", "fp16", "fp16, int8, int4"),
        ("use_ngrok", "perhaps", "yes", "yes or no"),
    ],
)
def test_what_cannot_be_saved_is_asked_again(file: Path, key: str, wrong: str, right: str, said: str) -> None:
    result = config(typed=answers(**{key: f"{wrong}\n{right}"}))
    assert said in result.output
    assert list(saved(file)) == [key]


def test_show_tells_what_is_saved_but_no_secrets(file: Path) -> None:
    assert "Nothing is saved" in config("--show").output
    config(typed=answers(ngrok_auth_token="a-token", port="8111"))
    shown = config("--show").output
    assert "8111" in shown
    assert "(saved)" in shown
    assert "a-token" not in shown + config(typed="n\n").output


def test_reset_asks_and_forgets(file: Path) -> None:
    config(typed=answers(port="8111"))
    config("--reset", typed="n\n", code=1)
    assert file.exists()
    config("--reset", "--yes")
    config("--reset")
    assert not file.exists()
    assert "exclude" in config("--reset", "--show", code=1).output


def test_nothing_is_saved_when_the_questions_end_early(file: Path) -> None:
    config(typed="y\norg/one\n", code=1)
    assert not file.exists()
