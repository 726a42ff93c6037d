"""From logits to tokens: processors, truncations, grammars, drafts."""
