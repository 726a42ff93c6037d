"""How the tokens of a draft model correspond to those of the model that it drafts for."""

from __future__ import annotations

from dragoman.core.errors import ModelError
from dragoman.core.vocabulary import DraftVocabulary, correspondence, is_translatable
from dragoman.engine.messages import LoadDraft, LoadHead
from dragoman.models import describe
from dragoman.text import Tokenizer


def draft_vocabulary(
    draft: LoadDraft | LoadHead | None, tokenizer: Tokenizer, vocab_size: int
) -> DraftVocabulary | None:
    """Return how a draft model's tokens correspond to those of the served model, which has ``vocab_size`` rows; None
    without a draft model. Raises ModelError."""
    if not isinstance(draft, LoadDraft):
        return None
    described = describe(draft.source, token=draft.settings.token, mmproj=draft.settings.mmproj)
    own = Tokenizer.load(described.tokenizer_folder)
    served = tokenizer.vocabulary(vocab_size, ())
    found = correspondence(served, own.vocabulary(described.spec.vocab_size, ()))
    if not is_translatable(served, found):
        raise ModelError(
            f"--draft-model {described.source.name}: its tokens cannot be translated to those of the model, as they "
            "have no text in common; choose a draft model of the same family"
        )
    return found
