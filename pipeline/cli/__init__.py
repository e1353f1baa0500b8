"""The `sightline` command: parse, call one function, print; report what goes wrong.

The commands, and nearly everything else, are imported once signals are heard, so that stopping them
is never a traceback.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]  (`signal` itself takes milliseconds)
import sys

TYPE_CHECKING = False  # as in `sightline`
if TYPE_CHECKING:
    from sightline.machine.signals import Stopped


def console() -> None:
    """`main` in a process of its own."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until `main` hears it, end silently
    from sightline.machine.signals import run_then_exit

    run_then_exit(main)


def main() -> None:
    """Run the command line.

    Exit codes: 0 done, 1 failed, 2 misuse, 130 stopped by SIGINT (Ctrl-C), 143 by SIGTERM.
    """
    import gc
    import io
    import os
    import traceback  # noqa: F401  (for `_fail`, which may have no memory left to import it)

    from sightline.devices import allow_open_files
    from sightline.errors import message_of
    from sightline.hidden_packages import require_not_hidden
    from sightline.machine.heap import keep_heap
    from sightline.machine.signals import Stopped, one_of_several, stop_on_signals

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # quiet in forked decode workers
    # importing torch and transformers creates millions of objects, none of them garbage
    gc.set_threshold(100_000, 20, 50)
    allow_open_files()
    keep_heap()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as of standard error: names of files
    heard = stop_on_signals()
    try:
        require_not_hidden("train")
        with one_of_several():
            from pipeline.cli.commands import app

            app()
    except Stopped as stop:
        _stopped(stop, stop)
    except Exception as error:
        heard.ignored = True
        message = message_of(error)
        if message is None and heard.stop:  # a library caught it, and failed in its own way
            _stopped(heard.stop, error)
        if message is None and "--debug" in sys.argv[1:]:
            raise
        _fail(f"error: {message + _raised_by(error) if message else _unforeseen(error)}", 1, error)


def _stopped(stop: Stopped, error: BaseException) -> None:
    from sightline.devices import is_first_process, of_several_processes

    # of several processes, one that kept nothing is ended because of what others say
    told = is_first_process() and (hasattr(stop, "__notes__") or not of_several_processes())
    _fail(str(stop) if told else "", 128 + stop.number, error)


def _raised_by(error: Exception) -> str:
    """In which package of others an error of the system was raised; empty: in none."""
    from sightline.errors import SightlineError

    if isinstance(error, SightlineError):
        return ""
    try:
        from sightline.plugins import to_blame

        package, is_running = to_blame(error)
    except (OSError, MemoryError, ImportError):  # no file can be opened, or no memory is left
        return ""
    return f" (raised in the package {package!r})" if is_running else ""


def _unforeseen(error: Exception) -> str:
    """A message that asks for a report and names a file with the traceback."""
    import os
    import platform
    import shlex
    import tempfile
    import traceback

    from sightline.plugins import summary_of, to_blame

    summary = summary_of(error)
    package, is_running = to_blame(error)
    fault = f"is a fault of the package {package!r}" if is_running else "is a bug in Sightline"
    if package and not is_running:
        fault = f"is a fault of Sightline, or of what the package {package!r} gave it"
    message = f"{summary[:200]!r} {fault}; what was published before is intact. Please "
    try:
        handle, path = tempfile.mkstemp(prefix="sightline-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            about = [sys.version, platform.platform(), shlex.join(sys.argv), ""]
            file.write("\n".join(about + traceback.format_exception(error)))
    except OSError:
        return message + "report it with the traceback, which `sightline --debug` prints"
    return message + f"report it with {path}, the traceback (`sightline --debug` prints it)"


def _fail(message: str, code: int, error: BaseException | None) -> None:
    import traceback

    from sightline.errors import harmless

    if message:
        print(harmless(message), file=sys.stderr, flush=True)
    while error is not None:
        # Its frames keep resources open. End decode workers now: Python kills them with a signal
        # at exit, which their owner would report as a crash.
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    sys.exit(code)
