"""``python -m dragoman.engine``: deaf at once to signals that are its parent's to act on, then the engine's process."""

import signal
import sys

if __name__ == "__main__":
    # Ctrl-C in a terminal and a service manager's SIGTERM reach the whole process group; the server decides when the
    # engine goes, after the requests that are running.
    for sent_to_all in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sent_to_all, signal.SIG_IGN)
    from dragoman.engine.worker import main

    sys.exit(main())
