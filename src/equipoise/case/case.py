"""`eq.Case`: data, model, goal and report of a hospital, written down once, and the sections [data], [model], [history] and [repair] of it.

The case file, the flags of the commands, `--set section.key=value` and Python make the same object. Images, audits, goals and reports are
specified in their own rooms. Importing this module imports neither pandas nor torch.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from equipoise.data import Columns, ImageFolder
from equipoise.disk import is_database
from equipoise.errors import BadInput, UnknownName, collecting, did_you_mean, raise_all
from equipoise.measures import NONE_OF_THE_LABELS, AuditSpec
from equipoise.methods import Goal
from equipoise.report import ReportSpec
from equipoise.specification import Day, Specification, Texts, fields_of, is_share, setting

if TYPE_CHECKING:
    from equipoise.case import Repaired
    from equipoise.measures import Audit

ESTIMATOR_FILES = (".skops", ".pkl", ".pickle", ".joblib")
SCORE_TOLERANCE = 1e-4  # between a score and the known one
RUN = "run.json"  # of a bundle
CROSS = "cross"  # in place of a test set: nested cross-fitting


def _by_label(value: Any) -> Any:
    """One value for all labels, or one for each by name; texts are VALUE or LABEL=VALUE."""
    if isinstance(value, str) and "=" in value:
        value = [value]
    if not isinstance(value, (list, tuple)):
        return value
    pairs = [(label.strip(), _number(text.strip())) for label, _, text in (str(text).rpartition("=") for text in value)]
    named = [label for label, _ in pairs if label]
    given = ", ".join(map(str, value))
    if not named and len(pairs) == 1:
        return pairs[0][1]
    if len(named) < len(pairs):
        raise ValueError(f"was given {len(pairs)} times: {given}. Give one value for all labels, or LABEL=VALUE for each")
    if twice := sorted({label for label in named if named.count(label) > 1}):
        raise ValueError(f"{', '.join(twice)} was given twice; give each label once")
    return dict(pairs)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _thresholds_by_label(value: Any) -> Any:
    value = _by_label(value)
    by_label = {} if value is None else _named(value, [""])
    if wrong := [f"{label}={own}" if label else repr(own) for label, own in by_label.items() if not is_share(own)]:
        raise ValueError(f"must be a number between 0 and 1; got {', '.join(wrong)}")
    return value


def _named(value: Any, labels: Sequence[str]) -> dict[str, Any]:
    """The values by name, or one value for each of these labels."""
    return dict(value) if isinstance(value, Mapping) else dict.fromkeys(labels, value)


class DataSpec(Columns):
    """The section [data]: the table, and who is what in it."""

    table: Path | None = setting(
        "CSV or Parquet file with one row per sample; audit also takes a folder of them; as a flag, another table for the same case file",
        None,
        flag="--table",
    )
    train: Path | None = setting(
        "file with the training set in the same columns, for methods that need it; of a model, a logistic regression on the same inputs is "
        "fitted to it too, and reported where it clearly does better",
        None,
    )


class ModelSpec(Specification):
    """The section [model]: the network or estimator that makes the scores, and the threshold in use."""

    load: str | None = setting(
        "network as file.py:factory, package.module:factory or exported program (.pt2), whose code is executed; an ONNX file, a local "
        "folder of transformers, or an estimator (.skops); or a backbone: resnet-18, vgg-16, densenet-121, squeezenet",
        None,
        flag="--model",
    )
    weights: Path | None = setting("weights of the network (.safetensors, or a torch file with a state dict)", None, flag="--weights")
    threshold: Annotated[Any, BeforeValidator(_thresholds_by_label)] = setting(
        "scores at or above it are decided positive; of several labels, one for all, or LABEL=VALUE, repeated for each",
        None,
        flag="--threshold",
        many=True,
        shown="audit: 0.5; debias: that of best performance",
    )
    output: Literal["auto", "logit", "probability"] = setting("what the network returns: logit or probability", "auto")
    outputs: Annotated[Any, BeforeValidator(_by_label)] = setting(
        "name or number of the output of a network with many; of several labels, { Effusion = 3 }",
        None,
        many=True,
    )
    trust_pickle: bool = setting("read an estimator from a pickle (.pkl, .joblib), which runs any code that its author put into it", False)
    trust_types: Texts = setting("types to trust in a .skops file, as listed in the error message", ())
    check_scores: Path | None = setting("file with known scores of this model; the command stops if they differ", None)
    known: Texts = setting("columns of the known scores, one per label", ())
    tolerance: float = setting("largest difference between a score and the known one", SCORE_TOLERANCE, gt=0)

    @property
    def is_estimator(self) -> bool:
        """Whether the model is the file of an estimator."""
        return self.load is not None and self.load.lower().endswith(ESTIMATOR_FILES)


class HistorySpec(Specification):
    """The section [history]: audits repeated over time, which `equipoise compare` follows."""

    append: Path | None = setting("add the audit to this history (.parquet), which `equipoise compare` follows", None, flag="--append")
    date: Annotated[str | None, BeforeValidator(lambda value: None if value is None else str(value))] = setting(
        "period of the audit: a year, quarter, month, week or day, as in 2026, 2026-Q4, 2026-11, 2026-W46 or 2026-11-16",
        None,
        flag="--date",
        shown="that in the name of the table, as in 2026-12.csv",
    )
    replace: bool = setting("replace the period if the history has it", False)
    new_groups: Texts = setting("groups to accept although they are new to the history", ())
    earlier: Annotated[tuple[Path, ...], BeforeValidator(lambda value: (value,) if isinstance(value, (str, Path)) else value)] = setting(
        "tables of earlier periods in the same columns: the rows of a patient who returns count as one cluster", ()
    )

    @model_validator(mode="after")
    def _combined(self) -> Self:
        problems: list[str] = []
        given = {"history.date (--date)": self.date, "history.replace": self.replace, "history.new_groups": self.new_groups}
        if self.append is None:
            problems += [
                f"{name} requires history.append (--append FILE). Add it, or omit {name}." for name, value in given.items() if value
            ]
        elif self.append.suffix.lower() not in (".parquet", ".pq"):
            instead = self.append.with_suffix(".parquet").name
            problems.append(f"history.append (--append) writes Parquet; got {self.append.name!r}. Use --append {instead}.")
        raise_all(problems)
        return self


def _cross(test: Any) -> Any:
    """The word for nested cross-fitting, also where it was read as the path of a file; a file of that name is a file."""
    return CROSS if isinstance(test, (str, Path)) and Path(test).name == CROSS and not Path(test).exists() else test


class RepairSpec(Specification):
    """The section [repair]: the methods to try, and the patients to fit them to and to evaluate them on."""

    method: Texts = setting("a method to try; several are compared", ("auto",), flag="--method", shown="auto: several, within the budget")
    test: Annotated[Literal["cross"] | Path | None, BeforeValidator(_cross)] = setting(
        "file with the test set in the same columns, of other patients; or cross: every patient is judged by a repair fitted without them",
        None,
        flag="--test",
    )
    test_fraction: float = setting("share of the patients held out for evaluation, without a test file", 0.3, gt=0, lt=1)
    test_after: Day | None = setting(
        "hold out the later patients instead, those first seen on this day or after it by data.date: 2026-01-01", None, flag="--test-after"
    )
    seed: int = setting("seed of everything random", 0, ge=0)
    budget: float = setting("approximate limit for all methods together, in minutes; 0 for no limit", 10.0, ge=0, allow_inf_nan=False)
    group_rules: bool = setting("whether auto tries rules that need each patient's group", True)
    recalibrate: bool = setting("recalibrate the scores of a network that was changed; changes no decision", True)
    force: bool = setting("continue with too few patients in a cell; the outcome is then unclear, harm or unchanged", False)
    probe: bool = setting("report how well each layer predicts the group; this does not show that the network uses it", False)
    draws: int = setting("bootstrap resamples of the probes", 1000, ge=2)

    @property
    def seconds(self) -> float | None:
        """The limit for all methods together; None for no limit."""
        return 60 * self.budget or None


class Draft(Specification):
    """The sections of a case that `equipoise init` fills, each as it is given and not yet checked with the others."""

    data: DataSpec = Field(default_factory=DataSpec)
    images: ImageFolder = Field(default_factory=ImageFolder)
    model: ModelSpec = Field(default_factory=ModelSpec)
    goal: Goal = Field(default_factory=Goal)

    def places(self) -> dict[str, Any]:
        """Plain values of what was given, by place, as in data.label."""
        given = self.model_dump(mode="json", exclude_unset=True)
        return {f"{section}.{key}": value for section, values in given.items() for key, value in values.items()}


class Case(Specification):
    """Data, model and goal of a hospital: `Case.load("case.toml").audit()`.

    >>> case = Case(data={"table": "scores.csv", "label": "sick", "group": "sex", "score": "p"}, goal={"max_gap": 0.05})
    >>> case.labels, str(case.goal)
    (['sick'], '|eod| <= 0.05, tpr >= before')
    """

    model_config = ConfigDict(populate_by_name=True)

    data: DataSpec = Field(default_factory=DataSpec)
    images: ImageFolder = Field(default_factory=ImageFolder)
    model: ModelSpec = Field(default_factory=ModelSpec)
    audit_spec: AuditSpec = Field(default_factory=AuditSpec, alias="audit")
    history: HistorySpec = Field(default_factory=HistorySpec)
    goal: Goal = Field(default_factory=Goal)
    goals: dict[str, dict[str, Any]] = Field(default_factory=dict)  # parts of the goal of single labels: [goals.Mass]
    repair: RepairSpec = Field(default_factory=RepairSpec)
    report: ReportSpec = Field(default_factory=ReportSpec)
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)  # settings, one table per method: [pruning]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The case in a TOML file, whose paths are relative to it."""
        return cls(**read_case_file(path))

    def audit(self) -> "Audit":
        """The audit of the model, or of the scores in the table."""
        from equipoise.case import audit_case

        return audit_case(self).audit

    def debias(self) -> "Repaired":
        """The repair, evaluated on held-out patients: `.comparisons`, and `.save(folder)` for a folder to serve."""
        from equipoise.case import prepare_repair

        return prepare_repair(self).repair()

    def to_dict(self) -> dict[str, Any]:
        """Plain values of everything that differs from the defaults, as in a case file."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    def with_pairs(self) -> Self:
        """The case with the score column of each label, if they are paired by a prefix; this reads the header of the table."""
        table = self.data.table
        return self if table is None or self.data.score_prefix is None else self.changed(data=self.data.paired(table))

    @property
    def table(self) -> Path:
        """The data file."""
        if self.data.table is None:
            raise BadInput("the case has no table: name the file with the data, data.table")
        return self.data.table

    @property
    def period(self) -> str | None:
        """The period of the audit in its history: history.date, or what the table's name holds, as in scores-2026-12.csv."""
        from equipoise.measures import period_in

        return self.history.date or (None if self.data.table is None else period_in(self.data.table.stem))

    @property
    def labels(self) -> list[str]:
        """The labels, or the classes of the only label, that are audited or repaired."""
        return self.data.outputs

    @property
    def outputs(self) -> dict[str, int | str]:
        """The output of the network for each label that names one."""
        given = self.model.outputs
        return {} if given is None else _named(given, self.labels[:1])

    @property
    def output_name(self) -> str | None:
        """The output of the network for the only label, if it is one of several."""
        return str(next(iter(self.outputs.values()))) if len(self.labels) == 1 and self.outputs else None

    @property
    def thresholds(self) -> dict[str, float | None]:
        """The threshold in use of each label; None if it has none."""
        return _named(self.model.threshold, self.labels)

    @property
    def label_goals(self) -> dict[str, Goal]:
        """The goal of each label, with its threshold."""
        at = {label: {} if threshold is None else {"threshold": threshold} for label, threshold in self.thresholds.items()}
        return {label: self.goal.changed(**self.goals.get(label, {}), **at[label]) for label in self.labels}

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
        data, model, audit = self.data, self.model, self.audit_spec
        if data.score_prefix is not None:
            if data.score:
                raise BadInput(
                    "data.score (--score) names score columns one by one, data.score_prefix (--score-prefix) all; use one of them"
                )
            return self  # checked again once the labels are known
        problems = data.problems() + _source_problems(self) + _label_problems(self)
        if model.load is None or model.is_estimator:
            what = "requires model.load (--model)" if model.load is None else f"is for networks, and {model.load} holds an estimator"
            network_only: dict[str, object] = {
                "model.weights (--weights)": model.weights,
                "model.output": model.output != "auto",
                "model.outputs": model.outputs is not None,
                "data.classes": data.classes,
                "images.folder (--images)": self.images.folder,
                "audit.probe": audit.probe,
                "repair.probe": self.repair.probe,
                "report.onnx_rule": self.report.onnx_rule,
                "data.train": data.train if not model.is_estimator else None,
            }
            problems += [f"{name} {what}. Omit it." for name, value in network_only.items() if value]
        if self.repair.test is not None and "test_fraction" in self.repair.model_fields_set:
            problems.append("repair.test_fraction holds out patients of the data file, --test is a separate test set; use one of them")
        if self.repair.test_after is not None and (self.repair.test is not None or "test_fraction" in self.repair.model_fields_set):
            problems.append("repair.test_after (--test-after) holds out the later patients. Omit repair.test (--test) and test_fraction.")
        if self.repair.test_after is not None and data.date is None:
            problems.append("repair.test_after (--test-after) needs the date of each row. Add data.date (--set data.date=COLUMN).")
        if self.images.folder is None and self.report.thumbnails:
            problems.append("report.thumbnails requires images.folder (--images). Omit it.")
        if self.images.folder is not None and data.features:
            problems.append("data.features is for tabular networks; the inputs are the images. Omit it.")
        if self.images.folder is not None and data.id is not None:
            problems.append("data.id is for tables without images; the image name is the id. Omit it.")
        if self.history.append is not None and self.period is None:
            problems.append("history.append (--append) requires the period of the audit. Add --date, as in --date 2026-11.")
        if self.history.earlier and data.patient is None:
            problems.append("history.earlier finds patients by their ids. Add data.patient (--patient) with their column.")
        if data.table is not None and data.table in self.history.earlier:
            problems.append(f"history.earlier names {data.table}, the table that is audited. Name those of earlier periods only.")
        raise_all(problems)
        return self


