"""What a caller may use within a minute and on a day, on clocks of the tests' own."""

from __future__ import annotations

import calendar
import time

import pytest

from dragoman.core.caller import Caller, CallerLimits
from dragoman.core.errors import BadRequest, RateLimited
from dragoman.server.quotas import MAX_CALLERS, Quotas, duration


class Clocks:
    """Seconds that never step back, and those of the wall."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = float(calendar.timegm((2027, 1, 31, 18, 0, 0)))

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def quotas(clocks: Clocks) -> Quotas:
    return Quotas(lambda: clocks.now, lambda: clocks.wall)


def caller(name: str = "ann", **limits: int) -> Caller:
    return Caller(name=name, tenant=f"tenant of {name}", limits=CallerLimits(**limits))


def refusal(quotas: Quotas, who: Caller) -> RateLimited:
    with pytest.raises(RateLimited) as raised:
        quotas.admit(who)
    return raised.value


def test_who_has_no_limits_is_never_refused_and_told_nothing(quotas: Quotas) -> None:
    for _ in range(1000):
        quotas.admit(caller())
        quotas.charge(caller(), 10**9)
    assert quotas.headers(caller()) == {}


def test_requests_of_a_minute_are_counted_at_the_door(quotas: Quotas, clocks: Clocks) -> None:
    ann = caller(requests_per_minute=3)
    for _ in range(3):
        quotas.admit(ann)
        clocks.pass_by(10)
    refused = refusal(quotas, ann)
    assert refused.retry_after_s == 30
    assert refused.message == "Limit of 3 requests per minute reached: 0 are left. Try again in 30 s."
    quotas.admit(caller("bob", requests_per_minute=3))
    clocks.pass_by(29.9)
    assert refusal(quotas, ann).retry_after_s == 1
    clocks.pass_by(0.1)
    quotas.admit(ann)
    assert refusal(quotas, ann).retry_after_s == 10


def test_tokens_refuse_until_those_used_are_a_minute_old(quotas: Quotas, clocks: Clocks) -> None:
    ann = caller(tokens_per_minute=100)
    quotas.admit(ann)
    quotas.charge(ann, 60)
    clocks.pass_by(20)
    quotas.admit(ann)
    quotas.check_prompt(ann, 40, is_first=True)
    with pytest.raises(RateLimited, match="40 are left, 41 are wanted"):
        quotas.check_prompt(ann, 41, is_first=True)
    quotas.charge(ann, 500)  # an answer that is generated already is not cut
    assert refusal(quotas, ann).retry_after_s == 60
    clocks.pass_by(60)
    quotas.admit(ann)
    quotas.check_prompt(ann, 100, is_first=True)


@pytest.mark.parametrize("limit", ["tokens_per_minute", "tokens_per_day"])
def test_a_prompt_that_never_fits_is_a_bad_request(quotas: Quotas, limit: str) -> None:
    with pytest.raises(BadRequest, match="101 tokens, which is more than the 100 tokens"):
        quotas.check_prompt(caller(**{limit: 100}), 101, is_first=False)


def test_prompts_behind_the_first_of_a_request_have_been_let_in_with_it(quotas: Quotas) -> None:
    ann = caller(tokens_per_minute=100)
    quotas.charge(ann, 90)
    quotas.check_prompt(ann, 50, is_first=False)
    with pytest.raises(RateLimited):
        quotas.check_prompt(ann, 50, is_first=True)


def test_days_are_those_of_utc(quotas: Quotas, clocks: Clocks) -> None:
    ann = caller(requests_per_day=2, tokens_per_day=1000)
    quotas.admit(ann)
    quotas.admit(ann)
    assert refusal(quotas, ann).retry_after_s == 6 * 3600
    clocks.pass_by(6 * 3600 - 0.5)
    assert refusal(quotas, ann).retry_after_s == 1
    clocks.pass_by(0.5)
    quotas.admit(ann)
    quotas.charge(ann, 1000)
    assert "tokens per day" in refusal(quotas, ann).message


def test_a_wall_clock_that_steps_breaks_no_minute_and_gives_no_day_twice(quotas: Quotas, clocks: Clocks) -> None:
    ann = caller(requests_per_minute=2, tokens_per_day=100)
    quotas.admit(ann)
    quotas.charge(ann, 100)
    for step in (86400.0, 3600.0, -86400.0, -3600.0):
        clocks.wall += step
        if step != -3600.0:
            continue
        assert "tokens per day" in refusal(quotas, ann).message
    bob = caller("bob", requests_per_minute=1)
    quotas.admit(bob)
    for step in (10**6, -(2 * 10**6)):
        clocks.wall += step
        assert refusal(quotas, bob).retry_after_s == 60


def test_what_was_used_before_the_start_counts(quotas: Quotas) -> None:
    ann = caller(requests_per_day=10, tokens_per_day=100)
    quotas.restore("2027-01-30", ann.share_key, 10, 100)
    quotas.admit(ann)
    quotas.restore("2027-01-31", ann.share_key, 3, 100)
    assert "tokens per day" in refusal(quotas, ann).message
    assert quotas.headers(ann)["x-ratelimit-remaining-requests"] == "6"


def test_two_keys_of_a_holder_share_and_a_new_limit_finds_what_was_used(quotas: Quotas) -> None:
    old, new = caller(requests_per_minute=4), Caller(name="ann", tenant="x", limits=CallerLimits(requests_per_minute=3))
    quotas.admit(old)
    quotas.admit(old)
    quotas.admit(new)
    refusal(quotas, new)
    quotas.admit(old)
    for _ in range(5):
        quotas.charge(caller(), 100)  # no limit, so far
    assert "tokens per day" in refusal(quotas, caller(tokens_per_day=500)).message


def test_headers_say_what_is_left_of_the_nearest_limit(quotas: Quotas, clocks: Clocks) -> None:
    ann = caller(requests_per_minute=60, requests_per_day=5, tokens_per_minute=1000)
    assert quotas.headers(ann) == {
        "x-ratelimit-limit-requests": "5",
        "x-ratelimit-remaining-requests": "5",
        "x-ratelimit-reset-requests": "0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "1000",
        "x-ratelimit-reset-tokens": "0s",
    }
    quotas.admit(ann)
    quotas.charge(ann, 400)
    clocks.pass_by(29.5)
    headers = quotas.headers(ann)
    assert headers["x-ratelimit-remaining-requests"] == "4"
    assert headers["x-ratelimit-reset-requests"] == "5h59m31s"
    assert headers["x-ratelimit-remaining-tokens"] == "600"
    assert headers["x-ratelimit-reset-tokens"] == "31s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0171, "18ms"), (1, "1s"), (59.2, "1m0s"), (360, "6m0s"), (3600, "1h0m0s"), (86399, "23h59m59s")],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_callers_are_bounded() -> None:
    quotas = Quotas(time.monotonic, lambda: 0.0)
    for number in range(MAX_CALLERS + 10):
        quotas.admit(Caller(address=f"a{number}", limits=CallerLimits(requests_per_minute=2, requests_per_day=5)))
    assert len(quotas._windows[0]) == MAX_CALLERS
    assert len(quotas._days[0]) == MAX_CALLERS
