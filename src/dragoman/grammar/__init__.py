"""What a text has to be, from a client's constraint to the tokens that may come next.

* ``lark.grammar_of(constraint) -> str``: one grammar for every kind of constraint. Pure; refuses by name what cannot be
  enforced. ``json_schema`` and ``pattern`` say what can.
* ``process.GrammarProcess(vocabulary).check(constraint) -> str``: the same, and the grammar tried out within limits, in
  a process of its own. It blocks: call it in a thread.
* ``matching.Matching(vocabulary)``: compiles a grammar that was checked, and follows it token by token. The engine's.
"""
