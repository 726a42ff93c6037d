"""Training rows: documents packed one after another, every row a function of seed, step and place alone."""

import re
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from tokenizers import Tokenizer

from training import exercises
from training.chat import render
from training.exercises.stories import story
from training.prose import Prose
from training.tokenizer import END_OF_TEXT, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, TURN_END, TURN_START, special_id

PROSE_SHARE = 0.1
FIM_SHARE = 0.03
# What users, systems and tools say is given, not asked of the model; a little weight helps it read them.
GIVEN_WEIGHT = 0.1
DECISION_WEIGHT = 3.0  # the first word decides what is said: yes or no, a call or a refusal, which kind of answer
LONG_ROW = 1024
BARE_STORY_SHARE = 0.05  # of the exercises: stories without a chat around them, for prompts of plain text


class Row(NamedTuple):
    """`length + 1` token ids, and the weight of each as a target."""

    ids: list[int]
    weights: list[float]


class RowMaker:
    """Makes the rows of one share (training or held-out) of prose and exercises."""

    def __init__(self, tokenizer: Tokenizer, prose: Prose, *, seed: int, held_out: bool = False) -> None:
        self.tokenizer = tokenizer
        self.prose = prose
        self.seed = seed
        self.held_out = held_out
        self._end = special_id(tokenizer, END_OF_TEXT)
        self._turn_end = special_id(tokenizer, TURN_END)
        self._fim_middle = special_id(tokenizer, FIM_MIDDLE)
        self._answer_start = tokenizer.encode(f"{TURN_START}assistant\n", add_special_tokens=False).ids
        self._thinking_start = tokenizer.encode("<think>\n", add_special_tokens=False).ids

    def row(self, step: int, place: int, length: int, kind: str | None = None) -> Row:
        """The row at `place` of `step`; `kind` (prose, fim or exercises) is drawn unless given."""
        rng = Random(f"{self.seed}/{'held out' if self.held_out else 'training'}/{step}/{place}/{length}")
        if kind is None:
            drawn = rng.random()
            kind = "prose" if drawn < PROSE_SHARE else "fim" if drawn < PROSE_SHARE + FIM_SHARE else "exercises"
        ids: list[int] = []
        weights: list[float] = []
        for document in self._documents(rng, kind, length + 1):
            ids += document.ids
            weights += document.weights
            if len(ids) > length:
                break
        return Row(ids[: length + 1], weights[: length + 1])

    def _documents(self, rng: Random, kind: str, length: int) -> Iterator[Row]:
        while True:
            if kind == "prose":
                ids = [*self.prose.passage(rng, length), self._end]
                yield Row(ids, [1.0] * len(ids))
            elif kind == "fim":
                yield self._fim(rng)
            else:
                yield self._conversation(rng, length)

    def _conversation(self, rng: Random, length: int) -> Row:
        if rng.random() < BARE_STORY_SHARE:
            ids = [*self.tokenizer.encode(story(rng).answer, add_special_tokens=False).ids, self._end]
            return Row(ids, [1.0] * len(ids))
        long = length > LONG_ROW and rng.random() < 0.3
        make = exercises.draw_long_conversation if long else exercises.draw_conversation
        text = render(make(rng, held_out=self.held_out))
        ids = [*self.tokenizer.encode(text, add_special_tokens=False).ids, self._end]
        return Row(ids, self._answer_weights(ids))

    def _answer_weights(self, ids: list[int]) -> list[float]:
        """Full weight for what the assistant says, up to and with the end of its turn; none for what opens a reasoning
        block, which the template writes where reasoning is switched on: a model that learned to say it would begin one
        where it is switched off."""
        weights = [GIVEN_WEIGHT] * len(ids)
        start = self._answer_start
        answering, first_said = False, 0
        for place, token in enumerate(ids):
            if ids[place - len(start) : place] == start:
                answering = True
                opened = ids[place : place + len(self._thinking_start)] == self._thinking_start
                first_said = place + len(self._thinking_start) if opened else place
            if answering and place == first_said:
                weights[place] = DECISION_WEIGHT
            elif answering:
                weights[place] = 1.0 if place > first_said else 0.0
                answering = token != self._turn_end
        return weights

    def _fim(self, rng: Random) -> Row:
        text = self._fim_text(rng)
        words = [match.start() for match in re.finditer(r"\s\S", text)] + [len(text)]
        if rng.random() < 0.8 and len(words) > 3:
            first = rng.randrange(len(words) - 1)
            start, end = words[first], words[min(first + rng.randint(1, 8), len(words) - 1)]
        else:
            start, end = sorted(rng.randint(0, len(text)) for _ in range(2))
        marked = f"{FIM_PREFIX}{text[:start]}{FIM_SUFFIX}{text[end:]}{FIM_MIDDLE}{text[start:end]}{END_OF_TEXT}"
        ids = self.tokenizer.encode(marked, add_special_tokens=False).ids
        middle = ids.index(self._fim_middle)
        return Row(ids, [GIVEN_WEIGHT if place <= middle else 1.0 for place in range(len(ids))])

    def _fim_text(self, rng: Random) -> str:
        if rng.random() < 0.6:
            return rng.choice(self.prose.paragraphs)[:600]
        return exercises.draw_exchange(rng, held_out=self.held_out).answer
