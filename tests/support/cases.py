"""Many cases of one property in one test: on one store, with every case that fails listed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])
Case = dict[str, Any]


def each(names: str | tuple[str, ...], values: Iterable[Any], **_: Any) -> Callable[[Test], Test]:
    """Run a test with each value, as ``pytest.mark.parametrize`` does, but as one test with one set of fixtures.

    For cases that leave nothing behind that the next one would see.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [_case(keys, value) for value in values]
    assert cases

    def decorate(test: Test) -> Test:
        async def run_async(**fixtures: Any) -> None:
            found = _Failures(len(cases))
            for case in cases:
                with found.noted(case):
                    await test(**fixtures, **case)
            found.report()

        def run(**fixtures: Any) -> None:
            found = _Failures(len(cases))
            for case in cases:
                with found.noted(case):
                    test(**fixtures, **case)
            found.report()

        chosen = wraps(test)(run_async if inspect.iscoroutinefunction(test) else run)
        signature = inspect.signature(test)
        parameters = [one for name, one in signature.parameters.items() if name not in keys]
        cast(Any, chosen).__signature__ = signature.replace(parameters=parameters)
        return cast(Test, chosen)

    return decorate


def _case(keys: list[str], value: Any) -> Case:
    if hasattr(value, "marks"):  # pytest.param
        value = value.values if len(keys) > 1 else value.values[0]
    return dict(zip(keys, value, strict=True)) if len(keys) > 1 else {keys[0]: value}


class _Failures:
    """The cases that failed."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._errors: list[BaseException] = []

    @contextmanager
    def noted(self, case: Case) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"case: {case!r}"[:500])
            self._errors.append(error)

    def report(self) -> None:
        if self._errors:
            raise BaseExceptionGroup(f"{len(self._errors)} of {self._total} cases", self._errors)
