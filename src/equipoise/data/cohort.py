"""A cohort (inputs, labels, protected attributes and patients of the same rows), its three sets, and scores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import pandas as pd

from equipoise import data  # tables and tensors are imported when there are inputs
from equipoise.data.attribute import Attribute, DateArray, FloatArray, IntArray, ObjectArray, patient_codes
from equipoise.data.column_values import (
    UNKNOWN,
    UNNAMED_LABEL,
    check_frame,
    feature_problems,
    frame_from_arrays,
    missing_columns,
    read_columns,
)
from equipoise.data.columns import Columns, LabelKind
from equipoise.data.splits import Grouped, LaterPatients, assign_units, generator, too_few
from equipoise.data.table_files import as_parsed, read_table
from equipoise.errors import BadInput, Misuse, collecting, pick, raise_all
from equipoise.specification import takes_fields_of

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.data.images import Decoding
    from equipoise.data.table import Encoder, FeatureTable, Inputs


@dataclass(frozen=True, eq=False)
class Cohort(Grouped):
    """Rows to train on, to audit or to repair with: inputs, labels, groups and patients.

    >>> cohort = Cohort.from_frame(
    ...     pd.DataFrame({"age": [41, 70, 55, 33], "sex": ["F", "M", "M", "F"], "sick": [0, 1, 0, 1]}),
    ...     label="sick", group="sex", reference="M")
    >>> len(cohort), cohort.groups.tolist(), cohort.inputs.shape
    (4, ['F', 'M', 'M', 'F'], torch.Size([4, 1]))
    """

    source: Inputs  # the inputs of the network, or the table that they are encoded from; a tensor becomes `Tensors`
    y: IntArray  # (n,) 0 or 1; 1 is the condition that the classifier detects
    attributes: tuple[Attribute, ...]
    patients: ObjectArray | None = None
    ids: ObjectArray = field(default_factory=lambda: np.empty(0, dtype=object))
    name: str = "cohort"
    labels: tuple[str, ...] = UNNAMED_LABEL  # or the names of several labels, or of classes in the order of the network's outputs
    targets: IntArray = field(default_factory=lambda: np.empty((0, 0), np.int64))  # (n, labels) 0 or 1, -1 if unknown; summarised by y
    kind: LabelKind = LabelKind.LABELS
    weight: FloatArray | None = None  # (n,) positive sample weights; None if every row counts once
    dates: DateArray | None = None  # (n,) the day of each row; None if no column has it
    strata: Attribute | None = None  # the rows that are comparable; None if no column has it
    adjudicated: IntArray | None = None  # (n, labels) the adjudicated labels, -1 where there is none; None if no column has them

    def __post_init__(self) -> None:
        n = len(self.y)
        if hasattr(self.source, "detach"):
            object.__setattr__(self, "source", data.Tensors(cast(Any, self.source)))
        if not len(self.ids):
            object.__setattr__(self, "ids", np.arange(n))
        if not self.several:
            object.__setattr__(self, "targets", self.y[:, None])
        lengths = {"inputs": len(self.source), "ids": len(self.ids), **{a.name: len(a.codes) for a in self.attributes}}
        lengths["targets"] = len(self.targets)
        optional = {"patients": self.patients, "weight": self.weight, "dates": self.dates}
        lengths |= {name: len(values) for name, values in optional.items() if values is not None}
        raise_all([f"{what} has {size:,} rows, y has {n:,}" for what, size in lengths.items() if size != n])

    @classmethod
    @takes_fields_of(Columns, without=("score", "score_prefix", "logits", "view", "max_table_bytes"))
    def from_frame(
        cls, frame: pd.DataFrame, *, attribute_as_input: bool = False, scale: bool = True, name: str = "frame", **columns: Any
    ) -> Cohort:
        """The cohort in a pandas frame, whose columns are named as in `Columns`. The features default to all other columns.

        - `frame`: one row per sample; categories are encoded as one column per level, as learned from the training set of a split.
        - `attribute_as_input`: whether the group columns are inputs too.
        - `scale`: whether numbers become z-scores, also learned there; False for a network with its own preprocessing.
        - `name`: of the cohort, in messages and results.

        For a network with several outputs, `label` may be a list of columns of 0 and 1 (NaN or -1: not known); or one column, with
        `classes` in the order of the outputs.

        Groups, patients and ids are used unchanged; read them as text (`pd.read_csv(path, dtype={"patient": str})`), because pandas
        turns 007 into 7. `bins={"age": [40, 60, 80]}` makes groups of a column of numbers. Each row has its own group: `conflicts`
        sets what happens to patients who have more than one group, "row" (as recorded), "first", "majority", "blank" or "error".

        `missing` are the texts that stand for a value which is not known, such as "?": in every column with a role but ids and patients.

        `weight` names a column of sample weights, used by audits and post-processing and never as an input.
        """
        check_frame("Cohort.from_frame", frame)
        return cohort_from_table(frame, Columns(**columns), name, attribute_as_input=attribute_as_input, scale=scale)

    @classmethod
    def from_arrays(
        cls,
        inputs: object,
        y: object = None,
        groups: object = None,
        *,
        reference: str | None = None,
        patients: object = None,
        attribute: str = "group",
        labels: Sequence[str] | None = None,
        classes: Sequence[object] | None = None,
        bins: Sequence[float] | None = None,
        missing: Sequence[object] = (),
        merge: Mapping[str, Sequence[object]] | None = None,
        conflicts: str = "row",
        weights: object = None,
        dates: object = None,
        name: str = "arrays",
    ) -> Cohort:
        """The cohort of arrays of the same rows.

        - `inputs`: a tensor or an array (n, ...); `y`: labels, 0 or 1; `groups`: names; `patients`: ids; `weights`, `dates`: of each row.
        - `reference`: the privileged group; `attribute`: what the groups are called.
        - `labels`: names of the columns of y (n, labels); `classes`: values of y in the order of the network's outputs.
        - `bins`: edges that cut groups that are numbers, such as an age; `missing`, `merge`, `conflicts`: as in `from_frame`.
        """
        import torch  # only here: a table or a file of scores needs no tensor

        dataset = "Its rows are read by eq.Cohort.from_dataset(dataset, frame, label=..., group=...)."
        frame_advice = "The columns of a frame are read by eq.Cohort.from_frame(frame, label=..., group=...)."
        advice = {"Dataset": dataset, "DataLoader": dataset, "DataFrame": frame_advice}
        advice |= {"Module": "A network is not data: eq.audit(model, cohort).", "Cohort": "This is a cohort already."}
        if y is None or groups is None or any(kind.__name__ in advice for kind in type(inputs).__mro__):
            raise Misuse("Cohort.from_arrays", "inputs, labels and groups: from_arrays(inputs, y, groups)", inputs, advice)
        if labels is not None and classes is not None:
            raise BadInput("give labels=[...] with an array (n, L) of 0 and 1, or classes=[...] with one class per row, not both")
        arrays = {"label": y, "group": groups, "patient": patients, "weight": weights, "date": dates}
        frame, roles = frame_from_arrays(arrays, attribute, bins, labels)
        read = read_columns(
            frame,
            Columns(**roles | {"reference": reference, "missing": missing, "merge": merge, "conflicts": conflicts, "classes": classes}),
        )
        try:
            tensor = torch.as_tensor(inputs)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadInput(f"the inputs must be a tensor or an array of numbers (n, ...): {error}") from error
        return _cohort(data.Tensors(tensor), name, read | ({} if labels is None else {"labels": tuple(labels)}))

    @classmethod
    @takes_fields_of(Columns, without=("id", "features", "score", "score_prefix", "logits", "max_table_bytes"))
    def from_images(
        cls,
        frame: pd.DataFrame,
        *,
        folder: str | Path,
        image: str,
        allow_outside: bool = False,
        name: str = "images",
        **columns_and_decoding: Any,
    ) -> Cohort:
        """The cohort of a frame whose column `image` names files in a folder: relative paths, or bare names anywhere below it.

        A bare name may lack the suffix of an image (.png, .dcm, ...) and must be unique below the folder; a path must match exactly. A
        file outside the folder is refused unless `allow_outside`.

        With a column `view`, only rows with a frontal view (PA, AP) are used. See `Images.open` for the options of decoding; images left
        out by `skip_broken` are listed in `cohort.source.broken`, by the row of the frame. Several labels, classes, bins and conflicts
        as in `from_frame`.
        """
        from equipoise.data.images import Decoding

        check_frame("Cohort.from_images", frame)
        decoding = {key: columns_and_decoding.pop(key) for key in Decoding.__annotations__ if key in columns_and_decoding}
        columns = Columns(id=image, **columns_and_decoding)
        return cohort_from_images(frame, columns, folder, name, allow_outside=allow_outside, **decoding)

    @classmethod
    @takes_fields_of(Columns, without=("features", "score", "score_prefix", "logits", "view", "max_table_bytes"))
    def from_dataset(
        cls,
        dataset: object,
        frame: pd.DataFrame | None = None,
        *,
        y: object = None,
        groups: object = None,
        patients: object = None,
        cache: str | Path | None = None,
        progress: Callable[[int], None] | None = None,
        name: str = "dataset",
        **columns: Any,
    ) -> Cohort:
        """The cohort of a PyTorch Dataset or DataLoader that yields the network's inputs, and a frame of its rows in the same order.

        `label`, `group`, `patient`, `id` and the other columns are those of the frame, as in `from_frame`. Without a frame, `groups`,
        `patients` and `y` are arrays; `y` may be omitted if the data set yields the labels. `progress` is called with the rows read.

        An item is a tensor, (tensor, label, ...) or a mapping. The order of the rows is verified by the ids, if the data set yields them
        and `id` names a column, otherwise by the labels. A loader that shuffles or drops rows is refused, and so is a random transform.
        The rows are read once; above 256 MiB they are kept in a file (see `cache`).
        """
        from equipoise.data.torch_datasets import check_order, load_rows

        if frame is None:
            if groups is None:
                raise BadInput("a data set needs the group of each row: groups=, or a frame with the column group=")
            group_array = np.asarray(groups, dtype=object)
            loaded = load_rows(dataset, len(group_array), cache=cache, progress=progress)
            if y is None and loaded[1] is None:
                raise BadInput("the data set yields no labels; give them as y=, or a frame with the column label=")
            inputs, labels = np.zeros((len(group_array), 1), np.float32), loaded[1] if y is None else y
            whole = cls.from_arrays(inputs, labels, group_array, patients=patients, name=name, **columns)
            if y is not None:
                check_order(loaded, None, whole.targets)
            return replace(whole, source=loaded[0])
        check_frame("Cohort.from_dataset", frame)
        roles = Columns(**columns)
        read = read_columns(frame, roles, name if name != "dataset" else "")
        loaded = load_rows(dataset, len(frame), cache=cache, progress=progress)
        whole = _cohort(loaded[0], name, read)
        check_order(loaded, None if roles.id is None else list(whole.ids), whole.targets)
        return whole

    def __repr__(self) -> str:
        return f"Cohort({self.name!r}, {self.described()}, {self.source.described()})"

    @property
    def inputs(self) -> Tensor:
        """The inputs of the network (n, ...): a tensor, or images, which behave like one (length, shape, dtype, indexing)."""
        return cast("Tensor", self.source.tensor())

    @property
    def encoder(self) -> Encoder | None:
        """The encoder of the raw columns; None for a cohort that is not a table."""
        return self.source.fitted()

    def labelled(self, label: str) -> Cohort:
        """The rows in which one of several labels is known, with that label only. A class becomes a label: this class or another."""
        if not self.several and not label:
            return self
        column = self.column(label)
        rows = np.flatnonzero(column != UNKNOWN)
        whole, at = self.take(rows, f"{self.name}, {label}"), self.labels.index(label)
        truth = None if whole.adjudicated is None else whole.adjudicated[:, [at]]
        return replace(whole, y=column[rows], labels=UNNAMED_LABEL, kind=LabelKind.LABELS, adjudicated=truth)

    def encoded_by(self, encoder: Encoder) -> Cohort:
        """These rows with the encoder of another set, usually the training set of the network that will use them."""
        try:
            return replace(self, source=self.source.encoded_by(encoder))
        except BadInput as error:
            raise BadInput(*error.problems, source=f"cohort {self.name!r}") from None

    def content(self) -> tuple[str, Any, IntArray | None]:
        """What the rows contain, by which equal rows are found: as in `Inputs.stored`."""
        return self.source.stored()

    def fixed(self) -> Cohort:
        """These rows with their own encoding of a table, which all parts of them keep."""
        return self if self.encoder is None else self.encoded_by(self.encoder)

    def encoded(self) -> Cohort:
        """These rows as the network reads them, without the raw columns."""
        return replace(self, source=cast("Inputs", self.inputs))

    def column(self, label: str) -> IntArray:
        """A label in every row (n,): 0, 1, or -1 if unknown."""
        if label and not self.several:
            raise BadInput(f"cohort {self.name!r} has one label, which is its y; several are given with label=[...] or classes=[...]")
        return self.targets[:, self.labels.index(pick("label", label, self.labels))]


def _cohort(source: Inputs, name: str, fields: Mapping[str, Any]) -> Cohort:
    return Cohort(source, name=name, **{field: values for field, values in fields.items() if field != "scores"})


def cohort_from_table(
    frame: pd.DataFrame,
    columns: Columns,
    name: str,
    *,
    text: Collection[str] = (),
    attribute_as_input: bool = False,
    scale: bool = True,
    only_numbers: bool = False,
) -> Cohort:
    """The cohort in a frame. A column of `text` that is also an input was read as text, and the input is parsed as numbers.

    With `only_numbers`, raises `BadInput` for inputs that a network cannot use. Nothing is imputed, because only the network's owner knows
    how that was done in training.
    """
    not_inputs = {*columns.used, columns.id} - (set(columns.group) if attribute_as_input else set())
    chosen = list(columns.features) or [c for c in frame.columns if c not in not_inputs]
    inputs = frame[[c for c in chosen if c in frame.columns]].reset_index(drop=True)
    inputs = inputs.assign(**{str(c): as_parsed(inputs[c]) for c in inputs.columns if c in text})
    source, problems = name if name != "frame" else "", list[str]()
    with collecting(problems):
        read = read_columns(frame, columns)
    problems += feature_problems(frame, chosen)
    forbidden = {**dict.fromkeys(columns.label, "label"), **({} if columns.weight is None else {columns.weight: "weight"})}
    problems += [f"feature column {c!r} is the {forbidden[c]}, which no network may see. Leave it out." for c in chosen if c in forbidden]
    if not chosen:
        problems.append(f"no feature column is left among {', '.join(map(str, frame.columns))}. Add one, or list them with features=[...].")
    for c, column in inputs.items() if only_numbers else ():
        if column.dtype.kind not in "biuf":
            problems.append(
                f"input column {c!r} holds no numbers. Encode it as in training, or list the inputs with data.features (features=)."
            )
        elif bad := int((~np.isfinite(column.to_numpy(dtype=float, na_value=np.nan))).sum()):
            problems.append(f"input column {c!r}: {bad:,} of {len(column):,} rows are empty or infinite. Fill them in as in training.")
    raise_all(problems, source)
    return _cohort(data.FeatureTable(inputs, scale=scale), name, read)


def cohort_from_images(
    frame: pd.DataFrame, columns: Columns, folder: str | Path, name: str, *, allow_outside: bool = False, **decoding: Unpack[Decoding]
) -> Cohort:
    """The cohort of a frame whose column of ids names images in a folder; see `Cohort.from_images`."""
    from equipoise.data.image_files import find_files, is_view
    from equipoise.data.images import Images

    image = str(columns.id)
    rows, view = np.arange(len(frame)), columns.view
    if view is not None:
        if view not in frame.columns:
            raise BadInput(*missing_columns([view], list(map(str, frame.columns))), source=name)
        rows = np.flatnonzero(is_view(frame[view]))
        if len(frame) and not len(rows):
            values = ", ".join(map(str, frame[view].unique()[:6]))
            problem = f"view column {view!r} holds no frontal view (PA, AP or frontal) in {len(frame):,} rows; it holds {values}"
            raise BadInput(problem, source=name)
    chosen = frame.iloc[rows].reset_index(drop=True)
    # The index still has the row numbers of the file if rows were removed from the frame.
    is_row_number = pd.api.types.is_integer_dtype(frame.index) and frame.index.is_monotonic_increasing
    numbers = [int(frame.index[row] if is_row_number else row) + 1 for row in rows]
    problems: list[str] = []
    with collecting(problems):
        read = read_columns(chosen, columns)
    with collecting(problems):
        files = find_files(chosen[image], folder, image, allow_outside=allow_outside, rows=numbers) if image in chosen else []
    raise_all(problems, name if len(rows) == len(frame) else f"{name}, {len(rows):,} frontal of {len(frame):,} rows")
    images = Images.open(files, places=[f"row {number} below the header" for number in numbers], **decoding)
    whole = _cohort(data.FeatureTable(chosen[[]]), name, read)
    return replace(whole.take([k for k in range(len(rows)) if k not in images.broken]), source=images)


@dataclass(frozen=True, eq=False)
class Scores(Grouped):
    """One score in [0, 1] per row, with its label, its groups and its patient.

    >>> frame = pd.DataFrame({"y": [1, 0, 1, 0], "p": [0.9, 0.2, 0.4, 0.3], "sex": ["F", "F", "M", "M"]})
    >>> len(Scores.from_frame(frame, label="y", score="p", group="sex", reference="M"))
    4
    """

    y: IntArray  # (n,)
    score: FloatArray  # (n,)
    attributes: tuple[Attribute, ...]
    patients: ObjectArray | None
    ids: ObjectArray = field(default_factory=lambda: np.empty(0, dtype=object))
    name: str = "scores"
    weight: FloatArray | None = None  # (n,) positive sample weights; None if every row counts once
    features: FeatureTable | None = None  # further columns that a rule may use at prediction time
    logit: FloatArray | None = None  # (n,) the logits that the scores were made from, by which rows are ranked
    dates: DateArray | None = None  # (n,) the day of each row; None if no column has it
    strata: Attribute | None = None  # the rows that are comparable; None if no column has it
    adjudicated: IntArray | None = None  # (n,) the adjudicated label, -1 where there is none; None if no column has it

    def __post_init__(self) -> None:
        if not len(self.ids):
            object.__setattr__(self, "ids", np.arange(len(self.y)))
        if self.features is not None and len(self.features) != len(self.y):
            raise BadInput(
                f"the features have {len(self.features):,} rows, the scores {len(self.y):,}. Give the same rows in the same order."
            )

    @classmethod
    @takes_fields_of(Columns, without=("classes", "score_prefix", "view", "max_table_bytes"))
    def from_frame(cls, frame: pd.DataFrame, *, name: str = "scores", **columns: Any) -> Scores:
        """The scores in a pandas frame, whose columns are named as in `Columns`; raises `BadInput` with everything wrong with it.

        Groups, patients, ids, bins and conflicts as in `Cohort.from_frame`. `weight` names a column of sample weights (positive numbers),
        for case-control and survey samples: a row of weight 3 stands for three. Only their ratios matter.

        `features` names further columns, for repairs that use more than the score (`eq.debias(scores, method="bias-score")`). With
        `logits`, the score column holds logits, which the logistic function maps to scores. AUROC and other measures of ranks use the
        logits themselves: the scores of logits above 37 are all 1.
        """
        check_frame("Scores.from_frame", frame)
        scores = scores_from_columns(frame, Columns(**columns), name)
        if len(scores) > 1:
            raise BadInput(f"Scores are those of one label; got {', '.join(scores)}. Read one set of scores per label.")
        return next(iter(scores.values()))

    @classmethod
    def from_arrays(
        cls,
        y: object,
        score: object = None,
        groups: object = None,
        *,
        reference: str | None = None,
        patients: object = None,
        attribute: str = "group",
        bins: Sequence[float] | None = None,
        missing: Sequence[object] = (),
        merge: Mapping[str, Sequence[object]] | None = None,
        conflicts: str = "row",
        weights: object = None,
        dates: object = None,
        within: object = None,
        audit_label: object = None,
        name: str = "scores",
    ) -> Scores:
        """The scores in arrays of the same rows.

        - `y`: labels, 0 or 1; `score`: in [0, 1]; `groups`: names; `patients`: ids; `weights`, `dates`: of each row.
        - `within`: what makes patients comparable, such as views; `audit_label`: adjudicated labels of some rows, NaN in others.
        - `reference`: the privileged group; `attribute`: what the groups are called.
        - `bins`: edges that cut groups that are numbers; `missing`, `merge`, `conflicts`: as in `Cohort.from_frame`.

        >>> Scores.from_arrays([1, 0, 1, 0], [0.9, 0.2, 0.4, 0.3], ["F", "F", "M", "M"], reference="M").groups.tolist()
        ['F', 'F', 'M', 'M']
        """
        misused = [values for values in (y, score, groups) if isinstance(values, (pd.DataFrame, Cohort, Scores))]
        if misused or score is None or groups is None:
            expected = "labels, scores and groups: from_arrays(y, score, groups)"
            frame_advice = "The columns of a frame are read by eq.Scores.from_frame(frame, label=..., score=..., group=...)."
            advice = {"DataFrame": frame_advice, "Cohort": "A cohort's scores are eq.Scores.of(cohort, score)."}
            raise Misuse("Scores.from_arrays", expected, misused[0] if misused else y, advice)
        arrays = {"label": y, "score": score, "group": groups, "patient": patients, "weight": weights, "date": dates}
        frame, roles = frame_from_arrays({**arrays, "within": within, "audit_label": audit_label}, attribute, bins)
        return cls.from_frame(frame, reference=reference, missing=missing, merge=merge, conflicts=conflicts, name=name, **roles)

    @classmethod
    def of(cls, cohort: Cohort, score: object) -> Scores:
        """The rows of a `cohort` with a classifier's `score` (n,) for each, in [0, 1]."""
        check_cohort("Scores.of(cohort, score)", cohort)
        try:
            values = np.asarray(score, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            raise BadInput(f"the scores for {cohort.name!r} must be numbers in [0, 1], one per row; got {type(score).__name__}") from None
        if len(values) != len(cohort):
            raise BadInput(f"{len(values):,} scores for {len(cohort):,} rows of {cohort.name!r}. Give one score per row.")
        if bad := int((~((values >= 0) & (values <= 1))).sum()):
            raise BadInput(f"{bad:,} of {len(values):,} scores for {cohort.name!r} are NaN or lie outside [0, 1]. Give probabilities.")
        who = cohort.patients, cohort.ids, cohort.name, cohort.weight
        truth = None if cohort.adjudicated is None else cohort.adjudicated[:, 0]
        return cls(cohort.y, values, cohort.attributes, *who, dates=cohort.dates, strata=cohort.strata, adjudicated=truth)

    def with_features(self, features: object) -> Scores:
        """These scores with columns that a rule may use: a frame, or an array (n, d), of the same rows in the same order."""
        if isinstance(features, pd.DataFrame):
            frame = features.reset_index(drop=True)
        else:
            try:
                values = np.asarray(features, dtype=np.float64)
            except (TypeError, ValueError):
                raise Misuse("features", "a frame, or an array of numbers (n, d)", features) from None
            if values.ndim != 2:
                raise BadInput(f"features must be a frame, or an array (n, d); got an array of shape {values.shape}")
            from equipoise.data.table import feature_columns

            frame = feature_columns(values)
        raise_all(feature_problems(frame, list(map(str, frame.columns)), [a.name for a in self.attributes]), self.name)
        return replace(self, features=data.FeatureTable(frame.set_axis(list(map(str, frame.columns)), axis=1)))

    def encoded_by(self, encoder: Encoder) -> Scores:
        """These rows with their features encoded by the encoder of another set."""
        return self if self.features is None else replace(self, features=self.features.encoded_by(encoder))

    def encoded(self) -> Scores:
        """These rows with their features encoded."""
        return self if self.features is None else self.encoded_by(self.features.fitted())

    def __repr__(self) -> str:
        return f"Scores({self.name!r}, {self.described()})"

    def content(self) -> tuple[str, pd.DataFrame, None]:
        """What the rows contain, by which equal rows are found."""
        features = {} if self.features is None else {f"feature {name}": column for name, column in self.features.frame.items()}
        return "scores", pd.DataFrame({"score": self.score, "y": self.y, "group": self.groups, **features}), None

    @property
    def rank(self) -> FloatArray:
        """The values by which rows are ranked: the logits if there are any, because different logits may have the same score."""
        return self.score if self.logit is None else self.logit


def read_scores(path: str | Path, columns: Columns) -> dict[str, Scores]:
    """The scores of each label in a data file, one column per label; with several labels, the rows in which each is known.

    - `path`: a CSV or Parquet file that is read as a whole.
    - `columns`: who is what in it, with one score column per label.
    """
    frame = read_table(path, text=columns.text, words=columns.words, limit=columns.max_table_bytes)
    return scores_from_columns(frame, columns, Path(path).name)


def scores_from_columns(frame: pd.DataFrame, columns: Columns, name: str = "scores") -> dict[str, Scores]:
    """The scores of each label in a frame, one column per label; with several labels, the rows in which each is known.

    Groups, bins, references and conflicts are those of all rows, and so are the numbers of rows without ids. Raises `BadInput` with
    everything wrong with the columns. The features, if any, are kept with the scores.
    """
    source, features = name if name != "scores" else "", list(columns.features)
    raise_all(feature_problems(frame, features, {*columns.used, columns.id}), source)
    read = read_columns(frame, columns, source)
    if not columns.score:
        raise BadInput("no score column was named", source=source)
    table = data.FeatureTable(frame[features].reset_index(drop=True)) if features else None
    scores, problems = dict[str, Scores](), list[str]()
    for label, y, (score, logit) in zip(columns.label, np.ascontiguousarray(read["targets"].T), read["scores"], strict=True):
        truth = None if read["adjudicated"] is None else read["adjudicated"][:, len(scores)]
        more = read["dates"], read["strata"], truth
        rows = Scores(y, score, read["attributes"], read["patients"], read["ids"], name, read["weight"], table, logit, *more)
        known = y != UNKNOWN
        scores[label] = rows if known.all() else rows.take(known)
        for attribute in () if known.all() else scores[label].attributes:
            present = [level for code, level in enumerate(attribute.levels) if code in attribute.codes]
            if len(present) < 2 or attribute.reference not in present:
                groups = ", ".join(map(repr, present)) or "missing values"
                problems.append(
                    f"column {attribute.name!r} holds only {groups} where the label {label!r} is known; a gap needs the reference "
                    f"{attribute.reference!r} and another group. Leave the label out, or use more rows."
                )
    raise_all(problems, source)
    return scores


Rows = Cohort | Scores  # the data that a repair is fitted to and evaluated on


def check_cohort(call: str, value: object) -> None:
    """Raises `Misuse` unless the argument is a cohort, and names the call to use instead."""
    if isinstance(value, Cohort):
        return
    advice = {
        "Scores": "Scores are audited as they are: eq.audit(scores).",
        "DataFrame": "Make a cohort of the frame first: eq.Cohort.from_frame(frame, label=..., group=...). A frame with scores is read by "
        "eq.Scores.from_frame(frame, label=..., score=..., group=...).",
        "Parts": "These are three cohorts already: parts.train, parts.valid and parts.test.",
        "Module": "A network is not data. Make a cohort: eq.Cohort.from_frame(...), from_images(...) or eq.load(...).",
        **dict.fromkeys(("Tensor", "ndarray"), "Make a cohort of it first: eq.Cohort.from_arrays(inputs, y, groups)."),
        "str": "A data set of the catalogue is loaded by its name: eq.load(name).",
    }
    raise Misuse(call, "a Cohort", value, advice)


@dataclass(frozen=True, eq=False)
class Parts:
    """The three sets of one cohort; no patient is in two of them."""

    train: Cohort
    valid: Cohort
    test: Cohort
    unseen: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict, repr=False)  # set: column: level: rows

    @classmethod
    def of(cls, cohort: Cohort, part: IntArray) -> Parts:
        """The sets of a cohort from the number (n,) of each row's set: 0, 1 or 2. Tables are encoded by the training set."""
        names = ("train", "valid", "test")
        train, valid, test = (cohort.take(np.flatnonzero(part == k), f"{cohort.name}/{name}") for k, name in enumerate(names))
        encoder = train.source.fitted(again=True)
        if encoder is None:
            return cls(train, valid, test)
        unseen = {name: levels for name, part in (("valid", valid), ("test", test)) if (levels := encoder.unseen(part.source.features()))}
        return cls(train.encoded_by(encoder), valid.encoded_by(encoder), test.encoded_by(encoder), unseen)

    def __iter__(self) -> Iterator[Cohort]:
        return iter((self.train, self.valid, self.test))


