"""Messages for clients have no paths of the server's machine, and lose nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.core.message_paths import without_paths


@pytest.mark.parametrize(
    ("message", "place", "shown"),
    [
        ("/srv/poems has no weights", "/srv/poems", "poems has no weights"),
        ("/srv/poems/config.json: is empty", "/srv/poems", "config.json: is empty"),
        ("/srv/poems/a/b.json: is empty", "/srv/poems/", "a/b.json: is empty"),
        ("/srv/my poems/b.json: is empty", "/srv/my poems", "b.json: is empty"),
        ("/srv/x.gguf: is cut", "/srv/x.gguf", "x.gguf: is cut"),
        (
            "a.json is a link to /data/ann/b.json, which is gone",
            "/srv/poems",
            "a.json is a link to b.json, which is gone",
        ),
        ("open('/etc/a b') = (/x/y)", None, "open('a b') = (y)"),
        ("owner/name is not at https://huggingface.co/owner/name", "owner/name", None),
        ("needs 5/8 of it: 3 / 4, and/or more", None, None),
        ("config.json: rope_type '/' is not supported", None, None),
    ],
)
def test_files_have_their_names_alone(message: str, place: str | None, shown: str | None) -> None:
    assert without_paths(message, place) == (message if shown is None else shown)


def test_a_link_and_what_it_is_a_link_to(tmp_path: Path) -> None:
    (tmp_path / "real ones").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real ones")
    message = f"{tmp_path / 'real ones' / 'a.json'}: no; {tmp_path / 'link' / 'b.json'}: no"
    assert without_paths(message, str(tmp_path / "link")) == "a.json: no; b.json: no"
