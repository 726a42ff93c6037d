"""What the start says where an operator has let in more than those who are meant, as it may be."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.cli.running import openings
from dragoman.cli.serve_settings import ServeSettings
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.dialects.tgi.settings import TgiSettings
from dragoman.server.settings import BrowserSettings


def said(*, has_keys: bool = False, browsers: Any = None, **dialects: Any) -> str:
    settings = ServeSettings(browsers=BrowserSettings(**(browsers or {})), dialects=dialects)
    return "\n".join(openings(settings, has_keys=has_keys))


def test_a_usual_start_says_nothing() -> None:
    named = {"cors_origin": ("https://page.example", "http://localhost:*"), "allow_host": ("*.example.org",)}
    assert said(browsers=named, tgi=TgiSettings(), locallab=LocalLabSettings()) == ""


@pytest.mark.parametrize("has_keys", [False, True])
def test_every_page_is_said_whichever_option_lets_it_in(has_keys: bool) -> None:
    for text in (
        said(has_keys=has_keys, browsers={"cors_origin": ("*",)}),
        said(has_keys=has_keys, tgi=TgiSettings(cors_allow_origin=("*",))),
        said(has_keys=has_keys, locallab=LocalLabSettings(locallab_cors_origins=("https://a.example", "*"))),
    ):
        assert "every web page" in text
        assert ("with an API key" in text) is has_keys


def test_every_name_is_said_where_no_key_is_asked_for() -> None:
    assert "--allow-host *" in said(browsers={"allow_host": ("*",)})
    assert said(browsers={"allow_host": ("*",)}, has_keys=True) == ""


@pytest.mark.parametrize(("insecure", "words"), [(True, "without an API key"), (False, "asks for an API key")])
def test_vertex_path_is_said_where_keys_are_asked_for(insecure: bool, words: str) -> None:
    tgi = TgiSettings(aip_predict_route="/predict", insecure_predict=insecure)
    assert words in said(tgi=tgi, has_keys=True)
    assert said(tgi=tgi) == ""
