"""The engine: sequences, their memory, the schedule, the choice of tokens, and the process that runs them."""
