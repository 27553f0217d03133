"""The user's part of a model card, card.toml: facts that Equipoise cannot know. Every key is optional.

[model]
name = "Pneumonia triage, ward 3"
developer = "Radiology AI group"
contact = "ai@hospital.example"
license = "mit"

[use]
intended = "Sorts the reading list; a radiologist reads every image."
"""

import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model, model_validator

from equipoise.errors import BadInput, did_you_mean, raise_all
from equipoise.report.text import prose

NOT_PROVIDED = "not provided"
Text = Annotated[str, AfterValidator(lambda text: prose(text) or NOT_PROVIDED)]
Texts = Annotated[tuple[Annotated[str, AfterValidator(prose)], ...], Field(strict=False)]  # TOML has lists
Date = Annotated[Text, BeforeValidator(lambda value: value.isoformat() if isinstance(value, date) else value)]
Number = Annotated[float, Field(allow_inf_nan=False)]
TYPE_NAMES = {
    "string_type": "text in quotes",
    "tuple_type": "a list of texts",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


class FactSection(BaseModel):
    """A table of card.toml: unknown keys are errors, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Result(FactSection):
    """One result of the user's own safety test."""

    label: Text
    value: int | Number | Text
    low: Number | None = None
    high: Number | None = None
    level: Number | None = None  # of the interval, such as 0.95
    unit: Annotated[str, AfterValidator(prose)] = ""

    @model_validator(mode="after")
    def _whole_interval(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("expected both low and high, or neither")
        if self.low is not None and isinstance(self.value, str):
            raise ValueError("expected a number as value, since an interval is given")
        return self


TEXT_FACTS = {  # by section of card.toml, the facts that are text; "not provided" unless they are given
    "model": "name developer contact summary license task type foundation stage version availability regulatory_approval",
    "use": "intended users how population out_of_scope",
    "risks": "limitations biases clinical_risk",
    "data": "source inputs development testing test_type mitigation",
    "trust": "maintenance security transparency funding third_parties stakeholders",
    "safety": "goal interpretation test_type testing validation",
    "resources": "evaluation clinical_trial publications reimbursement consent environment",
}
OTHER_FACTS: dict[str, dict[str, Any]] = {  # those that are not
    "model": {"release_date": (Date, NOT_PROVIDED), "keywords": (Texts, ()), "ehr": (Texts, ())},  # ehr: compatible record systems
    "safety": {"results": (Annotated[tuple[Result, ...], Field(strict=False)], ())},
    "resources": {"citation": (str, NOT_PROVIDED)},  # BibTeX, unchanged
}
MODEL: Any = create_model  # models whose fields are only known here
FACT_SECTIONS: dict[str, Any] = {
    name: MODEL(name, __base__=FactSection, **dict.fromkeys(keys.split(), (Text, NOT_PROVIDED)), **OTHER_FACTS.get(name, {}))
    for name, keys in TEXT_FACTS.items()
}
Facts: Any = MODEL("Facts", __base__=FactSection, **{name: (section, section()) for name, section in FACT_SECTIONS.items()})


def read_facts(path: Path | None) -> Any:
    """The facts in a card.toml, 'not provided' for every missing key; raises one `BadInput` that lists every problem of the file."""
    if path is None:
        return Facts()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise BadInput(f"no such file: {path}. Name a card.toml, or omit it.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}. Name a card.toml, or omit it.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a TOML file: {error}. Correct that line.") from error
    try:
        return Facts.model_validate(content)
    except ValidationError as error:
        raise_all(list(dict.fromkeys(map(_problem, error.errors()))), str(path))
        raise


def _problem(error: Any) -> str:
    """One problem of a card.toml: the place, the expected and the actual value."""
    place = [part for part in error["loc"] if not (isinstance(part, str) and ("[" in part or part in ("int", "float", "str")))]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    if error["type"] == "extra_forbidden":  # with the section it belongs to, or the closest valid name
        key, inside, valid = str(place[-1]), f" in {where.rpartition('.')[0]}", list(Result.model_fields)
        if len(place) < 3:
            inside, valid = ("", list(FACT_SECTIONS)) if len(place) == 1 else (f" in [{place[0]}]", [*FACT_SECTIONS[place[0]].model_fields])
        home = next((name for name, model in FACT_SECTIONS.items() if key in model.model_fields and len(place) < 3), None)
        hint = f" It belongs under [{home}]." if home else did_you_mean(key, valid)
        return f"unknown {'section' if len(place) == 1 else 'key'} {key!r}{inside}.{hint} Valid: {', '.join(valid)}."
    if error["type"] == "missing":
        return f"{where.rpartition('.')[0]} lacks {place[-1]!r}. Add it."
    if error["type"] == "value_error":
        return f"{where}: {error['ctx']['error']}"
    if len(place) > 1 and isinstance(place[-2], int) and place[-1] == "value":
        return f"{where} should be a number or text in quotes; got {error['input']!r}"
    got = f"; got {error['input']!r}"
    if place == ["safety", "results"] or (place[:2] == ["safety", "results"] and len(place) == 3):
        return f"safety.results should be tables with label and value, [[safety.results]]{got}"
    return f"{where} should be {TYPE_NAMES.get(error['type'], 'a number')}{got}"
