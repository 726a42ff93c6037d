"""What another server of the cluster may have: named in the answer, so that the ingress asks there."""

from __future__ import annotations

from dragoman.core.journal import current_journal
from dragoman.core.observer import current_request

HEADER = "x-dragoman-elsewhere"
"""The header of an answer to a cluster's ingress that follows from something not being here: says what."""


def note_elsewhere(what: str = "it does not have what the request names") -> None:
    """Note that something stored is not here, or not the same, for the ingress that has passed the request on, if one
    has."""
    if current_journal.get() is not None and (observed := current_request.get(None)) is not None:
        observed.answer_headers[HEADER] = what
