"""`eq.audit`: the scores of a network or of a debiasing result on a cohort (`models`), then their audit (`measures`).

Torch is imported only if a network is audited.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from equipoise.data import Cohort, LabelKind, Scan, Scores, check_apart, check_cohort
from equipoise.errors import BadInput, Misuse
from equipoise.measures import ARGMAX, Audit, AuditSpec, Progress, Rule, Threshold, audit_labels, rules_by_label

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
    tables, also, kind, name = _tables(subject), {}, LabelKind.LABELS, ""
    on_cohort = isinstance(cohort, Cohort)
    if train is not None and (tables or not on_cohort or not isinstance(train, Cohort)):
        raise BadInput("train is a cohort, and goes with a network and a cohort: eq.audit(model, parts.test, train=parts.train)")
    if spec.no_finding is not None and not (isinstance(subject, Mapping) if tables else isinstance(cohort, Cohort) and cohort.several):
        raise BadInput("no_finding is for the labels of one model: a cohort with label=[...], or a mapping of labels to scores")
    if tables:
        if cohort is not None:
            raise BadInput("scores are audited without a cohort: eq.audit(scores); a cohort goes with a network: eq.audit(model, cohort)")
        if isinstance(subject, Mapping) and valid is not None and (not isinstance(valid, Mapping) or set(valid) != set(subject)):
            raise BadInput(f"valid must hold scores by label too, of {', '.join(map(str, subject))}")
        valid_scores: Any = valid if isinstance(valid, Mapping) else dict.fromkeys(tables, valid)
        rules = rules_by_label(tables, rule, threshold, valid_scores, spec.optimise)
    else:
        if isinstance(cohort, Cohort):
            check_apart(training=train, test=cohort)
            kind, name = cohort.kind, cohort.name if cohort.several else ""
        tables, rules, goals = _decided(subject, cohort, rule, threshold, valid, output, outputs, spec.optimise)
        also = goals if spec.measures is None else {}
    found = audit_labels(tables, rules, spec, kind, name, None if progress is None else lambda _label: progress, also)
    if train is None or not isinstance(cohort, Cohort):
        return found
    from equipoise.comparison.baseline import with_baselines

    return with_baselines(found, tables, cohort, train)


def _tables(subject: object) -> dict[str, Any]:
    """The scores, or the scans of one table, by label; empty if the subject is something else."""
    if isinstance(subject, Mapping) and {type(value) for value in subject.values()} in ({Scores}, {Scan}):
        return dict(subject)
    if isinstance(subject, Scan):
        return {subject.columns.label[0]: subject}
    return {"": subject} if isinstance(subject, Scores) else {}


def _decided(
    subject: object, cohort: Cohort | Scores | None, rule: Rule | None, threshold: Any, valid: Any, output: str, outputs: Any, optimise: str
) -> tuple[dict[str, Scores], dict[str, Rule], dict[str, tuple[str, ...]]]:
    """By label: the scores of a classifier or of a debiasing result on a cohort, their rules, and the measures of the result's goals."""
    from equipoise.methods import Candidate
    from equipoise.models import scores_of

    if isinstance(subject, Candidate):
        if threshold is not None or outputs is not None:
            raise BadInput("a debiasing result has rules and outputs of its own; do not give a threshold or outputs as well")
        if isinstance(cohort, Cohort) and cohort.several:
            if unknown := [label for label in cohort.labels if label not in subject.labels]:
                known = ", ".join(subject.labels)
                raise BadInput(f"the result is one of {known}; {cohort.name!r} has other labels too: {', '.join(unknown)}")
            results = {label: subject.labels[label] for label in cohort.labels}
            scores = scores_of({label: own.network for label, own in results.items()}, cohort)
        else:
            results = {"": subject.only}
            if subject.model is None and not (subject.rule_only and isinstance(cohort, Scores)):
                raise Misuse("eq.audit of a rule for scores", "held-out scores, eq.audit(result, scores)", cohort)
            scores = {"": cohort} if subject.rule_only and isinstance(cohort, Scores) else classifier_scores(subject.model, cohort, output)
        return scores, {label: own.rule for label, own in results.items()}, {label: (own.goal.measure,) for label, own in results.items()}
    labels = cohort.labels if isinstance(cohort, Cohort) else ("",)
    if isinstance(cohort, Cohort) and cohort.kind.argmax:
        if threshold is not None or valid is not None:
            raise BadInput("classes are decided by argmax; leave out threshold and valid")
        rule = ARGMAX
    elif rule is None and threshold is None and valid is None and len(labels) == 1:
        rule = trained_rule(subject)
    if isinstance(valid, Cohort) and valid.labels != labels:
        raise BadInput(f"a validation cohort needs the labels {', '.join(labels)}; it has {', '.join(valid.labels)}")
    rules = rules_by_label(labels, rule, threshold) if valid is None else {}
    scores = classifier_scores(subject, cohort, output, outputs)
    if valid is not None:
        own = {"": valid} if isinstance(valid, Scores) else classifier_scores(subject, valid, output, outputs, "valid of eq.audit")
        rules = rules_by_label(labels, rule, threshold, own, optimise)
    return scores, rules, {}


def classifier_scores(
    subject: object,
    cohort: Cohort | Scores | None,
    output: str = "auto",
    outputs: Mapping[str, int | str] | None = None,
    where: str = "eq.audit, after the network,",
) -> dict[str, Scores]:
    """The scores of a classifier on a cohort, by label; raises an error if one of them is something else."""
    from equipoise.models import classifier, scores_by_label

    model = None if isinstance(subject, str) and cohort is None else classifier(subject)
    if model is None:
        raise Misuse(
            "eq.audit",
            "scores, a table on disk, or a classifier (a torch.nn.Module or an estimator) or a debiasing result with a cohort",
            subject,
            SUGGESTIONS,
        )
    if cohort is None:
        raise BadInput("a classifier is audited on a cohort: eq.audit(model, parts.test), or eq.audit(model, eq.Cohort.from_frame(...))")
    check_cohort(where, cohort)
    assert isinstance(cohort, Cohort)
    return scores_by_label(model, cohort, cohort.labels, output, outputs)


def trained_rule(model: object) -> Threshold | None:
    """The threshold that training chose and stored on the network, if there is one."""
    chosen = getattr(model, "threshold", None)
    if not isinstance(chosen, float):
        return None
    return Threshold(chosen, "chosen by best balanced accuracy on the validation set of its training")
