"""What Equipoise cannot know about a model and its user writes down in card.toml. Everything in it may be left out.

[model]
name = "Pneumonia triage, ward 3"
developer = "Radiology AI group"
contact = "ai@hospital.example"
license = "mit"

[use]
intended = "Sorts the reading list; a radiologist reads every image."
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime
from pathlib import Path
from typing import Any

from equipoise.errors import BadInput, did_you_mean, raise_all
from equipoise.report.card_text import prose

NOT_PROVIDED = "not provided"
Texts = tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """A number from a test of the user's own."""

    label: str
    value: float | str
    low: float | None = None
    high: float | None = None
    level: float | None = None  # of the interval, 0.95
    unit: str = ""


@dataclass(frozen=True)
class Model:
    """What it is and who answers for it."""

    name: str = NOT_PROVIDED  # left out: the title of the run
    developer: str = NOT_PROVIDED
    contact: str = NOT_PROVIDED
    summary: str = NOT_PROVIDED
    keywords: Texts = ()
    license: str = NOT_PROVIDED  # an identifier of the Hugging Face hub, such as mit or other
    task: str = NOT_PROVIDED  # the hub's pipeline tag; left out: by the network's layers
    type: str = NOT_PROVIDED
    foundation: str = NOT_PROVIDED  # models that this one was made from
    stage: str = NOT_PROVIDED
    release_date: str = NOT_PROVIDED
    version: str = NOT_PROVIDED
    availability: str = NOT_PROVIDED
    ehr: Texts = ()  # record systems that it works with
    regulatory_approval: str = NOT_PROVIDED


@dataclass(frozen=True)
class Use:
    """Who uses it, for whom, how, and where it should not be used."""

    intended: str = NOT_PROVIDED
    users: str = NOT_PROVIDED
    how: str = NOT_PROVIDED
    population: str = NOT_PROVIDED
    out_of_scope: str = NOT_PROVIDED


@dataclass(frozen=True)
class Risks:
    """What is known to go wrong, besides what the audit found."""

    limitations: str = NOT_PROVIDED
    biases: str = NOT_PROVIDED
    clinical_risk: str = NOT_PROVIDED


@dataclass(frozen=True)
class Data:
    """Where inputs come from, what the network was developed on, and who the test patients are."""

    source: str = NOT_PROVIDED
    inputs: str = NOT_PROVIDED
    development: str = NOT_PROVIDED
    testing: str = NOT_PROVIDED
    test_type: str = NOT_PROVIDED
    mitigation: str = NOT_PROVIDED  # of bias, besides what Equipoise did


@dataclass(frozen=True)
class Trust:
    """Upkeep, security, money and people."""

    maintenance: str = NOT_PROVIDED
    security: str = NOT_PROVIDED
    transparency: str = NOT_PROVIDED
    funding: str = NOT_PROVIDED
    third_parties: str = NOT_PROVIDED
    stakeholders: str = NOT_PROVIDED


@dataclass(frozen=True)
class Safety:
    """A test of safety or reliability of the user's own."""

    goal: str = NOT_PROVIDED
    results: tuple[Result, ...] = ()
    interpretation: str = NOT_PROVIDED
    test_type: str = NOT_PROVIDED
    testing: str = NOT_PROVIDED
    validation: str = NOT_PROVIDED


@dataclass(frozen=True)
class Resources:
    """Where to read on."""

    evaluation: str = NOT_PROVIDED
    clinical_trial: str = NOT_PROVIDED
    publications: str = NOT_PROVIDED
    reimbursement: str = NOT_PROVIDED
    consent: str = NOT_PROVIDED
    environment: str = NOT_PROVIDED  # hardware, hours, emissions of training
    citation: str = NOT_PROVIDED  # BibTeX


@dataclass(frozen=True)
class Facts:
    """All of card.toml."""

    model: Model = Model()
    use: Use = Use()
    risks: Risks = Risks()
    data: Data = Data()
    trust: Trust = Trust()
    safety: Safety = Safety()
    resources: Resources = Resources()


