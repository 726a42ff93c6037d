"""The Python API: a model in a program's own hands, without HTTP."""
