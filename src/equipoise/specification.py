"""Specifications: what a user asks for, as pydantic models that the case file, the command line, Python and a bundle share.

A field holds its type, default, check, help and, if it is used daily, its flag. Nothing is declared, checked or defaulted twice.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable
from datetime import date
from functools import wraps
from numbers import Real
from typing import Annotated, Any, Self, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from equipoise.errors import BadInput, EquipoiseError, did_you_mean, pick

Function = TypeVar("Function", bound=Callable[..., Any])


class Specification(BaseModel):
    """A specification of one noun: frozen, without unknown keys; what is wrong with it is one `BadInput` with every problem.

    >>> class Images(Specification):
    ...     size: int = setting("pixels per side", 224, flag="--size", ge=1)
    >>> Images(size=0)
    Traceback (most recent call last):
    equipoise.errors.BadInput: size (--size): input should be greater than or equal to 1; got 0
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, validate_default=False, defer_build=True)

    def __init__(self, *values: Any, **named: Any) -> None:
        given = dict(zip(type(self).model_fields, values, strict=False))
        try:
            super().__init__(**given, **named)
        except ValidationError as error:
            raise _bad_input(error, type(self)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # a section of another specification is checked with the rest of it

    def changed(self, **values: Any) -> Self:
        """A copy with other values of some fields, checked like the original."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **values})


def setting(
    help: str,
    default: Any = ...,
    *,
    flag: str | None = None,
    shown: str | None = None,
    many: bool = False,
    hidden: bool = False,
    **checks: Any,
) -> Any:
    """A field of a specification: its help, default (`...`: required), flag on the command line, and checks such as `ge=0`.

    `shown` is the default in words, where the value does not show it. A flag of a field with `many` values may be repeated. A `hidden`
    field is set by code alone. A default that can be changed is given as `default_factory=dict`.
    """
    extra: Any = {"flag": flag, "shown": shown, "many": many, "hidden": hidden}
    if "default_factory" in checks:
        return Field(description=help, json_schema_extra=extra, **checks)
    return Field(default, description=help, json_schema_extra=extra, **checks)


def extra_of(field: FieldInfo) -> dict[str, Any]:
    """The flag, shown default and visibility of a field."""
    return cast(dict[str, Any], field.json_schema_extra or {})


def takes_fields_of(kind: type[BaseModel], without: Collection[str] = ()) -> Callable[[Function], Function]:
    """A decorator that shows the fields of a specification as keywords of a function, in place of its `**others`; others are refused.

    A keyword that the function names itself stays as it is.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        parameters = {name: given for name, given in signature.parameters.items() if given.kind is not given.VAR_KEYWORD}
        for name, field in kind.model_fields.items():
            if name not in (*without, *signature.parameters) and not extra_of(field).get("hidden"):
                default = field.get_default(call_default_factory=True)
                parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.annotation)

        @wraps(function)
        def call(*values: Any, **others: Any) -> Any:
            for name in others:
                if name in without:
                    raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}")
            return function(*values, **others)

        call.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
        return cast(Function, call)

    return decorate


def is_real(value: object) -> bool:
    """Whether a value is a number, which True, False and text are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_share(value: Any) -> bool:
    """Whether a value is a number from 0 to 1."""
    return is_real(value) and bool(0 <= value <= 1)


def _checked_share(value: Any) -> float:
    if not is_share(value):
        raise ValueError(f"must be a number between 0 and 1; got {value if is_real(value) else repr(value)}")
    return float(value)


def _texts(value: Any) -> Any:
    return (value,) if isinstance(value, str) else () if value is None else value


def read_day(value: object, name: str = "") -> date:
    """The day that a date, or text such as 2026-01-01, stands for; raises `BadInput` for anything else."""
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    try:
        return date.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise BadInput(f"{name} must be a date, as in 2026-01-01; got {str(value)!r}") from None


Share = Annotated[float, BeforeValidator(_checked_share)]  # from 0 to 1
Day = Annotated[date, BeforeValidator(lambda value, info: read_day(value, info.field_name))]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]  # one text, or several


def one_of(kind: str, valid: Iterable[str]) -> AfterValidator:
    """Validates that a text is one of the `valid` names."""
    return AfterValidator(lambda name: pick(kind, name, valid))


def fields_of(kind: Any, *sections: str) -> dict[str, FieldInfo]:
    """The fields of a specification by name in a case file, or those of one of its sections, apart from hidden ones."""
    kind = next((inner for inner in get_args(kind) if hasattr(inner, "model_fields")), kind)  # of a list of them
    fields = {field.alias or name: field for name, field in getattr(kind, "model_fields", {}).items() if not extra_of(field).get("hidden")}
    if not sections:
        return fields
    return fields_of(fields[sections[0]].annotation, *sections[1:]) if sections[0] in fields else {}


def flag_of(kind: type[BaseModel], *location: str | int) -> str | None:
    """The flag of the field at a location in a specification; None if it has none."""
    at: Any = kind
    for part in location:
        field = fields_of(at).get(str(part))
        if field is None:
            return None
        if flag := extra_of(field).get("flag"):
            return cast(str, flag)
        at = field.annotation
    return None


def _bad_input(error: ValidationError, kind: type[BaseModel]) -> EquipoiseError:
    """All problems of the values as one error; the error of a check that failed alone keeps its type, which shows what is wrong."""
    problems = error.errors(include_url=False)
    return (_raised(problems[0]) if len(problems) == 1 else None) or BadInput(*specification_problems(error, kind))


def _raised(problem: Any) -> BadInput | None:
    """The error that a check raised, with its own words; None for a problem that pydantic found."""
    error = problem.get("ctx", {}).get("error")
    return error if isinstance(error, BadInput) else None


def specification_problems(error: ValidationError, kind: type[BaseModel], placed: bool = False) -> list[str]:
    """What is wrong with the values of a specification: the field as in a file, its flag, the expectation and the value.

    A check that raises an error of its own names the field itself; with `placed`, its place is added, as in a list of entries.
    """
    problems: list[str] = []
    for problem in error.errors(include_url=False):
        kinds = re.compile(r"|str|(tuple|dict|function-after)\[.*")  # of a union, which are not part of the place; "": for all names
        parts = [part for part in problem["loc"] if not kinds.fullmatch(str(part))]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
        where = f"{place} ({flag})" if (flag := flag_of(kind, *parts)) else place
        if raised := _raised(problem):
            problems += [f"{place}: {told}" for told in raised.problems] if placed and place else raised.problems
            continue
        message = problem["msg"].removeprefix("Value error, ").replace("valid tuple", "list").replace("valid dictionary", "table")
        if problem["type"] == "extra_forbidden":
            valid = fields_of(kind, *(part for part in parts[:-1] if isinstance(part, str)))
            message = f"there is no such setting.{did_you_mean(str(parts[-1]), valid)}"
        elif problem["type"] == "missing":
            message = "is missing"
        elif problem["type"] != "value_error":
            choices = re.findall("'([^']+)'", str(problem.get("ctx", {}).get("expected", "")))  # of a literal; pydantic gives them as text
            near = did_you_mean(str(problem["input"]), choices)
            message = f"{message[:1].lower()}{message[1:]}; got {str(problem['input'])[:60]!s}{near and '.' + near}"
        link = " " if message.startswith(("must ", "is ")) else ": "
        problems.append(f"{where}{link}{message}" if where else message)
    return problems
