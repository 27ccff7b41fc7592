"""Blocks such as ``bus.agent(…)``: they are entered with ``async with``, and any other use raises an error."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Generic, NoReturn, TypeVar

from agentbus.errors import Misuse

T = TypeVar("T")


class Block(AbstractAsyncContextManager[T], Generic[T]):
    """A block that yields a value of type ``kind``. ``call`` is the call that made it, ``name`` a name for the value,
    ``otherwise`` what to write in place of a block, if that exists."""

    def __init__(
        self,
        context: AbstractAsyncContextManager[T],
        kind: type[T],
        call: str,
        name: str,
        otherwise: str | None = None,
    ) -> None:
        self._context = context
        self._kind = kind
        self._call = call
        self._form = f"write `async with {call} as {name}:`"
        self._name = name
        self._otherwise = "" if otherwise is None else f", or {otherwise}"

    def __repr__(self) -> str:
        return f"<block of {self._call}>"

    async def __aenter__(self) -> T:
        return await self._context.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, trace)

    # A type checker rejects these uses, and must not find the methods.
    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            raise Misuse(reason=f"{self._call} is a block, which is not awaited: {self._form}{self._otherwise}")

        def __enter__(self) -> NoReturn:
            raise Misuse(reason=f"{self._call} is a block of a coroutine: {self._form}{self._otherwise}")

        def __exit__(self, *error: object) -> None: ...

        def __getattr__(self, name: str) -> NoReturn:
            if not is_public(self._kind, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            what = f"{self._call} is a block, not the {self._name} itself"
            raise Misuse(reason=f"{what}: {self._form} and use `{self._name}.{name}` inside{self._otherwise}")


class AsyncOnly:
    """The base of objects that are themselves blocks, entered with ``async with``: ``with`` names that form."""

    __slots__ = ()
    _block_form: ClassVar[str]
    """The block as it is written."""

    # A type checker rejects this use, and must not find the methods.
    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise Misuse(reason=f"this is a block of a coroutine: write `{self._block_form}`")

        def __exit__(self, *error: object) -> None: ...


def is_public(kind: type[object], name: str) -> bool:
    """Return True if objects of this type have a public attribute of that name."""
    if name.startswith("_"):
        return False
    return hasattr(kind, name) or any(name in vars(base).get("__annotations__", {}) for base in kind.__mro__)
