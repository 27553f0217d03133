"""A plan with a few things set otherwise, as on the command line: options of loaders, weights to start from."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.errors import raise_all
from equipoise.study.entries import Known
from equipoise.study.network import IMAGENET, backbones
from equipoise.study.plan import idle_weights
from equipoise.study.schema import Plan
from equipoise.study.sources import option_types


def with_options(plan: Plan, **options: Any) -> Plan:
    """The plan with options of loaders set wherever a source takes them; what is None is left as it is.

    An option that no source of the plan takes is an error.
    """
    given = {name: value for name, value in options.items() if value is not None}
    taken = {d.name: given.keys() & option_types(d.source).keys() if isinstance(d, Known) else set() for d in plan.data}
    idle = sorted(given.keys() - set().union(*taken.values()))
    raise_all([f"{name} is an option of none of the data: {', '.join(taken)}. Leave it out." for name in idle], plan.name)
    return dataclasses.replace(
        plan,
        data=tuple(
            dataclasses.replace(d, options={**d.options, **{name: given[name] for name in taken[d.name]}}) if isinstance(d, Known) else d
            for d in plan.data
        ),
    )


def with_weights(plan: Plan, files: Sequence[str]) -> Plan:
    """The plan with files of weights that backbones start from, each as resnet-18=file, or resnet-18=imagenet for the published ones."""
    if not files:
        return plan
    pairs = [text.partition("=") for text in files]
    problems = [
        f"weights are named as resnet-18=file; got {text!r}"
        for text, (name, _, file) in zip(files, pairs, strict=True)
        if not name or not file
    ]
    given = {name: file if file == IMAGENET else str(Path(file).absolute()) for name, _, file in pairs}
    if not problems:
        problems += idle_weights({"data": [{"model": plan.network(d.name).model} for d in plan.data], "pretrained": given})
        problems += [f"no such file: {file}. Check the name." for file in given.values() if file != IMAGENET and not Path(file).is_file()]
    raise_all(problems, plan.name)
    before = plan.pretrained if isinstance(plan.pretrained, dict) else dict.fromkeys(backbones(), plan.pretrained)
    return dataclasses.replace(plan, pretrained={**{k: v for k, v in before.items() if v}, **given})


def without_weights(plan: Plan) -> Plan:
    """The plan with networks that start from random weights."""
    return dataclasses.replace(plan, pretrained="", data=tuple(dataclasses.replace(d, pretrained="") for d in plan.data))
