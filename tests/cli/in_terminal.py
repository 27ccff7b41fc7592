"""Makes the terminal that is its standard input its own, as a login does, and becomes a command."""

import fcntl
import os
import sys
import termios

os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606
