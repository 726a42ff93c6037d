"""Settings from outside the command line: the configuration file (one flat TOML table) and the environment."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

from dragoman.core.errors import DragomanError
from dragoman.core.regular_file import require_regular
from dragoman.core.user_folders import expand_user, is_file

NOT_FROM_FOLDERS = frozenset(
    (
        "aip_predict_route",
        "allow_host",
        "allow_priority",
        "api_key",
        "api_key_file",
        "chat_template",
        "cluster_secret_file",
        "cors_allow_origin",
        "cors_origin",
        "derived_models",
        "dialect",
        "engine",
        "engine_api_key",
        "host",
        "hostname",
        "huggingface_hub_cache",
        "image_hosts",
        "insecure",
        "insecure_predict",
        "kv_events",
        "kv_events_connect",
        "kv_events_endpoint",
        "kv_events_replay",
        "llamacpp_origins",
        "locallab_cors_origins",
        "locallab_folder",
        "locallab_instructions",
        "metrics_host",
        "metrics_port",
        "ngrok",
        "ngrok_authtoken",
        "ngrok_edge",
        "ngrok_token",
        "octoai_prompt_log",
        "offer_downloads",
        "ollama_load",
        "ollama_origins",
        "otlp_endpoint",
        "port",
        "prefix_cache_folder",
        "prometheus_port",
        "proxy_header",
        "public",
        "ray_address",
        "record",
        "record_text",
        "replica_option",
        "request_loads",
        "share_prefix_cache",
        "state_dir",
        "tls_cert",
        "tls_key",
        "tls_key_password_file",
        "token",
        "tokenizer_config_path",
        "trusted_proxy",
        "uds",
        "uds_mode",
        "url",
        "weights_cache_override",
    )
)
"""Options that the file of a folder, ./dragoman.toml, may not set: those that open ports, grant access, send keys
and texts elsewhere, or set where they are stored. Another user may have written that file. ``dialect``: TGI's asks
for no key, and Friendli's opens a port for its metrics. ``replica_option`` would set any other."""


PREFIX = "DRAGOMAN_"
OTHER_VARIABLES = frozenset(f"{PREFIX}{name}" for name in ("CACHE", "CONFIG", "DEBUG", "KERNELS"))
"""Variables that belong to no option."""

_OF_KUBERNETES = re.compile(rf"{PREFIX}(\w+_)?(SERVICE_(HOST|PORT)\w*|PORT_\d+_(TCP|UDP|SCTP)\w*|PORT)")
_ADDRESS_OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://")


class Configurable(Protocol):
    """A setting: its name, its plain type, and its environment variable."""

    @property
    def annotation(self) -> Any: ...

    @property
    def variable(self) -> str: ...


class ConfigurationFile(NamedTuple):
    """The values of a configuration file, by option, and its path; None and nothing where there is no file.

    ``is_named``: the user named the file.
    """

    path: Path | None
    values: dict[str, Any]
    is_named: bool = False

    @property
    def note(self) -> str:
        """Return a sentence that names the file, where the user did not; empty where there is none."""
        return "" if self.path is None or self.is_named else f"options are read from {self.path.resolve()}"


def load(path: Path | None, known: Mapping[str, Configurable]) -> ConfigurationFile:
    """Read and check the file ``path``, or the first of the usual places that exists.

    Raises DragomanError that names the file, and the key at fault, when the file cannot be read, is no TOML, has a key
    that is no option, or a value of another type than the option's; or when the user did not name the file, it is that
    of the working folder, and it sets one of ``NOT_FROM_FOLDERS``.
    """
    is_named = path is not None
    if path is None:
        path = next((place for place in usual_places() if is_file(place)), None)
        if path is None:
            return ConfigurationFile(None, {})
    require_regular(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DragomanError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DragomanError(f"{path}: {error}") from None
    for name, value in values.items():
        if isinstance(value, dict):
            raise DragomanError(f"{path}: [{name}]: there are no tables, all options stand at the top")
        if name not in known:
            raise DragomanError(f"{path}: {name} is not an option{_hint(name, known)}")
        try:
            msgspec.convert(value, known[name].annotation)
        except msgspec.ValidationError as error:
            raise DragomanError(f"{path}: {name}: {error}") from None
    if not is_named and not path.is_absolute() and (refused := sorted(NOT_FROM_FOLDERS & values.keys())):
        raise DragomanError(
            f"./{path} sets {', '.join(refused)}: a file in the working folder may not do that, for somebody else may "
            f"have written it. If it is yours: --config {path}, or DRAGOMAN_CONFIG={path}"
        )
    return ConfigurationFile(path, values, is_named)


def from_environment(known: Mapping[str, Configurable]) -> dict[str, Any]:
    """Return the values of the options' variables; an empty variable counts as none.

    Several values are separated by spaces. Raises DragomanError naming the variable whose value is of another type.
    """
    found = {name: os.environ.get(option.variable, "") for name, option in known.items()}
    # For a service that is called dragoman, Kubernetes sets DRAGOMAN_PORT in every container.
    set_by_user = {name: text for name, text in found.items() if text and not _ADDRESS_OF_KUBERNETES.match(text)}
    return from_texts(set_by_user, known, by_variable=True)


def unknown_variables(known: Mapping[str, Configurable], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each variable that is named like an option's, and belongs to none."""
    variables = {*OTHER_VARIABLES, *(option.variable for option in known.values())}
    return tuple(
        f"{name} is no variable of this program, and has no effect{_hint(name, variables)}"
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in variables and not _OF_KUBERNETES.fullmatch(name)
    )


_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}
"""Words for a boolean, besides ``true``, ``false``, ``1`` and ``0``."""


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; is {near[0]} meant?" if near else ""


def from_texts(
    texts: Mapping[str, str],
    known: Mapping[str, Configurable],
    *,
    by_variable: bool = False,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the values of texts, by option. Raises DragomanError as ``from_environment`` does.

    ``variables``: by option, another server's variable that its text comes from."""
    values: dict[str, Any] = {}
    for name, text in texts.items():
        option = known[name]
        several = typing.get_origin(option.annotation) is tuple
        if bool in (option.annotation, *typing.get_args(option.annotation)):
            text = _SWITCHES.get(text.lower(), text)
        try:
            values[name] = msgspec.convert(text.split() if several else text, option.annotation, strict=False)
        except msgspec.ValidationError as error:
            variable = option.variable if by_variable else variables.get(name, name.upper())
            raise DragomanError(f"{variable}: {str(error).removesuffix(', got `str`')}, got {text!r}") from None
    return values


def usual_places() -> tuple[Path, ...]:
    home = expand_user(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    return (Path("dragoman.toml"), home / "dragoman" / "config.toml")
