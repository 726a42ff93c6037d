"""Another tokenizer for a trained model: what each new token means is taken from the old tokens of the same text."""

import torch
from tokenizers import Tokenizer

from training.model import Llama
from training.tokenizer import SPACE


@torch.no_grad()
def carry_embeddings(model: Llama, old: Tokenizer, new: Tokenizer) -> None:
    """Replace the embeddings [tokens, width], which are the output's too: each new token has the row of the old token
    of the same text; a word without its space also has a part in the row of the word with it, where most of its old
    text stood; a token that the old tokenizer lacks has the mean of the tokens it was cut into."""
    rows = model.model.embed_tokens.weight
    before = rows.clone()
    byte_of = _bytes()
    for token, place in new.get_vocab().items():
        spaced = old.token_to_id(SPACE + token) if token[0].isalpha() else None
        same = old.token_to_id(token)
        found = [row for row in (same, spaced) if row is not None]
        if not found:
            text = bytes(byte_of.get(sign, 0) for sign in token).decode("utf-8", errors="replace")
            found = old.encode(text, add_special_tokens=False).ids
        rows[place] = before[found].mean(0)


def _bytes() -> dict[str, int]:
    """The byte that each sign of a byte-level token stands for (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
