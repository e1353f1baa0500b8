"""Libraries without their bars, warnings and reports, where these would only confuse."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No bar for a file that is read in a second, and no report of a pooler left out on purpose.

    What matters of such a report (weights that are missing) is an error of ours already.
    """
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and progress bars of model libraries while a model is built.

    They speak of random weights and unused heads, which the identity says better. `logging.info`
    at module level, as open_clip uses it, also installs a handler on the root logger; it is
    taken off again.
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
