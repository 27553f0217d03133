"""`audit_file`: the audit of scores in a file, or of a network or estimator on its rows, as `equipoise audit` runs it.

Nothing but what reads a table is imported before the file is read, and torch only if there is a network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    """The audit of the labels of a file, and the rows it was computed from."""

    source: Source
    audit: measures.Audit
    scores: Mapping[str, data.Scores]  # by label; empty if the table was read in batches
    files: Mapping[Path, data.ReadCohort]  # the files that a model was run on
    valid: Path | None = None
    checks: Sequence[ScoreCheck] = ()  # of the model's scores with known ones
    layers: pd.DataFrame | None = None  # how well each layer predicts the group, if requested
    group_names: Mapping[str, str] | None = None
    preprocessing_origin: str = ""  # in words, if the model came with its preprocessing
    returning: data.ReturningPatients | None = None  # patients of earlier periods; None if they were not identified

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
        document: dict[str, Any] = self.audit.to_dict()
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
    >>> audit_file(Source(path, reading, scores=["p"]), threshold=0.5).audit["eod"].value
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
    argmax = measures.ARGMAX if reading.kind == "classes" else None  # on the margin over the other classes
    rules = measures.rules_by_label(source.labels, argmax, threshold, valid, spec.optimise)
    with bars("audit") as step:

        def progress(label: str) -> measures.Progress:  # as a share of that of all labels
            return lambda done, total: step(source.labels.index(label) * total + done, len(source.labels) * total)

        if in_batches:
            scans = data.scan_scores(source.file, reading, source.scores, logits=source.logits)
            audit = measures.audit_scans(scans, rules, spec, progress)
        else:
            audit = measures.audit_labels(scores, rules, spec, reading.kind, source.file.name, progress)
    if training_set is not None:
        from equipoise.repair.eq_audit import with_baselines

        with bars("simple model"):
            audit = with_baselines(audit, scores, files[source.file].cohort, training_set)
    layers = None
    if spec.probe and model is not None:
        layers = _probe_layers(model, files[source.file].cohort, spec, bars)
    return FileAudit(source, audit, scores, files, spec.valid, checks, layers, group_names, origin, returning)


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


def _probe_layers(network: Any, cohort: data.Cohort, spec: measures.AuditSpec, bars: Bars) -> pd.DataFrame:
    """How well each layer of a network predicts the group."""
    from equipoise.models import encoding

    limits: dict[str, Any] = {"level": spec.level, "seed": spec.seed, "min_patients": spec.min_patients}
    with bars("probes") as step:
        return encoding(network, cohort, draws=spec.draws, progress=step, **limits)
