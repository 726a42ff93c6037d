"""Images in every dialect reach serving by one way: in their place, in order, with their field; and are refused by name
where the model sees none."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import httpx
import msgspec
import pytest
from image_files import picture, saved
from recorded import RecordingServing, recording_client
from stub_runtime import QUICK, local_server

from dragoman.core.batches import StoredFile, UnknownFile
from dragoman.core.errors import BadImage, BadRequest, UnsupportedFeature
from dragoman.core.image_sources import ImageSource
from dragoman.core.images import ImageInfo
from dragoman.core.request import ChatPrompt, GenerationRequest, TextPrompt
from dragoman.core.serving import ModelCard
from dragoman.dialects import made_dialects
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.server.app import create_app
from dragoman.text import ChatTemplate

DIALECTS = made_dialects(
    {"locallab": LocalLabSettings(locallab_burst=0, locallab_rate_limit=0, locallab_folder="/nonexistent")}
)
TEMPLATE = ChatTemplate(
    {"default": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>{{ tools }}"}
)
FILE = base64.b64encode(saved(picture(2))).decode()
SEEN = msgspec.convert({"most_tokens": 64, "has_detail": True, "placeholder": "<image>"}, ImageInfo)
OPENAI = "/openai/v1/chat/completions"
URL, OTHER = f"data:image/png;base64,{FILE}", "https://images.example.com/cat.png"


class Files:
    """Stored files: those of callers without a key."""

    is_on = True
    known: ClassVar = {"file-cat": saved(picture(2)), "file-large": bytes((32 << 20) + 1)}

    def __init__(self) -> None:
        self.read = 0

    async def file(self, tenant: str, id: str) -> StoredFile:
        if tenant or id not in self.known:
            raise UnknownFile(f"File {id} is unknown.")
        return StoredFile(
            id=id, bytes=len(self.known[id]), created_s=0, expires_s=None, filename="cat.png", purpose="vision"
        )

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        self.read += 1
        yield self.known[file.id][:20]
        yield self.known[file.id][20:]


class SeeingServing(RecordingServing):
    """A model that sees. ``fault``: raised in place of an answer. ``seen``: what clients may know of it."""

    fault = BadRequest("This serving only records.")
    seen = SEEN
    batches = Files()

    def model(self, name: str | None) -> ModelCard:
        return msgspec.structs.replace(super().model(name), images=self.seen)

    def models(self) -> tuple[ModelCard, ...]:
        return (self.model(None),)

    async def render(self, prompt: ChatPrompt, model: str | None = None) -> str:
        return "rendered"

    async def tokenize(self, prompt: Any, model: str | None = None, **how: Any) -> tuple[int, ...]:
        self.asked.append(GenerationRequest(request_id="", prompt=prompt))
        return (1, 2, 3)

    async def generate(self, request: GenerationRequest) -> Any:
        self.asked.append(request)
        raise self.fault

    async def prepare(self, request: GenerationRequest) -> Any:
        return await self.generate(request)

    async def stream(self, request: GenerationRequest) -> Any:
        await self.generate(request)
        yield


@asynccontextmanager
async def seeing_client() -> AsyncIterator[tuple[SeeingServing, httpx.AsyncClient]]:
    async with local_server(TEMPLATE) as runtime:
        serving = SeeingServing(runtime.serving)
        app = create_app(serving, QUICK, dialects=DIALECTS)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            yield serving, client


@pytest.fixture(scope="module")
def seeing() -> Iterator[Any]:
    with asyncio.Runner() as runner:
        context = seeing_client()
        serving, client = runner.run(context.__aenter__())

        def ask(path: str, body: dict[str, Any], fault: Exception | None = None) -> Any:
            serving.asked.clear()
            serving.fault = fault or SeeingServing.fault
            answer = runner.run(client.post(path, json=body))
            return serving.asked[-1].prompt if serving.asked else None, answer

        yield ask
        runner.run(context.__aexit__(None, None, None))


def seen(content: list[dict[str, Any]]) -> list[Any]:
    """A content as texts and sources."""
    return [part["source"] if part["type"] == "image" else part["text"] for part in content]


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def openai_parts(**more: Any) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": "What is "},
        {"type": "text", "text": "this?"},
        {"type": "image_url", "image_url": {"url": URL, **more}},
        {"type": "text", "text": " And this?"},
        {"type": "image_url", "image_url": {"url": OTHER}},
    ]


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        (OPENAI, "low"),
        ("/friendli/v1/chat/completions", "high"),
        ("/octoai/v1/chat/completions", "auto"),
    ],
)
def test_parts_of_chats(seeing: Any, path: str, detail: str) -> None:
    body = {
        "model": "stub",
        "messages": [{"role": "system", "content": "Be brief."}, user(openai_parts(detail=detail))],
    }
    prompt, answer = seeing(path, body)
    assert isinstance(prompt, ChatPrompt), answer.text
    assert prompt.messages[0]["content"] == "Be brief."
    assert seen(prompt.messages[1]["content"]) == [
        "What is this?",
        ImageSource(url=URL, detail=detail, param="messages[1].content[2].image_url.url"),
        " And this?",
        ImageSource(url=OTHER, param="messages[1].content[4].image_url.url"),
    ]


def test_parts_of_tgi_are_markdown_too(seeing: Any) -> None:
    prompt, answer = seeing(
        "/tgi/v1/chat/completions",
        {"model": "tgi", "messages": [user([{"type": "text", "text": f"a ![]({URL}) b"}, *openai_parts()[2:]])]},
    )
    assert isinstance(prompt, ChatPrompt), answer.text
    at = "messages[0].content"
    assert seen(prompt.messages[0]["content"]) == [
        "a ",
        ImageSource(url=URL, param=at),
        " b",
        ImageSource(url=URL, param=at),
        " And this?",
        ImageSource(url=OTHER, param=at),
    ]


@pytest.mark.parametrize("path", ["/tgi/generate", "/tgi/", "/tgi/v1/completions"])
def test_inputs_of_tgi(seeing: Any, path: str) -> None:
    text = f"![]({URL})What is this?![]({OTHER})\n![]"
    body = {"model": "tgi", "prompt": text} if path.endswith("completions") else {"inputs": text}
    prompt, answer = seeing(path, body)
    assert isinstance(prompt, TextPrompt), answer.text
    assert prompt.text == "What is this?\n![]"
    assert prompt.image_places == (0, 13)
    assert prompt.images == (ImageSource(url=URL, param="inputs"), ImageSource(url=OTHER, param="inputs"))


def test_tgi_knows_three_schemes(seeing: Any) -> None:
    prompt, answer = seeing("/tgi/generate", {"inputs": "![](/etc/passwd)"})
    assert prompt is None
    assert answer.status_code == 422
    assert answer.json()["error"] == "Input validation error: invalid image content: /etc/passwd"


def test_items_of_responses(seeing: Any) -> None:
    items = [
        user([{"type": "input_text", "text": "Look: "}, {"type": "input_image", "image_url": URL, "detail": "low"}]),
        {"type": "function_call", "call_id": "a", "name": "shoot", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "shoot", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": OTHER}]},
        {"type": "function_call_output", "call_id": "b", "output": "nothing"},
        {"role": "user", "content": "And now?"},
    ]  # fmt: skip
    prompt, answer = seeing("/openai/v1/responses", {"model": "stub", "input": items, "store": False})
    assert isinstance(prompt, ChatPrompt), answer.text
    first, last = prompt.messages[0], prompt.messages[-1]
    assert seen(first["content"]) == [
        "Look: ",
        ImageSource(url=URL, detail="low", param="input[0].content[1].image_url"),
    ]
    assert "[image: in the next message]" in str(prompt.messages[1:-1])
    assert last["role"] == "user"
    assert seen(last["content"]) == [ImageSource(url=OTHER, param="input[3].output[0].image_url"), "And now?"]


def test_blocks_of_anthropic(seeing: Any) -> None:
    image = {"type": "image", "source": BASE64}
    body = {
        "model": "stub",
        "max_tokens": 8,
        "messages": [
            user([image, {"type": "text", "text": "What is this?"}]),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "shoot", "input": {}}]},
            user(
                [
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "done"}, image]},
                    {"type": "image", "source": {"type": "url", "url": OTHER}},
                    {"type": "text", "text": "Well?"},
                ]
            ),
        ],
    }
    for path in ("/anthropic/v1/messages", "/anthropic/v1/messages/count_tokens"):
        asked = {name: value for name, value in body.items() if name != "max_tokens" or path.endswith("messages")}
        prompt, answer = seeing(path, asked)
        assert isinstance(prompt, ChatPrompt), answer.text
        assert seen(prompt.messages[0]["content"]) == [
            ImageSource(data=FILE, param="messages.0.content.0.image"),
            "What is this?",
        ]
        *_, in_result, shown, text = seen(prompt.messages[-1]["content"])
        assert (in_result.param, shown) == (
            "messages.2.content.0.content.1.image",
            ImageSource(url=OTHER, param="messages.2.content.1.image"),
        )
        assert text == "Well?"
        assert r"done\n\n[image: in the next message]" in str(prompt.messages)


def test_images_of_ollama_come_before_the_text(seeing: Any) -> None:
    prompt, answer = seeing(
        "/ollama/api/chat", {"model": "stub", "messages": [user("What is this?", images=[FILE, FILE])]}
    )
    assert isinstance(prompt, ChatPrompt), answer.text
    sources = [ImageSource(data=FILE, param=f"messages[0].images[{i}]") for i in range(2)]
    assert seen(prompt.messages[0]["content"]) == [*sources, "What is this?"]
    prompt, _ = seeing("/ollama/api/generate", {"model": "stub", "prompt": "What is this?", "images": [FILE]})
    assert seen(prompt.messages[0]["content"]) == [ImageSource(data=FILE, param="images[0]"), "What is this?"]
    prompt, _ = seeing("/ollama/api/generate", {"model": "stub", "prompt": "It is", "images": [FILE], "raw": True})
    assert prompt == TextPrompt(text="It is", image_places=(0,), images=(ImageSource(data=FILE, param="images[0]"),))
    prompt, answer = seeing("/ollama/api/generate", {"model": "stub", "prompt": "It", "images": [FILE], "context": [1]})
    assert answer.json()["error"] == "images do not go with context"


def test_media_of_llamacpp(seeing: Any) -> None:
    body = {"prompt": {"prompt_string": "a<__media__>bc<__media__>", "multimodal_data": [FILE, FILE]}}
    prompt, answer = seeing("/llamacpp/completion", body)
    assert isinstance(prompt, TextPrompt), answer.text
    assert (prompt.text, prompt.image_places) == ("abc", (1, 3))
    assert [source.data for source in prompt.images] == [FILE, FILE]
    body["prompt"]["prompt_string"] = "<__media__>"
    _, answer = seeing("/llamacpp/completion", body)
    assert "number of media markers in text (1) does not match number of bitmaps (2)" in answer.text


WRONG = {
    "no url": ([{"type": "image_url", "image_url": {}}], "messages[0].content[0].image_url.url"),
    "no object": ([{"type": "image_url", "image_url": URL}], "messages[0].content[0].image_url"),
    "nothing": ([{"type": "image_url"}], "messages[0].content[0].image_url"),
    "a detail": (openai_parts(detail="huge"), "messages[0].content[2].image_url.detail"),
    "audio": ([{"type": "input_audio"}], "messages[0].content[0]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_part_is_named(seeing: Any, name: str) -> None:
    content, param = WRONG[name]
    prompt, answer = seeing(OPENAI, {"model": "stub", "messages": [user(content)]})
    assert prompt is None
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("path", [OPENAI, "/friendli/v1/chat/completions", "/octoai/v1/chat/completions"])
def test_a_detail_without_effect_is_reported(seeing: Any, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    body = {"model": "stub", "messages": [user(openai_parts(detail="low"))]}
    _, answer = seeing(path, body)
    assert "detail" not in answer.headers.get("x-dragoman-warnings", "")
    monkeypatch.setattr(SeeingServing, "seen", msgspec.structs.replace(SEEN, has_detail=False))
    _, answer = seeing(path, body)
    assert "messages[0].content[2].image_url.detail" in answer.headers["x-dragoman-warnings"]
    item = user([{"type": "input_image", "image_url": URL, "detail": "high"}])
    _, answer = seeing("/openai/v1/responses", {"model": "stub", "input": [item], "store": False})
    assert "input[0].content[0].detail" in answer.headers["x-dragoman-warnings"]


def test_an_assistant_shows_no_images(seeing: Any) -> None:
    messages = [user("Hi"), {"role": "assistant", "content": openai_parts()}, user("Hm")]
    prompt, answer = seeing(OPENAI, {"model": "stub", "messages": messages})
    assert prompt is None
    assert answer.json()["error"]["param"] == "messages[1].content"


HI: dict[str, Any] = {"model": "stub", "messages": [user("Hi")]}
BROKEN = BadImage("invalid_image", "its PNG file is damaged", param="messages[0].content[0].image_url.url")
FAULTS: dict[str, tuple[dict[str, Any], int, str]] = {
    OPENAI: (
        {"model": "stub", "messages": [user("Hi")]},
        400,
        "url': The image data you provided does not represent a valid image: its PNG file is damaged.",
    ),
    "/openai/v1/responses": (
        {"model": "stub", "input": "Hi", "store": False},
        400,
        "url': The image data you provided does not represent a valid image: its PNG file is damaged.",
    ),
    "/anthropic/v1/messages": (
        {"model": "stub", "max_tokens": 1, "messages": [user("Hi")]},
        400,
        "messages[0].content[0].image_url.url: Could not process image: its PNG file is damaged",
    ),
    "/tgi/generate": ({"inputs": f"![]({URL})"}, 422, "Input validation error: invalid image: its PNG file is damaged"),
    "/ollama/api/chat": (
        {"model": "stub", "messages": [user("Hi")], "stream": False},
        400,
        "'messages[0].content[0].image_url.url': the image cannot be used: its PNG file is damaged.",
    ),
    "/friendli/v1/chat/completions": (
        {"model": "stub", "messages": [user("Hi")]},
        422,
        "'messages[0].content[0].image_url.url': the image cannot be used: its PNG file is damaged.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", FAULTS)
def test_a_broken_image_is_an_error_of_the_dialect(seeing: Any, path: str) -> None:
    body, status, message = FAULTS[path]
    _, answer = seeing(path, body, BROKEN)
    assert answer.status_code == status, answer.text
    assert message in str(answer.json())


def test_openai_has_a_code_for_each_fault(seeing: Any) -> None:
    for code in ("invalid_image", "image_too_large", "invalid_image_url", "failed_to_download_image"):
        _, answer = seeing(OPENAI, HI, BadImage(code, "why"))
        assert answer.json()["error"]["code"] == code
    _, answer = seeing(
        "/tgi/generate",
        FAULTS["/tgi/generate"][0],
        BadImage("failed_to_download_image", "its host answered with status 404"),
    )
    assert answer.json()["error"] == "Input validation error: Could not fetch image: its host answered with status 404"
    _, answer = seeing(OPENAI, HI, UnsupportedFeature("no"))
    assert answer.json()["error"]["code"] == "unsupported_parameter"


BASE64 = {"type": "base64", "media_type": "image/png", "data": FILE}
BLIND = {
    OPENAI: ({"model": "stub", "messages": [user(openai_parts())]}, "reads text only"),
    "/friendli/v1/chat/completions": ({"model": "stub", "messages": [user(openai_parts())]}, "reads text only"),
    "/octoai/v1/chat/completions": ({"model": "stub", "messages": [user(openai_parts())]}, "reads text only"),
    "/tgi/v1/chat/completions": ({"messages": [user(openai_parts())]}, "image modality is not supported"),
    "/openai/v1/responses": (
        {"model": "stub", "input": [user([{"type": "input_image", "image_url": URL}])]},
        "This model reads text only",
    ),
    "/anthropic/v1/messages": (
        {
            "model": "stub",
            "max_tokens": 1,
            "messages": [
                user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": FILE}}])
            ],
        },
        "messages.0.content.0.image: Could not process image: the model 'stub' reads text only",
    ),
    "/ollama/api/chat": ({"model": "stub", "messages": [user("Hi", images=[FILE])]}, "does not support vision"),
    "/ollama/api/generate": ({"model": "stub", "prompt": "Hi", "images": [FILE]}, "does not support vision"),
    "/llamacpp/completion": (
        {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [FILE]}},
        "does not support multimodal",
    ),
}


@pytest.mark.parametrize("path", BLIND)
def test_a_model_that_sees_none_refuses_by_name(path: str) -> None:
    async def run() -> Any:
        async with recording_client(TEMPLATE, DIALECTS) as (serving, client):
            answer = await client.post(path, json=BLIND[path][0])
            assert not [asked for asked in serving.asked if isinstance(asked, GenerationRequest)]
            return answer

    answer = asyncio.run(run())
    assert answer.status_code in (400, 422), answer.text
    assert BLIND[path][1] in str(answer.json())


def test_inputs_of_tgi_are_text_to_a_model_that_sees_none() -> None:
    async def run() -> Any:
        async with recording_client(TEMPLATE, DIALECTS) as (serving, client):
            await client.post("/tgi/generate", json={"inputs": "![](https://example.com/a.png)"})
            return serving.asked[0].prompt

    assert asyncio.run(run()) == TextPrompt(text="![](https://example.com/a.png)")


# Stored files --------------------------------------------------------------------------------------------------------

ANTHROPIC, RESPONSES = "/anthropic/v1/messages", "/openai/v1/responses"


def of_file(id: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "file", "file_id": id}}


def with_call(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    return [user("Look."), {"role": "assistant", "content": [call]}, user([result])]


def test_anthropics_images_may_be_stored_files(seeing: Any) -> None:
    text, files = {"type": "text", "text": "What is this?"}, SeeingServing.batches
    files.read = 0
    for path in (ANTHROPIC, f"{ANTHROPIC}/count_tokens"):
        body = {"model": "stub", "messages": [user([of_file("file-cat"), text, of_file("file-cat")])]}
        prompt, _ = seeing(path, body | ({"max_tokens": 4} if path == ANTHROPIC else {}))
        source = ImageSource(file=files.known["file-cat"], param="messages.0.content.0.image")
        again = msgspec.structs.replace(source, param="messages.0.content.2.image")
        assert seen(prompt.messages[0]["content"]) == [source, "What is this?", again]
    assert files.read == 2, "each file once for a request"
    prompt, _ = seeing(ANTHROPIC, {"model": "stub", "max_tokens": 4, "messages": with_call([of_file("file-cat")])})
    (shown,) = (each for each in seen(prompt.messages[-1]["content"]) if isinstance(each, ImageSource))
    assert shown.file == files.known["file-cat"]


@pytest.mark.parametrize(
    ("id", "status", "kind", "words"),
    [
        ("file-dog", 404, "not_found_error", "image.source.file_id: File not found: file-dog"),
        ("file-large", 413, "request_too_large", "image.source.file_id: The files that the request names have more"),
        ("", 400, "invalid_request_error", "source.file_id: String should have at least 1 character"),
        (7, 400, "invalid_request_error", "source.file_id: Input should be a valid string"),
        (None, 400, "invalid_request_error", "source.file_id: Field required"),
    ],
)
def test_what_anthropic_says_of_other_files(seeing: Any, id: Any, status: int, kind: str, words: str) -> None:
    for messages in ([user([of_file(id)])], with_call([of_file(id)])):
        _, answer = seeing(ANTHROPIC, {"model": "stub", "max_tokens": 4, "messages": messages})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (status, kind)
        assert words in error["message"]


def test_images_of_responses_may_be_stored_files(seeing: Any) -> None:
    part = {"type": "input_image", "file_id": "file-cat", "detail": "low"}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    for items in (
        [user([part])],
        [user("Look."), call, {"type": "function_call_output", "call_id": "c", "output": [part]}],
    ):
        prompt, _ = seeing(RESPONSES, {"model": "stub", "input": items, "store": False})
        (source,) = (each for each in seen(prompt.messages[-1]["content"]) if isinstance(each, ImageSource))
        assert (source.url, source.detail) == (URL, "low")
    for id, code in (("file-dog", "image_file_not_found"), ("file-large", "image_too_large")):
        _, answer = seeing(RESPONSES, {"model": "stub", "input": [user([part | {"file_id": id}])]})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, code)
        assert error["param"] == "input[0].content[0].file_id"


def test_a_model_that_sees_nothing_reads_no_files(seeing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeeingServing, "seen", None)
    SeeingServing.batches.read = 0
    _, answer = seeing(ANTHROPIC, {"model": "stub", "max_tokens": 4, "messages": [user([of_file("file-cat")])]})
    assert "Could not process image: the model 'stub' reads text only" in answer.json()["error"]["message"]
    part = {"type": "input_image", "file_id": "file-cat"}
    _, answer = seeing(RESPONSES, {"model": "stub", "input": [user([part])]})
    assert answer.json()["error"]["param"] == "input[0].content[0].file_id"
    assert SeeingServing.batches.read == 0
