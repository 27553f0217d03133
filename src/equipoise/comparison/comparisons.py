"""`eq.compare`: classifiers compared with the first of them, on the same rows or by their audits of different patients.

Of every comparison the changes of gaps, rates and performance are known (`changes`). Of an original classifier and repairs with a goal, one
is chosen and judged (`findings`): reports, cards and bundles are written from `Comparison.found`, which is computed once. Torch is imported
only if networks are compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise import measures
from equipoise.comparison.findings import Findings, ScoredCandidate, find
from equipoise.comparison.options import RULES, Option, options_of
from equipoise.comparison.provenance import Provenance
from equipoise.data import Cohort, Identities, LabelKind, Rows, Scores, check_apart, check_cohort
from equipoise.errors import BadInput, Misuse, pick, raise_all
from equipoise.measures import (
    Audit,
    AuditSpec,
    AuditSums,
    Baseline,
    Cells,
    Gap,
    LabelAudit,
    Rule,
    Threshold,
    audit_labels,
    choose_rule,
    largest_gap,
    thresholds_by_name,
)
from equipoise.methods import (
    DEFAULT_MEASURE,
    IN_USE,
    STANDARD,
    Candidate,
    Goal,
    Judgement,
    LabelCandidate,
    Note,
    Outcome,
    Progress,
    choose_method,
)
from equipoise.models import classifier, predict
from equipoise.presenting import Presented, write_bundle
from equipoise.specification import is_real

if TYPE_CHECKING:
    from torch import nn

    from equipoise.comparison.changes import Changes

ORIGINAL = "original"  # to keep it, in place of a candidate
COMPARE_SUGGESTIONS = {  # for a wrong argument, by its type
    "DataFrame": "Name the columns of the frame: eq.Scores.from_frame(frame, label=..., score=..., group=...).",
    **dict.fromkeys(("str", "PurePath"), "Read the file first: eq.Scores.from_frame(...), or run `equipoise compare`."),
}


@dataclass(frozen=True, eq=False)
class Comparison(Presented):
    """An original classifier and what is compared with it: candidates on the same rows, or audits of different patients.

    `changes` has every gap, rate and performance on both sides. Of candidates with a goal one is `chosen`, on the repair set only; then
    `found` has the audits and the paired changes, and `save(folder)` writes a bundle that can be served. `report(path)` writes the report.
    """

    classifiers: tuple[ScoredCandidate, ...] = ()  # on the same rows, the original first; empty for audits, which have no rows
    chosen: int | None = None  # position in `candidates`; None if scores or audits are compared, without a goal
    title: str = "classifier"
    label: str = "the finding"  # what the classifier detects
    provenance: Provenance = field(default_factory=Provenance)
    settings: AuditSpec = field(default_factory=AuditSpec)
    failures: Mapping[str, str] = field(default_factory=dict)  # methods that could not be run, and why
    thumbnails: Mapping[object, npt.NDArray[np.uint8]] = field(default_factory=dict, repr=False)  # id: gray image (h, w)
    probes: Mapping[str, pd.DataFrame] | None = None  # "before" and "after": how well each layer predicts each attribute, on the test set
    rows: Rows | None = None  # the held-out rows, which show how new ones become inputs; None for a repair of a case
    baseline: Baseline | None = None  # a simple model on the same inputs; None if it was not fitted
    together: int = 1  # number of labels repaired together, over which simultaneous intervals hold
    forced: bool = False  # the repair was run although a cell has too few patients for any claim
    of_audits: "Changes | None" = None  # of different patients
    audited: list[tuple[ScoredCandidate, AuditSpec, LabelAudit]] = field(default_factory=list, repr=False)  # shared by what `choose` gives
    _cache: list[Findings] = field(default_factory=list, init=False, repr=False)

    def __repr__(self) -> str:
        if self.chosen is None:
            about = "the same" if self.changes.paired else "different"
            return f"Comparison({', '.join(self.changes.others)} minus {self.changes.first}; {about} patients)"
        names = ", ".join(entry.name for entry in self.classifiers)
        return f"Comparison({names}; {len(self.original.test):,} held-out rows; chosen: {self.result.name})"

    def __str__(self) -> str:
        if self.chosen is None:
            return str(self.changes)
        lines = [f"{self.title}: {self.outcome} on {len(self.original.test):,} held-out rows"]
        for row in self.found.methods:
            chosen = " (chosen)" if row.chosen else ""
            performance = f"{self.goal.performance.replace('_', ' ')} {row.performance}"
            lines.append(f"  {row.name}{chosen}: {self.goal.measure} {row.gap}, {performance}")
        return "\n".join(lines)

    @cached_property
    def changes(self) -> "Changes":
        """Every gap, rate and performance of the original and of each other classifier, and its change."""
        from equipoise.comparison.changes import changes_on_rows  # late: a repair does not need it

        return self.of_audits or changes_on_rows(self.classifiers, self.settings)

    @property
    def original(self) -> ScoredCandidate:
        """The first classifier, with which the candidates are compared."""
        return self._with_goal()[0]

    @property
    def candidates(self) -> tuple[ScoredCandidate, ...]:
        """The others."""
        return self._with_goal()[1:]

    def _with_goal(self) -> tuple[ScoredCandidate, ...]:
        if self.chosen is None:
            raise BadInput("scores and audits are compared without a goal, so none was chosen and judged; see `changes`")
        return self.classifiers

    @property
    def kind(self) -> LabelKind:
        """The kind of outputs: labels or classes."""
        return LabelKind.CLASSES if self.original.candidate.rule.argmax else LabelKind.LABELS

    @property
    def result(self) -> ScoredCandidate:
        """The candidate that was chosen."""
        return self.candidates[cast(int, self.chosen)]

    @property
    def goal(self) -> Goal:
        """The goal of the chosen candidate."""
        return self.result.candidate.goal

    @property
    def found(self) -> Findings:
        """The audits before and after and the paired changes, computed once."""
        return self.measured()

    def measured(self, progress: Progress | None = None) -> Findings:
        """`found`, with progress reported while it is computed."""
        if not self._cache:
            about = self.settings, self.together, self.forced, self.audited, progress
            self._cache.append(find(self.original, self.candidates, cast(int, self.chosen), *about))
        return self._cache[0]

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """What a committee can choose from, on the held-out rows: the original first, and what was chosen is marked; computed once."""
        about = self.settings, self.together, self.provenance.seed
        return options_of(self.original, self.candidates, cast(int, self.chosen), *about)

    @property
    def choices(self) -> dict[str, ScoredCandidate]:
        """What `choose` takes, by name: "original", which keeps the original, the candidates, and rules such as "level up"."""
        named = {ORIGINAL: replace(self.original, called=ORIGINAL)} | {tried.name: tried for tried in self.candidates}
        return named | {option.name: option.tried for option in self.options if option.name in RULES}

    def choose(self, name: str, instead_of: str = "") -> Self:
        """The comparison with another candidate taken, as it was fitted; its results on the held-out rows have been seen by then.

        - `name`: one of `choices`.
        - `instead_of`: what was chosen before, if it is not the chosen candidate of this comparison.
        """
        taken = self.choices[pick("candidate", name, self.choices)]
        if taken is self.result:
            return self
        candidate = replace(taken.candidate, why=(Note("taken_by_user", instead_of or self.result.name), *taken.candidate.why))
        others = [tried for tried in self.candidates if tried is not taken and tried.candidate.method != STANDARD]
        # What inputs show is about the candidate that was chosen first.
        classifiers = (self.original, *others, replace(taken, candidate=candidate))
        return replace(self, classifiers=classifiers, chosen=len(others), thumbnails={}, probes=None, baseline=None)

    @property
    def judgement(self) -> Judgement:
        """The outcome of the chosen candidate on the held-out rows, with its numbers."""
        return self.found.judgement

    @property
    def outcome(self) -> Outcome:
        """The outcome of the repair on the held-out rows: closed, reduced, unclear, harm or unchanged."""
        return self.judgement.outcome

    @property
    def met(self) -> bool | None:
        """Whether every limit of the goal is kept on the held-out rows; None for a goal without a maximum gap."""
        return self.judgement.met

    @property
    def shared_patients(self) -> int | None:
        """The number of patients in both the repair set and the test set; None if unknown."""
        valid, test = self.result.valid, self.result.test
        if valid is None or valid.patients is None or test.patients is None:
            return None
        return len(set(valid.patients) & set(test.patients))

    def save(
        self, folder: str | Path, *, model: str | None = None, score: str | None = None, overwrite: bool = False, **options: Any
    ) -> Path:
        """The folder with the bundle of the chosen candidate: weights, rule, preprocessing, audits, report, cards and checksums.

        `Bundle.load(folder)` reads it. `model` names the factory of a custom network, as file.py:factory, so that `equipoise apply` can
        build it again. For a rule for scores, `score` names the column that will hold new scores. `overwrite=True` replaces an earlier
        bundle; other options are those of the section [report] of a case.
        """
        if self.rows is None:
            raise BadInput(
                "this comparison does not know how its network is served; save the repair of its case: case.debias().save(folder)"
            )
        return write_bundle(self, Path(folder), model=model, score=score, overwrite=overwrite, options=options)


FITTING = {  # the options of `compare`, by what is compared
    "scores": ("paired", "threshold", "measures", "level", "min_patients"),
    "audits": ("common_groups",),
    "classifiers with a cohort": ("valid", "measure", "level", "min_patients", "seed"),
}


def compare(
    models: "Mapping[str, nn.Module | Candidate | Scores | Audit | float]",
    cohort: Rows | None = None,
    *,
    valid: Rows | None = None,
    measure: Gap | None = None,
    seed: int | None = None,
    title: str = "classifier",
    label: str = "the finding",
    paired: bool | None = None,
    threshold: float | Mapping[str, float] | None = None,
    measures: Sequence[Gap] | None = None,
    level: float | None = None,
    min_patients: int | None = None,
    common_groups: bool | None = None,
) -> Comparison:
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
    >>> eq.compare(scores).changes.paired
    True
    """
    if not isinstance(models, Mapping) or len(models) < 2:
        raise Misuse("eq.compare", "at least two classifiers by name, {'original': model, 'repaired': result}", models)
    kinds, subjects = {type(subject) for subject in models.values()}, cast(Mapping[str, Any], models)
    kind = {Scores: "scores", Audit: "audits"}.get(next(iter(kinds)), "") if len(kinds) == 1 else ""
    if not kind and kinds & {Scores, Audit}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise BadInput(f"eq.compare takes scores, or audits, or networks with a cohort; got {names}. Compare things of one kind.")
    if kind and cohort is not None:
        raise BadInput("scores and audits are compared without a cohort: eq.compare({...}); a cohort goes with networks")
    if not kind and cohort is None:
        raise Misuse("eq.compare", "scores or audits by name, or networks with a cohort", next(iter(models.values())), COMPARE_SUGGESTIONS)
    about = {"seed": seed, "measures": measures, "level": level, "min_patients": min_patients}
    options = {"valid": valid, "measure": measure, "paired": paired, "threshold": threshold, "common_groups": common_groups}
    given: dict[str, Any] = {name: value for name, value in (about | options).items() if value is not None}
    kind = kind or "classifiers with a cohort"
    if unfit := [name for name in given if name not in FITTING[kind]]:
        raise BadInput(f"eq.compare of {kind} takes {', '.join(FITTING[kind])}; got {', '.join(unfit)}. Omit it.")
    spec = AuditSpec(**{name: given[name] for name in about if name in given})
    if cohort is not None:
        return compare_models(subjects, cohort, valid, measure, spec, title, label)
    from equipoise.comparison.changes import changes_of_audits  # late: a repair does not need it

    if kind == "scores":
        return compare_scores(subjects, paired, threshold, spec)
    sums = {str(name): {label: AuditSums.of(own, label) for label, own in each.labels.items()} for name, each in subjects.items()}
    return Comparison(of_audits=changes_of_audits(sums, common_groups=bool(common_groups)))


