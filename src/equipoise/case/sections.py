"""The sections of a case: the table, the model, the history, the repair and the report. Images, audits and goals are in their own rooms."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from equipoise.data import Columns
from equipoise.errors import BadInput
from equipoise.specification import Specification, Texts, is_share, setting

ESTIMATOR_FILES = (".skops", ".pkl", ".pickle", ".joblib")
TOLERANCE = 1e-4  # between a score and the known one


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


def _thresholds(value: Any) -> Any:
    value = _by_label(value)
    by_label = value if isinstance(value, Mapping) else {} if value is None else {"": value}
    if wrong := [f"{label}={own}" if label else repr(own) for label, own in by_label.items() if not is_share(own)]:
        raise ValueError(f"must be a number between 0 and 1; got {', '.join(wrong)}")
    return value


class Data(Columns):
    """The section [data]: the table, and who is what in it."""

    table: Path | None = setting("CSV or Parquet file with one row per sample; audit also takes a folder of them", None)


class Classifier(Specification):
    """The section [model]: the network or estimator that makes the scores, and the threshold in use."""

    load: str | None = setting(
        "network as file.py:factory, package.module:factory or exported program (.pt2), whose code is executed; an ONNX file, a local "
        "folder of transformers, or an estimator (.skops); or a backbone: resnet-18, vgg-16, densenet-121, squeezenet",
        None,
        flag="--model",
    )
    weights: Path | None = setting("weights of the network (.safetensors, or a torch file with a state dict)", None, flag="--weights")
    threshold: Annotated[Any, BeforeValidator(_thresholds)] = setting(
        "scores at or above it are decided positive; of several labels, one for all, or LABEL=VALUE, repeated for each",
        None,
        flag="--threshold",
        many=True,
        shown="audit: 0.5; debias: that of best performance",
    )
    output: Literal["auto", "logit", "probability"] = setting("what the network returns: logit or probability", "auto", was="--output-type")
    outputs: Annotated[Any, BeforeValidator(_by_label)] = setting(
        "name or number of the output of a network with many; of several labels, { Effusion = 3 }",
        None,
        many=True,
        was="--output-name",
    )
    trust_pickle: bool = setting("read an estimator from a pickle (.pkl, .joblib), which runs any code that its author put into it", False)
    trust_types: Texts = setting("types to trust in a .skops file, as listed in the error message", ())
    check_scores: Path | None = setting("file with known scores of this model; the command stops if they differ", None)
    known: Texts = setting("columns of the known scores, one per label", ())
    tolerance: float = setting("largest difference between a score and the known one", TOLERANCE, gt=0)

    @property
    def is_estimator(self) -> bool:
        """Whether the model is the file of an estimator."""
        return self.load is not None and self.load.lower().endswith(ESTIMATOR_FILES)


class History(Specification):
    """The section [history]: audits repeated over time, which `equipoise compare` follows."""

    append: Path | None = setting("add the audit to this history (.parquet), which `equipoise compare` follows", None, flag="--append")
    date: Annotated[str | None, BeforeValidator(lambda value: None if value is None else str(value))] = setting(
        "period of the audit: a year, quarter, month, week or day, as in 2026, 2026-Q4, 2026-11, 2026-W46 or 2026-11-16",
        None,
        flag="--date",
    )
    replace: bool = setting("replace the period if the history has it", False)
    new_groups: Texts = setting("groups to accept although they are new to the history", ())
    earlier: Annotated[tuple[Path, ...], BeforeValidator(lambda value: (value,) if isinstance(value, (str, Path)) else value)] = setting(
        "tables of earlier periods with the same patient column: their patients are left out", ()
    )
    returning: Literal["first", "all"] = setting("patients of earlier periods: first (left out) or all (counted again)", "first")

    @model_validator(mode="after")
    def _combined(self) -> Self:
        problems: list[str] = []
        if self.returning != "first" and not self.earlier:
            problems.append(f"history.returning = {self.returning} requires the tables of earlier periods, history.earlier. Name them.")
        given = {"history.date (--date)": self.date, "history.replace": self.replace, "history.new_groups": self.new_groups}
        if self.append is None:
            problems += [
                f"{name} requires history.append (--append FILE). Add it, or omit {name}." for name, value in given.items() if value
            ]
        elif self.date is None:
            problems.append("history.append (--append) requires the period of the audit. Add --date, as in --date 2026-11.")
        elif self.append.suffix.lower() not in (".parquet", ".pq"):
            instead = self.append.with_suffix(".parquet").name
            problems.append(f"history.append (--append) writes Parquet; got {self.append.name!r}. Use --append {instead}.")
        if problems:
            raise BadInput(*problems)
        return self


class RepairSpec(Specification):
    """The section [repair]: the methods to try, and the patients to fit them to and to evaluate them on."""

    method: Texts = setting("a method to try; several are compared", ("auto",), flag="--method", shown="auto: several, within the budget")
    test: Path | None = setting("file with the test set in the same columns, of other patients", None, flag="--test")
    test_fraction: float = setting("share of the patients held out for evaluation, without a test file", 0.3, gt=0, lt=1)
    train: Path | None = setting("file with the training set, for methods that train from scratch or learn to predict the group", None)
    seed: int = setting("seed of everything random", 0, ge=0)
    budget: float = setting("approximate limit for all methods together, in minutes; 0 for no limit", 10.0, ge=0, allow_inf_nan=False)
    group_rules: bool = setting("whether auto tries rules that need each patient's group", True)
    recalibrate: bool = setting("recalibrate the scores of a network that was changed; changes no decision", True)
    force: bool = setting("continue with too few patients in a cell; the outcome is then unclear, harm or unchanged", False)
    probe: bool = setting("report how well each layer predicts the group; this does not show that the network uses it", False)
    draws: int = setting("bootstrap resamples of the probes", 1000, ge=2)

    @model_validator(mode="after")
    def _one_test_set(self) -> Self:
        if self.test is not None and "test_fraction" in self.model_fields_set:
            raise BadInput("repair.test_fraction holds out patients of the data file, --test is a separate test set; use one of them")
        return self

    @property
    def seconds(self) -> float | None:
        """The limit for all methods together; None for no limit."""
        return 60 * self.budget or None