def _source_problems(case: Case) -> list[str]:
    """Problems with the choice between scores and a model: exactly one of them is audited or repaired."""
    data, model, problems = case.data, case.model, list[str]()
    if bool(data.score) == (model.load is not None):
        problems.append("give either columns of scores (data.score, --score or --score-prefix) or a model (model.load, --model)")
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


def _label_problems(case: Case) -> list[str]:
    """Problems with values by label: of labels that are none, without one of a label, or of classes, which have no threshold."""
    labels, model, problems = case.labels, case.model, list[str]()
    if not labels:
        return []
    for what, given in (("model.outputs", model.outputs), ("goals", case.goals), ("model.threshold (--threshold)", model.threshold)):
        names = list(_named(given, ()))
        problems += [problem for name in names if name not in labels for problem in UnknownName(f"label in {what}", name, labels).problems]
        if names and len(labels) == 1 and what == "goals":
            problems.append("goals are those of several labels; there is one. Use [goal].")
    if missing := [label for label in labels if label not in case.thresholds]:
        problems.append(f"model.threshold (--threshold) has none for {', '.join(missing)}. Give one for every label, or one number for all")
    if model.outputs is not None and not isinstance(model.outputs, Mapping) and len(labels) > 1:
        problems.append(f"model.outputs must be LABEL=OUTPUT where there are several labels, as in {labels[0]}=0; got {model.outputs!r}")
    if case.data.classes and (model.threshold is not None or case.goal.threshold is not None or case.audit_spec.valid is not None):
        problems.append("classes are decided by argmax, without a threshold. Omit --threshold and --valid.")
    if len(labels) > 1 and case.audit_spec.probe:
        problems.append("audit.probe takes one label, since the layers are the same for all. Omit the others.")
    own = {label: case.goals.get(label, {}).get("threshold", case.goal.threshold) for label in labels}
    problems += [
        f"{label} has a threshold in model.threshold (--threshold) and in the goal. Omit one of them."
        for label in labels
        if case.thresholds.get(label) is not None and own[label] is not None
    ]
    for label in labels:
        with collecting(problems):
            case.goal.changed(**case.goals.get(label, {}))  # unknown keys and invalid values
    name = case.audit_spec.no_finding
    if name == NONE_OF_THE_LABELS and len(labels) == 1:
        problems.append(f"audit.no_finding = '{NONE_OF_THE_LABELS}' needs several labels.")
    elif name not in (None, NONE_OF_THE_LABELS, *labels):
        problems.append(f"audit.no_finding {name} is not a label.{did_you_mean(name, labels)} Name one, or '{NONE_OF_THE_LABELS}'.")
    return problems


