"""The audit: rates of every group and gaps between them, with error bars, from scores alone or from a network and a cohort."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import CONFLICTS, Attribute, Cohort, Scores, Varying, check_cohort, varying_in
from equipoise.errors import BadInput, EmptyCell, Misuse, UnknownName
from equipoise.measures.cells import Cells, FloatArray, tabulate
from equipoise.measures.decision import Rule, Threshold, best_threshold
from equipoise.measures.estimates import Estimate, Settings, estimate_attribute, estimate_performance
from equipoise.measures.functional import gap_values, predictive, require_cells
from equipoise.measures.gaps import GAPS, QUOTIENTS, Gap, is_quotient, named
from equipoise.measures.noise import dealt_gaps, mean_size
from equipoise.measures.performance import PERFORMANCE
from equipoise.measures.several import ARGMAX, Audits, Decided
from equipoise.models import chosen_outputs, predict, scores_of

SCHEMA_VERSION = 2
NOISE_DRAWS = 200  # the floor is then known to about a twentieth of itself


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found. `audit["eod"]` is a gap or a performance measure with its interval; `groups` has one row a group.

    With more than two groups (or several attributes) `audit["eod"]` is the gap with the largest absolute value; `gaps` has all. Beside each
    gap stands its noise floor, what a classifier without a gap shows on these rows by chance, and `excess`, the size of the gap minus that.
    """

    estimates: dict[str, Estimate]
    groups: pd.DataFrame
    gaps: pd.DataFrame
    rule: Rule
    missing: dict[str, float]  # attribute: share of rows without it
    references: dict[str, str]
    assumed: tuple[str, ...]  # attributes whose reference nobody named
    rows: int
    patients: int | None
    name: str
    settings: Settings
    varying: tuple[Varying, ...] = ()  # attributes of which patients have more than one group

    def __getitem__(self, measure: Gap) -> Estimate:
        name = measure if isinstance(measure, str) and measure in self.estimates else _named(measure)
        if name not in self.estimates:
            raise UnknownName("measure in this audit", name, self.estimates)
        return self.estimates[name]

    def __repr__(self) -> str:
        patients = "" if self.patients is None else f" of {self.patients:,} patients"
        return f"Audit({self.name!r}, {self.rows:,} rows{patients}, {', '.join(self.estimates)})"

    def __str__(self) -> str:
        lines = [f"Audit of {self.name}: {self.rows:,} rows; positive if {self.rule.describe()}"]
        lines += [f"  {name}: {estimate}" for name, estimate in self.estimates.items()]
        lines += [f"  {each.patients:,} patients have more than one {each.attribute}; {CONFLICTS[each.rule]}" for each in self.varying]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON: for each measure, an object with value, low and high under its name."""
        return {
            "schema": "equipoise.audit",
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "rows": self.rows,
            "patients": self.patients,
            "resampled": "rows" if self.patients is None else "patients",
            "decision": self.rule.describe(),
            "threshold": self.rule.value if isinstance(self.rule, Threshold) else None,
            "needs_group": self.rule.needs_group,
            "references": self.references,
            "references_assumed": list(self.assumed),
            "missing_attribute_share": self.missing,
            "patients_in_several_groups": {each.attribute: each.patients for each in self.varying},
            "conflicts": next((each.rule for each in self.varying), "row"),
            "settings": {
                "level": self.settings.level,
                "draws": self.settings.draws,
                "seed": self.settings.seed,
                "min_patients": self.settings.min_patients,
            },
            **{name: estimate.to_dict() for name, estimate in self.estimates.items()},
            "groups": _records(self.groups.rename_axis("group").reset_index()),
            "gaps": _records(self.gaps),
        }


NOT_AUDITED = {  # what is given in place of scores or a network, and what to do
    "DataFrame": "Name the columns of the frame: eq.audit(eq.Scores.from_frame(frame, label=..., score=..., group=...)).",
    "Cohort": "The network comes first, then the cohort: eq.audit(model, cohort).",
    "Parts": "The network comes first, then one of the parts: eq.audit(model, parts.test).",
    "ndarray": "Labels, scores and groups in arrays: eq.audit(eq.Scores.from_arrays(y, score, groups)).",
    "Tensor": "Labels, scores and groups in arrays: eq.audit(eq.Scores.from_arrays(y, score, groups)).",
    "BaseEstimator": "Score the rows first: eq.audit(eq.Scores.of(cohort, estimator.predict_proba(x)[:, 1])).",
    "str": "Read the file first: eq.Scores.from_frame(pd.read_csv(path, dtype={'patient': str}), ...), or run `equipoise audit`.",
    "PurePath": "Read the file first: eq.Scores.from_frame(pd.read_csv(path, dtype={'patient': str}), ...), or run `equipoise audit`.",
}


def audit(
    subject: object,
    cohort: Cohort | None = None,
    *,
    threshold: float | None = None,
    valid: Cohort | Scores | None = None,
    measures: Sequence[Gap] | None = None,
    also: Sequence[Gap] = (),
    optimise: str = "balanced_accuracy",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    min_patients: int = 5,
    output: str = "auto",
    outputs: Mapping[str, int | str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """The audit of scores, of a network on a cohort, or of a debiasing result on a cohort.

    The decision is the result's own rule; or `score >= threshold`; or the threshold that is best by `optimise` on `valid`; or the
    threshold that `train` chose on its validation part; or 0.5. The audit says which. A cell with fewer than
    `min_patients` patients is "insufficient data". Naming `measures` makes an empty cell an error instead; `also` adds to those that are
    usual, and so does the measure that a result was to lower. A measure is a name, or a signed sum of rates such as "tpr-fpr". On a cohort
    of several labels or classes there is an audit for each: `audit(...)["Effusion"]["eod"]`; `outputs` says which output of the network is
    which label, where that cannot be told from their names or their number.

    >>> rng = np.random.default_rng(0)
    >>> frame = pd.DataFrame({"y": rng.integers(0, 2, 400), "p": rng.random(400), "sex": rng.choice(["F", "M"], 400)})
    >>> found = audit(Scores.from_frame(frame, label="y", score="p", group="sex", reference="M"), threshold=0.5)
    >>> found["eod"].low < found["eod"].value < found["eod"].high
    True
    """
    if draws < 2 or not 0 < level < 1:
        raise BadInput(f"an interval needs at least 2 draws and a level between 0 and 1; got draws={draws}, level={level}")
    if isinstance(cohort, Cohort) and cohort.targets is not None:
        shared: dict[str, Any] = {
            "measures": measures,
            "also": also,
            "draws": draws,
            "level": level,
            "seed": seed,
            "min_patients": min_patients,
        }
        each = _decided(subject, cohort, threshold, valid, optimise, outputs)
        made = {label: audit(decided, progress=progress, **shared) for label, decided in each.items()}
        return cast(Audit, Audits(made, cohort.kind, cohort.name))
    model, rule = _parts_of(subject)
    scores = _scores_of(model, cohort, output)
    if rule is None:
        rule = _choose_rule(model, threshold, valid, optimise, output)
    elif threshold is not None:
        raise BadInput("a debiasing result has a decision rule of its own; do not give a threshold as well")
    asked = getattr(getattr(subject, "goal", None), "measure", None)
    more = (*also, *((asked,) if isinstance(asked, str) and measures is None else ()))
    usual: tuple[Gap, ...] = (*GAPS, *PERFORMANCE) if measures is None else tuple(measures)
    listed = [m if isinstance(m, str) and m in PERFORMANCE else named(m, beside=PERFORMANCE) for m in (*usual, *more)]
    wanted = tuple(dict.fromkeys(listed))
    settings = Settings(draws=draws, level=level, seed=seed, min_patients=min_patients)
    return _audit(scores, rule, wanted, settings, strict=measures is not None, progress=progress)


def _decided(
    subject: object,
    cohort: Cohort,
    threshold: float | None,
    valid: Cohort | Scores | None,
    optimise: str,
    outputs: Mapping[str, int | str] | None,
) -> dict[str, Decided]:
    """The scores and the rule of each of several labels: those of a debiasing result, or of a network's outputs."""
    own = getattr(subject, "labels", None)
    if isinstance(own, Mapping) and own:
        if threshold is not None or outputs is not None:
            raise BadInput("a debiasing result has rules and outputs of its own; do not give a threshold or outputs as well")
        unlike = [label for label in cohort.labels if label not in own]
        if unlike:
            raise BadInput(f"the result is one of {', '.join(own)}; {cohort.name!r} has other labels too: {', '.join(unlike)}")
        scores = scores_of({label: own[label].model for label in cohort.labels}, cohort)
        return {label: Decided(found, own[label].rule, own[label].goal) for label, found in scores.items()}
    if not isinstance(subject, nn.Module):
        kind = type(subject).__name__
        raise BadInput(
            f"a cohort of several labels is audited with a torch.nn.Module or with the result of debias on such a one; got {kind}"
        )
    chosen = chosen_outputs(subject, cohort.inputs, cohort.labels, cohort.kind, outputs)
    views = {label: chosen.view(at) for at, label in enumerate(cohort.labels)}
    scores = scores_of(views, cohort)
    if cohort.kind == "classes":
        if threshold is not None or valid is not None:
            raise BadInput("classes are decided by argmax; leave out threshold and valid")
        return {label: Decided(found, Threshold(0.5, ARGMAX)) for label, found in scores.items()}
    if valid is None:
        return {label: Decided(found, _choose_rule(None, threshold, None, optimise, "auto")) for label, found in scores.items()}
    if threshold is not None or not isinstance(valid, Cohort) or valid.labels != cohort.labels:
        raise BadInput(f"give a threshold, or a validation cohort with the labels {', '.join(cohort.labels)} to choose one each, not both")
    found_there = scores_of(views, valid)
    return {label: Decided(found, best_threshold(found_there[label], optimise)) for label, found in scores.items()}


