"""`audit_case`: the audit of a case, of the scores in its table or of the network or estimator that is run on its rows.

Nothing but what reads a table is imported before the file is read, and torch only if there is a network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import comparison, data, measures, models, report
from equipoise.case.case import Case
from equipoise.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.case.score_checks import ScoreCheck

# Progress bars: from the name of a task to a context that yields a function of the work done and the total
Bars = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]


def no_bars(_: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """No progress bars."""
    return nullcontext(lambda _done, _total: None)


@dataclass(frozen=True, eq=False)
class CaseAudit:
    """The audit of the labels of a file, and the rows it was computed from."""

    case: Case
    audit: measures.Audit
    scores: Mapping[str, data.Scores]  # by label; empty if the table was added up where it is
    files: Mapping[Path, data.ReadCohort]  # the files that a model was run on
    checks: Sequence[ScoreCheck] = ()  # of the model's scores with known ones
    layers: pd.DataFrame | None = None  # how well each layer predicts the group, if requested
    preprocessing_origin: str = ""  # in words, if the model came with its preprocessing
    returning: data.ReturningPatients | None = None  # patients of earlier periods; None if they were not identified
    returning_products: Mapping[str, Mapping[str, data.FloatArray]] | None = None  # of these patients, for a history

    @property
    def image_files(self) -> dict[str, data.ReadCohort]:
        """The files with images, by the prefix of their keys in `to_dict`."""
        if self.case.images.folder is None:
            return {}
        valid = self.case.audit_spec.valid
        return {"": self.files[self.case.table]} | ({"valid_": self.files[valid]} if valid else {})

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
            document["returning"] = dict(vars(self.returning))
        for prefix, read in self.image_files.items():
            document |= {f"{prefix}{key}": value for key, value in read.counts().items()}
            document |= {} if prefix else {"preprocessing": self.preprocessing}
        return measures.with_checksum(document)


def audit_case(case: Case, *, bars: Bars = no_bars, running: Callable[[models.Code | None], None] | None = None) -> CaseAudit:
    """The audit of each label of a case: of the scores in its table, or of the network or estimator that is run on its rows.

    A large table of scores, or a folder of them, is added up where it is.

    - `case`: data, model and what to report.
    - `bars`: progress bars, from the name of a task to a context of a function of the work done and the total.
    - `running`: called before the code in an exported program is run.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "scores.csv"
    >>> _ = path.write_text("sick,p,sex\\n" + "1,0.9,F\\n0,0.2,F\\n1,0.4,M\\n0,0.3,M\\n" * 50)
    >>> case = Case(data={"table": path, "label": "sick", "score": "p", "group": "sex", "reference": "M"}, model={"threshold": 0.5})
    >>> audit_case(case).audit["eod"].value
    1.0
    """
    case = case.with_pairs()
    spec, earlier, table = case.audit_spec, case.history.earlier, case.table
    scans = data.scan_if_large(table, case.data) if case.model.load is None else {}
    if earlier and scans:
        raise BadInput(
            f"{table} is added up where it is, so patients of history.earlier cannot be found. Omit it, or audit a smaller table."
        )
    model, columns, images, origin = load_classifier(case, running=running)
    files: dict[Path, data.ReadCohort] = {}

    def read(path: Path, columns: data.Columns = columns) -> dict[str, data.Scores]:
        if model is None:
            return data.read_scores(path, columns)
        files[path] = data.read_cohort(path, columns, images, progress=counting(bars))
        return models.scores_by_label(model, files[path].cohort, case.labels, case.model.output, case.outputs)

    scores = {} if scans else read(table)
    checks: list[ScoreCheck] = []
    if model is not None:
        from equipoise.case.score_checks import check_known_scores

        checks = check_known_scores(case, images, model, files[table].cohort, scores)
    training_set = None
    if case.data.train is not None and model is not None:
        like_table = columns.with_bins_of(files[table].cohort.attributes)
        training_set = data.read_cohort(case.data.train, like_table, images, progress=counting(bars)).cohort
        data.check_apart(training=training_set, test=files[table].cohort)
    like_these = columns if not earlier else columns.like(next(iter(scores.values())).attributes)
    past = [read(path, like_these) for path in earlier]
    valid = {} if spec.valid is None else read(spec.valid)
    if scores and case.report.words:
        check_group_names(case.report.words, next(iter(scores.values())))
    argmax = measures.ARGMAX_RULE if columns.kind.argmax else None  # on the margin over the other classes
    rules = measures.rules_by_label(case.labels, argmax, case.model.threshold, valid, spec.optimise)
    with bars("audit") as step:
        audit = measures.audit_labels(scans or scores, rules, spec, columns.kind, table.name, step)
    if training_set is not None:
        with bars("simple model"):
            audit = comparison.with_baselines(audit, scores, files[table].cohort, training_set)
    layers = None
    if spec.probe and model is not None:
        limits: dict[str, Any] = {"level": spec.level, "seed": spec.seed, "min_patients": spec.min_patients}
        with bars("probes") as step:
            layers = models.encoding(model, files[table].cohort, draws=spec.draws, progress=step, **limits)
    returning = data.returning_patients(scores, past) if past else None
    products = measures.returning_products(audit, scores, past) if past else None
    return CaseAudit(case, audit, scores, files, checks, layers, origin, returning, products)


def load_classifier(
    case: Case, *, code: models.Code | None = None, running: Callable[[models.Code | None], None] | None = None
) -> tuple[Any, data.Columns, data.ImageFolder, str]:
    """The network or estimator of a case, the columns and images that it reads, and the origin of the images' preprocessing in words.

    There is no model if the table holds scores. `running` is called before the code in an exported program is run.
    """
    model, images = case.model, case.images
    if model.load is None:
        return None, case.data, images, ""
    if model.is_estimator:
        trust: dict[str, Any] = {"trusted": model.trust_types, "trust_pickle": model.trust_pickle}
        estimator = models.load_predictor(model.load, positive=case.data.positive, **trust)
        return estimator, case.data.changed(features=case.data.features or estimator.columns, raw=True), images, ""
    if isinstance(images.transform, str):
        images = images.changed(transform=models.load_transform(images.transform))
    images, origin = models.with_saved_preprocessing(model.load, images)
    network = models.load_model(model.load, model.weights, images=images, output_name=case.output_name, code=code, running=running)
    return network, case.data, images, origin


def check_group_names(group_names: Mapping[str, str] | None, rows: data.Rows) -> None:
    """Raises an error for words for a group that the rows do not have."""
    report.group_words(group_names, {attribute.name: attribute.levels for attribute in rows.attributes})


def counting(bars: Bars) -> Callable[[str, int], AbstractContextManager[Callable[[int], None]]]:
    """Progress bars for work that reports increments, as `data.read_cohort` takes them: from the name of a task and its total.

    >>> with counting(no_bars)("reading images", 20) as advance:
    ...     advance(5)
    """

    @contextmanager
    def count(what: str, total: int) -> Iterator[Callable[[int], None]]:
        done = 0
        with bars(what) as step:

            def advance(increment: int) -> None:
                nonlocal done
                done += increment
                step(done, total)

            yield advance

    return count
