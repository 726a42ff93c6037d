"""A picture gets an answer about it, from the client of every dialect: the same one, and its tokens are counted."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from environments import names_of_checks, outcomes_of, python_with
from image_files import bomb, picture, saved
from PIL import Image
from seeing_model import CONTEXT, NAME, make_seeing_model, seeing_server
from stub_runtime import RunningServer

TILE, TAGS = 4, 5  # of a square picture that is one tile and the whole: 4 tokens each, in tags and a line's end
TEXT = "What is in this picture?"
TURNED = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seeing_model(tmp_path_factory.mktemp("models") / "seeing")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with seeing_server(folder) as server:
        yield server


PICTURE, OTHER = picture(40), picture(40).rotate(180)
FILE = saved(PICTURE)


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


def url(file: bytes = FILE) -> str:
    return f"data:image/png;base64,{encoded(file)}"


def chat(file: bytes | None = FILE, text: str = TEXT, **more: Any) -> dict[str, Any]:
    """A body of OpenAI's."""
    image = [] if file is None else [{"type": "image_url", "image_url": {"url": url(file), **more.pop("image", {})}}]
    content = [*image, {"type": "text", "text": text}]
    return {"model": NAME, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8} | more


def asked(server: RunningServer, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = httpx.post(server.url + path, json=body, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def openai(server: RunningServer, file: bytes | None = FILE, **more: Any) -> tuple[str, int]:
    answer = asked(server, "/openai/v1/chat/completions", chat(file, **more))
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def test_every_dialect_gives_the_same_answer(server: RunningServer) -> None:
    text, tokens = openai(server)
    blind, blind_tokens = openai(server, None)
    assert text != blind
    assert tokens > blind_tokens + 8
    answers = {}
    for name in ("friendli", "octoai"):
        answer = asked(server, f"/{name}/v1/chat/completions", chat())
        answers[name] = answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]
    answer = asked(server, "/tgi/v1/chat/completions", chat())
    answers["tgi"] = answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]
    source = {"type": "base64", "media_type": "image/png", "data": encoded(FILE)}
    content = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
    body = {"model": NAME, "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
    answer = asked(server, "/anthropic/v1/messages", body | {"temperature": 0})
    usage = answer["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    answers["anthropic"] = answer["content"][0]["text"], read
    counted = asked(server, "/anthropic/v1/messages/count_tokens", {k: v for k, v in body.items() if k != "max_tokens"})
    answers["anthropic, counted"] = text, counted["input_tokens"]
    blob = {"inlineData": {"mimeType": "image/png", "data": encoded(FILE)}}
    contents = {"contents": [{"role": "user", "parts": [blob, {"text": TEXT}]}]}
    config = {"generationConfig": {"maxOutputTokens": 8, "temperature": 0}}
    answer = asked(server, f"/gemini/v1beta/models/{NAME}:generateContent", contents | config)
    text_part = answer["candidates"][0]["content"]["parts"][0]
    answers["gemini"] = text_part["text"], answer["usageMetadata"]["promptTokenCount"]
    counted = asked(server, f"/gemini/v1beta/models/{NAME}:countTokens", contents)
    answers["gemini, counted"] = text, counted["totalTokens"]
    body = {"model": NAME, "stream": False, "options": {"temperature": 0, "num_predict": 8}}
    message = {"role": "user", "content": TEXT, "images": [encoded(FILE)]}
    answer = asked(server, "/ollama/api/chat", body | {"messages": [message]})
    answers["ollama"] = answer["message"]["content"], answer["prompt_eval_count"]
    answer = asked(server, "/ollama/api/generate", body | {"prompt": TEXT, "images": [encoded(FILE)]})
    answers["ollama, generate"] = answer["response"], answer["prompt_eval_count"]
    part = {"type": "input_image", "image_url": url()}
    items = [{"role": "user", "content": [part, {"type": "input_text", "text": TEXT}]}]
    body = {"model": NAME, "input": items, "temperature": 0, "max_output_tokens": 16, "store": False}
    answer = asked(server, "/openai/v1/responses", body)
    assert answer["output"][0]["content"][0]["text"].startswith(text)
    answers["responses"] = text, answer["usage"]["input_tokens"]
    assert answers == dict.fromkeys(answers, (text, tokens))


def test_a_picture_is_explained_in_the_form_of_every_dialect_that_takes_it(server: RunningServer) -> None:
    told = asked(server, "/explain", {"path": "/openai/v1/chat/completions", "body": chat(), "tokens": False})
    others = {each["dialect"]: each for each in told["others"]}
    text, _ = openai(server)
    lost = {name: {each["parameter"] for each in other["lost"]} for name, other in others.items()}
    assert {name for name, names in lost.items() if "images" not in names} == {
        *("tgi", "friendli", "octoai", "ollama", "anthropic", "gemini")
    }
    answer = asked(server, others["anthropic"]["path"], others["anthropic"]["body"])
    assert answer["content"][0]["text"] == text
    answer = asked(server, others["gemini"]["path"], others["gemini"]["body"])
    assert answer["candidates"][0]["content"]["parts"][0]["text"] == text
    answer = asked(server, others["ollama"]["path"], others["ollama"]["body"] | {"stream": False})
    assert answer["message"]["content"] == text
    # And back: of Anthropic's request the one of OpenAI.
    told = asked(server, "/explain", {key: others["anthropic"][key] for key in ("path", "body")} | {"tokens": False})
    (back,) = (each for each in told["others"] if each["dialect"] == "openai")
    assert not back["lost"]
    assert asked(server, back["path"], back["body"])["choices"][0]["message"]["content"] == text


def test_plain_prompts_have_images_too(server: RunningServer) -> None:
    body = {"inputs": f"![]({url()}){TEXT}", "parameters": {"max_new_tokens": 8, "details": True}}
    tgi = asked(server, "/tgi/generate", body)
    media = {"prompt_string": f"<__media__>{TEXT}", "multimodal_data": [encoded(FILE)]}
    llama = asked(server, "/llamacpp/completion", {"prompt": media, "n_predict": 8, "temperature": 0})
    body = {"model": NAME, "prompt": TEXT, "images": [encoded(FILE)], "raw": True, "stream": False}
    ollama = asked(server, "/ollama/api/generate", body | {"options": {"temperature": 0, "num_predict": 8}})
    assert tgi["generated_text"] == llama["content"] == ollama["response"]
    assert llama["tokens_evaluated"] == ollama["prompt_eval_count"]


def test_a_large_photo_is_seen_by_default(server: RunningServer) -> None:
    """Of more than the 4 MiB and 2 MB that other bodies may have."""
    levels = np.random.default_rng(0).integers(0, 256, (1150, 1300, 3), np.uint8)
    photo = saved(Image.fromarray(levels))
    assert len(encoded(photo)) > 5 << 20
    answers = [
        asked(server, path, chat(photo))["choices"][0]["message"]["content"]
        for path in ("/openai/v1/chat/completions", "/tgi/v1/chat/completions")
    ]
    assert answers[0] == answers[1]
    asked(server, "/openai/v1/chat/completions", chat(text="a" * (32 << 20)), status=413)
    assert server.bodies.large == 0


def test_what_the_picture_shows_counts(server: RunningServer) -> None:
    """Its pixels, and nothing else of the file."""
    text, tokens = openai(server)
    other, other_tokens = openai(server, saved(OTHER))
    assert (text != other, tokens) == (True, other_tokens)
    assert openai(server, saved(PICTURE, "WEBP", lossless=True)) == (text, tokens)
    assert openai(server, saved(PICTURE, "BMP")) == (text, tokens)
    exif = Image.Exif()
    exif[0x0112] = TURNED
    turned = saved(PICTURE.rotate(90, expand=True), exif=exif)
    assert openai(server, turned) == (text, tokens)


def test_two_pictures_are_read_in_order(server: RunningServer) -> None:
    def of(*files: bytes) -> str:
        content = [{"type": "image_url", "image_url": {"url": url(file)}} for file in files]
        body = chat() | {"messages": [{"role": "user", "content": content}]}
        return str(asked(server, "/openai/v1/chat/completions", body)["choices"][0]["message"]["content"])

    one, two = FILE, saved(OTHER)
    assert of(one, two) == of(one, two)
    assert len({of(one, two), of(two, one), of(one, one)}) == 3


def test_low_detail_is_one_tile(server: RunningServer) -> None:
    _, high = openai(server, image={"detail": "high"})
    text, low = openai(server, image={"detail": "low"})
    assert low < high
    assert openai(server, image={"detail": "low"}) == (text, low)
    assert openai(server, image={"detail": "auto"})[1] == high


def test_a_stream_is_the_same(server: RunningServer) -> None:
    with httpx.stream("POST", f"{server.url}/openai/v1/chat/completions", json=chat(stream=True), timeout=60) as answer:
        lines = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert "".join(line["choices"][0]["delta"].get("content") or "" for line in lines) == openai(server)[0]


def test_the_second_time_the_picture_is_in_the_cache(server: RunningServer) -> None:
    openai(server)
    answer = asked(server, "/openai/v1/chat/completions", chat())
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
    openai(server, saved(OTHER))
    answer = asked(server, "/openai/v1/chat/completions", chat(saved(OTHER.rotate(90, expand=True))))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("file", "code"),
    [
        (b"", "empty_image_file"),
        (b"a cat", "unsupported_image_media_type"),
        (FILE[:-60], "invalid_image"),
        (bomb(7_000, 6_000), "image_too_large"),
    ],
)
def test_a_bad_picture_costs_its_own_request_alone(server: RunningServer, file: bytes, code: str) -> None:
    error = asked(server, "/openai/v1/chat/completions", chat(file), 400)["error"]
    assert (error["code"], error["param"]) == (code, "messages[0].content[0].image_url.url")
    assert asked(server, "/tgi/generate", {"inputs": f"![]({url(file)})"}, 422)["error_type"] == "validation"
    assert openai(server)


def test_nothing_is_fetched(server: RunningServer) -> None:
    body = chat()
    body["messages"][0]["content"][0]["image_url"]["url"] = "https://images.example.com/cat.png"
    error = asked(server, "/openai/v1/chat/completions", body, 400)["error"]
    assert "--image-hosts" in error["message"]


def test_text_that_spells_an_image_is_no_image(server: RunningServer) -> None:
    error = asked(server, "/openai/v1/chat/completions", chat(text="<image> and <image>"), 400)["error"]
    assert error["message"]


def test_a_request_that_is_explained_counts_the_picture(server: RunningServer) -> None:
    answer = asked(server, "/explain", {"path": "/openai/v1/chat/completions", "body": chat()})
    assert len(json.dumps(answer)) < 100_000
    assert str(openai(server)[1]) in json.dumps(answer)


def test_kept_and_background_responses_have_their_picture(server: RunningServer) -> None:
    part = {"type": "input_image", "image_url": url()}
    items = [{"role": "user", "content": [part, {"type": "input_text", "text": TEXT}]}]
    body = {"model": NAME, "input": items, "temperature": 0, "max_output_tokens": 16}
    whole = asked(server, "/openai/v1/responses", body)
    response = asked(server, "/openai/v1/responses", body | {"background": True, "truncation": "auto"})
    while response["status"] in ("queued", "in_progress"):
        time.sleep(0.05)
        response = httpx.get(f"{server.url}/openai/v1/responses/{response['id']}", timeout=60).json()
    assert response["output"][0]["content"][0]["text"] == whole["output"][0]["content"][0]["text"]
    assert response["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    later = {"model": NAME, "input": "And now?", "temperature": 0, "max_output_tokens": 16}
    followed = asked(server, "/openai/v1/responses", later | {"previous_response_id": whole["id"]})
    assert followed["usage"]["input_tokens"] > whole["usage"]["total_tokens"]


def test_a_cut_answer_about_a_picture_goes_on(server: RunningServer) -> None:
    parts = []
    for _ in range(2):
        headers = {"x-request-continue": "picture"}
        answer = httpx.post(
            f"{server.url}/openai/v1/chat/completions", json=chat(max_tokens=4), headers=headers, timeout=60
        )
        parts.append(answer.json()["choices"][0]["message"]["content"])
    assert "".join(parts) == openai(server)[0]


def test_the_package_of_openai(server: RunningServer) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{server.url}/openai/v1", api_key="none")
    text, tokens = openai(server)
    body = chat()
    answer = client.chat.completions.create(**body)
    assert answer.choices[0].message.content == text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == tokens


def test_the_package_of_the_hub(server: RunningServer) -> None:
    from huggingface_hub import InferenceClient

    client = InferenceClient(base_url=f"{server.url}/tgi")
    answer = client.chat_completion(chat()["messages"], max_tokens=8, temperature=0)
    assert answer.choices[0].message.content == openai(server)[0]


def test_curl(server: RunningServer, tmp_path: Any) -> None:
    (tmp_path / "body.json").write_text(json.dumps(chat()))
    command = ["curl", "-sS", f"{server.url}/openai/v1/chat/completions", "-d", f"@{tmp_path}/body.json"]
    done = subprocess.run(
        [*command, "-H", "content-type: application/json"], capture_output=True, timeout=60, check=True
    )
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == openai(server)[0]


@pytest.mark.parametrize(
    ("script", "requirement"),
    [
        ("anthropic/checks_anthropic_images.py", "anthropic>=2.12,<3"),
        ("ollama/checks_ollama_images.py", "ollama>=0.6,<0.7"),
    ],
)
def test_other_packages(server: RunningServer, script: str, requirement: str) -> None:
    file = Path(__file__).parent / script
    outcomes = outcomes_of(file, python_with(requirement), server.url)
    assert outcomes == dict.fromkeys(names_of_checks(file), "")


def test_a_python_program(server: RunningServer, folder: Path) -> None:
    """The same answer as over HTTP."""
    from dragoman import LLM, SamplingParams

    with LLM(folder, precision="float32", max_context=CONTEXT) as model:
        content = [{"type": "image", "image": PICTURE}, {"type": "text", "text": TEXT}]
        messages = [{"role": "user", "content": content}]
        (output,) = model.chat(messages, SamplingParams(temperature=0, max_tokens=8))
    text, tokens = openai(server)
    assert output.outputs[0].text == text
    assert output.usage.prompt_tokens == tokens
