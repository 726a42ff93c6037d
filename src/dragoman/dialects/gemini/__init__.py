"""The Gemini dialect: Google's API for its models, as ``google-genai`` speaks it."""
