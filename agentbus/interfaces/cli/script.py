"""What is on the PATH as ``agentbus``: one command, as fast as can be, and gone."""

from __future__ import annotations

import gc
import signal

# Nothing of what is imported is ever garbage, and looking for some takes a tenth of a short command's time.
gc.set_threshold(100_000, 20, 20)

# Ctrl-C while modules are imported ends the program at once: as an exception it shows a traceback, or leaves msgspec
# half made, which crashes later. Whoever started us without it (nohup, a job in the background) wants none.
_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _interruptible:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import os  # noqa: E402
import sys  # noqa: E402
from typing import NoReturn  # noqa: E402

from agentbus.interfaces.cli.failures import CLOSED_PIPE  # noqa: E402
from agentbus.interfaces.cli.interrupts import interrupt  # noqa: E402
from agentbus.interfaces.cli.main import main  # noqa: E402


def script() -> NoReturn:
    """Run a command. When it is through, everything is closed and out: nothing is left for the interpreter to tidy."""
    if _interruptible:
        signal.signal(signal.SIGINT, interrupt)
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or CLOSED_PIPE
    os._exit(code)
