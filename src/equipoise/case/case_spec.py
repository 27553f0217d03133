"""The case: data, model, goal and report of a hospital, written down once.

The case file, the flags of the commands, `--set section.key=value` and Python make the same object. Importing this module imports neither
pandas nor torch.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from equipoise.case.sections import ESTIMATOR_FILES, Classifier, Data, History, RepairSpec
from equipoise.data import ImageFolder
from equipoise.errors import BadInput, UnknownName, collecting, did_you_mean
from equipoise.measures import DERIVED, AuditSpec
from equipoise.methods import Goal
from equipoise.report import ReportSpec
from equipoise.specification import Specification, fields_of


class CaseSpec(Specification):
    """The sections of a case, and the rules about several of them."""

    model_config = ConfigDict(populate_by_name=True)

    data: Data = Field(default_factory=Data)
    images: ImageFolder = Field(default_factory=ImageFolder)
    model: Classifier = Field(default_factory=Classifier)
    audit_spec: AuditSpec = Field(default_factory=AuditSpec, alias="audit")
    history: History = Field(default_factory=History)
    goal: Goal = Field(default_factory=Goal)
    goals: dict[str, dict[str, Any]] = Field(default_factory=dict)  # parts of the goal of single labels: [goals.Mass]
    repair: RepairSpec = Field(default_factory=RepairSpec)
    report: ReportSpec = Field(default_factory=ReportSpec)
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)  # settings, one table per method: [pruning]

    def to_dict(self) -> dict[str, Any]:
        """Plain values of everything that differs from the defaults, as in a case file."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    def with_pairs(self) -> Self:
        """The case with the score column of each label, if they are paired by a prefix; this reads the header of the table."""
        prefix, table = self.data.score_prefix, self.data.table
        if prefix is None or table is None:
            return self
        from equipoise.data import paired_columns

        pairs = paired_columns(table, prefix)
        if lacking := [label for label in self.data.label if label not in pairs]:
            raise BadInput(
                *(f"label {label!r} has no score column {prefix + label!r} next to it" for label in lacking),
                f"The pairs of label and score are: {', '.join(pairs)}. Name those, or correct data.score_prefix (--score-prefix {prefix})",
                source=table.name,
            )
        chosen = {label: pairs[label] for label in self.data.label or pairs}
        return self.changed(data=self.data.changed(label=list(chosen), score=list(chosen.values()), score_prefix=None))

    @property
    def table(self) -> Path:
        """The data file."""
        if self.data.table is None:
            raise BadInput("the case has no table: name the file with the data, data.table")
        return self.data.table

    @property
    def labels(self) -> list[str]:
        """The labels, or the classes of the only label, that are audited or repaired."""
        return self.data.outputs

    @property
    def outputs(self) -> dict[str, int | str]:
        """The output of the network for each label that names one."""
        given = self.model.outputs
        return {} if given is None else dict(given) if isinstance(given, Mapping) else {self.labels[0]: given}

    @property
    def output_name(self) -> str | None:
        """The output of the network for the only label, if it is one of several."""
        return str(next(iter(self.outputs.values()))) if len(self.labels) == 1 and self.outputs else None

    @property
    def common_goal(self) -> Goal:
        """The goal of all labels, with the threshold in use, if it is the same for all."""
        threshold = self.model.threshold
        return self.goal if threshold is None or isinstance(threshold, Mapping) else self.goal.changed(threshold=threshold)

    @property
    def label_goals(self) -> dict[str, Goal] | None:
        """The goal of each label, with its threshold; None if all have the same."""
        threshold = self.model.threshold
        if not self.goals and not isinstance(threshold, Mapping):
            return None
        own = {label: self.common_goal.changed(**self.goals.get(label, {})) for label in self.labels}
        return (
            own if not isinstance(threshold, Mapping) else {label: goal.changed(threshold=threshold[label]) for label, goal in own.items()}
        )

    @model_validator(mode="before")
    @classmethod
    def _method_tables(cls, given: Any) -> Any:
        """The tables of methods, [pruning], under `methods`."""
        sections = {field.alias or name for name, field in cls.model_fields.items()} | {*cls.model_fields}
        if given.keys() <= sections:
            return given
        from equipoise.methods import METHODS

        tables = {name: value for name, value in given.items() if name not in sections and name in METHODS}
        rest = {name: value for name, value in given.items() if name not in tables}
        return rest | {"methods": {**given.get("methods", {}), **tables}}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Raises one error with everything that does not go together."""
        data, model = self.data, self.model
        if data.score_prefix is not None:
            if data.score:
                raise BadInput(
                    "data.score (--score) names score columns one by one, data.score_prefix (--score-prefix) all; use one of them"
                )
            return self  # checked again once the labels are known
        problems = data.problems() + data.conflict_problems() + _source_problems(self) + _label_problems(self)
        if model.load is None or model.is_estimator:
            what = "requires model.load (--model)" if model.load is None else f"is for networks, and {model.load} holds an estimator"
            problems += [f"{name} {what}. Omit it." for name, value in _network_only(self).items() if value]
        if self.images.folder is None and self.report.thumbnails:
            problems.append("report.thumbnails requires images.folder (--images). Omit it.")
        if self.images.folder is not None and data.features:
            problems.append("data.features is for tabular networks; the inputs are the images. Omit it.")
        if self.images.folder is not None and data.id is not None:
            problems.append("data.id is for tables without images; the image name is the id. Omit it.")
        if self.history.earlier and data.patient is None:
            problems.append("history.earlier finds patients by their ids. Add data.patient (--patient) with their column.")
        if self.history.earlier and (self.audit_spec.train or self.audit_spec.probe):
            problems.append("audit.train and audit.probe are about all rows. Omit them, or history.earlier.")
        if problems:
            raise BadInput(*problems)
        return self


def _network_only(case: CaseSpec) -> dict[str, object]:
    """The values of the settings that only a network takes."""
    model, repair, audit = case.model, case.repair, case.audit_spec
    named: dict[str, object] = {
        "model.weights (--weights)": model.weights,
        "model.output": model.output != "auto",
        "model.outputs": model.outputs is not None,
        "data.classes": case.data.classes,
        "images.folder (--images)": case.images.folder,
        "audit.probe": audit.probe,
        "repair.train": repair.train,
        "repair.probe": repair.probe,
        "report.onnx_rule": case.report.onnx_rule,
    }
    return named if model.is_estimator else {**named, "audit.train": audit.train}


def _source_problems(case: CaseSpec) -> list[str]:
    """Problems with the choice between scores and a model: exactly one of them is audited or repaired."""
    data, model, problems = case.data, case.model, list[str]()
    if bool(data.score) == (model.load is not None):
        problems.append("give either columns of scores (data.score, --score or --score-prefix) or a model (model.load, --model)")
    if data.score and data.label and len(data.score) != len(data.label):
        problems.append(
            f"{len(data.label)} --label and {len(data.score)} --score do not match; give one score per label, in the same order"
        )
    if data.logits and not data.score:
        problems.append("data.logits is about columns of scores. Omit it; a network has model.output.")
    trust = {"model.trust_pickle": model.trust_pickle, "model.trust_types": model.trust_types}
    if not model.is_estimator:
        files = ", ".join(ESTIMATOR_FILES)
        problems += [f"{name} is for a model in a file ({files}). Omit it." for name, value in trust.items() if value]
    elif len(case.labels) > 1:
        problems.append(f"{model.load} gives one score per row; name one label, not {', '.join(case.labels)}")
    if model.check_scores is None:
        checks = {"model.known": model.known, "model.tolerance": "tolerance" in model.model_fields_set}
        return problems + [f"{name} requires model.check_scores. Omit it." for name, value in checks.items() if value]
    if model.load is None:
        problems.append("model.check_scores compares the scores of a model. Add --model, or omit it.")
    if len(model.known) != len(case.labels):
        each = "class, with its probability, in the same order" if data.classes else "label"
        problems.append(f"model.check_scores needs the columns of the known scores: one of model.known per {each}; got {len(model.known)}")
    if case.images.folder is None and data.id is None:
        problems.append("model.check_scores joins rows by data.id; name the column with ids that both files have.")
    return problems


def _label_problems(case: CaseSpec) -> list[str]:
    """Problems with values by label: of labels that are none, without one of a label, or of classes, which have no threshold."""
    labels, model, problems = case.labels, case.model, list[str]()
    if not labels:
        return []
    for what, given in (("model.outputs", model.outputs), ("goals", case.goals), ("model.threshold (--threshold)", model.threshold)):
        names = list(given) if isinstance(given, Mapping) else []
        problems += [problem for name in names if name not in labels for problem in UnknownName(f"label in {what}", name, labels).problems]
        if names and len(labels) == 1 and what == "goals":
            problems.append("goals are those of several labels; there is one. Use [goal].")
    if isinstance(model.threshold, Mapping) and (missing := [label for label in labels if label not in model.threshold]):
        problems.append(f"model.threshold (--threshold) has none for {', '.join(missing)}. Give one for every label, or one number for all")
    if model.outputs is not None and not isinstance(model.outputs, Mapping) and len(labels) > 1:
        problems.append(f"model.outputs must be LABEL=OUTPUT where there are several labels, as in {labels[0]}=0; got {model.outputs!r}")
    if case.data.classes and (model.threshold is not None or case.audit_spec.valid is not None):
        problems.append("classes are decided by argmax, without a threshold. Omit --threshold and --valid.")
    if len(labels) > 1 and case.audit_spec.probe:
        problems.append("audit.probe takes one label, since the layers are the same for all. Omit the others.")
    by_label = model.threshold if isinstance(model.threshold, Mapping) else dict.fromkeys(labels, model.threshold)
    own = {label: case.goals.get(label, {}).get("threshold", case.goal.threshold) for label in labels}
    problems += [
        f"{label} has a threshold in model.threshold (--threshold) and in the goal. Omit one of them."
        for label in labels
        if by_label.get(label) is not None and own[label] is not None
    ]
    for label in labels:
        with collecting(problems):
            case.goal.changed(**case.goals.get(label, {}))  # unknown keys and invalid values
    name = case.audit_spec.no_finding
    if name == DERIVED and len(labels) == 1:
        problems.append("audit.no_finding = derived needs several labels: no finding is none of them.")
    elif name not in (None, DERIVED, *labels):
        problems.append(f"audit.no_finding {name} is not a label.{did_you_mean(name, labels)} Name one of them, or use derived.")
    return problems


def read_case_file(path: str | Path) -> dict[str, Any]:
    """The sections of a case file, with paths relative to it."""
    path = Path(path)
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"is not valid TOML: {error}", source=str(path)) from None
    except FileNotFoundError:
        raise BadInput(f"no such file: {path}") from None
    for section, values in given.items():
        if not isinstance(values, dict):
            raise BadInput(f"{section} is outside of a section. Move it below [data], [model], [goal], ...", source=str(path))
        for key, field in fields_of(CaseSpec, section).items():
            if key in values:
                values[key] = _beside(path.parent, values[key], "Path" in str(field.annotation), key in ("load", "transform"))
    return given


def _beside(folder: Path, value: Any, is_path: bool, is_code: bool) -> Any:
    """A path, or the code in a file, relative to the folder of the case file; other values unchanged."""
    if isinstance(value, list):
        return [_beside(folder, own, is_path, is_code) for own in value]
    if not isinstance(value, str) or not (is_path or is_code):
        return value
    if is_path or (folder / value.partition(":")[0]).exists():
        return str(folder / value)
    return value
