"""Workflows: named functions whose steps are recorded, their signatures, and requests to start them as tasks."""

from __future__ import annotations

import secrets
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
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from agentbus.core.codec import decode, decode_as, encode, plain
from agentbus.core.validation import (
    MAX_LOSSES,
    Priority,
    check_choice,
    check_name,
    check_names,
    check_range,
    check_seconds,
    check_text,
    name_or_none,
    reason_text,
)
from agentbus.errors import InvalidInput
from agentbus.operations.task_dependencies import POLICIES, Dependencies, OnFailedDependency
from agentbus.operations.task_signatures import (
    EITHER,
    KEYWORD,
    POSITIONAL,
    REST,
    REST_OF_KEYWORDS,
    Parameter,
    Signature,
    refusal,
)
from agentbus.operations.tasks import StartRequest

if TYPE_CHECKING:
    from agentbus.api.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MAX_RESTARTS = 1000
LOSSES_LIMIT = 1000
MAX_DEPENDENCIES = 1000
MAX_NAME = 200
_ID_PREFIX = 110
_UNTYPED = (None, type(None), Any)
_JSON_TYPES: dict[Any, str] = {
    None: "null", type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
    tuple: "array", set: "array", frozenset: "array", Sequence: "array", dict: "object", Mapping: "object",
}  # fmt: skip


class ChildOptions(TypedDict, total=False):
    """Options of ``task.start``."""

    name: str | None
    """The name of the step, and of the task for display (default: the workflow)."""
    context: Mapping[str, Any] | None
    """Data for the workflow, which ``task.context`` returns."""
    settings: Mapping[str, Any] | None
    """Settings for the workflow, which ``task.settings`` returns."""
    restarts: int
    """Restarts of a failed task, at most (default 0)."""
    backoff: float
    """Seconds before the first restart; the delays grow."""
    max_losses: int
    """The task fails once this many workers in a row died while running it, with no step finished."""


class StartOptions(ChildOptions, total=False):
    """Options of ``bus.tasks.start``."""

    id: str | None
    """Its id: starting the same id with the same workflow and arguments again is the same task."""
    session: str | None
    """Its session."""
    auto: bool
    """Approve every request of the task."""
    delay: float | None
    """Seconds before it can be claimed."""
    after: Sequence[str]
    """The tasks that must have completed before it starts."""
    on_failed_dependency: str
    """``block`` waits when one of them fails or is stopped, ``cancel`` stops this task."""


class WorkflowOnly:
    """The first argument of a workflow, never of a plain function. No value has this type: type checkers tell by it
    that ``start`` takes what ``@agentbus.workflow`` has made."""


