"""`eq.audit`: the scores of a network or of a debiasing result on a cohort (`models`), then their audit (`measures`).

Torch is imported only if a network is audited.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Unpack, cast, overload

from equipoise.data import Cohort, Scan, Scores, Table, check_apart, check_cohort
from equipoise.errors import BadInput, Misuse
from equipoise.measures import (
    ARGMAX,
    DEFAULT_THRESHOLDS,
    Audit,
    AuditOptions,
    AuditRequest,
    Audits,
    Progress,
    Rule,
    Settings,
    Threshold,
    audit_labels,
    audit_scans,
    audit_with,
    choose_rule,
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


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the keywords of `AuditOptions` and their defaults in its signature, for help and the reference."""
    signature = inspect.signature(function)
    named = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    defaults = {f.name: f.default for kind in (AuditRequest, Settings) for f in fields(kind)} | {"thresholds": DEFAULT_THRESHOLDS}
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
        for name, annotation in AuditOptions.__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
    return function


@overload
def audit(
    subject: Scores | Scan, *, valid: Scores | None = ..., progress: Progress | None = ..., **options: Unpack[AuditOptions]
) -> Audit: ...


@overload
def audit(
    subject: Mapping[str, Scores] | Mapping[str, Scan],
    *,
    valid: Mapping[str, Scores] | None = ...,
    progress: Progress | None = ...,
    **options: Unpack[AuditOptions],
) -> Audits: ...


@overload
def audit(
    subject: object,
    cohort: Cohort | Scores | None = ...,
    *,
    valid: Cohort | Scores | Mapping[str, Scores] | None = ...,
    train: Cohort | None = ...,
    output: str = ...,
    outputs: Mapping[str, int | str] | None = ...,
    progress: Progress | None = ...,
    **options: Unpack[AuditOptions],
) -> Audit | Audits: ...


