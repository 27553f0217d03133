"""What options say: methods with settings of their own, rates to keep, the outputs of labels, and all that is wrong with them."""

from contextlib import suppress
from dataclasses import fields
from typing import Any, get_type_hints

from equipoise.errors import BadInput, UnknownName, pick, raise_all


def collected(problems: list[str], check: Any) -> Any:
    """What a check gives; its problems go to the others."""
    try:
        return check()
    except BadInput as error:
        problems += error.problems
        return None


def kept(level_up: bool, minimum: list[str]) -> dict[str, float | str]:
    """The rates to keep, from --level-up and --minimum."""
    from equipoise.methods import BEFORE

    found: dict[str, float | str] = {"tpr": BEFORE} if level_up else {}
    problems = []
    for text in minimum:
        rate, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not equals:
            problems.append(f"--minimum must be RATE=NUMBER, as in tpr=0.8; got {text!r}")
        elif rate in found:
            problems.append(f"{rate} has two limits, {found[rate]} and {number:g}; use one of them")
        else:
            found[rate] = number
    raise_all(problems)
    return found


def number_problems(fraction: float, draws: int, seed: int) -> list[str]:
    checks = {
        f"--test-fraction must lie between 0 and 1, as 0.3 does; got {fraction}": 0 < fraction < 1,
        f"--draws must be at least 2; got {draws}": draws >= 2,
        f"--seed must be at least 0; got {seed}": seed >= 0,
    }
    return [problem for problem, fine in checks.items() if not fine]


def outputs_of(text: str | None, labels: list[str]) -> dict[str, int | str]:
    """Which output of the network each of several labels is.

    >>> outputs_of("Effusion=3,Mass=Mass/Nodule", ["Effusion", "Mass"])
    {'Effusion': 3, 'Mass': 'Mass/Nodule'}
    """
    from equipoise.models import output_named

    found: dict[str, int | str] = {}
    problems = []
    for part in [] if text is None else text.split(","):
        label, equals, which = (piece.strip() for piece in part.partition("="))
        if not equals or not which:
            problems.append(f"--model-output-name of several labels is LABEL=OUTPUT,..., as in {labels[0]}=0; got {part!r}")
        elif label not in labels:
            problems += UnknownName("label in --model-output-name", label, labels).problems
        else:
            found[label] = output_named(which)
    raise_all(problems)
    return found


def methods_of(names: str, settings: list[str]) -> dict[str, dict[str, Any]]:
    """The methods in a list with commas, each with its own settings."""
    from equipoise.methods import METHODS

    methods: dict[str, dict[str, Any]] = {name.strip(): {} for name in names.split(",") if name.strip()}
    problems: list[str] = []
    for text in settings:
        place, equals, value = text.partition("=")
        name, dot, key = place.partition(".")
        if not (equals and dot and key):
            problems.append(f"--set must be METHOD.SETTING=VALUE, as in pruning.units=1500; got {text!r}")
        elif name not in methods:
            problems += UnknownName("method in --set, which is not among --method:", name, methods).problems
        elif name in METHODS:
            collected(problems, lambda name=name, key=key, value=value: methods[name].update({key: _value(name, key, value)}))
    raise_all(problems)
    return methods


def _value(method: str, key: str, text: str) -> Any:
    """A setting's text as the type that the method declares for it."""
    from pydantic import TypeAdapter, ValidationError

    from equipoise.methods import METHODS

    settings = METHODS[method].settings
    pick(f"setting of {method}", key, [f.name for f in fields(settings)])
    declared: TypeAdapter[Any] = TypeAdapter(get_type_hints(settings)[key])
    try:
        return declared.validate_python(text)
    except ValidationError as error:
        with suppress(ValidationError):
            return declared.validate_json(text)
        with suppress(ValidationError):  # several values with commas
            return declared.validate_python([part.strip() for part in text.split(",")])
        raise BadInput(f"--set {method}.{key}: {text!r} will not do: {error.errors()[0]['msg']}") from None
