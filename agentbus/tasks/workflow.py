"""Workflows: functions whose steps are kept, and what their results are read as."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from agentbus.codec import decode_as, plain
from agentbus.errors import InvalidInput
from agentbus.limits import check_name, check_names, reason_text
from agentbus.operations.signatures import (
    EITHER,
    KEYWORD,
    POSITIONAL,
    REST,
    REST_OF_KEYWORDS,
    Parameter,
    Signature,
    refusal,
)

if TYPE_CHECKING:
    from agentbus.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")

_UNTYPED = (None, type(None), Any)


class Workflow(Generic[P, R]):
    """A named function that tasks run. Made by ``workflow``; called itself, it runs without being kept.

    >>> feature.name, feature.phases                                                  # doctest: +SKIP
    ('feature', ('planning', 'building'))
    """

    def __init__(
        self, name: str, function: Callable[Concatenate[Task, P], Coroutine[Any, Any, R]], phases: tuple[str, ...]
    ) -> None:
        self.name = name
        self.function = function
        self.phases = phases
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Workflow {self.name}>"

    def __call__(self, task: Task, /, *arguments: P.args, **keywords: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.function(task, *arguments, **keywords)

    @cached_property
    def signature(self) -> Signature:
        """The parameters of the function behind the task, as they are announced on the bus."""
        from inspect import Parameter as Kind
        from inspect import signature

        kinds = {
            Kind.POSITIONAL_ONLY: POSITIONAL, Kind.POSITIONAL_OR_KEYWORD: EITHER, Kind.VAR_POSITIONAL: REST,
            Kind.KEYWORD_ONLY: KEYWORD, Kind.VAR_KEYWORD: REST_OF_KEYWORDS,
        }  # fmt: skip
        found = list(signature(self.function).parameters.values())
        # The first one takes the task; *arguments may take it, and more.
        return tuple(
            Parameter(one.name, kinds[one.kind], one.default is Kind.empty, self._types(one.name))
            for one in found[found[0].kind is not Kind.VAR_POSITIONAL :]
        )

    def _types(self, name: str) -> tuple[str, ...]:
        try:
            return json_types(_hint(self.function, name, name))
        except InvalidInput:
            # The error is raised to callers of the workflow; without types the announcement accepts any value.
            return ()

    def check_arguments(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Raise WrongArguments for those (as JSON) with which a task would fail as soon as it is taken."""
        error = refusal(self.name, [self.signature], arguments, keywords)
        if error is not None:
            raise error

    def converted(self, arguments: list[Any], keywords: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments that were stored as JSON, as the types that the function says it takes."""
        from inspect import Parameter, signature

        form = signature(self.function)
        bound = form.bind(None, *arguments, **keywords)
        for name, value in list(bound.arguments.items())[1:]:
            kind = form.parameters[name].kind
            as_ = _hint(self.function, name, f"what {name} of workflow {self.name} is")
            if as_ in _UNTYPED:
                continue
            if kind is Parameter.VAR_POSITIONAL:
                as_ = tuple[as_, ...]  # type: ignore[valid-type]
            elif kind is Parameter.VAR_KEYWORD:
                as_ = dict[str, as_]  # type: ignore[valid-type]
            bound.arguments[name] = converted(value, as_, f"{name} of workflow {self.name}")
        return list(bound.args[1:]), bound.kwargs


def converted(value: Any, as_: Any, what: str) -> Any:
    """JSON as a type of the caller's."""
    return decode_as(plain(value), as_, what)


def workflow(
    name: str, *, phases: Iterable[str] = ()
) -> Callable[[Callable[Concatenate[Task, P], Coroutine[Any, Any, R]]], Workflow[P, R]]:
    """Make a workflow of a coroutine function, whose first argument is the task.

    What it does between steps is done again whenever a task goes on after a crash or a wait: it must come to the same
    steps with the same arguments. What takes time, or touches anything outside, belongs into a step. With ``phases``
    it may be in these only.

    >>> @agentbus.workflow("feature", phases=["planning", "building"])                # doctest: +SKIP
    ... async def feature(task: agentbus.Task, request: str) -> Report:
    ...     plan = await task.step("plan", make_plan, request)
    ...     verdict = await task.approval("plan", show=plan)
    ...     return await task.step("implement", implement, plan, retries=2, timeout=600)
    """
    check_name(name, "workflow")
    allowed = check_names(phases, "phase")

    def decorate(function: Callable[Concatenate[Task, P], Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        # Imported only here: whoever looks at tasks needs no workflow.
        from inspect import iscoroutinefunction, signature

        if not iscoroutinefunction(function):
            raise InvalidInput(reason=f"workflow {name!r} must be an async function: async def {name}(task, …)")
        if not signature(function).parameters:
            raise InvalidInput(reason=f"workflow {name!r} must take the task as its first argument")
        return Workflow(name, function, allowed)

    return decorate


_JSON_TYPES: dict[Any, str] = {
    None: "null", type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
    tuple: "array", set: "array", frozenset: "array", Sequence: "array", dict: "object", Mapping: "object",
}  # fmt: skip


def json_types(hint: Any) -> tuple[str, ...]:
    """The types of JSON that a value of this type can be read from; none if that is not certain.

    >>> json_types(list[int] | None), json_types(float), json_types(Any)
    (('array', 'null'), ('number',), ())
    """
    origin = get_origin(hint)
    if origin is Annotated:
        return json_types(get_args(hint)[0])
    if origin in {Union, UnionType}:
        found = [json_types(one) for one in get_args(hint)]
        return tuple(dict.fromkeys(kind for kinds in found for kind in kinds)) if all(found) else ()
    try:
        kind = _JSON_TYPES.get(hint if origin is None else origin)
    except TypeError:
        return ()  # it has no hash
    return () if hint is None or kind is None else (kind,)


def result_type(function: Any) -> Any:
    """What a function says that it returns; None if it does not say, or says anything."""
    try:
        return _result_type(function)
    except TypeError:
        return _result_type.__wrapped__(function)  # it has no hash


@lru_cache(1024)
def _result_type(function: Any) -> Any:
    from inspect import isroutine

    target = getattr(function, "__wrapped__", function)
    target = getattr(target, "func", target)  # functools.partial
    if not isroutine(target):
        target = type(target).__call__
    found = _hint(target, "return", f"what {getattr(target, '__qualname__', target)} returns")
    return None if found in _UNTYPED else found


def _hint(function: Any, name: str, what: str) -> Any:
    """One annotation of a function. Only that one is looked up: others may be for type checkers alone."""
    annotation = getattr(function, "__annotations__", {}).get(name)
    if annotation is None:
        return None
    alone = type("Annotated", (), {"__annotations__": {name: annotation}})
    scope = getattr(getattr(function, "__func__", function), "__globals__", {})
    try:
        return get_type_hints(alone, scope, include_extras=True)[name]
    except Exception as error:
        reason = f"{what} cannot be found ({reason_text(error)}): its type must be there at run time, in its module"
        raise InvalidInput(reason=reason) from None


def name_of(workflow: Workflow[..., Any] | str) -> str:
    """The name of a workflow, or of one that only workers elsewhere have."""
    if isinstance(workflow, Workflow):
        return workflow.name
    if not isinstance(workflow, str):
        raise InvalidInput(reason=f"{workflow!r} is not a workflow; make one with @agentbus.workflow('name')")
    return check_name(workflow, "workflow")
