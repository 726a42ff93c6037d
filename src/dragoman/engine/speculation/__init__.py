"""Drafts: guesses of the next tokens of a sequence, verified by the step that computes them.

A step that decodes few sequences is bound by reading the weights from memory; additional rows are nearly free. Such
rows verify a draft. Each row's token is drawn as if it were the only one, from the row before it being true, and while
the draft matches the token that is drawn, the next row is valid too. So a draft changes how many tokens a step gives,
but not which, whatever it comes from.
"""
