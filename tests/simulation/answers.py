"""Whether an answer is right, or says why it is not, and that is so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dragoman.core.caller import CallerLimits
from dragoman.engine_client.restarts import PATIENCE_S
from dragoman.server.quotas import has_quotas
from tests.simulation.books import Books, Used
from tests.simulation.clients import Answer, Manner
from tests.simulation.key_files import KeyFile
from tests.simulation.plan import Plan
from tests.simulation.references import reference, used
from tests.simulation.workload import Template, comparable, difference, error_of

if TYPE_CHECKING:
    from tests.simulation.virtual_time import VirtualLoop
    from tests.simulation.world import Report

TOO_LARGE = b"tokens that this caller may use within a"
REMAINING = "x-ratelimit-remaining-"


def is_quota(words: str) -> bool:
    """Whether a refusal is for a limit of a minute or a day."""
    return "Limit of " in words and " reached: " in words


class Violation(AssertionError):
    """A promise was broken."""


class AnswerChecks:
    """The part of a world that judges answers."""

    plan: Plan
    loop: VirtualLoop
    report: Report
    books: Books
    key_file: KeyFile | None
    is_drained: bool
    _down: list[tuple[float, float]]
    _swaps: int
    _is_dying: bool

    def limits_of(self, holder: str) -> list[CallerLimits]:
        """All that a holder has had."""
        raise NotImplementedError

    def has_limits(self, holder: str) -> bool:
        """Whether the holder may be refused although the server has room."""
        return any(each.max_waiting is not None or has_quotas(each) for each in self.limits_of(holder))

    def note(self, outcome: str, template: Template, answer: Answer) -> None:
        self.report.outcomes[outcome] += 1
        self.report.trace.append(f"{answer.ended_s:.6f} {template.number} {answer.status} {outcome} {len(answer.body)}")

    def broken(self, template: Template, what: str, answer: Answer) -> Violation:
        return Violation(f"template {template.number} ({template.kind}): {what}; {shown(answer)}")

    def reference(self, template: Template) -> tuple[int, dict[str, list[str]]]:
        return reference(self.plan, template)

    @property
    def kills(self) -> int:
        """Deaths that no request was to blame for."""
        return sum(self.report.faults[kind] for kind in ("kill", "hang", "start dies", "start fails", "descriptors"))

    def _was_blamed(self, words: str) -> bool:
        """Whether a request was alone at each of three deaths, without a token between them: whoever kills the process
        from outside is not told from a request that does."""
        return "process died 3 times" in words and self.kills >= 3

    def _is_explained(self, words: str) -> bool:
        """Whether an answer may have been cut with these words."""
        return self.is_drained or "did not finish" in words or self._was_blamed(words)

    def may_fail(self) -> bool:
        """Whether requests may be refused or cut now, for want of an engine or because the server stops."""
        lately = self.loop.time() - 10.0
        return self.is_drained or any(end >= lately for _, end in self._down) or self.plan.settings.max_waiting < 10

    def check_refusal(self, template: Template, answer: Answer) -> None:
        """An answer that is no success has its reason."""
        words = error_of(answer)
        if answer.status == 200 and not self._is_explained(words):
            raise self.broken(template, "it was cut", answer)
        self._check(template, Manner(), answer)

    def _check(self, template: Template, manner: Manner, answer: Answer) -> None:
        """The answer is right, or says why it is not, and that is so."""

        def broken(what: str) -> Violation:
            return self.broken(template, what, answer)

        if answer.starts > 1 or answer.ends > 1:
            raise broken("it was answered twice")
        if answer.left:
            self.note("left", template, answer)
            self._check_part(template, answer, broken)
            return
        if answer.dropped and (words := error_of(answer)):
            # A dialect whose streams break off behind an error.
            if not self._is_explained(words):
                raise broken(f"a stream was cut: {words}")
            self.note("cut", template, answer)
            self._check_part(template, answer, broken)
            return
        if answer.dropped:
            # Only one that reads too slowly is dropped.
            if not manner.read_s:
                raise broken("the server dropped the connection of a client that reads")
            self.note("dropped", template, answer)
            return
        if not (answer.starts and answer.ends):
            raise broken("it was not answered to the end")
        if template.kind == "poison":
            self.note("poison", template, answer)
            if answer.status == 200:
                raise broken("a request that kills the engine was answered")
            return
        match answer.status:
            case 401 | 403:
                self.note(str(answer.status), template, answer)
                if not self._was_kept_out(answer):
                    raise broken("its key was good all the time")
            case 400 | 422 if TOO_LARGE in answer.body and self.has_limits(answer.holder):
                self.note("larger than the limit", template, answer)
            case 429 if is_quota(answer.body.decode()):
                self.note("quota", template, answer)
                if "retry-after" not in answer.headers:
                    raise broken("429 without Retry-After")
            case 408 if manner.body_s == float("inf"):
                self.note("408", template, answer)
            case 429:
                self.note("429", template, answer)
                if "retry-after" not in answer.headers:
                    raise broken("429 without Retry-After")
                is_roomy = self.plan.settings.max_waiting > self.plan.clients and self.plan.stub.max_sequences > 4
                if is_roomy and not self.has_limits(answer.holder):
                    raise broken("it was refused although there was room")
            case 503 if b"Try again later" in answer.body:  # some dialects have no other word for it
                self.note("429", template, answer)
            case 503:
                self.note("503", template, answer)
                if not (self.is_drained or self._was_down(answer)):
                    raise broken("503 although the server neither stops nor waits for its engine")
                if "retry-after" not in answer.headers:
                    raise broken("503 without Retry-After")
            case 400 if b"No model is currently loaded" in answer.body and (self.is_drained or self._was_down(answer)):
                self.note("503", template, answer)
            case 500 if self._was_blamed(answer.body.decode()):
                self.note("blamed", template, answer)
            case _ if self.plan.settings.generation_timeout_s and b"did not finish within" in answer.body:
                self.note("timeout", template, answer)
            case 404 if self._swaps and b"The model 'stub' does not exist" in answer.body:
                self.note("another model", template, answer)
            case _:
                self._check_whole(template, answer, broken)

    def _was_down(self, answer: Answer) -> bool:
        """Whether the engine was away for some seconds when the answer came: requests are refused then."""
        return any(begin + PATIENCE_S <= answer.ended_s <= end + 1.0 for begin, end in self._down)

    def _check_whole(self, template: Template, answer: Answer, broken: Callable[[str], Violation]) -> None:
        if words := error_of(answer):
            if TOO_LARGE.decode() in words and self.has_limits(answer.holder):
                self.note("larger than the limit", template, answer)
                return
            if is_quota(words) and not comparable(answer).get("choice 0"):
                self.note("quota", template, answer)
                return
            if "overloaded" in words and not comparable(answer).get("choice 0"):
                self.note("429", template, answer)
                return
            if "unhealthy" in words and self._was_down(answer):  # a refusal, in a dialect that has begun its stream
                self.note("503", template, answer)
                return
            if not self._is_explained(words):
                raise broken(f"a stream was cut: {words}")
            self.note("cut", template, answer)
            self._check_part(template, answer, broken)
            return
        expected = reference(self.plan, template)
        if answer.status >= 500 and self.is_drained:
            self.note("ended", template, answer)
            return
        if (answer.status, comparable(answer)) != expected:
            if self.is_drained and answer.is_stream:  # dialects that end a stream with an event of their own
                self.note("cut", template, answer)
                self._check_part(template, answer, broken)
                return
            raise broken(f"expected {expected[0]}, {difference(comparable(answer), expected[1])}")
        self.note("whole", template, answer)
        if (took := self._used(answer)) != (due := used(self.plan, template)):
            raise broken(f"it is counted as {took} in place of {due}")

    def _used(self, answer: Answer) -> Used:
        return self.books.by_request.get(answer.headers.get("x-request-id", ""), Used())

    def _check_account(self, template: Template, answer: Answer) -> None:
        """What every answer has to agree with, whatever became of it: keys, limits, and tokens that are counted."""
        took = self._used(answer)
        if answer.status == 429 and not took.requests and "/models/" not in template.path and answer.ends:
            name = answer.holder if self.plan.has_keys else ""
            self.books.refused[name] += 1
        if not (answer.starts and answer.ends and not self._is_dying):
            return
        if took.requests and not self.may_be_let_in(answer):
            raise self.broken(template, "it was served although its key was not good at any time", answer)
        is_limited = all(map(has_quotas, self.limits_of(answer.holder)))
        if took.requests and is_limited and not any(name.startswith(REMAINING) for name in answer.headers):
            raise self.broken(template, "it does not say what is left of the limits", answer)

    def _was_kept_out(self, answer: Answer) -> bool:
        """Whether its key was not good for it at some moment from its question to its answer."""
        if self.key_file is None:
            return False
        states = self.key_file.states(answer.key, answer.asked_s, answer.ended_s)
        return any("infer" not in state for state in states)

    def may_be_let_in(self, answer: Answer) -> bool:
        """Whether its key was good for it at some moment from its question to its answer."""
        if self.key_file is None:
            return True
        states = self.key_file.states(answer.key, answer.asked_s, answer.ended_s)
        return any("infer" in state for state in states)

    def may_refuse(self, answer: Answer) -> bool:
        """Whether a client may be refused for its key or its limits."""
        return self._was_kept_out(answer) or self.has_limits(answer.holder)

    def _check_part(self, template: Template, answer: Answer, broken: Callable[[str], Violation]) -> None:
        """What came of a stream is how the whole begins."""
        if not answer.is_stream or answer.status != 200 or template.kind == "poison":
            return
        status, expected = reference(self.plan, template)
        if status != 200:
            return
        for sequence, events in comparable(answer).items():
            whole = expected.get(sequence, [])
            wrong = [i for i, (got, due) in enumerate(zip(events, whole, strict=False)) if got != due]
            if wrong and wrong[0] < len(events) - 1:  # the last may tell of the end
                raise broken(f"a part differs in event {wrong[0]}: {events[wrong[0]]} is not {whole[wrong[0]]}")


def shown(answer: Answer) -> str:
    """The answer in a report."""
    return f"status {answer.status}, {answer.asked_s:.3f} to {answer.ended_s:.3f} s, {answer.body[-400:]!r}"
