"""Requests that name an adapter, and cut generations that go on with it or not at all."""

from __future__ import annotations

import pytest
from asking import events_of, request, text_of
from stub_house import LocalHouse

from dragoman.core.continuing import CutSequence, Progress
from dragoman.core.errors import AdapterNotFound, Conflict
from dragoman.core.request import GenerationRequest

pytestmark = pytest.mark.anyio


async def test_an_adapter_changes_the_answer_and_only_its_own(house: LocalHouse) -> None:
    plain = text_of(await events_of(house, request()))
    await house.engine.load_adapter("red", "folder of red")
    assert text_of(await events_of(house, request(adapter="red"))) != plain
    assert text_of(await events_of(house, request())) == plain


async def test_one_that_is_not_loaded_is_refused_before_the_first_event(house: LocalHouse) -> None:
    with pytest.raises(AdapterNotFound):
        await events_of(house, request(adapter="red"))
    assert not house.engine.requests


async def cut_after(house: LocalHouse, asked: GenerationRequest) -> tuple[str, CutSequence]:
    progress = Progress(asked.resumed)
    events = await events_of(house, asked)
    for event in events:
        progress.note(event)
    return text_of(events), progress.sequence


async def test_a_cut_generation_goes_on_with_its_adapter(house: LocalHouse) -> None:
    await house.engine.load_adapter("red", "folder of red")
    whole = text_of(await events_of(house, request(max_tokens=20, adapter="red")))
    first, cut = await cut_after(house, request(max_tokens=8, adapter="red", resumable=True))
    assert cut.adapter == house.engine.adapters["red"].fingerprint
    rest, _ = await cut_after(house, request(max_tokens=12, adapter="red", resumable=True, resumed=cut))
    assert first + rest == whole[: len(first + rest)]
    assert len(rest) > 0


async def test_a_cut_generation_goes_on_with_nothing_else(house: LocalHouse) -> None:
    await house.engine.load_adapter("red", "folder of red")
    await house.engine.load_adapter("blue", "folder of blue")
    _, cut = await cut_after(house, request(adapter="red", resumable=True))
    _, plain = await cut_after(house, request(resumable=True))
    for asked in (
        request(resumable=True, resumed=cut),
        request(adapter="blue", resumable=True, resumed=cut),
        request(adapter="red", resumable=True, resumed=plain),
    ):
        with pytest.raises(Conflict, match="another adapter"):
            await events_of(house, asked)
    await house.engine.unload_adapter("red")
    with pytest.raises(AdapterNotFound):
        await events_of(house, request(adapter="red", resumable=True, resumed=cut))
    await house.engine.load_adapter("red", "another folder")
    with pytest.raises(Conflict, match="another version"):
        await events_of(house, request(adapter="red", resumable=True, resumed=cut))
