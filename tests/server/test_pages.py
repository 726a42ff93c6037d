"""Pages of the server's own: each runs what it is written with and nothing else, and stands in no other page."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from urllib.parse import urljoin

import pytest
from stub_runtime import DIALECTS, LocalServer
from test_origins import asked

pytestmark = pytest.mark.anyio


async def test_every_page_says_what_it_may_load_and_that_nobody_may_frame_it(runtime: LocalServer) -> None:
    paths = {"/docs", "/docs/", *(f"/{dialect.name}/docs" for dialect in DIALECTS)}
    operations = ((d, o) for d in DIALECTS for o in d.operations if o.method == "GET" and "{" not in o.path)
    paths |= {f"/{dialect.name}{operation.path}" for dialect, operation in operations}
    pages = 0
    async with asked(runtime, *DIALECTS) as client:
        for path in sorted(paths):
            answer = await client.get(path, headers={"accept": "text/html"}, follow_redirects=True)
            if not answer.headers.get("content-type", "").startswith("text/html"):
                continue
            pages += 1
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy, path
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["x-content-type-options"] == "nosniff"
            for kind in ("script", "style"):
                for text in re.findall(rf"<{kind}[^>]*>(.*?)</{kind}>", answer.text, re.DOTALL):
                    assert f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in policy, path
            # What a hash cannot allow: a browser would not run it.
            assert not re.search(r"<[^>]+\s(style|on\w+)=", answer.text), path
    assert pages >= 8


@pytest.mark.parametrize("place", ["/docs", "/docs/", "/openai/docs", "/openai/docs/"])
async def test_documents_are_found_under_a_path_of_a_proxy(runtime: LocalServer, place: str) -> None:
    """It strips its own path from requests, and has no look at pages."""
    async with asked(runtime, *DIALECTS) as client:
        page = (await client.get(place)).text
        links = set(re.findall(r'(?:href=|fetch\()"([^"]+)"', page))
        assert len(links) == 1
        whole = urljoin(f"https://example.org/llm{place}", links.pop())
        assert whole.startswith("https://example.org/llm/")
        assert (await client.get(whole.removeprefix("https://example.org/llm"))).json()["openapi"]