def case_schema() -> dict[str, Any]:
    """The JSON Schema of a case file, from the fields of its sections, for editors that complete and check TOML."""
    from equipoise.methods import METHODS

    schema = Case.model_json_schema()
    definitions = schema.pop("$defs")

    def plain(given: Any) -> Any:
        """A definition with its references resolved; one text or a list of them where the file takes either."""
        if isinstance(given, list):
            return [plain(each) for each in given]
        if not isinstance(given, dict):
            return given
        if name := given.get("$ref"):
            return plain(definitions[name.rpartition("/")[2]])
        found = {key: plain(value) for key, value in given.items() if key not in ("flag", "shown", "many", "hidden", "title")}
        if found.get("type") == "array":
            found = {
                "anyOf": [found.get("items", {}), {key: value for key, value in found.items() if key not in ("description", "default")}]
            } | {key: found[key] for key in ("description", "default") if key in found}
        return found

    sections = {name: plain(section) for name, section in schema["properties"].items() if name != "methods"}
    for name in fields_of(Case):
        keys = fields_of(Case, name)
        if keys:
            sections[name]["properties"] = {key: value for key, value in sections[name]["properties"].items() if key in keys}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A case of Equipoise",
        "type": "object",
        "additionalProperties": False,
        "properties": sections | {name: {"type": "object", "description": method.title} for name, method in METHODS.items()},
    }


