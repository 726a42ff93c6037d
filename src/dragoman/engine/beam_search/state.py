"""Beam search: which texts of one request are followed, and which have ended. No logits, no blocks, no sequences.

Every step, all candidates for the next token of all texts compete; ``BeamSearch`` decides, and says what it decided as
one ``BeamStep``. Its state is what the steps that were applied to it add up to, so that a search goes on after the
death of a process as if nothing had happened.

``deterministic`` and ``sampling`` are transformers' ``_beam_search`` for one prompt, hypothesis for hypothesis and
score for score. ``stochastic`` is algorithm 1 of Kool et al., "Stochastic beams and where to find them", 2019: a text
that has ended keeps its place in the beam, and loses it to whatever has a larger key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.core.events import BeamStep, BeamToken, FinishReason, TokenLogprob
from dragoman.core.request import EngineRequest
from dragoman.engine.arrays import Float32, Int32

EndReason = Callable[[int, int], FinishReason | None]
"""Why a text ends, given its place among those that are followed and the token it goes on with; None: it does not."""

Float64 = NDArray[np.float64]

_LONGEST = 700.0
"""Largest logarithm of what a score is divided by: float64 ends a little above."""


class Candidates(NamedTuple):
    """The continuations of one text with the largest keys, in descending order; of equal ones the lower id first.

    Attributes:
        token_ids: int32 [C], those that are possible at all.
        logprobs: float32 [C], what they add to the text's score.
        keys: float64 [C], what they compete by: the score with each, and noise where the search draws.
        reported: float32 [C], the log-probabilities that the client asked for; None where it did not.
        top: its alternatives.
    """

    token_ids: Int32
    logprobs: Float32
    keys: Float64
    reported: Float32 | None
    top: tuple[TokenLogprob, ...]


class Link(NamedTuple):
    """The newest token of a text, and the one before it. Texts with the same beginning share it."""

    before: Link | None
    token_id: int
    logprob: float | None
    top: tuple[TokenLogprob, ...]


class Beam(NamedTuple):
    """A text that is followed. ``score`` is the sum of its log-probabilities, ``key`` what it competes by."""

    last: Link | None
    score: float
    key: float

    @property
    def token_ids(self) -> list[int]:
        return [link.token_id for link in _links(self.last)]


class Hypothesis(NamedTuple):
    """A text that has ended. ``rank``: what hypotheses are ordered by."""

    last: Link
    score: float
    rank: float
    finish: FinishReason

    @property
    def tokens(self) -> list[Link]:
        return _links(self.last)


class BeamSearch:
    """One request's search. ``live``: the texts that are followed, ``ended``: the hypotheses; both best first."""

    def __init__(self, request: EngineRequest) -> None:
        beams = request.beams
        assert beams is not None
        self.beams = beams
        self.request_id = request.request_id
        self.most_tokens = request.max_tokens - len(request.generated[0] if request.generated else ())
        ends = {*request.end_token_ids, *request.stop_token_ids}
        self.breadth = max(2, 1 + len(ends)) * beams.num_beams
        """Candidates that are looked at in a step: so many that ``num_beams`` texts go on, whatever ends."""
        self.length = 0
        self.live = [Beam(None, 0.0, 0.0)]
        self.ended: list[Hypothesis] = []
        self._offers: list[Candidates | None] = [None]

    @property
    def is_over(self) -> bool:
        """Whether no text that is followed can change the hypotheses any more, as ``early_stopping`` reckons."""
        if not self.live:
            return True
        if self.beams.kind == "stochastic" or len(self.ended) < self.beams.num_beams:
            return False
        if self.beams.early_stopping is True:
            return True
        hopes = self.beams.early_stopping == "never" and self.beams.length_penalty > 0
        best = self._normalized(self.live[0].score, self.most_tokens if hopes else self.length)
        return best <= self.ended[-1].rank

    # A step ----------------------------------------------------------------------------------------------------------

    def offer(self, place: int, candidates: Candidates) -> bool:
        """The candidates of the live text at ``place``. True: those of all texts are here, and ``decide`` can go on."""
        self._offers[place] = candidates
        return None not in self._offers

    def has_offer(self, place: int) -> bool:
        return self._offers[place] is not None

    def decide(self, end_reason: EndReason) -> BeamStep:
        """The next step, and apply it."""
        offers = [offer for offer in self._offers if offer is not None]
        contest = _Contest(self.live, offers, self.breadth)
        chosen = self._stochastic(contest, end_reason) if self._is_stochastic else self._best(contest, end_reason)
        step = BeamStep(self.request_id, self.length, tuple(chosen))
        self.apply(step)
        return step

    def apply(self, step: BeamStep) -> None:
        """One token more. Steps come in order, each once."""
        assert step.index == self.length, "a beam search goes on where it was"
        self.length += 1
        live, ended = [], []
        for token in step.tokens:
            last = Link(self.live[token.parent].last, token.token_id, token.logprob, token.top)
            if token.finish is None:
                live.append(Beam(last, token.score, token.key))
                continue
            rank = token.key if self._is_stochastic else self._normalized(token.score, self.length)
            score = token.score if self._is_stochastic else rank
            ended.append(Hypothesis(last, score, rank, token.finish))
        kept = self.beams.num_beams - (len(live) if self._is_stochastic else 0)
        self.live = live
        self.ended = sorted([*self.ended, *ended], key=attrgetter("rank"), reverse=True)[:kept]
        self._offers = [None] * len(live)

    def _best(self, contest: _Contest, end_reason: EndReason) -> Iterable[BeamToken]:
        """transformers: of the first ``breadth`` candidates, those with the highest scores that do not end go on; those
        that end become hypotheses if they are among the first ``num_beams``."""
        count = self.beams.num_beams
        ended = [token for token in map(contest.token, range(min(count, len(contest)))) if token.ends(end_reason)]
        going_on: list[_Token] = []
        for place in contest.by_score():
            if len(going_on) == count:
                break
            token = contest.token(place)
            if not token.ends(end_reason):
                going_on.append(token)
        return [token.told() for token in (*going_on, *ended)]

    def _stochastic(self, contest: _Contest, end_reason: EndReason) -> Iterable[BeamToken]:
        """Kool et al.: the ``num_beams`` largest keys stay, of candidates and of texts that have ended before."""
        going_on: list[_Token] = []
        ended: list[_Token] = []
        earlier = [hypothesis.rank for hypothesis in self.ended]
        for token in map(contest.token, range(len(contest))):
            larger = sum(rank >= token.key for rank in earlier)
            if larger + len(going_on) + len(ended) >= self.beams.num_beams:
                break
            (ended if token.ends(end_reason) else going_on).append(token)
        return [token.told() for token in (*going_on, *ended)]

    @property
    def _is_stochastic(self) -> bool:
        return self.beams.kind == "stochastic"

    def _normalized(self, score: float, length: int) -> float:
        """score / length ** length_penalty, within what float64 can hold."""
        logarithm = self.beams.length_penalty * math.log(length)
        if abs(logarithm) > _LONGEST:
            return score / math.exp(math.copysign(_LONGEST, logarithm))
        divisor: float = length**self.beams.length_penalty
        return score / divisor


