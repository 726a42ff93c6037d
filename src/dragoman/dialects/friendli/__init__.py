"""The Friendli dialect: its hosted surfaces under /serverless and /dedicated, and that of its container."""