def compare_scores(
    subjects: Mapping[str, Scores], paired: bool | None, threshold: float | Mapping[str, float] | None, spec: AuditSpec
) -> Comparison:
    """The comparison of scores: of several models on the same patients, row by row, or of different patients.

    The ids show which of the two it is, unless `paired` does; raises an error if they contradict each other, or some patients are in both.
    """
    from equipoise.comparison.changes import changes_of_audits, matched_rows

    rules = {name: choose_rule(own) for name, own in thresholds_by_name(threshold, subjects, "name").items()}
    reference, *names = subjects
    matched = {name: matched_rows(subjects[reference], subjects[name], reference, name, paired) for name in names}
    same = {name: own for name, own in matched.items() if own is not None}
    if not same:
        audits = {name: replace(audit_labels({"": own}, {"": rules[name]}, spec).only, name=name) for name, own in subjects.items()}
        return Comparison(of_audits=changes_of_audits({name: {"": AuditSums.of(own, "")} for name, own in audits.items()}))
    if len(same) < len(names):
        alike, others = (", ".join(name for name in names if (name in same) == kind) for kind in (True, False))
        raise BadInput(f"{alike} and {reference} are of the same patients, {others} is not. Compare the models on the same patients first.")
    entries = (_as_given(name, None, rules[name], Goal(), own) for name, own in {reference: subjects[reference], **same}.items())
    return Comparison(tuple(entries), settings=spec)


