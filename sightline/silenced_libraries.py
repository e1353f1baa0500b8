"""Silencing the progress bars, warnings and reports of libraries where they would only confuse."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and progress bars of model libraries while a model is built or written.

    They are about random weights and unused heads; where those matter, Sightline raises an error or
    the identity records them. `logging.info` at module level, as in open_clip, also installs a
    handler on the root logger; it is removed again.
    """
    from transformers.utils import logging as transformers_logging

    root = logging.getLogger()
    handlers, disabled = list(root.handlers), root.manager.disable
    bars = transformers_logging.is_progress_bar_enabled()
    logging.disable(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
        if bars:
            transformers_logging.enable_progress_bar()
