"""Several labels of one network: a trial of each with the same methods, one choice for all, and a folder with a page that leads to each.

The methods that change a network change it once for all labels; the others, which leave it as it is, do one label after another. Every
label has a folder of its own, whole in itself, as one label alone would have; the weights in them are the same.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from equipoise.data import Cohort, write_text
from equipoise.errors import BadInput, EquipoiseError, raise_all
from equipoise.methods import METHODS, ONE_BY_ONE, Goal, check_method, debias
from equipoise.models import ChosenOutputs, chosen_outputs
from equipoise.report.case import Case, Repair
from equipoise.report.folder import LABELS_SCHEMA, folders
from equipoise.report.page import labels_page
from equipoise.report.repaired import Written
from equipoise.report.trial import EQUAL, Bars, Trial, asked, scored, tried

SCHEMA, SCHEMA_VERSION = LABELS_SCHEMA, 1


@dataclass(frozen=True)
class Trials:
    """A trial for each label, in all of which the same method was chosen."""

    each: Mapping[str, Trial]
    outputs: ChosenOutputs

    def output_name(self, label: str) -> str | None:
        """Which output of the network the label is, for `apply`; nothing where the network has one."""
        return None if self.outputs.flat else str(self.outputs.columns[list(self.each).index(label)])


def check_several(methods: Sequence[str], labels: Sequence[str], goal: Goal) -> None:
    """Raises what can be known to be wrong with repairing several labels before anything is run."""
    problems: list[str] = []
    for method in methods:
        try:
            check_method(method, "labels", labels[0])
        except BadInput as error:
            problems += error.problems
    if goal.selection != "paper":
        problems.append("several labels are chosen with --selection paper alone; honest selection is for one label")
    raise_all(problems)


def run_trials(
    network: nn.Module,
    repair: Cohort,
    test: Cohort,
    methods: Mapping[str, Mapping[str, Any]],
    goal: Goal,
    outputs: Mapping[str, int | str],
    *,
    seed: int = 0,
    train: Cohort | None = None,
    bars: Bars | None = None,
) -> Trials:
    """Every method on all labels of the repair part, the best of them for all labels, and the scores of the patients kept aside."""
    check_several(list(methods), repair.labels, goal)
    bars = bars or (lambda _: nullcontext(lambda _done, _of: None))
    chosen = chosen_outputs(network, repair.inputs, repair.labels, repair.kind, outputs)
    parts = {name: (repair.labelled(name), test.labelled(name)) for name in repair.labels}
    originals = {
        name: tried("standard", {}, chosen.view(at), *parts[name], goal, seed, None, None, bars) for at, name in enumerate(repair.labels)
    }
    found: dict[str, list[Repair]] = {name: [] for name in repair.labels}
    failures: dict[str, str] = {}
    for method, settings in methods.items():
        try:
            if METHODS[method].labels == ONE_BY_ONE:
                repairs = _apart(method, settings, chosen, parts, goal, seed, train, originals, bars)
            else:
                repairs = _together(method, settings, network, repair, parts, goal, outputs, seed, bars)
        except EquipoiseError as error:
            failures[method] = str(error)
            continue
        for name, one in repairs.items():
            found[name].append(one)
    if not any(found.values()):
        raise BadInput(*(f"{method}: {reason}" for method, reason in failures.items()))
    best = choose_for_all(list(found.values()))
    return Trials({name: Trial(originals[name], tuple(repairs), best, failures) for name, repairs in found.items()}, chosen)


def _together(
    method: str,
    settings: Mapping[str, Any],
    network: nn.Module,
    repair: Cohort,
    parts: Mapping[str, tuple[Cohort, Cohort]],
    goal: Goal,
    outputs: Mapping[str, int | str],
    seed: int,
    bars: Bars,
) -> dict[str, Repair]:
    with bars(method) as step:
        start = time.perf_counter()
        found = debias(network, repair, method=method, outputs=outputs, seed=seed, progress=step, **asked(goal), **settings)
        seconds = time.perf_counter() - start
    return {name: scored(candidate, *parts[name], seconds, bars) for name, candidate in found.labels.items()}


def _apart(
    method: str,
    settings: Mapping[str, Any],
    chosen: ChosenOutputs,
    parts: Mapping[str, tuple[Cohort, Cohort]],
    goal: Goal,
    seed: int,
    train: Cohort | None,
    originals: Mapping[str, Repair],
    bars: Bars,
) -> dict[str, Repair]:
    found = {}
    for at, (name, (repair, test)) in enumerate(parts.items()):
        known = None if train is None else train.labelled(name)
        found[name] = tried(method, settings, chosen.view(at), repair, test, goal, seed, known, originals[name], bars)
    return found


def choose_for_all(repairs: Sequence[Sequence[Repair]]) -> int:
    """The position of the method that is best for all labels, from the repairs of each label in the same order.

    Most labels whose goal is met, then the smallest largest |gap|, on the repair part; within 0.005 of that, a rule that needs no group.
    """
    met = [sum(one.candidate.met for one in same) for same in zip(*repairs, strict=True)]
    worst = []
    for same in zip(*repairs, strict=True):
        gaps = [abs(float(one.candidate.trace["gap"].iloc[one.candidate.chosen])) for one in same]
        worst.append(float(np.where(np.isnan(gaps), np.inf, gaps).max()))
    pool = [k for k, count in enumerate(met) if count == max(met)]
    least = min(worst[k] for k in pool)
    return min((k for k in pool if worst[k] <= least + EQUAL), key=lambda k: (repairs[0][k].candidate.rule.needs_group, worst[k]))


def write_overview(place: Path, folder: Path, cases: Mapping[str, Case], written: Mapping[str, Written], title: str) -> list[Path]:
    """The files that speak of all labels: audit.json, report.html and README.txt, in `place`, which is to become `folder`."""
    places = folders(folder, list(cases))
    document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "chosen": next(iter(cases.values())).result.name,
        "met": all(case.result.candidate.met for case in cases.values()),
        "folders": {name: path.name for name, path in places.items()},
        "labels": {name: json.loads((place / path.name / "audit.json").read_text(encoding="utf-8")) for name, path in places.items()},
    }
    texts = {
        place / "audit.json": json.dumps(document, indent=2, allow_nan=False) + "\n",
        place / "report.html": labels_page(title, cases, written, places),
        place / "README.txt": _readme(title, cases, places),
    }
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


def _readme(title: str, cases: Mapping[str, Case], places: Mapping[str, Path]) -> str:
    method = next(iter(cases.values())).result.name
    lines = [
        title,
        "",
        f"One network, {len(cases)} labels, repaired by {method}. Each folder here is whole in itself: the network's weights,",
        "the rule for its label, the audits, the report and the model card. The weights are the same in all of them; heads",
        "beside the network (bias_score.safetensors), where there are any, are those of the label.",
        "",
    ]
    lines += [f"  {place.name}: {name}; equipoise apply {place} new.csv --trust" for name, place in places.items()]
    return "\n".join([*lines, "", "report.html leads to the report of each label; audit.json holds the audits of all.", ""])