def compare_models(
    models: Mapping[str, object], cohort: Rows, valid: Rows | None, measure: Gap | None, settings: AuditSpec, title: str, label: str
) -> Comparison:
    """The comparison of classifiers on the same held-out rows: the first is the original, the others are candidates (see `compare`)."""
    if not isinstance(cohort, Scores):
        check_cohort("eq.compare", cohort)
    results = {name: subject for name, subject in models.items() if isinstance(subject, Candidate)}
    _check_held_out(results, cohort)
    check_apart(repair=valid, test=cohort)
    goal = Goal(measures.canonical_name(measure or DEFAULT_MEASURE), selection="paper")  # nothing is cross-fitted
    if results:
        goal = next(iter(results.values())).goal
    first, *others = models
    original = _entry(first, models[first], cohort, valid, goal)
    if not results and valid is not None:  # the goal of a result is settled already
        goal = goal.settled(float(original.chosen_row["performance"]))
    candidates = [_entry(name, models[name], cohort, valid, goal) for name in others]
    if len(candidates) > 1 and all(np.isnan(entry.chosen_row["gap"]) for entry in candidates):
        raise BadInput(
            f"one of {len(candidates)} candidates is chosen on the repair set, and none was given. Give it with valid=..., or compare the "
            "original with one candidate"
        )
    chosen = choose_candidate([{"": entry} for entry in candidates])
    rows = original.test if original.candidate.rule_only else cohort
    baseline = None
    if isinstance(cohort, Cohort) and isinstance(valid, Cohort):
        baseline = baseline_of(original, candidates[chosen], cohort, valid, None, settings)
    provenance = Provenance.now(seed=settings.seed)
    return Comparison((original, *candidates), chosen, title, label, provenance, settings, rows=rows, baseline=baseline)


