"""What an engine's process is told of the texts of tokens, each process anew."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.core.request import EngineRequest
from dragoman.core.vocabulary import DraftVocabulary, Vocabulary
from dragoman.engine.messages import SetDraftVocabulary, SetVocabulary

Send = Callable[[SetVocabulary | SetDraftVocabulary], None]


class Vocabularies:
    """Sends vocabularies to the processes of one engine.

    Attributes:
        of_grammars: returns the vocabulary for grammars; None: not known yet.
        of_drafts: how the draft model's tokens correspond to the model's; None: there is no draft model.
    """

    def __init__(self) -> None:
        self.of_grammars: Callable[[], Vocabulary] | None = None
        self.of_drafts: DraftVocabulary | None = None
        self._is_sent = False

    def begin(self, send: Send) -> None:
        """Send a new process what it needs from its start on."""
        self._is_sent = False
        if self.of_drafts is not None:
            send(SetDraftVocabulary(self.of_drafts))

    def prepare(self, request: EngineRequest, send: Send) -> None:
        """Send the vocabulary for grammars before the first request that has one, and not at the start: for 128,000
        tokens a process builds tables for 0.2 seconds, in which it does nothing else, and uses 50 MB."""
        if request.grammar is not None and not self._is_sent and self.of_grammars is not None:
            send(SetVocabulary(self.of_grammars()))
            self._is_sent = True
