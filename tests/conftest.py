"""What all tests share."""

from __future__ import annotations

import functools
import ssl

# Each client of a test reads all certificates that the system trusts: 33 ms, hundreds of times, and none of them speaks
# to a server outside. Here they read them once.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]
