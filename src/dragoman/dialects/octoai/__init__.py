"""The OctoAI dialect: the text-generation API of a service that has ended, for the clients that it left behind."""
