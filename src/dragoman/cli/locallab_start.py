"""``dragoman start``: LocalLab's command of that name, a variant of ``serve --dialect locallab``.

The settings that ``locallab config``, or ``dragoman config``, saved in ``~/.locallab/config.json`` count where neither
the command line nor a variable sets them, and those of the command line are saved there for later starts.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from dragoman.cli.configuration import from_texts
from dragoman.cli.env_compat import CORS_SWITCH, LOCALLAB, Environment, borrowed, useless
from dragoman.cli.logs import LogSettings
from dragoman.cli.options import options_of
from dragoman.cli.settings import ModelOption
from dragoman.cli.tunnel import TOKEN_VARIABLES, TunnelSettings
from dragoman.core.errors import DragomanError
from dragoman.core.user_folders import expand_user, is_file
from dragoman.core.whole_file import replace_file
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.models.settings import ModelSettings
from dragoman.server.settings import BrowserSettings, ServerSettings

DIALECT = "locallab"

SPELLINGS: dict[str, tuple[str, ...]] = {
    "public": ("--use-ngrok",),
    "ngrok_token": ("--ngrok-auth-token",),
    "locallab_max_length": ("--max-length",),
    "locallab_temperature": ("--temperature",),
    "locallab_top_p": ("--top-p",),
    "locallab_top_k": ("--top-k",),
    "locallab_repetition_penalty": ("--repetition-penalty",),
    "quantized": ("--quantize",),
}
"""LocalLab's flags, by the option that they set here."""

SAVED: dict[str, str] = {
    "model_id": "HUGGINGFACE_MODEL",
    "huggingface_token": "HUGGINGFACE_TOKEN",
    "ngrok_auth_token": "NGROK_AUTHTOKEN",
    "max_length": "LOCALLAB_MODEL_MAX_LENGTH",
    "temperature": "LOCALLAB_MODEL_TEMPERATURE",
    "top_p": "LOCALLAB_MODEL_TOP_P",
}
"""Keys of the saved configuration that are named differently from their variables, ``LOCALLAB_`` and the key."""

KEYS: dict[str, str] = {
    "model": "model_id",
    "port": "port",
    "public": "use_ngrok",
    "ngrok_token": "ngrok_auth_token",
    "quantized": "enable_quantization",
    "quantize_type": "quantization_type",
    "attention_slicing": "enable_attention_slicing",
    "flash_attention": "enable_flash_attention",
    "better_transformer": "enable_bettertransformer",
    "locallab_max_length": "max_length",
    "locallab_temperature": "temperature",
    "locallab_top_p": "top_p",
    "locallab_top_k": "top_k",
    "locallab_repetition_penalty": "repetition_penalty",
}
"""The options of LocalLab's ``start``, by our names, and the keys under which it saves their values."""

_WITHOUT_EFFECT = ("attention_slicing", "flash_attention", "better_transformer")
_SET_BY_IT = (
    ModelOption,
    ModelSettings,
    ServerSettings,
    BrowserSettings,
    TunnelSettings,
    LogSettings,
    LocalLabSettings,
)
_FILE_LIMIT = 1 << 20


class StartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of LocalLab's ``start`` that ``serve`` does not have.

    Attributes:
        quantized: quantize the weights, to int8 unless --quantize-type says otherwise.
        quantize_type: to what, where weights are quantized.
        attention_slicing: no effect.
        flash_attention: no effect.
        better_transformer: no effect.
    """

    PANEL = "LocalLab's start"

    quantized: bool = False
    quantize_type: Literal["int8", "int4"] | None = None
    attention_slicing: bool = False
    flash_attention: bool = False
    better_transformer: bool = False


def started(asked: StartSettings, model: ModelSettings) -> tuple[ModelSettings, tuple[str, ...]]:
    """Return the model's settings with the options applied, and the sentences about those that have no effect.

    Variables or the saved configuration may have asked for quantization already; then the type alone changes it.
    """
    flags = [f"--{name.replace('_', '-')}" for name in _WITHOUT_EFFECT if getattr(asked, name)]
    notes = [f"{', '.join(flags)}: no effect here, the engine's attention is one and the same"] if flags else []
    if asked.quantized:
        model = msgspec.structs.replace(model, precision=asked.quantize_type or "int8")
    elif asked.quantize_type is not None:
        if model.precision in ("int8", "int4"):
            model = msgspec.structs.replace(model, precision=asked.quantize_type)
        else:
            notes.append(f"--quantize-type {asked.quantize_type}: no effect without --quantize")
    return model, tuple(notes)


def texts_by_option(environment: Environment, folder: str) -> dict[str, str]:
    """Return the options set by LocalLab's variables, or else by its saved configuration.

    Raises DragomanError when there is such a file and it cannot be read.
    """
    rivals = {name: names for option, names in LOCALLAB.items() for name in names if option != "model"}
    rivals |= dict.fromkeys(TOKEN_VARIABLES, TOKEN_VARIABLES)
    saved = {
        name: text
        for name, text in _variables(read_saved(folder)).items()
        if not any(environment.get(rival) for rival in rivals.get(name, (name,)))
    }
    found = borrowed(DIALECT, {**environment, **saved})
    if "NGROK_AUTHTOKEN" in saved:
        found["ngrok_token"] = saved["NGROK_AUTHTOKEN"]
    return found


def without_effect(environment: Environment, folder: str) -> tuple[str, ...]:
    """Return a sentence for each variable that has no effect, and one for all such keys of the saved configuration."""
    known = {name for names in LOCALLAB.values() for name in names}
    known |= {*SAVED.values(), "LOCALLAB_ENABLE_QUANTIZATION", "LOCALLAB_QUANTIZATION_TYPE", CORS_SWITCH}
    saved = read_saved(folder)
    switched_on = {key for key, value in saved.items() if value not in (None, "", False)}
    keys = sorted(key[:64] for key in switched_on if _variable(key) not in known)
    more = f" and {len(keys) - 20} more" if len(keys) > 20 else ""
    said = (f"{saved_file(folder)}: no effect here: {', '.join(keys[:20])}{more}",) if keys else ()
    origins = {
        name: text for name, text in _variables(saved).items() if name in (CORS_SWITCH, *LOCALLAB["cors_origin"])
    }
    return (*useless(DIALECT, {**origins, **environment}), *said)


def saved_file(folder: str) -> Path:
    return expand_user(folder) / "config.json"


def read_saved(folder: str) -> dict[str, Any]:
    """Return the saved configuration; empty where there is none.

    Raises DragomanError for a file that is no JSON object, or has a value of another type than the option it sets.
    """
    path = saved_file(folder)
    if not is_file(path):
        return {}
    try:
        if path.stat().st_size > _FILE_LIMIT:
            raise DragomanError(f"{path} is larger than 1 MiB: it is no configuration of LocalLab's")
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DragomanError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise DragomanError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DragomanError(f"{path} is not a JSON object")
    check_saved(found, f"{path}: ")
    return found


def check_saved(saved: Mapping[str, Any], where: str = "") -> None:
    """Raise DragomanError, with ``where`` and the key, for a value that the option it sets cannot have."""
    known = {option.name: option for struct in _SET_BY_IT for option in options_of(struct)}
    for key, value in saved.items():
        if isinstance(value, list | dict) and _variable(key) in {*SAVED.values(), *_first_names()}:
            raise DragomanError(f"{where}{key} is not a single value")
        try:
            values = from_texts(borrowed(DIALECT, _variables({key: value})), known)
        except DragomanError as error:
            raise DragomanError(f"{where}{key}{error.message[error.message.index(':') :][:300]}") from None
        for struct in _SET_BY_IT:
            try:
                msgspec.convert({o: v for o, v in values.items() if o in struct.__struct_fields__}, struct)
            except msgspec.ValidationError as error:
                raise DragomanError(f"{where}{key}: {str(error).partition(' - at ')[0]}") from None


def save_given(given: Container[str], groups: Iterable[msgspec.Struct], folder: str) -> str | None:
    """Save what the command line gives (``given``, names of options) of LocalLab's own options, with their values in
    ``groups``. Return a sentence where that is not possible: the server starts all the same.

    Raises DragomanError as ``read_saved`` does.
    """
    fields = {name: getattr(group, name) for group in groups for name in group.__struct_fields__}
    values = {key: fields[name] for name, key in KEYS.items() if name in given}
    saved = read_saved(folder)
    if saved | values != saved:
        try:
            write_saved(saved_file(folder), saved | values)
        except DragomanError as error:
            return f"{error.message}: what this start is given is not saved"
    return None


def write_saved(file: Path, values: Mapping[str, Any]) -> None:
    """Write all values or none, readable by the owner alone: there are tokens in them. Raises DragomanError."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, f"{json.dumps(values, indent=2)}\n".encode())
    except OSError as error:
        raise DragomanError(f"{file}: {error.strerror}") from None


def _variables(saved: Mapping[str, Any]) -> dict[str, str]:
    """Return the saved values as variables would hold them; null and empty ones are left out."""
    texts = {_variable(key): _text(value) for key, value in saved.items() if not isinstance(value, list | dict)}
    return {name: text for name, text in texts.items() if text}


def _variable(key: str) -> str:
    return SAVED.get(key, f"LOCALLAB_{key.upper()}")


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _first_names() -> set[str]:
    return {names[0] for names in LOCALLAB.values()}
