"""Sources of adapters: a local folder in PEFT's layout, or a repository on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from dragoman.core.errors import ModelError
from dragoman.core.stand_ins import broken_link_problem
from dragoman.core.user_folders import expand_user
from dragoman.models.adapters.config import CONFIG_NAME
from dragoman.models.hub import download_small
from dragoman.models.source import hint_at_inner, is_repository_id

WEIGHTS_NAME = "adapter_model.safetensors"
_OF_MLX = "adapters.safetensors"
_PICKLED = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")


def find_adapter(source: str | Path, *, revision: str | None = None, token: str | None = None) -> Path:
    """Return the folder with an adapter's files; from the hub only the needed ones are downloaded, and only when not
    cached.

    ``source``: a folder, or a hub id (``owner/name``) with the branch, tag or commit ``revision``. Raises ModelError
    when there is no such adapter, saying what to do.
    """
    folder = _folder(source, revision, token, (CONFIG_NAME, WEIGHTS_NAME))
    require_files(folder)
    return folder


def find_adapter_config(source: str | Path, *, revision: str | None = None, token: str | None = None) -> Path:
    """Return the folder of an adapter of which only the config is needed: no weights are downloaded."""
    folder = _folder(source, revision, token, (CONFIG_NAME,))
    _require_config(folder)
    return folder


def _folder(source: str | Path, revision: str | None, token: str | None, names: tuple[str, ...]) -> Path:
    folder = expand_user(source)
    if folder.exists():
        if not folder.is_dir():
            gguf = ": adapters are not read from GGUF files" if folder.suffix == ".gguf" else ""
            raise ModelError(f"{folder} is a file{gguf}; name the folder that holds {CONFIG_NAME} and {WEIGHTS_NAME}")
        if revision is not None:
            raise ModelError(f"{folder} is a folder, which has no revision {revision}")
    elif is_repository_id(str(source)):
        folder = download_small(str(source), revision, token, names)
    else:
        raise ModelError(f"there is no folder {source}, and it is not a hub id (owner/name)")
    return folder.resolve()


def require_files(folder: Path) -> None:
    """Raise ModelError where the folder does not hold an adapter that can be read."""
    _require_config(folder)
    if (folder / WEIGHTS_NAME).is_file():
        return
    if problem := broken_link_problem(folder / WEIGHTS_NAME):
        raise ModelError(problem)
    if (folder / _OF_MLX).is_file():
        raise ModelError(
            f"{folder / _OF_MLX} is an adapter of MLX, whose layout is not PEFT's; join it to its model with "
            "mlx_lm.fuse"
        )
    pickled = [name for name in _PICKLED if (folder / name).is_file()]
    found = (
        f"{folder / pickled[0]} is" if pickled else f"{folder} has no {WEIGHTS_NAME}; where {_PICKLED[0]} is, that is"
    )
    raise ModelError(
        f"{found} a pickle file, which can run any code when it is opened, so it is not read. Convert the adapter "
        "once, where you trust it: load it with peft and save_pretrained(FOLDER, safe_serialization=True)"
    )


def _require_config(folder: Path) -> None:
    if (folder / CONFIG_NAME).is_file():
        return
    if problem := broken_link_problem(folder / CONFIG_NAME):
        raise ModelError(problem)
    if (folder / "config.json").is_file():
        hint = "; it is a whole model, which is served by itself"
    else:
        hint = hint_at_inner(sorted(path.parent for path in folder.glob(f"*/{CONFIG_NAME}")))
    raise ModelError(f"{folder} has no {CONFIG_NAME}: it is not an adapter in the layout of PEFT{hint}")
