"""Imported last by a `StageServer`: what it has loaded is not for a run's garbage collector.

Looking at millions of objects would copy the memory that holds them into every forked run.
"""

import gc

gc.freeze()
