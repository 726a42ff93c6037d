"""NumPy for modules that describe more often than they compute: imported when something of it is first asked for.

The server's process looks at models and never runs one. NumPy takes it 0.1 s of every start, so it comes to it later.
Write ``from dragoman.core.lazy_numpy import np``, and keep it out of what runs at import, and of inner loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    __all__ = ["np"]
else:

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            found = getattr(numpy, name)
            setattr(self, name, found)
            return found

    np = _Numpy()