def _audit(
    scores: Scores, rule: Rule, wanted: Sequence[str], settings: Settings, *, strict: bool, progress: Callable[[int, int], None] | None
) -> Audit:
    f = rule.decide(scores)
    attributes = list(scores.attributes)
    if len(attributes) > 1:
        attributes.append(Attribute.crossed(attributes))
    gap_names = [m for m in wanted if m not in PERFORMANCE]
    if strict:
        _require(scores, f, gap_names)
    performance_names = [m for m in wanted if m in PERFORMANCE]
    steps = len(attributes) + bool(performance_names)
    group_frames, gap_frames = [], []
    for k, attribute in enumerate(attributes):
        groups, gaps = estimate_attribute(scores, f, attribute, gap_names, settings)
        group_frames.append(groups)
        gap_frames.append(_with_noise(gaps, scores, f, attribute, settings))
        if progress:
            progress(k + 1, steps)
    gaps = pd.concat(gap_frames, ignore_index=True)
    estimates = {name: _headline(gaps, name) for name in gap_names}
    estimates |= estimate_performance(scores, f, performance_names, settings)
    if progress:
        progress(steps, steps)
    return Audit(
        estimates=estimates,
        groups=pd.concat(group_frames),
        gaps=gaps,
        rule=rule,
        missing={a.name: a.missing for a in attributes},
        references={a.name: a.reference for a in attributes},
        assumed=tuple(a.name for a in scores.attributes if not a.named),
        rows=len(scores),
        patients=None if scores.patients is None else len(set(scores.patients)),
        name=scores.name,
        settings=settings,
        varying=varying_in(scores.attributes, scores.patients),
    )


