"""Libraries without their bars, warnings and reports, where these would only confuse."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and progress bars of model libraries while a model is built or written.

    They speak of random weights and unused heads; where these matter, they are errors of ours or
    told by the identity. `logging.info` at module level, as open_clip uses it, also installs a
    handler on the root logger; it is taken off again.
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
