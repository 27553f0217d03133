"""Parsed options: methods with their settings, rates to keep, outputs of labels, and their problems."""

from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, get_type_hints

from equipoise.errors import BadInput, UnknownName, pick, raise_all

if TYPE_CHECKING:
    from equipoise.methods import Goal


def collected(problems: list[str], check: Any) -> Any:
    """The result of a check; its problems are added to the others."""
    try:
        return check()
    except BadInput as error:
        problems += error.problems
        return None


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


def number_problems(fraction: float, draws: int, seed: int) -> list[str]:
    checks = {
        f"--test-fraction must be between 0 and 1, as in 0.3; got {fraction}": 0 < fraction < 1,
        f"--draws must be at least 2; got {draws}": draws >= 2,
        f"--seed must be at least 0; got {seed}": seed >= 0,
    }
    return [problem for problem, fine in checks.items() if not fine]


def outputs_of(names: list[str] | None, labels: list[str]) -> dict[str, int | str]:
    """The network's output for each of several labels.

    >>> outputs_of(["Effusion=3", "Mass=Mass/Nodule"], ["Effusion", "Mass"])
    {'Effusion': 3, 'Mass': 'Mass/Nodule'}
    """
    from equipoise.models import output_named

    found: dict[str, int | str] = {}
    problems = []
    for text in names or []:
        label, equals, which = (piece.strip() for piece in text.partition("="))
        if not equals or not which:
            problems.append(f"--output-name must be LABEL=OUTPUT where there are several labels, as in {labels[0]}=0; got {text!r}")
        elif label not in labels:
            problems += UnknownName("label in --output-name", label, labels).problems
        elif label in found:
            problems.append(f"--output-name {label} was given twice; give one output per label")
        else:
            found[label] = output_named(which)
    raise_all(problems)
    return found


def goals_of(texts: list[str], labels: list[str], goal: "Goal") -> "dict[str, Goal] | None":
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
        elif key in ("min_performance", "max_gap", "max_loss"):
            try:
                given[label][key] = float(value)
            except ValueError:
                problems.append(f"invalid value {value!r} for --goal {place}: expected a number")
        else:
            problems += UnknownName("key in --goal", key, ("measure", "performance", "min_performance", "max_gap", "max_loss")).problems
    raise_all(problems)
    return {label: replace(goal, **own) for label, own in given.items()} if texts else None


def output_of(names: list[str] | None) -> str | None:
    """The network's output for the only label, by name or number."""
    if names and len(names) > 1:
        raise BadInput(f"--output-name takes one output where there is one --label; got {', '.join(map(repr, names))}")
    return names[0] if names else None


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
    for (name, key), given in texts.items():
        collected(problems, lambda name=name, key=key, given=given: methods[name].update({key: _value(name, key, given)}))
    raise_all(problems)
    return methods


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
