"""Settings that come from the environment."""

from __future__ import annotations

import os

from agentbus.errors import OutOfRange

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")


def number(variable: str, default: float) -> float:
    """The number that an environment variable says; the default, if it is not there.

    >>> number("AGENTBUS_OUTGROWN_WAITS", 30.0)
    30.0
    """
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise OutOfRange(what=variable, value=text, allowed="a number") from None


def switched_on(variable: str) -> bool:
    """Whether an environment variable says yes; no, if it is not there.

    >>> os.environ["AGENTBUS_AUTO_RESUME"] = "yes"
    >>> switched_on("AGENTBUS_AUTO_RESUME")
    True
    >>> del os.environ["AGENTBUS_AUTO_RESUME"]
    """
    text = os.environ.get(variable, "")
    said = text.strip().lower()
    if said and said not in _YES + _NO:
        raise OutOfRange(what=variable, value=text, allowed=f"one of {', '.join(_YES + _NO)}")
    return said in _YES