def _check_held_out(results: Mapping[str, Candidate], cohort: Rows) -> None:
    """Raises `BadInput` with the patients, or rows, of the cohort that a result of `debias` was fitted to."""
    rows, problems = Identities.of(cohort), []
    for name, result in results.items():
        fitted = [own.fitted_to for own in result.labels.values()]
        for role in ("repair", "training"):
            sets = {id(own[role]): own[role] for own in fitted if role in own}  # labels of one network share their rows
            shared = max((own.shared_with(rows) for own in sets.values()), key=lambda own: own.count, default=None)
            if shared is not None and shared.count:
                remedy = "result.outcome is the outcome on the repair set itself, by cross-fitted decisions"
                where = repr(cohort.name), f"the {role} set of {name!r}"
                problems.append(shared.words(*where, f"Compare on other {shared.unit}; {remedy}"))
    raise_all(problems)


def _entry(name: str, subject: object, cohort: Rows, valid: Rows | None, goal: Goal) -> ScoredCandidate:
    """A classifier under its name, with its scores on the held-out rows and, if `valid` is given, on the repair set."""
    if isinstance(subject, Candidate):
        repair_scores = None if valid is None else predict(subject.model, valid)
        return ScoredCandidate(subject.only, repair_scores, predict(subject.model, cohort), called=name)
    from equipoise.comparison.audits import trained_rule

    model: Any = None
    if isinstance(cohort, Scores):
        if not is_real(subject):
            raise Misuse("eq.compare, on scores,", "thresholds and results of eq.debias(scores)", subject)
        goal = goal.changed(threshold=float(cast(float, subject)))
    elif (model := classifier(subject)) is None:
        raise Misuse("eq.compare", "classifiers and results of eq.debias", subject)
    repair_scores = None if valid is None else predict(model, valid)
    rule = (trained_rule(subject) if valid is None else None) or choose_rule(valid=repair_scores, optimise=goal.performance)
    if goal.threshold is not None:
        rule = Threshold(goal.threshold, IN_USE)
    return _as_given(name, model, rule, goal, predict(model, cohort), repair_scores)


