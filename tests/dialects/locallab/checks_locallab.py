"""The package ``locallab-client``: what its users do, with what they must see. Run by ``test_locallab_client``.

The package wants a pristine event loop in each class, so every check makes its own client.
"""

from __future__ import annotations

import threading
from typing import Any

from checking import post, raised, run
from locallab_client import LocalLabClient, SyncLocalLabClient

GREEDY = {"do_sample": False, "max_length": 40}
MESSAGES = [{"role": "user", "content": "Count from one to five."}]


def spelled(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\\n").replace("\r", "\\r")


# The asynchronous client ---------------------------------------------------------------------------------------------


async def check_generate_is_the_text(url: str) -> None:
    client = LocalLabClient(url)
    try:
        text = await client.generate("Count from one to five.", **GREEDY)
        assert text == post(url + "/generate", {"prompt": "Count from one to five."} | GREEDY)["response"]
        assert text
    finally:
        await client.close()


async def check_a_stream_is_the_text(url: str) -> None:
    client = LocalLabClient(url)
    try:
        whole = await client.generate("Tell me a story about a dog.", **GREEDY)
        pieces = [piece async for piece in client.stream_generate("Tell me a story about a dog.", **GREEDY)]
        assert "".join(pieces) == spelled(whole).rstrip(), (pieces, whole)
        assert len(pieces) > 3, pieces
        through = [
            piece async for piece in await client.generate("Tell me a story about a dog.", stream=True, **GREEDY)
        ]
        assert through == pieces
    finally:
        await client.close()


async def check_a_chat_and_its_stream(url: str) -> None:
    client = LocalLabClient(url)
    try:
        whole = await client.chat(MESSAGES, temperature=0, max_length=40)
        text = whole["choices"][0]["message"]["content"]
        chunks = [chunk async for chunk in client.stream_chat(MESSAGES, temperature=0, max_length=40)]
        assert all(isinstance(chunk, dict) for chunk in chunks)
        assert "".join(chunk["content"] for chunk in chunks) == text
        assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    finally:
        await client.close()


async def check_a_batch_keeps_its_order(url: str) -> None:
    client = LocalLabClient(url)
    try:
        prompts = ["Say one.", "Say two.", "Say three."]
        answer = await client.batch_generate(prompts, temperature=0, max_length=8)
        singles = [await client.generate(prompt, do_sample=False, max_length=8) for prompt in prompts]
        assert answer["responses"] == singles
    finally:
        await client.close()


async def check_models_and_system(url: str) -> None:
    client = LocalLabClient(url)
    try:
        assert await client.health_check() is True
        listed = await client.list_models()
        current = await client.get_current_model()
        assert current["id"] in [model["id"] for model in listed]
        assert current["is_loaded"] is True
        info = await client.get_system_info()
        assert info["active_model"] == current["id"]
        assert info["cpu"]["threads"] >= 1
        assert await client.load_model(current["id"]) is True
    finally:
        await client.close()


async def check_models_change_places(url: str) -> None:
    client = LocalLabClient(url)
    try:
        before = (await client.get_current_model())["id"]
        assert await client.load_model("second") is True
        assert (await client.get_current_model())["id"] == "second"
        assert await client.unload_model() is True
        failed = None
        try:
            await client.generate("x", max_length=2)
        except Exception as error:
            failed = str(error)
        assert "No model is currently loaded" in (failed or "")
        assert await client.load_model(before) is True
        assert await client.generate("x", max_length=2, model_id="second")
        assert (await client.get_current_model())["id"] == "second"
        assert await client.load_model(before) is True
    finally:
        await client.close()


async def check_faults_are_raised(url: str) -> None:
    client = LocalLabClient(url)
    try:
        for fields, words in (
            ({"temperature": 3.0}, "temperature: must be between 0 and 2"),
            ({"model_id": "nobody"}, "model not found"),
        ):
            said = ""
            try:
                await client.generate("x", **fields)
            except Exception as error:
                said = str(error)
            assert words in said, said
        pieces = [piece async for piece in client.stream_generate("x", model_id="nobody", retry_count=0)]
        (piece,) = pieces
        assert "model not found" in piece
    finally:
        await client.close()


# The synchronous client ----------------------------------------------------------------------------------------------


def synchronous(url: str) -> Any:
    return SyncLocalLabClient(url)


def check_the_synchronous_client_does_the_same(url: str) -> None:
    with synchronous(url) as client:
        whole = client.generate("Tell me a story about a dog.", **GREEDY)
        assert whole == post(url + "/generate", {"prompt": "Tell me a story about a dog."} | GREEDY)["text"]
        pieces = list(client.stream_generate("Tell me a story about a dog.", **GREEDY))
        assert "".join(pieces) == spelled(whole).rstrip(), (pieces, whole)
        chat = client.chat(MESSAGES, temperature=0, max_length=20)
        chunks = list(client.stream_chat(MESSAGES, temperature=0, max_length=20))
        assert "".join(chunk["content"] for chunk in chunks) == chat["choices"][0]["message"]["content"]
        answer = client.batch_generate(["Say one.", "Say two."], temperature=0, max_length=8)
        assert len(answer["responses"]) == 2
        assert client.health_check() is True
        assert client.get_system_info()["uptime"] > 0
        assert client.get_current_model()["is_loaded"]
        assert client.list_models()
        raised(Exception, client.generate, "x", model_id="nobody")


def check_many_clients_at_once(url: str) -> None:
    answers: list[str] = []

    def ask() -> None:
        with synchronous(url) as client:
            answers.append(client.generate("Say one.", do_sample=False, max_length=12))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 6
    assert len(set(answers)) == 1


if __name__ == "__main__":
    run(dict(globals()))
