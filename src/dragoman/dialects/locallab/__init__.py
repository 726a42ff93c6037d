"""The LocalLab dialect: prompts, conversations and models, for the clients of every version of LocalLab."""
