"""Whether drafts of a model or a head pay, and how long they are then.

It follows from what steps cost on this machine (``step_costs``), and from how often the newest guesses were right.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dragoman.engine.speculation.drafter import FIRST_LENGTH
from dragoman.engine.speculation.step_costs import StepCosts, best_length

ASSUMED_ACCEPTANCE = 0.6
ASSUMPTION_WEIGHT = 4.0
"""Tokens that count as much as that assumption."""
ACCEPTANCE_DECAY = 0.98
LONGEST_PAUSE = 64
"""Most steps without a draft after drafts have not paid."""
LEAST_PART = 64
"""Least tokens of texts that are read in front of one step."""


class Acceptance:
    """The probability that a guessed token is right where those before it were, as the newest tokens have it."""

    def __init__(self) -> None:
        self._accepted = self._tried = 0.0

    def note(self, drafted: int, accepted: int) -> None:
        """Learn from a draft of which so many tokens were accepted; the first other one was tried too."""
        for is_right in [1.0] * accepted + [0.0] * (accepted < drafted):
            self._accepted = ACCEPTANCE_DECAY * self._accepted + is_right
            self._tried = ACCEPTANCE_DECAY * self._tried + 1

    def forget(self) -> None:
        """Let what was seen count half, so that drafts that have not paid are tried again."""
        self._accepted /= 2
        self._tried /= 2

    @property
    def value(self) -> float:
        return self.given(ASSUMED_ACCEPTANCE)

    def given(self, assumed: float) -> float:
        """Return the probability, with another one assumed until enough tokens were seen."""
        return (self._accepted + ASSUMPTION_WEIGHT * assumed) / (self._tried + ASSUMPTION_WEIGHT)


class DraftGain:
    """Decides whether a step's sequences get drafts.

    Attributes:
        model_costs: of steps of the served model, without prompts.
        draft_costs: of steps of what drafts.
        acceptance: of the drafts of all sequences.
    """

    def __init__(self) -> None:
        self.model_costs = StepCosts()
        self.draft_costs = StepCosts()
        self.acceptance = Acceptance()
        self._pause, self._paused = 1, 0

    @property
    def is_known(self) -> bool:
        """Return whether both kinds of steps have run."""
        return self.model_costs.is_known and self.draft_costs.is_known

    def learn_costs(self, model: Mapping[int, float], draft: Mapping[int, float]) -> None:
        """Begin with what steps take that were tried: seconds by their rows."""
        for rows, seconds in model.items():
            self.model_costs.note(rows, seconds)
        for rows, seconds in draft.items():
            self.draft_costs.note(rows, seconds)

    def skip_step(self) -> bool:
        """Return whether this step has no drafts, as earlier ones have not paid."""
        if not self._paused:
            return False
        self._paused -= 1
        return True

    def pause(self, acceptances: Collection[Acceptance]) -> None:
        """Skip some steps, twice as many each time. ``acceptances``: of the sequences that now have no draft."""
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._paused = self._pause - 1
        for acceptance in (self.acceptance, *acceptances):
            acceptance.forget()

    def end_pause(self) -> None:
        """Let the next pause be a short one: drafts pay."""
        self._pause = 1

    def length(self, acceptances: Collection[Acceptance], most: int, running: int) -> tuple[int, float]:
        """Return how many tokens the drafts of this step have, ``most`` at the most, and how many times as many tokens
        in a second they give; 0 and 1: they do not pay.

        ``acceptances``: of the sequences that are drafted for. ``running``: sequences of the step.
        """
        if not acceptances:
            return 0, 1.0
        if not self.is_known:
            return min(most, FIRST_LENGTH), 2.0
        assumed, drafting = self.acceptance.value, len(acceptances)
        mean = sum(each.given(assumed) for each in acceptances) / drafting
        return best_length(mean, most, running, drafting, self.model_costs, self.draft_costs.seconds(drafting))

    def pays(self, unread: int, left: int, gain: float, running: int, drafting: int) -> bool:
        """Return whether what a sequence may still win is more than reading its ``unread`` tokens.

        ``left``: tokens that it may still get. ``gain``: times as many tokens in a second, to which each of
        ``drafting`` sequences has an equal part.
        """
        if unread <= LEAST_PART or not self.is_known:
            return True
        saved_s = left * self.model_costs.seconds(running) * (1 - 1 / gain) / drafting
        return self.draft_costs.seconds(unread) < saved_s

    def part(self, most: int) -> int:
        """Return how many tokens of texts are read in front of one step, ``most`` at the most: it takes no longer than
        the step itself."""
        if not self.is_known:
            return min(2 * LEAST_PART, most)
        row_s = max(self.draft_costs.seconds(most) - self.draft_costs.seconds(1), 1e-9) / most
        return min(max(LEAST_PART, int(self.model_costs.seconds(1) / row_s)), most)
