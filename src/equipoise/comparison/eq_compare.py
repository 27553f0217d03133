"""`eq.compare`: networks and repairs on the same held-out rows (compare_models), or scores or audits of classifiers (compare_scores).

Torch is imported only if networks are compared.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from equipoise.comparison.compare_scores import ScoreComparison, compare_audits, compare_scores
from equipoise.data import Rows, Scores
from equipoise.errors import BadInput, Misuse
from equipoise.measures import Audit, Gap, sums_of

if TYPE_CHECKING:
    from torch import nn

    from equipoise.comparison.compare_models import Comparison
    from equipoise.methods import Candidate

SUGGESTIONS = {  # for a wrong argument, by its type
    "DataFrame": "Name the columns of the frame: eq.Scores.from_frame(frame, label=..., score=..., group=...).",
    "str": "Read the file first: eq.Scores.from_frame(...), or run `equipoise compare`.",
    "PurePath": "Read the file first: eq.Scores.from_frame(...), or run `equipoise compare`.",
}


@overload
def compare(
    models: Mapping[str, Scores],
    *,
    paired: bool | None = ...,
    threshold: float | Mapping[str, float] | None = ...,
    measures: Sequence[Gap] | None = ...,
    level: float = ...,
    min_patients: int = ...,
) -> ScoreComparison: ...


@overload
def compare(models: Mapping[str, Audit], *, common_groups: bool = ...) -> ScoreComparison: ...


@overload
def compare(
    models: Mapping[str, "nn.Module | Candidate | float"],
    cohort: Rows,
    *,
    valid: Rows | None = ...,
    measure: Gap | None = ...,
    level: float = ...,
    seed: int = ...,
    min_patients: int = ...,
    title: str = ...,
    label: str = ...,
) -> "Comparison": ...


def compare(models: Mapping[str, Any], cohort: Rows | None = None, **options: Any) -> "Comparison | ScoreComparison":
    """The comparison of classifiers by name: networks and repairs on a cohort, or scores or audits without one. The first is the original.

    **Networks on a cohort** are compared on the same held-out rows. A result of `debias` decides by its rule; a network by the threshold
    that is best on `valid`, or that `train` chose, or 0.5. With `valid`, the repair set of the results, the report also shows the repair
    set. Among several results the best is chosen by their goal on the repair set, as `debias` would; the held-out rows have no influence on
    that. Repairs of scores alone are compared on held-out scores, next to the threshold in use:
    `compare({"original": 0.5, "repaired": result}, test_scores)`.

    **Scores** come from several models on the same patients, matched by id and compared row by row, or from different patients (two sites,
    two periods). The ids show which of the two it is, unless `paired` does. `threshold` is one number, or one number per name. **Audits**
    are of different patients; with `common_groups`, groups that are not in all of them are left out. The result has the change of every gap
    and rate; p-values are adjusted for all of them together.

    >>> import numpy as np, pandas as pd, equipoise as eq
    >>> frame = pd.DataFrame({"x": np.arange(400) % 7, "sex": ["F", "M"] * 200, "sick": (np.arange(400) % 7 > 3).astype(int)})
    >>> parts = eq.split(eq.Cohort.from_frame(frame, label="sick", group="sex", reference="M"), seed=0)
    >>> model = eq.train(parts.train, parts.valid, settings=eq.Training(epochs=1), seed=0)
    >>> result = eq.debias(model, parts.valid, method="group-thresholds")
    >>> eq.compare({"original": model, "repaired": result}, parts.test).found.after.rows == len(parts.test)
    True
    >>> old, new = (frame.assign(p=(frame.x + shift) / 9) for shift in (0, 1))
    >>> scores = {name: eq.Scores.from_frame(f, label="sick", score="p", group="sex") for name, f in (("old", old), ("new", new))}
    >>> eq.compare(scores).paired
    True
    """
    if not isinstance(models, Mapping) or len(models) < 2:
        raise Misuse("eq.compare", "at least two classifiers by name, {'original': model, 'repaired': result}", models)
    kinds = {type(subject) for subject in models.values()}
    all_scores, all_audits = kinds == {Scores}, kinds == {Audit}
    if not all_scores and not all_audits and kinds & {Scores, Audit}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise BadInput(f"eq.compare takes scores, or audits, or networks with a cohort; got {names}. Compare things of one kind.")
    if (all_scores or all_audits) and cohort is not None:
        raise BadInput("scores and audits are compared without a cohort: eq.compare({...}); a cohort goes with networks")
    if all_scores:
        return compare_scores(models, **options)
    if all_audits:
        return compare_audits({str(name): sums_of(subject) for name, subject in models.items()}, **options)
    if cohort is None:
        raise Misuse("eq.compare", "scores or audits by name, or networks with a cohort", next(iter(models.values())), SUGGESTIONS)
    from equipoise.comparison.compare_models import compare_models

    return compare_models(models, cohort, **options)
