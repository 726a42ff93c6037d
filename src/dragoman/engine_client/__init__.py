"""The engine as the server sees it: the client that starts its process, feeds it and starts it again."""
