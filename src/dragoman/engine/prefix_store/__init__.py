"""The prefix cache on disk: blocks and states that outlive the engine's process."""