class _Contest:
    """The candidates of all texts with the largest keys, at most ``most``, in descending order."""

    def __init__(self, live: list[Beam], offers: list[Candidates], most: int) -> None:
        keys = np.concatenate([offer.keys for offer in offers])
        self._parents = np.repeat(np.arange(len(offers)), [len(offer.keys) for offer in offers])
        self._inner = np.concatenate([np.arange(len(offer.keys)) for offer in offers])
        self._scores = np.concatenate(
            [beam.score + offer.logprobs.astype(np.float64) for beam, offer in zip(live, offers, strict=True)]
        )
        self._offers, self._keys = offers, keys
        # Equal keys: the better text first, then the lower token id. A stable sort leaves them so.
        self._order = np.argsort(-keys, kind="stable")[:most]
        self._tokens: dict[int, _Token] = {}

    def __len__(self) -> int:
        return len(self._order)

    def by_score(self) -> list[int]:
        """The places in this contest, the highest score first."""
        places: list[int] = np.argsort(-self._scores[self._order], kind="stable").tolist()
        return places

    def token(self, place: int) -> _Token:
        token = self._tokens.get(place)
        if token is None:
            at = int(self._order[place])
            parent, inner = int(self._parents[at]), int(self._inner[at])
            token = _Token(parent, inner, self._offers[parent], float(self._scores[at]), float(self._keys[at]))
            self._tokens[place] = token
        return token


class _Token:
    """One candidate. Whether it ends its text is asked once: a grammar may have to be followed for it."""

    __slots__ = ("_asked", "_finish", "_inner", "_offer", "key", "parent", "score")

    def __init__(self, parent: int, inner: int, offer: Candidates, score: float, key: float) -> None:
        self.parent, self.score, self.key = parent, score, key
        self._inner, self._offer = inner, offer
        self._asked = False
        self._finish: FinishReason | None = None

    def ends(self, end_reason: EndReason) -> bool:
        if not self._asked:
            self._asked = True
            self._finish = end_reason(self.parent, int(self._offer.token_ids[self._inner]))
        return self._finish is not None

    def told(self) -> BeamToken:
        offer, inner = self._offer, self._inner
        logprob = None if offer.reported is None else float(offer.reported[inner])
        token_id = int(offer.token_ids[inner])
        return BeamToken(self.parent, token_id, self.score, self.key, self._finish, logprob, offer.top)


def _links(last: Link | None) -> list[Link]:
    links = []
    while last is not None:
        links.append(last)
        last = last.before
    return links[::-1]
