"""``python -m agentbus``: the command line."""

from __future__ import annotations

from agentbus.cli.entry_point import script

if __name__ == "__main__":
    script()
