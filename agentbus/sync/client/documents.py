"""Documents: named, versioned outputs of a session.

Written by ``make sync`` from ``agentbus.api.documents``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

import msgspec

from agentbus.api import documents as api
from agentbus.core.validation import KEEP_VERSIONS
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from agentbus.api.documents import T
    from agentbus.records import DocumentRecord


class Document(Wrapper[api.Document], wraps=api.Document):
    """A document of a session, made by ``session.document(name)``. It exists once a version is saved.

    >>> plan = session.document("planning_output")                                    # doctest: +SKIP
    >>> plan.save({"phases": ["design", "build"]})                              # doctest: +SKIP
    >>> plan.latest()                                                           # doctest: +SKIP
    {'phases': ['design', 'build']}
    """

    __slots__ = ()

    @property
    def session(self) -> str:
        """The id of its session."""
        return self._inner.session

    @property
    def name(self) -> str:
        """Its name."""
        return self._inner.name

    def save(self, value: Any, *, author: str | None = None, keep: int | None = None) -> DocumentRecord:
        """Save a new version and delete all but the newest ``keep`` versions (default 10, including this one).

        ``author`` is recorded with the version. Agents save with ``unit.document``, which is fenced and records them.

        >>> record = session.document("risks").save(["time"], author="risk-assessor-1")   # doctest: +SKIP
        >>> record.version                                                            # doctest: +SKIP
        1
        """
        return self._call(self._inner.save, value, author=author, keep=keep)

    @overload
    def latest(self, default: Any = msgspec.UNSET, *, as_: type[T]) -> T | Any: ...

    @overload
    def latest(self, default: Any = msgspec.UNSET, *, as_: Any = None) -> Any: ...

    def latest(self, default: Any = msgspec.UNSET, *, as_: Any = None) -> Any:
        """Return the newest value; if there is none, the default given here or to ``session.document``, or None.

        ``as_`` is the type that the value is decoded as, for example a Struct.

        >>> session.document("risks").latest([])                                # doctest: +SKIP
        ['time']
        """
        return self._call(cast(Any, self._inner).latest, default, as_=as_)

    def record(self, version: int | None = None) -> DocumentRecord | None:
        """Return the record of the newest version, or of version ``version``; None if it does not exist.

        >>> session.document("risks").record(1).author                        # doctest: +SKIP
        'risk-assessor-1'
        """
        return self._call(self._inner.record, version)

    def history(self, limit: int = KEEP_VERSIONS) -> list[DocumentRecord]:
        """Return the stored versions, newest first.

        >>> [record.version for record in session.document("risks").history()]  # doctest: +SKIP
        [3, 2, 1]
        """
        return self._call(self._inner.history, limit)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the newest version to a JSON file, atomically.

        An existing file is replaced. Only its owner may read the new file.

        >>> session.document("planning_output").export("plan.json")             # doctest: +SKIP
        PosixPath('plan.json')
        """
        return self._call(self._inner.export, path)
