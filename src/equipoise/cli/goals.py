"""The methods, their settings and the goals of `equipoise debias`, from the texts of its options."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

from equipoise.cli.inputs import collected
from equipoise.errors import BadInput, UnknownName, pick, raise_all

if TYPE_CHECKING:
    from equipoise.methods import Goal


def methods_of(names: list[str], settings: list[str]) -> dict[str, dict[str, Any]]:
    """The methods to try, each with its own settings; a setting that is a list is repeated."""
    from equipoise.methods import METHODS

    methods: dict[str, dict[str, Any]] = {name: {} for name in names}
    texts: dict[tuple[str, str], list[str]] = {}
    problems: list[str] = [f"--method {name} was given twice; name each method once" for name in methods if names.count(name) > 1]
    for text in settings:
        place, equals, value = text.partition("=")
        name, dot, key = place.partition(".")
        if not (equals and dot and key):
            problems.append(f"--set must be METHOD.SETTING=VALUE, as in pruning.units=1500; got {text!r}")
        elif name not in methods:
            problems += UnknownName("method in --set, which is not among --method:", name, methods).problems
        elif name in METHODS:
            texts.setdefault((name, key), []).append(value)
    for (name, key), values in texts.items():
        methods[name][key] = collected(problems, partial(_value, name, key, values))
    raise_all(problems)
    return methods


def without_groups(methods: dict[str, dict[str, Any]]) -> list[str]:
    """What is wrong with leaving out rules that need the group; `auto` leaves them out."""
    from equipoise.methods import METHODS

    asked = [name for name in methods if name in METHODS and METHODS[name].needs_group]
    for name, settings in methods.items():
        if name in METHODS and METHODS[name].runs_others:
            settings["allow_group"] = False
    return [f"--no-group-rules leaves out rules that need each patient's group; --method {name} is one. Omit it." for name in asked]


def _value(method: str, key: str, given: list[str]) -> Any:
    """A setting's text, or the texts of a list, as the type that the method declares for it."""
    from pydantic import TypeAdapter, ValidationError

    from equipoise.methods import METHODS

    settings = METHODS[method].settings
    pick(f"setting of {method}", key, [f.name for f in fields(settings)])
    declared: TypeAdapter[Any] = TypeAdapter(get_type_hints(settings)[key])
    with suppress(ValidationError):
        return declared.validate_python(given if len(given) > 1 else given[0])
    with suppress(ValidationError):  # a list of one
        return declared.validate_python(given)
    with suppress(ValidationError):  # of a setting that is no list the last value counts, as for options
        return declared.validate_json(given[-1])
    try:
        return declared.validate_python(given[-1])
    except ValidationError as error:
        raise BadInput(f"invalid value {given[-1]!r} for --set {method}.{key}: {error.errors()[0]['msg']}") from None


def goals_of(texts: list[str], labels: list[str], goal: Goal) -> dict[str, Goal] | None:
    """The goal of each label: the common one with what --goal says of that label; None where it says nothing."""
    given: dict[str, dict[str, Any]] = {label: {} for label in labels}
    problems: list[str] = []
    for text in texts:
        place, equals, value = text.partition("=")
        label, dot, key = place.rpartition(".")
        if not (equals and dot and len(labels) > 1):
            problems.append(
                f"--goal must be LABEL.KEY=VALUE with more than one --label, as in {labels[0]}.min_performance=0.8; got {text!r}"
            )
        elif label not in labels:
            problems += UnknownName("label in --goal", label, labels).problems
        elif key in ("measure", "performance"):
            given[label][key] = value
        elif key in ("min_performance", "max_gap", "max_loss", "threshold"):
            try:
                given[label][key] = float(value)
            except ValueError:
                problems.append(f"invalid value {value!r} for --goal {place}: expected a number")
        else:
            problems += UnknownName(
                "key in --goal", key, ("measure", "performance", "min_performance", "max_gap", "max_loss", "threshold")
            ).problems
    raise_all(problems)
    return {label: replace(goal, **own) for label, own in given.items()} if texts else None


def kept(no_group_worse: bool, min_rate: list[str]) -> dict[str, float | str]:
    """The rates to keep, from --no-group-worse and --min-rate."""
    from equipoise.methods import BEFORE

    found: dict[str, float | str] = {"tpr": BEFORE} if no_group_worse else {}
    problems = []
    for text in min_rate:
        rate, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not equals:
            problems.append(f"--min-rate must be RATE=NUMBER, as in tpr=0.8; got {text!r}")
        elif rate in found:
            problems.append(f"{rate} has two limits, {found[rate]} and {number:g}; use one of them")
        else:
            found[rate] = number
    raise_all(problems)
    return found