def read_case_file(path: str | Path) -> dict[str, Any]:
    """The sections of a case file, with paths relative to it, or the case that the folder of a repair was made from."""
    path = Path(path)
    if path.is_dir():
        return _case_of_bundle(path)
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"is not valid TOML: {error}", source=str(path)) from None
    except FileNotFoundError:
        raise BadInput(f"no such file: {path}") from None
    for section, values in given.items():
        if not isinstance(values, dict):
            raise BadInput(f"{section} is outside of a section. Move it below [data], [model], [goal], ...", source=str(path))
    return _placed(given, path.parent)


def is_bundle(path: Path) -> bool:
    """Whether a path is the folder of a repair of one or several labels."""
    return path.is_dir() and any((place / RUN).is_file() for place in bundles_in(path))


def bundles_in(folder: Path) -> list[Path]:
    """The folders of the labels of a repair: the folder itself, or those inside it."""
    inside = [] if (folder / RUN).is_file() else sorted(file.parent for file in folder.glob(f"*/{RUN}"))
    return inside or [folder]


def _case_of_bundle(folder: Path) -> dict[str, Any]:
    """The case in the run.json of a folder. Its paths were relative to where the repair ran: usually the folder that holds this one."""
    if not is_bundle(folder):
        raise BadInput(f"{folder} holds no {RUN} of a repair. Name a table, a case file, or the folder of a repair.")
    given = json.loads((bundles_in(folder)[0] / RUN).read_text(encoding="utf-8")).get("case")
    if not isinstance(given, dict):
        raise BadInput(f"{folder} was made in Python, and its {RUN} holds no case. Name the table, or a case file.")
    return _placed(given, folder.absolute().parent, present=True)


def _placed(given: dict[str, Any], folder: Path, present: bool = False) -> dict[str, Any]:
    """The sections of a case with paths relative to a folder; with `present`, only paths to what is there."""
    for section, values in given.items():
        for key, field in fields_of(Case, section).items():
            if key in values:
                is_path, is_code = "Path" in str(field.annotation), key in ("load", "transform")
                values[key] = _beside(folder, values[key], is_path and not present, is_code or (is_path and present))
    return given


def _beside(folder: Path, value: Any, is_path: bool, is_code: bool) -> Any:
    """A path, or the code in a file, relative to the folder of the case file; other values unchanged."""
    if isinstance(value, list):
        return [_beside(folder, own, is_path, is_code) for own in value]
    if not isinstance(value, str) or not (is_path or is_code) or is_database(value):
        return value
    if is_path or (folder / value.partition(":")[0]).exists():
        return str(folder / value)
    return value
