"""One classifier at several centres: each repairs it for its own patients, and every repair is judged on the held-out patients of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from equipoise import data, models
from equipoise.case.repair import PreparedRepair, Repaired
from equipoise.comparison import ORIGINAL, Comparison, ScoredCandidate
from equipoise.data import Scores
from equipoise.errors import BadInput, EquipoiseError, collecting, raise_all


@dataclass(frozen=True, eq=False)
class Centres:
    """By label and centre: the original and the repairs of all centres, on the held-out patients of this one."""

    comparisons: Mapping[str, Mapping[str, Comparison]]
    measures: Mapping[str, str]  # of the goal, by label
    failures: Mapping[str, str]  # repairs that cannot decide the patients of another centre, and why


def check_centres(prepared: Mapping[str, PreparedRepair]) -> None:
    """Raises one error with everything that prevents a comparison of these centres, before any repair."""
    problems: list[str] = []
    first, *others = prepared
    labels = list(prepared[first].task.labels)
    for name in others:
        if (own := list(prepared[name].task.labels)) != labels:
            problems.append(f"{first} repairs {', '.join(labels)}, {name} {', '.join(own)}. Give all centres the same labels.")
    if not problems:
        for fitted, label in ((name, label) for name in prepared for label in labels):
            for judged in prepared:
                sets = {f"repair set of {fitted}": prepared[fitted].task.labels[label].repair}
                sets |= {f"test set of {judged}": prepared[judged].task.labels[label].test}
                if fitted != judged and (sets_with_ids := {name: rows for name, rows in sets.items() if rows.patients is not None}):
                    with collecting(problems):
                        data.check_apart(**sets_with_ids)
    raise_all(list(dict.fromkeys(problems)))


def across_centres(prepared: Mapping[str, PreparedRepair], repaired: Mapping[str, Repaired]) -> Centres:
    """The repair of every centre on the held-out patients of every centre.

    - `prepared`, `repaired`: by the name of the centre.
    """
    found: dict[str, dict[str, Comparison]] = {}
    failures, measures = dict[str, str](), dict[str, str]()
    for label in next(iter(prepared.values())).task.labels:
        found[label] = {}
        for centre, own in repaired.items():
            here, rows = own.comparisons[label], prepared[centre].task.labels[label].test
            measures[label] = str(here.goal.measure)
            entries = [ScoredCandidate(here.original.candidate, None, here.original.test, called=ORIGINAL)]
            for other, made in repaired.items():
                candidate, name = made.comparisons[label].result.candidate, f"repair of {other}"
                try:
                    scores = here.original.test if isinstance(rows, Scores) else models.predict(candidate.model, rows)
                    scores = here.result.test if other == centre else scores
                    candidate.rule.decide(scores)
                except EquipoiseError as error:  # such as groups that its centre does not have
                    failures[f"{name} at {centre}"] = str(error)
                else:
                    entries.append(ScoredCandidate(candidate, None, scores, called=name))
            if len(entries) > 1:
                found[label][centre] = Comparison(tuple(entries), settings=here.settings)
    if not any(found.values()):
        raise BadInput("no repair decides the patients of any centre.", *failures.values())
    return Centres(found, measures, failures)
