"""The HTTP server: application assembly, lifecycle, limits, health, metrics, and the serving of text over an engine."""
