"""`audit_file`: the audit of scores in a file, or of a network or estimator on its rows, as `equipoise audit` runs it.

Nothing but what reads a table is imported before the file is read, and torch only if there is a network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import data, measures
from equipoise.errors import raise_all
from equipoise.repair.file_source import Source, check_group_names, check_known, load_classifier
from equipoise.repair.progress import Bars, counting, no_bars

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.models import Code
    from equipoise.repair.score_checks import ScoreCheck


@dataclass(frozen=True, eq=False)
class FileAudit:
    """The audit of each label of a file, and the rows it was computed from."""

    source: Source
    audits: measures.Audits
    scores: Mapping[str, data.Scores]  # by label; empty if the table was read in batches
    files: Mapping[Path, data.ReadCohort]  # the files that a model was run on
    valid: Path | None = None
    checks: Sequence[ScoreCheck] = ()  # of the model's scores with known ones
    layers: pd.DataFrame | None = None  # how well each layer predicts the group, if requested
    group_names: Mapping[str, str] | None = None
    preprocessing_origin: str = ""  # in words, if the model came with its preprocessing
    returning: data.ReturningPatients | None = None  # patients of earlier periods; None if they were not identified

    @property
    def only(self) -> measures.Audit | None:
        """The audit of the label, if there is only one."""
        return next(iter(self.audits.audits.values())) if len(self.source.labels) == 1 else None

    @property
    def image_files(self) -> dict[str, data.ReadCohort]:
        """The files with images, by the prefix of their keys in `to_dict`."""
        if self.source.reading.images is None:
            return {}
        return {"": self.files[self.source.file]} | ({"valid_": self.files[self.valid]} if self.valid else {})

    @property
    def preprocessing(self) -> dict[str, object] | None:
        """The preprocessing of the images as plain values; None for a table."""
        return self.image_files[""].cohort.source.to_dict() if self.image_files else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the names of rows that were left out, since they may be shared."""
        document: dict[str, Any]
        if self.only is None:
            document = self.audits.to_dict()
        else:
            document = self.only.to_dict() | measures.no_finding_dict(self.audits.no_finding, self.source.labels[0])
        if self.layers is not None:
            document["encoding"] = json.loads(self.layers.to_json(orient="records", double_precision=15))
        if self.checks:
            document["checked_scores"] = [check.to_dict() for check in self.checks]
        if self.returning is not None:
            document["returning"] = self.returning.to_dict()
        for prefix, read in self.image_files.items():
            document |= {f"{prefix}{key}": value for key, value in read.counts().items()}
            document |= {} if prefix else {"preprocessing": self.preprocessing}
        return measures.with_checksum(document)


def audit_file(
    source: Source,
    spec: measures.AuditSpec = measures.AuditSpec(),
    *,
    threshold: float | Mapping[str, float] | None = None,
    earlier: Sequence[str | Path] = (),
    keep_returning: bool = False,
    group_names: Mapping[str, str] | None = None,
    bars: Bars = no_bars,
    running: Callable[[Code | None], None] | None = None,
) -> FileAudit:
    """The audit of each label of a file: of the scores in its columns, or of the network or estimator that is run on its rows.

    A large table of scores, or a folder of them, is read in batches.

    - `spec`: what is reported, and further files: validation rows to choose the threshold on, the training set of a simple model.
    - `threshold`: of all labels, or of each by name; else the best one on the validation rows; else 0.5.
    - `earlier`: files of earlier periods. Their patients are left out, or counted again with `keep_returning`.
    - `group_names`: words for groups in a report; an unknown group is an error before the audit.
    - `bars`: shows progress bars. `running` is called before the code in an exported program is run.

    >>> import tempfile
    >>> from equipoise.data import ReadOptions
    >>> path = Path(tempfile.mkdtemp()) / "scores.csv"
    >>> _ = path.write_text("sick,p,sex\\n" + "1,0.9,F\\n0,0.2,F\\n1,0.4,M\\n0,0.3,M\\n" * 50)
    >>> reading = ReadOptions(labels=["sick"], group=["sex"], reference=["M"])
    >>> audit_file(Source(path, reading, scores=["p"]), threshold=0.5).only["eod"].value
    1.0
    """
    raise_all(_problems(source, spec, threshold, earlier))
    model, reading, origin = load_classifier(source, running=running)
    files: dict[Path, data.ReadCohort] = {}

    def read(path: Path) -> dict[str, data.Scores]:
        if model is None:
            return data.read_scores(path, reading, source.scores, logits=source.logits)
        from equipoise.models import scores_by_label

        files[path] = data.read_cohort(path, reading, progress=counting(bars))
        return scores_by_label(model, files[path].cohort, source.labels, source.output, source.outputs)

    in_batches = model is None and data.is_large(source.file, reading.max_table_bytes)
    scores = {} if in_batches else read(source.file)
    checks = check_known(source, reading, model, files[source.file].cohort, scores) if model is not None else []
    training_set = None
    if spec.train is not None and model is not None:
        training_set = data.read_cohort(spec.train, reading.with_bins_of(files[source.file].cohort), progress=counting(bars)).cohort
        data.check_apart(training=training_set, test=files[source.file].cohort)
    returning = None
    if earlier:
        patients = data.patients_in(list(map(Path, earlier)), reading.patient or "", limit=reading.max_table_bytes)
        scores, returning = data.first_periods(scores, patients, keep=keep_returning)
    valid = {} if spec.valid is None else read(spec.valid)
    if scores:
        check_group_names(group_names, next(iter(scores.values())))
    with bars("audit") as step:
        audits = _audit_scores(source, scores, spec, threshold, valid, _label_progress(step, source.labels))
    if training_set is not None:
        with bars("simple model"):
            audits = _with_baselines(audits, scores, files[source.file].cohort, training_set)
    layers = None
    if spec.probe and model is not None:
        layers = _probe_layers(model, files[source.file].cohort, spec, bars)
    return FileAudit(source, audits, scores, files, spec.valid, checks, layers, group_names, origin, returning)


