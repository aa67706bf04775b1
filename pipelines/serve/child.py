"""A server that lives no longer than the process that started it.

``python -m pipelines.serve.child`` takes the options of ``serve``. It stops when its standard input
ends: the parent holds the other end of that pipe, which closes even if the parent is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from ..__main__ import main


def _stop_at_the_end_of_input() -> None:
    # Not by `sys.stdin`, whose lock a waiting thread would hold when the process ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.argv.insert(1, "serve")
    threading.Thread(target=_stop_at_the_end_of_input, daemon=True).start()
    sys.exit(main())
