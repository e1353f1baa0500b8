"""Runs a module in a process that ends with its parent: `-m pipeline.ends_with_parent MODULE …`.

The parent holds the other end of its standard input, which the system closes however it dies.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    """Run the module that the arguments name, with the arguments after it."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__")


def _wait_for_the_end() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