class BoundWorkflow(Generic[R_co]):
    """A workflow with its arguments, made by ``Workflow.bind``."""

    def __init__(self, workflow: Workflow[..., R_co], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.workflow = workflow
        self.arguments = arguments
        self.keywords = keywords

    def __repr__(self) -> str:
        return f"<BoundWorkflow {self.workflow.name}>"


class Workflow(Generic[P, R]):
    """A named function that tasks run, made by ``workflow``. Calling it directly records nothing.

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

    def __call__(
        self, task: Task | WorkflowOnly, /, *arguments: P.args, **keywords: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        return self.function(cast("Task", task), *arguments, **keywords)

    def bind(self, *arguments: P.args, **keywords: P.kwargs) -> BoundWorkflow[R]:
        """Return the workflow with its arguments, for ``start``. A type checker then checks keyword arguments too, and
        none is taken for an option of ``start``.

        >>> await bus.tasks.start(feature.bind("Add login", model="small"), id="login-1")   # doctest: +SKIP
        """
        return BoundWorkflow(self, arguments, keywords)

    @cached_property
    def signature(self) -> Signature:
        """The parameters of the function after the task, as announced on the bus."""
        from inspect import Parameter as Kind
        from inspect import signature

        kinds = {
            Kind.POSITIONAL_ONLY: POSITIONAL, Kind.POSITIONAL_OR_KEYWORD: EITHER, Kind.VAR_POSITIONAL: REST,
            Kind.KEYWORD_ONLY: KEYWORD, Kind.VAR_KEYWORD: REST_OF_KEYWORDS,
        }  # fmt: skip
        found = list(signature(self.function).parameters.values())
        # The first parameter takes the task; *arguments may take it and more.
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
        """Raise WrongArguments for arguments (as JSON) with which the task would fail at its start."""
        error = refusal(self.name, [self.signature], arguments, keywords)
        if error is not None:
            raise error

    def convert_arguments(self, arguments: list[Any], keywords: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Convert arguments stored as JSON to the annotated types of the function."""
        from inspect import Parameter, signature

        form = signature(self.function)
        bound = form.bind(None, *arguments, **keywords)
        for name, value in list(bound.arguments.items())[1:]:
            kind = form.parameters[name].kind
            as_ = _hint(self.function, name, f"the type of {name} of workflow {self.name}")
            if as_ in _UNTYPED:
                continue
            if kind is Parameter.VAR_POSITIONAL:
                as_ = tuple[as_, ...]  # type: ignore[valid-type]
            elif kind is Parameter.VAR_KEYWORD:
                as_ = dict[str, as_]  # type: ignore[valid-type]
            bound.arguments[name] = decode_as(plain(value), as_, f"{name} of workflow {self.name}")
        return list(bound.args[1:]), bound.kwargs


def workflow(
    name: str, *, phases: Iterable[str] = ()
) -> Callable[[Callable[Concatenate[Task, P], Coroutine[Any, Any, R]]], Workflow[P, R]]:
    """Make a workflow of a coroutine function whose first argument is the task.

    Code between steps runs again whenever a task resumes after a crash or a wait, and must call the same steps with the
    same arguments. Slow work and side effects belong in a step. ``phases`` restricts the phases that it may enter.

    >>> @agentbus.workflow("feature", phases=["planning", "building"])                # doctest: +SKIP
    ... async def feature(task: agentbus.Task, request: str) -> Report:
    ...     plan = await task.step("plan", make_plan, request)
    ...     verdict = await task.approval("plan", show=plan)
    ...     return await task.step("implement", implement, plan, retries=2, timeout=600)
    """
    check_name(name, "workflow")
    allowed = check_names(phases, "phase")

    def decorate(function: Callable[Concatenate[Task, P], Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        # Imported late: reading tasks needs no workflow.
        from inspect import iscoroutinefunction, signature

        if not iscoroutinefunction(function):
            raise InvalidInput(reason=f"workflow {name!r} must be an async function: async def {name}(task, …)")
        if not signature(function).parameters:
            raise InvalidInput(reason=f"workflow {name!r} must take the task as its first argument")
        return Workflow(name, function, allowed)

    return decorate


def json_types(hint: Any) -> tuple[str, ...]:
    """Return the JSON types from which a value of this type can be decoded; none if that is not certain.

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
        return ()  # unhashable
    return () if hint is None or kind is None else (kind,)


def result_type(function: Any) -> Any:
    """Return the annotated return type of a function; None if it has none, or Any."""
    try:
        return _result_type(function)
    except TypeError:
        return _result_type.__wrapped__(function)  # unhashable


@lru_cache(1024)
def _result_type(function: Any) -> Any:
    from inspect import isroutine

    target = getattr(function, "__wrapped__", function)
    target = getattr(target, "func", target)  # functools.partial
    if not isroutine(target):
        target = type(target).__call__
    found = _hint(target, "return", f"the return type of {getattr(target, '__qualname__', target)}")
    return None if found in _UNTYPED else found


def _hint(function: Any, name: str, what: str) -> Any:
    """Resolve one annotation of a function, and no other: others may exist for type checkers only."""
    annotation = getattr(function, "__annotations__", {}).get(name)
    if annotation is None:
        return None
    alone = type("Annotated", (), {"__annotations__": {name: annotation}})
    scope = getattr(getattr(function, "__func__", function), "__globals__", {})
    try:
        return get_type_hints(alone, scope, include_extras=True)[name]
    except Exception as error:
        reason = f"{what} cannot be resolved ({reason_text(error)}): import the type at run time, in the module"
        raise InvalidInput(reason=reason) from None


def unbind(
    workflow: Workflow[..., Any] | BoundWorkflow[Any] | str | Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any] | None,
) -> tuple[Workflow[..., Any] | str, tuple[Any, ...], Mapping[str, Any] | None]:
    """Return the workflow, the arguments and the keywords that ``start`` was called with."""
    if not isinstance(workflow, BoundWorkflow):
        return cast("Workflow[..., Any] | str", workflow), arguments, keywords
    if arguments or keywords:
        name = workflow.workflow.name
        raise InvalidInput(reason=f"workflow {name!r} has its arguments from bind(); give start() no others")
    return workflow.workflow, workflow.arguments, workflow.keywords


def workflow_name(workflow: Workflow[..., Any] | str) -> str:
    """Return the name of a workflow, or a name that only other workers know."""
    if isinstance(workflow, Workflow):
        return workflow.name
    if not isinstance(workflow, str):
        raise InvalidInput(reason=f"{workflow!r} is not a workflow; make one with @agentbus.workflow('name')")
    return check_name(workflow, "workflow")


def start_request(
    workflow: Workflow[..., Any] | str,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any] | None,
    limit: int,
    *,
    id: str | None,
    name: str | None,
    session: str | None,
    auto: bool,
    context: Mapping[str, Any] | None,
    settings: Mapping[str, Any] | None,
    restarts: int,
    backoff: float,
    delay: float | None,
    max_losses: int = MAX_LOSSES,
    parent: str | None = None,
    by: str | None = None,
    manual: bool = False,
    priority: int = Priority.NORMAL,
    after: Iterable[str] = (),
    on_failed_dependency: OnFailedDependency = "block",
) -> StartRequest:
    """Return a checked request for a task. Without an id one is generated."""
    title = workflow_name(workflow)
    encoded = encode({"arguments": list(arguments), "keywords": dict(keywords or {})}, limit)
    if isinstance(workflow, Workflow):
        workflow.check_arguments(**decode(encoded[0]))
    return StartRequest(
        f"{title[:_ID_PREFIX]}-{secrets.token_hex(6)}" if id is None else check_name(id, "task"),
        title,
        title if name is None else check_text(name, "name", MAX_NAME, low=1),
        encoded,
        name_or_none(session, "session"),
        check_bool(auto, "auto"),
        encode_object(context or {}, "context", limit),
        encode_object(settings or {}, "settings", limit),
        check_range(restarts, "restarts", 0, MAX_RESTARTS),
        check_seconds(backoff, "backoff", zero=True),
        0 if delay is None else check_seconds(delay, "delay", zero=True),
        parent,
        by,
        check_range(max_losses, "max_losses", 1, LOSSES_LIMIT),
        manual,
        check_range(priority, "priority", 0, 9),
        check_dependencies(after, on_failed_dependency),
    )


def check_dependencies(after: Iterable[str], policy: str) -> Dependencies | None:
    """Return the checked dependencies of a new task, or None if it has none."""
    ids = check_task_ids(after, "after")
    checked = check_choice(policy, "on_failed_dependency", POLICIES)
    return Dependencies(ids, checked) if ids else None


def check_task_ids(ids: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the checked ids of tasks, each once."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise InvalidInput(reason=f"{what} must be a list of task ids: {what}=[…]")
    checked = tuple(dict.fromkeys(check_name(id, "task") for id in ids))
    check_range(len(checked), f"the number of ids in {what}", 0, MAX_DEPENDENCIES)
    return checked


def encode_object(value: Mapping[str, Any], what: str, limit: int) -> str:
    """Encode a mapping as a JSON object."""
    if not isinstance(value, Mapping):
        raise InvalidInput(reason=f"{what} must be a dict")
    return encode(dict(value), limit)[0]


def check_bool(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(reason=f"{what} must be True or False")
    return value