def _with_noise(gaps: pd.DataFrame, scores: Scores, f: FloatArray, attribute: Attribute, settings: Settings) -> pd.DataFrame:
    """The gaps with their noise floors, what is above them, and the floor of the largest gap among the groups that have one."""
    measures = list(dict.fromkeys(gaps["measure"]))
    dealt = dealt_gaps(f, scores.y, attribute.codes, attribute.levels, scores.patients, measures, NOISE_DRAWS, settings.seed)
    known = gaps["value"].notna().to_numpy()
    own, largest = np.full(len(gaps), np.nan), np.full(len(gaps), np.nan)
    for measure in measures:
        rows = np.flatnonzero(gaps["measure"] == measure)  # one a group, in the order of the columns of the deals
        usable = np.flatnonzero(known[rows])
        largest[rows] = mean_size(dealt[measure][:, usable])
        own[rows[usable]] = [mean_size(dealt[measure][:, [k]]) for k in usable]
    noted = gaps.assign(noise=own, excess=gaps["value"].abs() - own, noise_of_largest=largest)
    return noted[[*(name for name in noted if name != "note"), "note"]]


def _require(scores: Scores, f: FloatArray, gaps: Sequence[str]) -> None:
    """Raises every empty cell that a measure which was asked for needs, in one error."""
    problems: list[str] = []
    for attribute in scores.attributes:
        cells = tabulate(f, scores.y, attribute)
        for gap in gaps:
            try:
                require_cells(gap, cells, scores.name)
            except EmptyCell as error:
                problems += error.problems
            else:
                problems += _undecided(gap, cells, scores.name)
    if problems:
        raise EmptyCell(*problems)


