"""What a chat template reads, found from its source without running it."""

from __future__ import annotations

import itertools
from typing import NamedTuple


class TemplateNames(NamedTuple):
    """``variables``: names that stand by themselves. ``members``: attributes, and texts in quotes that may be keys."""

    variables: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()


def template_names(source: str) -> TemplateNames:
    """The names in a template; none in one that cannot be read."""
    from jinja2 import (  # the server, which asks the process of the templates, needs none of it
        Environment,
        TemplateError,
    )

    try:
        tokens = [token for token in Environment().lex(source) if token[1] not in ("whitespace", "comment")]
    except TemplateError:
        return TemplateNames()
    variables, members = set[str](), set[str]()
    for before, (_, kind, value) in itertools.pairwise([(0, "", ""), *tokens]):
        if kind == "name":
            (members if before[2] == "." else variables).add(value)
        elif kind == "string":
            members.add(value[1:-1])
    return TemplateNames(frozenset(variables), frozenset(members))