def split(cohort: Cohort, *, seed: int = 0, fractions: Sequence[float] = (0.6, 0.2, 0.2), test_after: object = None) -> Parts:
    """Training, validation and test sets of a cohort, by patient if there are patient ids, stratified by label and group.

    `fractions` are the shares of rows in the three sets. With `test_after`, a date, the test set is of later patients (see
    `Grouped.hold_out`), and the others are divided by the first two fractions. For tables, levels and scales are learned from the training
    set; levels that occur only in the other sets are listed in `unseen`.
    """
    check_cohort("eq.split", cohort)
    shares = np.asarray(fractions, dtype=float)
    if shares.shape != (3,) or (shares <= 0).any() or not np.isclose(shares.sum(), 1.0):
        raise BadInput(f"fractions must be three positive numbers that add up to 1, for train, validation and test; got {tuple(fractions)}")
    part, kept, rows = np.full(len(cohort), 2), np.ones(len(cohort), bool), cohort
    if test_after is not None:
        later = LaterPatients.of([cohort], test_after)
        kept, shares = later.repair[0], np.array([*shares[:2] / shares[:2].sum(), 0.0])
        part[later.left_out[0]], rows = -1, cohort.take(kept)
    unit = np.arange(len(rows)) if rows.patients is None else patient_codes(rows.patients)
    part[kept] = assign_units([rows], unit, np.bincount(unit), shares, generator(seed, "split"))
    if len(set(part.tolist()) - {-1}) < 3:
        raise too_few(cohort, unit, f"for sets of {tuple(fractions)}")
    return Parts.of(cohort, part)
