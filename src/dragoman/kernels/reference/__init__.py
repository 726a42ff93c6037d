"""Each kernel said again in NumPy, slowly and plainly: what the tests compare the native ones with."""
