"""``dragoman config``: LocalLab's command of that name, which asks for the settings that ``dragoman start`` begins
with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import typer

from dragoman.cli import console
from dragoman.cli.locallab_start import check_saved, read_saved, saved_file, write_saved
from dragoman.core.errors import DragomanError
from dragoman.core.regular_file import FileName
from dragoman.dialects.locallab.settings import LocalLabSettings

_HERE_ONLY = {"configurable": False}

QUESTIONS: dict[str, tuple[type | tuple[str, ...], str]] = {
    "model_id": (str, "model: a folder, a GGUF file or a hub id"),
    "huggingface_token": (str, "access token of the hub"),
    "enable_quantization": (bool, "quantize the weights"),
    "quantization_type": (("fp16", "int8", "int4"), "to what"),
    "port": (int, "port"),
    "max_length": (int, "most new tokens, where a request does not say"),
    "temperature": (float, "temperature, likewise"),
    "top_p": (float, "top_p"),
    "top_k": (int, "top_k"),
    "repetition_penalty": (float, "repetition penalty"),
    "max_time": (float, "longest generation, seconds"),
    "use_ngrok": (bool, "open a tunnel through ngrok"),
    "ngrok_auth_token": (str, "its token"),
}
"""The keys that have an effect here: the type of each value, and its meaning. Others in the file stay."""

SECRETS = frozenset({"huggingface_token", "ngrok_auth_token"})
NONE = "-"
"""The input that clears a value."""


class ConfigSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The action on the saved configuration."""

    PANEL: ClassVar[str] = "Options"

    show: Annotated[bool, msgspec.Meta(description="Show what is saved, and ask nothing.", extra=_HERE_ONLY)] = False
    reset: Annotated[bool, msgspec.Meta(description="Forget what is saved.", extra=_HERE_ONLY)] = False
    yes: Annotated[bool, msgspec.Meta(description="Do not ask whether to forget it.", extra=_HERE_ONLY)] = False
    locallab_folder: Annotated[FileName, msgspec.Meta(description="Where it is saved.")] = (
        LocalLabSettings().locallab_folder
    )


def config(asked: ConfigSettings) -> None:
    """Choose what `dragoman start` begins with. Enter keeps a value, - forgets it."""
    if asked.show and asked.reset:
        raise DragomanError("--show and --reset exclude each other")
    file = saved_file(asked.locallab_folder)
    if asked.reset:
        if file.is_file() and not asked.yes:
            typer.confirm(f"Delete {file}?", abort=True, err=True)
        file.unlink(missing_ok=True)
        console.notes().print(f"Nothing is saved in {file} now", markup=False)
        return
    saved = read_saved(asked.locallab_folder)
    _show(saved, file)
    if asked.show or not typer.confirm("Change it?", default=True, err=True):
        return
    for key in QUESTIONS:
        saved[key] = _answer(key, saved.get(key))
    write_saved(file, {key: value for key, value in saved.items() if value is not None})
    console.notes().print(f"Saved in {file}. Start it: dragoman start", markup=False)


def _show(saved: dict[str, Any], file: Path) -> None:
    if not saved:
        console.notes().print(f"Nothing is saved in {file}", markup=False)
    for key, value in saved.items():
        console.output().print(f"{key:>26}  {_shown(key, value)}", markup=False)


def _shown(key: str, value: object) -> str:
    """Return the value as it is typed; for a secret only that there is one."""
    if value is None or value == "":
        return NONE
    if key in SECRETS:
        return "(saved)"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _answer(key: str, now: object) -> object:
    """Ask until the input can be saved, and return its value."""
    kind, meaning = QUESTIONS[key]
    hidden = key in SECRETS and sys.stdin.isatty()
    question = f"{meaning} [{_shown(key, now)}]"
    while True:
        text = typer.prompt(question, default="", show_default=False, hide_input=hidden, err=True).strip()
        if not text:
            return now
        if text == NONE:
            return None
        try:
            value = _value(text, kind)
            check_saved({key: value})
            return value
        except ValueError as error:
            console.error(str(error))
        except DragomanError as error:
            console.error(error.message)


def _value(text: str, kind: type | tuple[str, ...]) -> str | int | float | bool:
    """Return the value of the input. Raises ValueError for one of another type."""
    if isinstance(kind, tuple):
        if text not in kind:
            raise ValueError(f"one of {', '.join(kind)}")
        return text
    if kind is bool:
        words = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
        if text.lower() not in words:
            raise ValueError("yes or no")
        return words[text.lower()]
    if kind is str:
        return text
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        raise ValueError(f"{text[:64]!r} is no {'whole ' if kind is int else ''}number") from None
