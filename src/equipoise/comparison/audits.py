"""`eq.audit`: the scores of a network or of a debiasing result on a cohort (`models`), then their audit (`measures`).

Torch is imported only if a network is audited.
"""

from collections.abc import Mapping
from typing import Any, cast

from equipoise.data import Cohort, Columns, LabelKind, Scan, Scores, check_apart, check_cohort
from equipoise.errors import BadInput, Misuse
from equipoise.measures import ARGMAX_RULE, Audit, AuditSpec, Progress, Rule, Threshold, audit_labels, rules_by_label
from equipoise.specification import takes_fields_of

AUDIT_SUGGESTIONS = {  # for a wrong argument, by its type
    "DataFrame": "Name the columns of the frame: eq.audit(eq.Scores.from_frame(frame, label=..., score=..., group=...)).",
    "Cohort": "The network comes first, then the cohort: eq.audit(model, cohort).",
    "Parts": "The network comes first, then one of the parts: eq.audit(model, parts.test).",
    **dict.fromkeys(("ndarray", "Tensor"), "Labels, scores and groups in arrays: eq.audit(eq.Scores.from_arrays(y, score, groups))."),
    "type": "Give a fitted instance of it, not the class.",
    "str": "Name the columns of the table: eq.audit(eq.scan(path, label=..., score=..., group=...)), or run `equipoise audit`.",
    "PurePath": "Name the columns of the table: eq.audit(eq.scan(path, label=..., score=..., group=...)), or run `equipoise audit`.",
}


