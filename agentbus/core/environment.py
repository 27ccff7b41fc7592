"""Settings from environment variables."""

from __future__ import annotations

import os

from agentbus.errors import OutOfRange

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")


def read_number(variable: str, default: float) -> float:
    """Return the number in an environment variable, or the default if it is not set.

    >>> read_number("AGENTBUS_OUTGROWN_WAITS", 30.0)
    30.0
    """
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise OutOfRange(what=variable, value=text, allowed="a number") from None


def read_flag(variable: str) -> bool:
    """Return whether an environment variable is set to yes; False if it is not set.

    >>> os.environ["AGENTBUS_AUTO_RESUME"] = "yes"
    >>> read_flag("AGENTBUS_AUTO_RESUME")
    True
    >>> del os.environ["AGENTBUS_AUTO_RESUME"]
    """
    text = os.environ.get(variable, "")
    value = text.strip().lower()
    if value and value not in _YES + _NO:
        raise OutOfRange(what=variable, value=text, allowed=f"one of {', '.join(_YES + _NO)}")
    return value in _YES
