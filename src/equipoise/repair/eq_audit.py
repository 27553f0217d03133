"""`eq.audit`: the scores of a network or of a debiasing result on a cohort (`models`), then their audit (`measures`).

Torch is imported only if a network is audited.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from equipoise.data import Cohort, LabelKind, Scan, Scores, check_apart, check_cohort
from equipoise.errors import BadInput, Misuse
from equipoise.measures import (
    ARGMAX,
    Audit,
    AuditSpec,
    Progress,
    Rule,
    Threshold,
    audit_labels,
    given_or_chosen,
    rules_by_label,
)

SUGGESTIONS = {  # for a wrong argument, by its type
    "DataFrame": "Name the columns of the frame: eq.audit(eq.Scores.from_frame(frame, label=..., score=..., group=...)).",
    "Cohort": "The network comes first, then the cohort: eq.audit(model, cohort).",
    "Parts": "The network comes first, then one of the parts: eq.audit(model, parts.test).",
    "ndarray": "Labels, scores and groups in arrays: eq.audit(eq.Scores.from_arrays(y, score, groups)).",
    "Tensor": "Labels, scores and groups in arrays: eq.audit(eq.Scores.from_arrays(y, score, groups)).",
    "type": "Give a fitted instance of it, not the class.",
    "str": "Name the columns of the table: eq.audit(eq.scan(path, label=..., score=..., group=...)), or run `equipoise audit`.",
    "PurePath": "Name the columns of the table: eq.audit(eq.scan(path, label=..., score=..., group=...)), or run `equipoise audit`.",
}


OF_FILES = ("valid", "train", "probe", "draws")  # fields of a specification that name files, or what only the audit of a file reports


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the fields of `AuditSpec` and their defaults in its signature, for help and the reference."""
    signature = inspect.signature(function)
    named = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=AuditSpec.__annotations__[name])
        for name, field in AuditSpec.model_fields.items()
        if name not in OF_FILES
    ]
    function.__signature__ = signature.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
    return function


