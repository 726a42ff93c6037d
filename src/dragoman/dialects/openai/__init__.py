"""The OpenAI dialect: text completions, chat completions, the list of models, and adapters."""
