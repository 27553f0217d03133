"""What `rule.json` may hold, as checked values: one kind of rule each, thresholds that a score can reach, lists where lists belong."""

import json
import math
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", strict=True)
NOBODY = math.nextafter(1.0, 2.0)  # the threshold that no score reaches: the number after 1
Cut = Annotated[float, Field(ge=0.0, le=NOBODY, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Groups = Annotated[list[str], Field(min_length=1)]


@dataclass(config=STRICT, kw_only=True)
class _Rule:
    schema: Literal["equipoise.rule"]
    schema_version: Literal[1]
    words: str
    origin: str


@dataclass(config=STRICT, kw_only=True)
class _ForAll(_Rule):
    kind: Literal["threshold"]
    value: Cut
    needs_group: Literal[False]
    randomised: Literal[False]


@dataclass(config=STRICT, kw_only=True)
class _ByGroup(_Rule):
    groups: Groups
    needs_group: Literal[True]

    @model_validator(mode="after")
    def _distinct(self) -> Any:
        if len(set(self.groups)) != len(self.groups):
            raise ValueError("names a group twice in `groups`")
        return self


@dataclass(config=STRICT, kw_only=True)
class _Band(_ByGroup):
    kind: Literal["reject-option"]
    threshold: Cut
    margin: Share
    favoured: list[str]
    randomised: Literal[False]

    @model_validator(mode="after")
    def _known(self) -> Any:
        if unknown := sorted(set(self.favoured) - set(self.groups)):
            raise ValueError(f"favours {', '.join(unknown)}, not among its `groups`")
        return self


@dataclass(config=STRICT, kw_only=True)
class _Cuts(_ByGroup):
    kind: Literal["group-thresholds"]
    thresholds: list[Cut]
    missing: Cut
    randomised: Literal[False]

    @model_validator(mode="after")
    def _each(self) -> Any:
        if len(self.thresholds) != len(self.groups):
            raise ValueError(f"has {len(self.thresholds)} `thresholds` for {len(self.groups)} `groups`")
        return self


@dataclass(config=STRICT, kw_only=True)
class _Steps:
    thresholds: list[Cut]
    probabilities: list[Share]

    @model_validator(mode="after")
    def _ascending(self) -> Any:
        if len(self.probabilities) != len(self.thresholds) + 1:
            raise ValueError("needs one probability more than thresholds")
        if sorted(self.thresholds) != self.thresholds:
            raise ValueError("has thresholds that do not ascend")
        return self


@dataclass(config=STRICT, kw_only=True)
class _Odds(_ByGroup):
    kind: Literal["equalised-odds"]
    steps: list[_Steps]
    shares: list[Share]
    randomised: Literal[True]

    @model_validator(mode="after")
    def _each(self) -> Any:
        if not len(self.steps) == len(self.shares) == len(self.groups):
            raise ValueError(f"has {len(self.steps)} `steps` and {len(self.shares)} `shares` for {len(self.groups)} `groups`")
        if abs(sum(self.shares) - 1.0) > 1e-6:
            raise ValueError(f"has `shares` that add up to {sum(self.shares):.6g}, not to 1")
        return self


RULE: TypeAdapter[Any] = TypeAdapter(Annotated[_ForAll | _Band | _Cuts | _Odds, Field(discriminator="kind")])


def rule_problems(plain: object) -> list[str]:
    """Everything that is wrong with the plain values of a rule, each with its key; empty where nothing is."""
    try:
        RULE.validate_json(json.dumps(plain, default=str))
    except ValidationError as error:
        return described(error)
    return []


def described(error: ValidationError, skip: int = 1) -> list[str]:
    """The problems that pydantic found, each with its key, what was expected and what was found; `skip` parts of the place are not keys."""
    problems = []
    for found in error.errors(include_url=False):
        key = ".".join(map(str, found["loc"][skip:]))
        said = found["msg"].removeprefix("Value error, ")
        got = "" if found["type"] in ("missing", "value_error") else f"; got {str(found['input'])[:60]!r}"
        problems.append(f"{key}: {said[:1].lower()}{said[1:]}{got}" if key else f"{said[:1].lower()}{said[1:]}{got}")
    return problems