@_with_options
def audit(
    subject: object,
    cohort: Cohort | Scores | None = None,
    *,
    rule: Rule | None = None,
    threshold: float | Mapping[str, float] | None = None,
    valid: Cohort | Scores | Mapping[str, Scores] | None = None,
    train: Cohort | None = None,
    output: str = "auto",
    outputs: Mapping[str, int | str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Audit:
    """The audit of scores, of a table on disk (`eq.scan`), or of a classifier or a debiasing result on a cohort.

    A classifier is a network (torch.nn.Module), a fitted scikit-learn estimator or pipeline (also of XGBoost, LightGBM or CatBoost), or a
    function from rows to probabilities; see `eq.predictor`. Estimators and functions get the raw columns of a table.

    A result of `debias` decides by its rule; one that is a rule for scores is audited on scores, `audit(result, scores)`. A classifier
    decides by `score >= threshold`: the given `threshold` (several labels may have one each, {"Effusion": 0.2, "Mass": 0.08}), or the best
    one by `optimise` on `valid`, or the one that `train` chose on its validation set, or 0.5. The audit states which one was used.

    - `measures`: only these, with an error for an empty cell. `also` adds to the default measures, and so does the goal of a result. A
      measure is a name, or a signed sum of rates such as "tpr-fpr".
    - `min_patients`: a cell with fewer patients is "insufficient data".
    - `specificity`, `sensitivity`: sensitivity is also reported at this specificity, and specificity at this sensitivity.
    - `thresholds`: those of the decision curves.
    - `shrink`: also reports shrunken gaps (empirical Bayes), `audit(...).shrunken()`.
    - `train`: the training set. A logistic regression on the same inputs is fitted to it and evaluated on the same rows,
      `audit(...).baseline`; if it does clearly better, the network limits any repair.
    - `no_finding`: the label that means "no finding", or "derived" (none of the labels): `audit(...).no_finding.underdiagnosis`.

    A cohort of several labels or classes gets one audit per label, `audit(...)["Effusion"]["eod"]`, and so does a mapping of labels to
    scores or to scans of one table. p-values and simultaneous intervals are adjusted for all labels together. `outputs` maps labels to the
    network's outputs, if names or numbers do not show it.

    >>> scores = Scores.from_arrays([1, 0, 1, 0] * 50, [0.9, 0.2, 0.4, 0.3] * 50, ["F", "F", "M", "M"] * 50, reference="M")
    >>> audit(scores, threshold=0.5)["eod"].value
    1.0
    """
    if unknown := [name for name in OF_FILES if name in options]:
        raise BadInput(f"{', '.join(unknown)} of an audit are about a file; see `equipoise audit`, or eq.encoding(model, cohort)")
    spec = AuditSpec(**options)
    each_label = None if progress is None else lambda _label: progress
    by_label = _by_label(subject)
    if by_label and cohort is not None:
        raise BadInput("scores are audited without a cohort: eq.audit(scores); a cohort goes with a network: eq.audit(model, cohort)")
    if train is not None and (not isinstance(cohort, Cohort) or not isinstance(train, Cohort)):
        raise BadInput("train is a cohort, and goes with a network and a cohort: eq.audit(model, parts.test, train=parts.train)")
    several = isinstance(subject, Mapping) if by_label else isinstance(cohort, Cohort) and cohort.several
    if spec.no_finding is not None and not several:
        raise BadInput("no_finding is for the labels of one model: a cohort with label=[...], or a mapping of labels to scores")
    if by_label:
        if isinstance(subject, Mapping) and valid is not None and (not isinstance(valid, Mapping) or set(valid) != set(subject)):
            raise BadInput(f"valid must hold scores by label too, of {', '.join(map(str, subject))}")
        valid_by_label: Any = valid if isinstance(valid, Mapping) else dict.fromkeys(by_label, valid)
        rules = rules_by_label(by_label, rule, threshold, valid_by_label, spec.optimise)
        return audit_labels(by_label, rules, spec, progress=each_label)
    if isinstance(cohort, Cohort):
        check_apart(training=train, test=cohort)
    if isinstance(cohort, Cohort) and cohort.several:
        decided = _decided_labels(subject, cohort, spec, rule, threshold, valid, outputs)
    else:
        decided = {"": _decided(subject, cohort, spec, rule, threshold, valid, output)}
    scores = {label: own.scores for label, own in decided.items()}
    also = {label: own.also for label, own in decided.items()} if spec.measures is None else {}
    kind = cohort.kind if isinstance(cohort, Cohort) else LabelKind.LABELS
    name = cohort.name if several and isinstance(cohort, Cohort) else ""
    found = audit_labels(scores, {label: own.rule for label, own in decided.items()}, spec, kind, name, each_label, also)
    return found if train is None or not isinstance(cohort, Cohort) else with_baselines(found, scores, cohort, train)


def _by_label(subject: object) -> dict[str, Any]:
    """The scores, or the scans of one table, by label; empty if the subject is something else."""
    if isinstance(subject, Mapping) and {type(value) for value in subject.values()} in ({Scores}, {Scan}):
        return dict(subject)
    if isinstance(subject, Scan):
        return {subject.columns.label[0]: subject}
    return {"": subject} if isinstance(subject, Scores) else {}


@dataclass(frozen=True, eq=False)
class _Decided:
    """The scores of a label, the rule that decides on them, and the measure of the goal of a debiasing result."""

    scores: Scores
    rule: Rule
    also: tuple[str, ...] = ()


def _decided(
    subject: object,
    cohort: Cohort | Scores | None,
    spec: AuditSpec,
    rule: Rule | None,
    threshold: float | Mapping[str, float] | None,
    valid: object,
    output: str,
) -> _Decided:
    """The scores of a classifier or of a debiasing result on a cohort, and how they are decided."""
    from equipoise.methods import Candidate

    if isinstance(subject, Candidate):
        if threshold is not None:
            raise BadInput("a debiasing result has a decision rule of its own; do not give a threshold as well")
        also = (subject.goal.measure,)
        if subject.rule_only and isinstance(cohort, Scores):
            return _Decided(cohort, subject.rule, also)
        if subject.model is None:
            raise Misuse("eq.audit of a rule for scores", "held-out scores, eq.audit(result, scores)", cohort)
        return _Decided(predicted_scores(subject.model, cohort, output), subject.rule, also)
    if valid is None:
        if rule is None and threshold is None:
            rule = trained_rule(subject)
        rule = given_or_chosen(rule, threshold)
        return _Decided(predicted_scores(subject, cohort, output), rule)
    scores = predicted_scores(subject, cohort, output)
    valid_scores = valid if isinstance(valid, Scores) else predicted_scores(subject, cast(Cohort, valid), output, "valid of eq.audit")
    return _Decided(scores, given_or_chosen(rule, threshold, valid_scores, spec.optimise))


def with_baselines(audit: Audit, scores: Mapping[str, Scores], cohort: Cohort, train: Cohort) -> Audit:
    """The audit of a network on a cohort, with a simple model fitted to the training set for each label."""
    from equipoise.methods import Goal
    from equipoise.repair.baseline import fit_baseline

    labels = {}
    for (label, own), rows, fitted_rows in zip(audit.labels.items(), cohort.by_label.values(), train.by_label.values(), strict=True):
        if fitted_rows.encoder is not None and (encoder := rows.encoder) is not None:
            fitted_rows = fitted_rows.encoded_by(encoder)
        original, spec = (scores[label], own.rule.decide(scores[label])), own.settings
        baseline = fit_baseline(rows, original, fitted_rows, Goal(), fitted_on="training set", settings=spec, seed=spec.seed)
        labels[label] = replace(own, baseline=baseline)
    return replace(audit, labels=labels)


def _decided_labels(
    subject: object,
    cohort: Cohort,
    spec: AuditSpec,
    rule: Rule | None,
    threshold: float | Mapping[str, float] | None,
    valid: object,
    outputs: Mapping[str, int | str] | None,
) -> dict[str, _Decided]:
    """The scores of each label, and how they are decided: of a debiasing result, or of a network's outputs."""
    from equipoise.methods import Candidate
    from equipoise.models import chosen_outputs, classifier, is_network, predict, scores_of

    if isinstance(subject, Candidate):
        results = subject.labels
        if threshold is not None or outputs is not None:
            raise BadInput("a debiasing result has rules and outputs of its own; do not give a threshold or outputs as well")
        unknown = [label for label in cohort.labels if label not in results]
        if unknown:
            raise BadInput(f"the result is one of {', '.join(results)}; {cohort.name!r} has other labels too: {', '.join(unknown)}")
        scores = scores_of({label: results[label].network for label in cohort.labels}, cohort)
        return {label: _Decided(own, results[label].rule, (results[label].goal.measure,)) for label, own in scores.items()}
    subject = classifier(subject)
    if not is_network(subject):
        predict(subject, cohort)  # raises for a predictor: it has one score per row
        kind = type(subject).__name__
        raise BadInput(f"a cohort of several labels is audited with a torch.nn.Module or with the result of debias on one; got {kind}")
    views = chosen_outputs(subject, cohort.inputs, cohort.labels, cohort.kind, outputs).views(cohort.labels)
    scores = scores_of(views, cohort)
    if cohort.kind.argmax:
        if threshold is not None or valid is not None:
            raise BadInput("classes are decided by argmax; leave out threshold and valid")
        return {label: _Decided(own, ARGMAX) for label, own in scores.items()}
    if valid is None:
        return {label: _Decided(scores[label], own) for label, own in rules_by_label(scores, rule, threshold).items()}
    if threshold is not None or not isinstance(valid, Cohort) or valid.labels != cohort.labels:
        raise BadInput(f"give a threshold, or a validation cohort with the labels {', '.join(cohort.labels)} to choose one each, not both")
    valid_scores = scores_of(views, valid)
    return {label: _Decided(own, given_or_chosen(rule, None, valid_scores[label], spec.optimise)) for label, own in scores.items()}


def predicted_scores(model: object, cohort: Cohort | Scores | None, output: str, where: str = "eq.audit, after the network,") -> Scores:
    """The scores of a classifier on a cohort; raises an error if one of them is something else."""
    from equipoise.models import classifier, predict

    predictor = None if isinstance(model, str) and cohort is None else classifier(model)
    if predictor is None:
        raise Misuse("eq.audit", "scores, a table on disk, or a classifier or a debiasing result with a cohort", model, SUGGESTIONS)
    if cohort is None:
        raise BadInput("a classifier is audited on a cohort: eq.audit(model, parts.test), or eq.audit(model, eq.Cohort.from_frame(...))")
    check_cohort(where, cohort)
    return predict(predictor, cohort, output=output)


def trained_rule(model: object) -> Threshold | None:
    """The threshold that training chose and stored on the network, if there is one."""
    chosen = getattr(model, "threshold", None)
    if not isinstance(chosen, float):
        return None
    return Threshold(chosen, "chosen by best balanced accuracy on the validation set of its training")