@takes_fields_of(AuditSpec, without=("probe", "draws"))
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
    - `no_finding`: the label that means "no finding", or "none of the labels": `audit(...).no_finding.underdiagnosis`.

    Rows that were read with `within` (a view) or `audit_label` have gaps within strata, `audit(...).within`, and gaps by an adjudicated
    label, `audit(...).label_gaps`.

    A cohort of several labels or classes gets one audit per label, `audit(...)["Effusion"]["eod"]`, and so does a mapping of labels to
    scores or to scans of one table. p-values and simultaneous intervals are adjusted for all gaps of a label. `outputs` maps labels to the
    network's outputs, if names or numbers do not show it.

    >>> scores = Scores.from_arrays([1, 0, 1, 0] * 50, [0.9, 0.2, 0.4, 0.3] * 50, ["F", "F", "M", "M"] * 50, reference="M")
    >>> audit(scores, threshold=0.5)["eod"].value
    1.0
    """
    for role in (role for role in options if role in Columns.model_fields):
        where = f"eq.Scores.from_frame(frame, label=..., score=..., group=..., {role}=...)"
        raise BadInput(f"{role} is a column of the rows, not a setting of eq.audit. Name it where they are read: {where}")
    spec, also, kind, name = AuditSpec(**options), {}, LabelKind.LABELS, ""
    by_label, rows = isinstance(subject, Mapping), cohort if isinstance(cohort, Cohort) else None
    tables: dict[str, Any] = dict(cast(Mapping[str, Any], subject)) if by_label else {"": subject}
    kinds = {type(value) for value in tables.values()}
    if kinds == {Scan} and not by_label:
        tables = {tables[""].columns.label[0]: subject}
    elif kinds not in ({Scores}, {Scan}):  # something else, that has scores on a cohort
        tables = {}
    if train is not None and (tables or rows is None or not isinstance(train, Cohort)):
        raise BadInput("train is a cohort, and goes with a network and a cohort: eq.audit(model, parts.test, train=parts.train)")
    if spec.no_finding is not None and not (by_label if tables else rows is not None and rows.several):
        raise BadInput("no_finding is for the labels of one model: a cohort with label=[...], or a mapping of labels to scores")
    if tables:
        if cohort is not None:
            raise BadInput("scores are audited without a cohort: eq.audit(scores); a cohort goes with a network: eq.audit(model, cohort)")
        if by_label and valid is not None and (not isinstance(valid, Mapping) or set(valid) != set(tables)):
            raise BadInput(f"valid must hold scores by label too, of {', '.join(map(str, tables))}")
        valid_scores: Any = valid if by_label else dict.fromkeys(tables, valid)
        rules = rules_by_label(tables, rule, threshold, valid_scores, spec.optimise)
    else:
        if rows is not None:
            check_apart(training=train, test=rows)
            kind, name = rows.kind, rows.name
        tables, rules, goals = _decided(subject, cohort, rule, threshold, valid, output, outputs, spec.optimise)
        also = goals if spec.measures is None else {}
    found = audit_labels(tables, rules, spec, kind, name, progress, also)
    if train is None or rows is None:
        return found
    from equipoise.comparison.baseline import with_baselines

    return with_baselines(found, tables, rows, train)


def _decided(
    subject: object, cohort: Any, rule: Rule | None, threshold: Any, valid: Any, output: str, outputs: Any, optimise: str
) -> tuple[dict[str, Scores], dict[str, Rule], dict[str, tuple[str, ...]]]:
    """By label: the scores of a classifier or of a debiasing result on a cohort, their rules, and the measures of the result's goals."""
    from equipoise.methods import Candidate
    from equipoise.models import predict, scores_by_label, scores_of

    if isinstance(subject, Candidate):
        if threshold is not None or outputs is not None:
            raise BadInput("a debiasing result has rules and outputs of its own; do not give a threshold or outputs as well")
        if isinstance(cohort, Scores) and subject.rule_only:
            results, scores = {"": subject.only}, {"": cohort}
        elif subject.model is None:
            raise Misuse("eq.audit of a rule for scores", "held-out scores, eq.audit(result, scores)", cohort)
        else:
            check_classifier(subject.model, cohort)
            if not cohort.several:
                results, scores = {"": subject.only}, {"": predict(subject.model, cohort, output=output)}
            elif unknown := [label for label in cohort.labels if label not in subject.labels]:
                known = ", ".join(subject.labels)
                raise BadInput(f"the result is one of {known}; {cohort.name!r} has other labels too: {', '.join(unknown)}")
            else:
                results = {label: subject.labels[label] for label in cohort.labels}
                scores = scores_of({label: own.network for label, own in results.items()}, cohort)
        return scores, {label: own.rule for label, own in results.items()}, {label: (own.goal.measure,) for label, own in results.items()}
    model = check_classifier(subject, cohort)
    labels, valid_scores = cohort.labels, {"": valid}
    if cohort.kind.argmax:
        if threshold is not None or valid is not None:
            raise BadInput("classes are decided by argmax; leave out threshold and valid")
        rule = ARGMAX_RULE
    elif rule is None and threshold is None and valid is None and len(labels) == 1:
        rule = trained_rule(subject)
    if valid is None:
        rules_by_label(labels, rule, threshold)  # checked before the network is run
    elif not isinstance(valid, Scores):
        check_cohort("valid of eq.audit", valid)
        if valid.labels != labels:
            raise BadInput(f"a validation cohort needs the labels {', '.join(labels)}; it has {', '.join(valid.labels)}")
        valid_scores = scores_by_label(model, valid, labels, output, outputs)
    scores = scores_by_label(model, cohort, labels, output, outputs)
    return scores, rules_by_label(labels, rule, threshold, {} if valid is None else valid_scores, optimise), {}


def check_classifier(subject: object, cohort: object) -> Any:
    """The network or predictor to audit; raises an error that names the right call if it is none, or if the cohort is no cohort."""
    from equipoise.models import classifier

    model = None if isinstance(subject, str) and cohort is None else classifier(subject)
    if model is None:
        wanted = "scores, a table on disk, or a classifier (a torch.nn.Module or an estimator) or a debiasing result with a cohort"
        raise Misuse("eq.audit", wanted, subject, AUDIT_SUGGESTIONS)
    if cohort is None:
        raise BadInput("a classifier is audited on a cohort: eq.audit(model, parts.test), or eq.audit(model, eq.Cohort.from_frame(...))")
    check_cohort("eq.audit, after the network,", cohort)
    return model


def trained_rule(model: object) -> Threshold | None:
    """The threshold that training chose and stored on the network, if there is one."""
    chosen = getattr(model, "threshold", None)
    if not isinstance(chosen, float):
        return None
    return Threshold(chosen, "chosen by best balanced accuracy on the validation set of its training")
