"""Specifications: what a user asks for, as pydantic models that the case file, the command line, Python and a bundle share.

A field holds its type, default, check, help and, if it is used daily, its flag. Nothing is declared, checked or defaulted twice.
"""

from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.errors import BadInput, did_you_mean


class Specification(BaseModel):
    """A specification of one noun: frozen, without unknown keys; what is wrong with it is one `BadInput` with every problem.

    >>> class Images(Specification):
    ...     size: int = setting("pixels per side", 224, flag="--size", ge=1)
    >>> Images(size=0)
    Traceback (most recent call last):
    equipoise.errors.BadInput: size (--size): input should be greater than or equal to 1; got 0
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, validate_default=False)

    if not TYPE_CHECKING:  # type checkers see the fields

        def __init__(self, *values: Any, **named: Any) -> None:
            given = dict(zip(type(self).model_fields, values, strict=False))
            try:
                super().__init__(**given, **named)
            except ValidationError as error:
                raise BadInput(*specification_problems(error, type(self))) from None

    def changed(self, **values: Any) -> Self:
        """A copy with other values of some fields, checked like the original."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **values})


def setting(help: str, default: Any = ..., *, flag: str | None = None, **checks: Any) -> Any:
    """A field of a specification: its help, default (`...`: required), flag on the command line, and checks such as `ge=0`.

    A default that can be changed is given as `default_factory=dict`.
    """
    extra: Any = {} if flag is None else {"flag": flag}
    if "default_factory" in checks:
        return Field(description=help, json_schema_extra=extra, **checks)
    return Field(default, description=help, json_schema_extra=extra, **checks)


def flag_of(kind: type[BaseModel], *location: str | int) -> str | None:
    """The flag of the field at a location in a specification; None if it has none."""
    at: Any = kind
    for part in location:
        field = getattr(at, "model_fields", {}).get(part)
        if field is None:
            return None
        extra, at = field.json_schema_extra, field.annotation
        if isinstance(extra, dict) and "flag" in extra:
            return cast(str, extra["flag"])
    return None


def specification_problems(error: ValidationError, kind: type[BaseModel]) -> list[str]:
    """What is wrong with the values of a specification: the field as in a case file, its flag, the expectation and the value."""
    problems: list[str] = []
    for problem in error.errors(include_url=False):
        place, flag = ".".join(map(str, problem["loc"])), flag_of(kind, *problem["loc"])
        where = f"{place} ({flag})" if flag else place
        inner = problem.get("ctx", {}).get("error")
        if isinstance(inner, BadInput):  # raised by a check, with its own words
            problems += inner.problems
            continue
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = f"there is no such setting.{did_you_mean(str(problem['loc'][-1]), kind.model_fields)}"
        elif problem["type"] == "missing":
            message = "is missing"
        elif problem["type"] != "value_error":
            message += f"; got {str(problem['input'])[:60]!s}"
        problems.append(f"{where}: {message[:1].lower()}{message[1:]}" if where else message)
    return problems