@_with_options
def audit(
    subject: object,
    cohort: Cohort | Scores | None = None,
    *,
    valid: Cohort | Scores | Mapping[str, Scores] | None = None,
    train: Cohort | None = None,
    output: str = "auto",
    outputs: Mapping[str, int | str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[AuditOptions],
) -> Audit | Audits:
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
    request = AuditRequest.of(options)
    by_label = isinstance(subject, Mapping) and {type(value) for value in subject.values()} in ({Scores}, {Scan})
    if cohort is not None and (by_label or isinstance(subject, (Scores, Scan))):
        raise BadInput("scores are audited without a cohort: eq.audit(scores); a cohort goes with a network: eq.audit(model, cohort)")
    if isinstance(subject, Mapping) and by_label:
        return _audit_by_label(subject, request, valid, progress, options)
    if train is not None and (not isinstance(cohort, Cohort) or not isinstance(train, Cohort)):
        raise BadInput("train is a cohort, and goes with a network and a cohort: eq.audit(model, parts.test, train=parts.train)")
    if isinstance(cohort, Cohort):
        check_apart(training=train, test=cohort)
    multi_label = isinstance(cohort, Cohort) and cohort.targets is not None
    if request.no_finding is not None and not multi_label:
        raise BadInput("no_finding is for the labels of one model: a cohort with label=[...], or a mapping of labels to scores")
    if isinstance(subject, Scan):
        label = subject.columns.label[0]
        valid_by_label = None if valid is None else {label: cast(Scores, valid)}
        return audit_scans({label: subject}, valid=valid_by_label, progress=_for_each_label(progress), **options)[label]
    if isinstance(subject, Scores):
        return audit_with(subject, request.decided(cast(Scores | None, valid)), progress)  # which rejects any other kind of `valid`
    if isinstance(cohort, Cohort) and cohort.targets is not None:
        return _audit_multi_label(subject, cohort, request, valid, train, outputs, progress)
    scores, request = _scores_and_rule(subject, cohort, request, valid, output)
    return with_baseline(audit_with(scores, request, progress), scores, cohort if isinstance(cohort, Cohort) else None, train)


def _audit_by_label(
    subject: Mapping[Any, Any], request: AuditRequest, valid: object, progress: Progress | None, options: AuditOptions
) -> Audits:
    """The audit of scores, or of scans of one table, by label."""
    valid_by_label = valid if isinstance(valid, Mapping) else {}
    if valid is not None and set(valid_by_label) != set(subject):
        raise BadInput(f"valid must hold scores by label too, of {', '.join(map(str, subject))}")
    first = next(iter(subject.values()))
    if isinstance(first, Scan):
        return audit_scans(subject, valid=valid_by_label, progress=_for_each_label(progress), **options)
    requests = {str(label): each.decided(valid_by_label.get(label)) for label, each in request.by_label(subject).items()}
    return audit_labels(subject, requests, "labels", first.name, _for_each_label(progress))


def _audit_multi_label(
    subject: object,
    cohort: Cohort,
    request: AuditRequest,
    valid: object,
    train: Cohort | None,
    outputs: Mapping[str, int | str] | None,
    progress: Progress | None,
) -> Audits:
    """The audit of each label of a cohort with several."""
    decided = _scores_and_rules(subject, cohort, request, valid, outputs)
    requests = {
        label: replace(request, rule=rule, threshold=None, also=(*request.also, *goal_measures))
        for label, (_, rule, goal_measures) in decided.items()
    }
    scores = {label: label_scores for label, (label_scores, *_) in decided.items()}
    audits = audit_labels(scores, requests, cohort.kind, cohort.name, _for_each_label(progress))
    if train is None:
        return audits
    return replace(
        audits,
        audits={
            label: with_baseline(label_audit, scores[label], cohort.labelled(label), train.labelled(label))
            for label, label_audit in audits.items()
        },
    )


def _scores_and_rule(
    subject: object, cohort: Cohort | Scores | None, request: AuditRequest, valid: object, output: str
) -> tuple[Scores, AuditRequest]:
    """The scores of a classifier or of a debiasing result on a cohort, and the request with the rule that decides on them."""
    from equipoise.methods import Candidate

    if isinstance(subject, Candidate):
        if request.threshold is not None:
            raise BadInput("a debiasing result has a decision rule of its own; do not give a threshold as well")
        also = (*request.also, subject.goal.measure) if request.measures is None else request.also
        request = replace(request, rule=subject.rule, also=also)
        if subject.rule_only and isinstance(cohort, Scores):
            return cohort, request
        if subject.model is None:
            raise Misuse("eq.audit of a rule for scores", "held-out scores, eq.audit(result, scores)", cohort)
        return predicted_scores(subject.model, cohort, output), request
    scores = predicted_scores(subject, cohort, output)
    if valid is None:
        has_rule = request.rule is not None or request.threshold is not None
        return scores, (request if has_rule else replace(request, rule=trained_rule(subject))).decided(None)
    valid_scores = valid if isinstance(valid, Scores) else predicted_scores(subject, cast(Cohort, valid), output, "valid of eq.audit")
    return scores, request.decided(valid_scores)


def with_baseline(audit: Audit, scores: Scores, cohort: Cohort | None, train: Cohort | None) -> Audit:
    """The audit of a network on a cohort, with a simple model fitted to the training set; unchanged without a training set."""
    if train is None or cohort is None:
        return audit
    from equipoise.methods import Goal
    from equipoise.repair.baseline import fit_baseline

    if isinstance(train.source, Table) and isinstance(cohort.source, Table):
        train = train.encoded_by(cohort.source.fitted())
    original, seed = (scores, audit.rule.decide(scores)), audit.settings.seed
    baseline = fit_baseline(cohort, original, train, Goal(), fitted_on="training set", settings=audit.settings, seed=seed)
    return replace(audit, baseline=baseline)


def _for_each_label(progress: Progress | None) -> Callable[[str], Progress] | None:
    """The same progress for every label."""
    return None if progress is None else lambda _label: progress


def _scores_and_rules(
    subject: object,
    cohort: Cohort,
    request: AuditRequest,
    valid: object,
    outputs: Mapping[str, int | str] | None,
) -> dict[str, tuple[Scores, Rule, tuple[str, ...]]]:
    """The scores, the rule and the measures of the goal of each label: of a debiasing result, or of a network's outputs (no goal)."""
    from torch import nn

    from equipoise.methods import Candidate
    from equipoise.models import Predictor, chosen_outputs, classifier, predictor_scores, scores_of

    if isinstance(subject, Candidate) and subject.labels:
        results = subject.labels
        if request.threshold is not None or outputs is not None:
            raise BadInput("a debiasing result has rules and outputs of its own; do not give a threshold or outputs as well")
        unknown = [label for label in cohort.labels if label not in results]
        if unknown:
            raise BadInput(f"the result is one of {', '.join(results)}; {cohort.name!r} has other labels too: {', '.join(unknown)}")
        scores = scores_of({label: results[label].network for label in cohort.labels}, cohort)
        return {label: (own, results[label].rule, (results[label].goal.measure,)) for label, own in scores.items()}
    subject = classifier(subject)
    if isinstance(subject, Predictor):
        predictor_scores(subject, cohort)  # raises: it has one score per row
    if not isinstance(subject, nn.Module):
        kind = type(subject).__name__
        raise BadInput(f"a cohort of several labels is audited with a torch.nn.Module or with the result of debias on one; got {kind}")
    chosen = chosen_outputs(subject, cohort.inputs, cohort.labels, cohort.kind, outputs)
    views = {label: chosen.view(at) for at, label in enumerate(cohort.labels)}
    scores = scores_of(views, cohort)
    if cohort.kind == "classes":
        if request.threshold is not None or valid is not None:
            raise BadInput("classes are decided by argmax; leave out threshold and valid")
        return {label: (own, ARGMAX, ()) for label, own in scores.items()}
    if valid is None:
        return {label: (scores[label], each.decision, ()) for label, each in request.by_label(scores).items()}
    if request.threshold is not None or not isinstance(valid, Cohort) or valid.labels != cohort.labels:
        raise BadInput(f"give a threshold, or a validation cohort with the labels {', '.join(cohort.labels)} to choose one each, not both")
    valid_scores = scores_of(views, valid)
    return {label: (own, choose_rule(valid=valid_scores[label], optimise=request.optimise), ()) for label, own in scores.items()}


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