def _undecided(gap: str, cells: Cells, part: str) -> list[str]:
    """The groups of which nobody is decided so that a quotient had a value."""
    if not is_quotient(gap) or not np.isnan(gap_values(gap, cells)).any():
        return []
    label = QUOTIENTS[gap]
    decided, other = ("positive", "lower") if label else ("negative", "higher")
    lacking = np.isnan(predictive(label, cells))
    return [
        f"{gap} needs rows that are decided {decided} in every group; {level!r} has none of {int(cells.n[code].sum()):,} rows in {part}. "
        f"Use a {other} threshold, more data, or merge groups"
        for code, level in enumerate(cells.levels)
        if lacking[code]
    ]


def _named(measure: Gap) -> str:
    """The name of a measure; what cannot be read stays as it is, for an error that lists what there is."""
    try:
        return named(measure)
    except BadInput:
        return str(measure)


def _headline(gaps: pd.DataFrame, measure: str) -> Estimate:
    """The gap with the largest absolute value among the groups that have one."""
    rows = gaps[gaps["measure"] == measure]
    known = rows[rows["value"].notna()]
    chosen = known.loc[known["value"].abs().idxmax()] if len(known) else rows.iloc[0]
    note = str(chosen["note"])
    if len(known) and len(known) < len(rows):
        note = f"{len(rows) - len(known)} of {len(rows)} groups have insufficient data"
    return Estimate(
        float(chosen["value"]),
        float(chosen["low"]),
        float(chosen["high"]),
        note,
        str(chosen["group"]),
        str(chosen["reference"]),
        float(chosen["detectable"]),
        float(chosen["noise_of_largest"]),
    )


def _parts_of(subject: object) -> tuple[object, Rule | None]:
    """A debiasing result is a network and a rule; anything else has no rule yet."""
    rule = getattr(subject, "rule", None)
    if isinstance(rule, Rule):
        return getattr(subject, "model", None), rule
    return subject, None


def _scores_of(model: object, cohort: Cohort | None, output: str) -> Scores:
    if isinstance(model, Scores):
        if cohort is not None:
            raise BadInput("scores are audited alone: eq.audit(scores); a cohort goes with a network: eq.audit(model, cohort)")
        return model
    if not isinstance(model, nn.Module):
        raise Misuse("eq.audit", "scores, a network with a cohort, or a debiasing result with a cohort", model, NOT_AUDITED)
    if cohort is None:
        raise BadInput("a network is audited on a cohort: eq.audit(model, parts.test), or eq.audit(model, eq.Cohort.from_frame(...))")
    check_cohort("eq.audit, after the network,", cohort)
    return predict(model, cohort, output=output)


def _choose_rule(model: object, threshold: float | None, valid: Cohort | Scores | None, optimise: str, output: str) -> Rule:
    if threshold is not None and valid is not None:
        raise BadInput("give a threshold or validation data to choose one, not both")
    if threshold is not None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float, np.integer, np.floating)):
            raise BadInput(f"threshold must be a number, from which score on a decision is positive; got {threshold!r}")
        return Threshold(float(threshold), "given")
    if valid is not None:
        if not isinstance(valid, Scores):
            check_cohort("valid of eq.audit", valid)
            if not isinstance(model, nn.Module):
                raise BadInput("with scores, valid is scores too: eq.audit(scores, valid=eq.Scores.from_frame(...))")
        return best_threshold(valid if isinstance(valid, Scores) else _scores_of(model, valid, output), optimise)
    chosen = getattr(model, "threshold", None)
    if isinstance(chosen, float):
        return Threshold(chosen, "chosen by best balanced accuracy on the validation part of its training")
    return Threshold(0.5, "the default; none was given or chosen on validation data")


def _records(frame: pd.DataFrame) -> list[dict[str, object]]:
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(k): (v.item() if isinstance(v, np.generic) else v) for k, v in row.items()} for row in plain.to_dict("records")]