def _problems(source: Source, spec: measures.AuditSpec, threshold: object, earlier: Sequence[object]) -> list[str]:
    """Arguments that cannot be combined."""
    reading, problems = source.reading, []
    if source.model is None and (spec.train is not None or spec.probe):
        problems.append("train= and probe= (--train, --probe) are for a model. Omit them.")
    if spec.probe and len(source.labels) > 1:
        problems.append("probe= (--probe) takes one label, since the layers are the same for all.")
    if reading.classes and (spec.valid is not None or threshold is not None):
        problems.append("classes are decided by argmax. Omit valid= and threshold= (--valid, --threshold).")
    if earlier and reading.patient is None:
        problems.append("earlier= (--earlier) finds patients by their ids. Name their column: patient= (--patient).")
    if earlier and (spec.train is not None or spec.probe):
        problems.append("train= and probe= (--train, --probe) are about all rows. Omit them, or earlier= (--earlier).")
    if earlier and source.model is None and data.is_large(source.file, reading.max_table_bytes):
        problems.append(f"{source.file} is read in batches, from which patients of earlier= (--earlier) cannot be left out.")
    return problems


def _audit_scores(
    source: Source,
    scores: Mapping[str, data.Scores],
    spec: measures.AuditSpec,
    threshold: float | Mapping[str, float] | None,
    valid: Mapping[str, data.Scores],
    progress: Callable[[str], Callable[[int, int], None]],
) -> measures.Audits:
    """The audits of the scores of each label; without scores, of the table on disk, which is read in batches."""
    kind = source.reading.kind
    argmax = measures.ARGMAX if kind == "classes" else None  # on the margin over the other classes
    rules = measures.rules_by_label(source.labels, argmax, threshold, valid, spec.optimise)
    if not scores:
        scans = data.scan_scores(source.file, source.reading, source.scores, logits=source.logits)
        return measures.audit_scans(scans, rules, spec, progress)
    return measures.audit_labels(scores, rules, spec, kind, source.file.name, progress)


def _label_progress(step: Callable[[int, int], None], labels: list[str]) -> Callable[[str], Callable[[int, int], None]]:
    """The progress of each label as a share of that of all labels."""

    def progress(label: str) -> Callable[[int, int], None]:
        return lambda done, total: step(labels.index(label) * total + done, len(labels) * total)

    return progress


def _with_baselines(audits: measures.Audits, scores: Mapping[str, data.Scores], cohort: data.Cohort, train: data.Cohort) -> measures.Audits:
    """The audits, each with a simple model fitted to the training set."""
    from equipoise.repair.eq_audit import with_baseline

    with_baselines = {}
    for name, audit in audits.items():
        test_rows, train_rows = (rows.labelled(name) if rows.targets is not None else rows for rows in (cohort, train))
        with_baselines[name] = with_baseline(audit, scores[name], test_rows, train_rows)
    return replace(audits, audits=with_baselines)


def _probe_layers(network: Any, cohort: data.Cohort, spec: measures.AuditSpec, bars: Bars) -> pd.DataFrame:
    """How well each layer of a network predicts the group."""
    from equipoise.models import encoding

    limits: dict[str, Any] = {"level": spec.level, "seed": spec.seed, "min_patients": spec.min_patients}
    with bars("probes") as step:
        return encoding(network, cohort, draws=spec.draws, progress=step, **limits)