def _as_given(name: str, model: Any, rule: Threshold, goal: Goal, test: Scores, valid: Scores | None = None) -> ScoredCandidate:
    """A classifier under its name, as it is: its scores on the held-out rows and, if they are given, on the repair set."""
    gap, performance = (np.nan, np.nan) if valid is None else evaluate_rule(rule, valid, goal)
    trace = pd.DataFrame([{"step": 0.0, "gap": gap, "performance": performance, "threshold": float(rule.value)}])
    return ScoredCandidate(LabelCandidate(name, model, rule, trace, 0, (Note("as_given"),), True, goal, 0), valid, test, called=name)


def evaluate_rule(rule: Rule, scores: Scores, goal: Goal) -> tuple[float, float]:
    """The largest gap and the performance of a rule on these scores, by the goal's measures."""
    cells = Cells.of(rule.decide(scores), scores.y, scores.attribute.only(goal.groups), scores.weight)
    return float(largest_gap(cells.gaps(goal.measure))), float(cells.performance(goal.performance))


def choose_candidate(tried: Sequence[Mapping[str, ScoredCandidate]]) -> int:
    """The position of the best method, on the repair set only, as `auto` chooses it; each has a candidate for every label."""
    return choose_method([[own.candidate for own in labels.values()] for labels in tried])


def baseline_of(
    original: ScoredCandidate, result: ScoredCandidate, test: Cohort, repair: Cohort, train: Cohort | None, settings: AuditSpec
) -> Baseline | None:
    """A simple model on the same inputs, compared with the original and with the chosen candidate."""
    from equipoise.comparison.baseline import fit_baseline  # late: only networks are compared with it

    repaired, groups = (result.decisions(), float(result.chosen_row["gap"])), result.candidate.goal.groups
    test, repair, train = test.comparing(groups), repair.comparing(groups), None if train is None else train.comparing(groups)
    before = (original.test, original.decisions())
    return fit_baseline(test, before, repair, result.candidate.goal, train=train, repaired=repaired, settings=settings, seed=settings.seed)
