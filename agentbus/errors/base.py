"""What all errors of agentbus have in common: a code, facts, and where there is one a fix."""

from __future__ import annotations

from typing import Any, ClassVar


class AgentBusError(Exception):
    """The root of all errors of agentbus.

    ``text`` and ``fix`` are templates that the facts are put into.
    """

    code: ClassVar[str] = "error"
    text: ClassVar[str] = "{reason}"
    fix_text: ClassVar[str | None] = None
    transient: ClassVar[bool] = False

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        super().__init__(self.text.format_map(_Facts(facts)))

    @property
    def fix(self) -> str | None:
        """What to do about it, where there is something.

        >>> AgentExists(agent="a", status="running", pid=41).fix
        'end it first, choose another id, or pass takeover=True'
        """
        try:
            return None if self.fix_text is None else self.fix_text.format_map(self.facts)
        except KeyError:
            # Advice with a gap in it is none.
            return None

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{message} ({self.fix})" if self.fix else message

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts)


class _Facts(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        if key == "hint":
            near = self.get("near")
            return f"; did you mean {' or '.join(near)}?" if near else ""
        return "?"


def _rebuild(kind: type[AgentBusError], facts: dict[str, Any]) -> AgentBusError:
    return kind(**facts)