SECTIONS: dict[str, type] = {
    "model": Model,
    "use": Use,
    "risks": Risks,
    "data": Data,
    "trust": Trust,
    "safety": Safety,
    "resources": Resources,
}


def read_facts(path: Path | None) -> Facts:
    """The facts in a card.toml, 'not provided' for all that is not in it; one error with everything that is wrong with it."""
    if path is None:
        return Facts()
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise BadInput(f"no such file: {path}. Name a card.toml, or leave it out.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}. Name a card.toml, or leave it out.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a TOML file: {error}. Mend that place.") from error
    raise_all(list(_problems(raw)), str(path))
    return Facts(**{section: SECTIONS[section](**{k: _value(k, v) for k, v in table.items() if v != ""}) for section, table in raw.items()})


def _problems(raw: Mapping[str, Any]) -> Iterator[str]:
    for section, table in raw.items():
        if section not in SECTIONS:
            home = [s for s, kind in SECTIONS.items() if section in _keys(kind)]
            hint = f" It belongs under [{home[0]}]." if home else did_you_mean(section, SECTIONS)
            yield f"unknown section {section!r}.{hint} Valid: {', '.join(SECTIONS)}."
        elif not isinstance(table, Mapping):
            yield f"{section} should be a table, [{section}]; got {table!r}"
        else:
            for key, value in table.items():
                yield from _key_problems(section, key, value)


def _key_problems(section: str, key: str, value: Any) -> Iterator[str]:
    valid, place = _keys(SECTIONS[section]), f"{section}.{key}"
    if key not in valid:
        home = [s for s, kind in SECTIONS.items() if key in _keys(kind)]
        hint = f" It belongs under [{home[0]}]." if home else did_you_mean(key, valid)
        yield f"unknown key {key!r} in [{section}].{hint} Valid: {', '.join(valid)}."
    elif place == "safety.results":
        if not isinstance(value, list) or not all(isinstance(v, Mapping) for v in value):
            yield f"{place} should be tables with label and value, [[{place}]]; got {value!r}"
            return
        for position, result in enumerate(value):
            yield from _result_problems(f"{place}[{position}]", result)
    elif key in ("keywords", "ehr"):
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            yield f"{place} should be a list of texts; got {value!r}"
    elif not isinstance(value, str) and not (key == "release_date" and isinstance(value, (date, datetime))):
        yield f"{place} should be text in quotes; got {value!r}"


def _result_problems(place: str, result: Mapping[str, Any]) -> Iterator[str]:
    valid = _keys(Result)
    yield from (f"{place} lacks {key!r}. Add it." for key in ("label", "value") if key not in result)
    for key, value in result.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0
        if key not in valid:
            yield f"unknown key {key!r} in {place}.{did_you_mean(key, valid)} Valid: {', '.join(valid)}."
        elif key in ("label", "unit") and not isinstance(value, str):
            yield f"{place}.{key} should be text in quotes; got {value!r}"
        elif key == "value" and not number and not isinstance(value, str):
            yield f"{place}.value should be a number or text in quotes; got {value!r}"
        elif key in ("low", "high", "level") and not number:
            yield f"{place}.{key} should be a number; got {value!r}"
    if ("low" in result) != ("high" in result):
        yield f"{place} has one end of an interval; give low and high, or neither"
    elif "low" in result and isinstance(result.get("value"), str):
        yield f"{place} has an interval around a text; give a number as value"


def _keys(kind: type) -> list[str]:
    return [f.name for f in fields(kind)]


def _value(key: str, value: Any) -> Any:
    """A value of the file as the card shows it."""
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, str):
        return value if key == "citation" else prose(value) or NOT_PROVIDED
    if isinstance(value, (int, float)):
        return value
    if key == "results":
        return tuple(Result(**{k: _value(k, v) for k, v in result.items()}) for result in value)
    return tuple(prose(text) for text in value)
