"""What a request asks of a generation, whichever of TGI's endpoints it came through."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.dialects.field import CoreParams, Table

NOTHING = CoreParams(Table(name="", fields=()), {})


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """What the client gave. Not validated.

    Attributes:
        core: the parameters of the core; ``ending.max_tokens`` None: ``fills``, or what the operator set for those who
            say nothing.
        sampling: whether tokens are drawn; otherwise the likeliest is taken.
        fills: as many tokens as there is room for, whatever the operator set.
        logprobs: whether the log-probabilities of the tokens are shown; they take a pass over the vocabulary each.
        details: whether the answer shows its tokens, and how the text ended.
        any_adapter: where there is no adapter of the name that is given, none is meant.
        grammar_fault: why the grammar comes to nothing; said after everything else.
    """

    core: CoreParams = NOTHING
    sampling: bool = False
    fills: bool = False
    logprobs: bool = True
    details: bool = False
    return_full_text: bool = False
    any_adapter: bool = False
    grammar_fault: str = ""

    @property
    def sequences(self) -> int:
        """How many are generated, of which the best is the answer."""
        return self.core.get("n") or 1

    def deciding(self, decided: dict[str, Any]) -> Parameters:
        """The same with these parameters of the core decided."""
        return msgspec.structs.replace(self, core=self.core.deciding(decided))
