"""The values in the columns of a user's frame, validated. All problems of a frame come in one message.

Labels are one array (n, L) of 0 and 1, with -1 for unknown: one column per label, or per class (this class or another). The only label of a
model with one output is a column without a name.
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import (
    MANY_LEVELS,
    Attribute,
    BoolArray,
    DateArray,
    FloatArray,
    IntArray,
    ObjectArray,
    alike_names,
    group_names,
    is_blank,
    level_name,
    merge_groups,
    precision_problem,
    to_numbers,
    warn_of_alike_patients,
)
from equipoise.data.columns import Columns
from equipoise.errors import BadInput, Misuse, collecting, did_you_mean, raise_all

log = logging.getLogger(__name__)

UNKNOWN = -1
CLASSES_ADVICE = (
    " If they are the classes of a network that decides by argmax, name all of them in the order of its outputs: "
    "--set data.classes={} --set data.classes={} ... (Python: classes={!r})."
)
PATIENT_COLUMNS = {"patient", "patients", "patientid", "patid", "ptid", "pid", "subject", "subjectid", "personid", "mrn"}  # in any spelling
PATIENTS_APART = 0.95  # share of different values in a column that tells patients apart, such as a score that is not rounded
FEWEST_DISTINCT = 20  # rows; among fewer, values differ by chance
UNNAMED_LABEL = ("",)  # the names of the labels of a model with one output


def equals(column: "pd.Series[object]", value: object) -> BoolArray:
    """Which rows hold a value. Text is compared by its characters, so that '1' is not '1.0'; numbers are compared as numbers.

    >>> equals(pd.Series(["1", "1.0"]), "1").tolist(), equals(pd.Series([1.0, 2.0]), "1").tolist()
    ([True, False], [True, False])
    """
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        try:
            return np.asarray(column.eq(float(value)).fillna(False), dtype=bool)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return np.zeros(len(column), bool)
    names = column.astype(object).map(level_name, na_action="ignore")
    return np.asarray(names.eq(level_name(value)) & column.notna(), dtype=bool)


def without_texts(column: "pd.Series[Any]", texts: Collection[object]) -> "pd.Series[Any]":
    """A column without these texts or numbers, which stand for values that are missing (`data.missing`).

    >>> without_texts(pd.Series(["F", "?", "M"]), ["?", -9]).isna().tolist()
    [False, True, False]
    """
    found = np.zeros(len(column), bool)
    for text in texts:
        found |= equals(column, text)
    # Integers become objects and not floating-point numbers, which would change large ones.
    return (column if column.dtype.kind == "f" else column.astype(object)).mask(found) if found.any() else column


def parse_label(
    column: "pd.Series[object]", name: str, positive: object = None, *, unknown_allowed: bool = False
) -> tuple[IntArray, list[str]]:
    """A label (n,) as 0 and 1, and its problems. `positive` is the value that becomes 1; by default the column must hold 0 and 1.

    With `unknown_allowed`, empty cells and -1 become -1.
    """
    numbers, labelled, problems = to_numbers(column), column.notna().to_numpy(dtype=bool), []
    if unknown_allowed:
        labelled = labelled & (numbers != UNKNOWN)
    elif not labelled.all():
        problems.append(
            f"label column {name!r}: {int((~labelled).sum()):,} of {len(column):,} rows have no label (the first is row "
            f"{int(labelled.argmin()) + 1:,} below the header). Fill them in, or leave those rows out of the table."
        )
    is_positive = numbers == 1 if positive is None else equals(column, positive)
    not_binary = labelled & ~np.isin(numbers, (0, 1))
    if positive is None and not_binary.any():
        names = sorted(column[labelled].map(level_name).unique())
        values = [shorten(value) for value in names]
        candidates = values if len(values) == 2 else values[-1:]
        options = " or ".join(f"--set data.positive={value}" for value in candidates)
        problems.append(
            f"label column {name!r} must hold 0 and 1{', and NaN or -1 where it is not known' if unknown_allowed else ''}; "
            f"{int(not_binary.sum()):,} of {len(column):,} rows hold something else. It holds {_examples(column[labelled])}. If one of "
            f"them is the positive value, name it: {options} (in Python {' or '.join(f'positive={value!r}' for value in candidates)})."
            + (CLASSES_ADVICE.format(*names[:2], names[:3]) if 2 < len(names) <= MANY_LEVELS else "")
        )
    return np.where(labelled, is_positive, UNKNOWN).astype(np.int64), problems


def constant_label_problems(positives: int, rows: int, name: str, positive: object = None, examples: str = "") -> list[str]:
    """A problem if all rows have the same label. `examples` describes the values of a column that lacks the positive value."""
    if not rows:
        return [f"label column {name!r} has no known value in any row. Leave it out."]
    if positive is not None and not positives:
        return [f"label column {name!r} never holds the positive value {positive!r}{examples and f'; it holds {examples}'}"]
    if positives in (0, rows):
        what = "only positives" if positives else "only negatives"
        return [f"label column {name!r} holds {what} in all {rows:,} rows. Both are needed: use more rows or another column."]
    return []


def read_label_columns(frame: pd.DataFrame, names: Sequence[str], positive: object, *, unknown_allowed: bool) -> IntArray:
    """The labels (n, L) in these columns, each with both positives and negatives; NaN and -1 are unknown, if that is allowed."""
    problems, values = [], []
    for name in names:
        label, label_problems = parse_label(frame[name], name, positive, unknown_allowed=unknown_allowed)
        positives, labelled = int((label == 1).sum()), label != UNKNOWN
        examples = _examples(frame[name][labelled]) if positive is not None and not positives else ""
        problems += label_problems or constant_label_problems(positives, int(labelled.sum()), name, positive, examples)
        values.append(label)
    raise_all(problems)
    return np.stack(values, 1)


def read_class_column(column: "pd.Series[object]", name: str, names: Sequence[str]) -> IntArray:
    """The labels (n, L) in a column that holds the names of classes, or their numbers from 0; NaN and -1 are unknown."""
    cells = column.map(level_name, na_action="ignore")
    labelled = column.notna().to_numpy() & ~cells.eq(str(UNKNOWN)).to_numpy(dtype=bool, na_value=False)
    by_number = not cells[labelled].isin(names).any()
    positions = {str(k) if by_number else class_name: k for k, class_name in enumerate(names)}
    codes = cells.map(positions).to_numpy(np.float64)
    if unexpected := sorted(set(cells[labelled & np.isnan(codes)])):
        raise BadInput(
            f"label column {name!r} holds values that are none of the classes {', '.join(names)}: {', '.join(unexpected[:6])}."
            f"{did_you_mean(unexpected[0], names)} Add them to classes=[...], or leave those rows empty."
        )
    values: IntArray = np.where(labelled[:, None], codes[:, None] == np.arange(len(names)), UNKNOWN).astype(np.int64)
    if empty := [class_name for k, class_name in enumerate(names) if not (values[:, k] == 1).any()]:
        raise BadInput(f"label column {name!r} holds no row of the classes {', '.join(empty)}. Leave them out or use more rows.")
    return values


def _examples(values: "pd.Series[object]") -> str:
    names = sorted(values.map(level_name).unique(), key=lambda name: (len(name), name))
    return f"{len(names):,} different values: {', '.join(map(shorten, names[:6]))}{' ...' if len(names) > 6 else ''}"


def shorten(text: str) -> str:
    """A value from the user's table as shown in a message: at most 40 characters."""
    return text if len(text) <= 40 else f"{text[:36]} ..."


def read_columns(frame: pd.DataFrame, columns: Columns, source: str = "") -> dict[str, Any]:
    """The values of the columns of a frame that have a role, as fields of rows; raises `BadInput` with everything wrong with them.

    The scores are a list with the scores and the logits, if any, of each label; they mean nothing where the label is unknown. Logs a
    warning if rows seem to be of the same patients.
    """
    # A frame that lacks columns, or has them twice or with several values per row, is not read at all.
    counts = {name: list(frame.columns).count(name) for name in (*columns.used, columns.id) if name is not None}
    absent = [name for name, count in counts.items() if not count]
    problems = missing_columns(absent, list(map(str, frame.columns))) if absent else []
    problems += [f"column {name!r} occurs {count} times. Rename all but one." for name, count in counts.items() if count > 1]
    problems += [] if len(frame) else ["the table has no rows"]
    problems += columns.problems()
    for name in (name for name, count in counts.items() if count == 1 and frame[name].dtype == object):
        if (nested := frame[name].map(_is_nested).to_numpy(bool)).any():
            affected = _affected_rows(nested)
            problems.append(
                f"column {name!r}: {affected} hold lists or records (or tensors); one value per row is needed. Use another column."
            )
    raise_all(problems, source)
    if columns.missing:  # a copy, for the table may be the inputs too
        frame = frame.assign(**{name: without_texts(frame[name], columns.missing) for name in columns.used if name != columns.patient})
    patient, fields = columns.patient, dict[str, Any](scores=[], weight=None, dates=None, strata=None, adjudicated=None)
    with collecting(problems):
        names, one = tuple(map(level_name, columns.classes)) or columns.label, len(columns.label) == 1
        if columns.classes:
            targets = read_class_column(frame[columns.label[0]], columns.label[0], names)
        else:
            targets = read_label_columns(frame, columns.label, columns.positive, unknown_allowed=not one)
        # The summary of several labels is 1 if any is known to be positive; that of classes, if the class is not the first.
        fields["y"] = ((targets[:, 1:] if columns.classes else targets) == 1).any(1).astype(np.int64)
        fields |= {"targets": targets, "labels": names if columns.classes or not one else UNNAMED_LABEL, "kind": columns.kind}
    for at, score in enumerate(columns.score):
        labelled = fields["targets"][:, at] != UNKNOWN if "targets" in fields else True
        *values, score_problems = read_score_column(frame[score], score, columns.logits, labelled)
        fields["scores"].append(values)
        problems += score_problems
    if columns.weight is not None:
        fields["weight"], weight_problems = read_weights(frame[columns.weight], columns.weight)
        problems += weight_problems
    if columns.audit_label:
        with collecting(problems):
            fields["adjudicated"] = read_label_columns(frame, columns.audit_label, columns.positive, unknown_allowed=True)
    if columns.within:
        with collecting(problems):
            fields["strata"] = read_strata(frame, columns)
    if columns.date is not None:
        with collecting(problems):
            fields["dates"] = read_dates(frame[columns.date], columns.date)
    patient_problems = identifier_problems(frame[patient], patient, "patient") if patient else []
    attributes = []
    for name, reference in zip(columns.group, columns.references, strict=True):
        with collecting(problems):
            patients = frame[patient] if patient and not patient_problems else None
            column = frame[name] if name in columns.bins else merge_groups(frame[name], columns.merge)
            attribute = Attribute.of(column, name, reference, columns.bins.get(name), patients, columns.conflicts)
            merged = {new: tuple(map(level_name, groups)) for new, groups in columns.merge.items()}
            attributes.append(replace(attribute, missing_texts=tuple(map(level_name, columns.missing)), merged=merged))
    problems += patient_problems
    if columns.id:
        problems += identifier_problems(frame[columns.id], columns.id, "id")
        again = frame[columns.id][frame[columns.id].duplicated() & frame[columns.id].notna()].unique()
        if len(again):
            few = _first_five(again)
            problems.append(
                f"id column {columns.id!r}: {len(again):,} ids occur more than once in {len(frame):,} rows: {few}. Keep one row each."
            )
    raise_all(problems, source)
    warn_of_repeated_patients(frame, columns)
    held = {name: None for group in columns.group for name in group_names(frame[group]).dropna().unique()} if columns.merge else {}
    for group in (level_name(group) for groups in columns.merge.values() for group in groups):
        if group not in held:  # a smaller table, as of tests, may lack a rare group
            log.warning("data.merge names %r, which no row has as its group.%s", group, did_you_mean(group, held))
    patients = read_identifiers(frame[patient]) if patient else None
    ids = read_identifiers(frame[columns.id]) if columns.id else np.arange(len(frame))
    return {**fields, "attributes": tuple(attributes), "patients": patients, "ids": ids}


def feature_problems(frame: pd.DataFrame, features: Sequence[str], other_columns: Collection[str | None] = ()) -> list[str]:
    """The problems of the columns named as features: absent, repeated, or with another role, such as the group."""
    problems = [f"no feature column {c!r}.{did_you_mean(c, map(str, frame.columns), 0.6)}" for c in features if c not in frame.columns]
    again = dict.fromkeys(c for c in features if list(features).count(c) > 1)
    problems += [f"feature column {c!r} occurs more than once in the frame or the list. Keep it once." for c in again]
    return problems + [
        f"column {c!r} is a feature and has another role (label, score, group, patient and so on). A rule that reads the group needs "
        "each patient's group: use group-thresholds for that. Leave it out of the features."
        for c in dict.fromkeys(features)
        if c in other_columns
    ]


def check_frame(call: str, frame: object) -> None:
    """Raises `Misuse` unless the argument is a frame, and names the call to use instead."""
    if isinstance(frame, pd.DataFrame):
        return
    advice = {
        **dict.fromkeys(("str", "PurePath"), "Read the file first, ids as text: pd.read_csv(path, dtype={'patient': str})."),
        "Cohort": "A cohort's scores are eq.Scores.of(cohort, score); to audit a network on it: eq.audit(model, cohort).",
        "Scores": "These are scores already: eq.audit(scores).",
        **dict.fromkeys(("ndarray", "Tensor"), "Arrays are read by from_arrays."),
        **dict.fromkeys(("dict", "list"), "Make it one: pd.DataFrame(...)."),
    }
    raise Misuse(call, "a pandas DataFrame and the names of its columns", frame, advice)


def missing_columns(names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The problems of a table that lacks these columns, one each; the last one lists the columns that the table has.

    >>> missing_columns(["Sex", "race"], ["y", "sex"])
    ["no column 'Sex'. Did you mean 'sex'?", "no column 'race'. The columns are: y, sex."]
    """
    shown = ", ".join(map(shorten, columns[:20])) + (f", and {len(columns) - 20} more" if len(columns) > 20 else "")
    problems = [f"no column {name!r}.{did_you_mean(name, columns, 0.6)}" for name in names]
    return [*problems[:-1], *(f"{problem} The columns are: {shown}." for problem in problems[-1:])]


def read_score_column(
    column: "pd.Series[object]", name: str, logits: bool = False, labelled: BoolArray | bool = True
) -> tuple[FloatArray, FloatArray | None, list[str]]:
    """The scores in a column, its logits if it holds those, and the problems.

    - `name`: of the column, in messages.
    - `logits`: whether it holds logits, which the logistic function maps to scores.
    - `labelled`: the rows whose values are checked; others are NaN.
    """
    numbers = np.where(labelled, to_numbers(column), np.nan)
    empty = labelled & column.isna().to_numpy()
    text = labelled & ~empty & np.isnan(numbers)
    with np.errstate(invalid="ignore"):
        outside = np.isinf(numbers) if logits else (numbers < 0) | (numbers > 1)
    problems = []
    if text.any():
        first = shorten(str(column[text].iloc[0]))
        if first.endswith("%"):
            advice = "They look like percentages: remove the sign and divide by 100."
        elif first.replace(",", ".", 1).lstrip("-").replace(".", "", 1).isdigit():
            advice = "They look like decimal commas: write points instead, or semicolons between the columns."
        else:
            advice = "Correct them or leave those rows out."
        problems.append(f"score column {name!r}: {_affected_rows(text)} are not numbers, {first!r} in the first. {advice}")
    if empty.any():
        problems.append(f"score column {name!r}: {_affected_rows(empty)} are empty (NaN). Fill them in or leave them out.")
    if outside.any():
        low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
        if logits:
            advice = "A logit is a finite number: correct them or leave those rows out."
        elif low < 0:
            advice = "They look like logits: add --set data.logits=true (Python: logits=True), which applies 1 / (1 + exp(-x))."
        elif 2 < high <= 100:
            advice = "They look like percentages: divide by 100 first."
        else:
            advice = "A score is a probability: correct them or leave those rows out."
        where = "are infinite" if logits else "lie outside [0, 1]"
        problems.append(f"score column {name!r}: {_affected_rows(outside)} {where}; the scores go from {low:g} to {high:g}. {advice}")
    return *score_and_logit(numbers, logits), problems


def score_and_logit(values: FloatArray, logits: bool) -> tuple[FloatArray, FloatArray | None]:
    """The scores, and the logits if the values are logits, which the logistic function maps to scores."""
    if not logits:
        return values, None
    from scipy.special import expit  # imported late because few files hold logits

    return np.asarray(expit(values)), values


def read_weights(column: "pd.Series[object]", name: str) -> tuple[FloatArray, list[str]]:
    """The sample weights in a column, and a problem if some are not positive, finite numbers."""
    numbers = to_numbers(column)
    with np.errstate(invalid="ignore"):
        bad = ~(np.isfinite(numbers) & (numbers > 0))
    if not bad.any():
        return numbers, []
    first = shorten(str(column[bad].iloc[0]))
    return numbers, [
        f"weight column {name!r}: {_affected_rows(bad)} hold no positive, finite number, {first!r} in the first. Leave rows of weight 0 "
        "out; correct the others."
    ]


def read_strata(frame: pd.DataFrame, columns: Columns) -> Attribute:
    """The stratum of each row, such as the view of its image; of several columns, their intersection."""
    strata = []
    for name in columns.within:
        try:
            strata.append(Attribute.of(frame[name], name, None, columns.bins.get(name)))
        except BadInput as error:
            raise BadInput(*error.problems, advice=f"Patients are to be comparable within {name!r} (within=, --within).") from None
    return Attribute.crossed(strata)


def read_dates(column: "pd.Series[object]", name: str) -> DateArray:
    """The dates (n,) in a column: ISO 8601 with or without a time, a year, a month or 20261116; one error with the rows that hold none.

    Other orders, such as 11/12/2026, are refused, since the day and the month cannot be distinguished.

    >>> read_dates(pd.Series(["2026-11-16", "2026-11-16T08:30", "20261116", 2026]), "visit").astype(str).tolist()
    ['2026-11-16', '2026-11-16', '2026-11-16', '2026-01-01']
    """
    if pd.api.types.is_datetime64_any_dtype(column):
        dates: DateArray = column.dt.tz_localize(None).to_numpy().astype("datetime64[D]")
    else:
        dates = np.full(len(column), np.datetime64("NaT"), dtype="datetime64[D]")
        codes, texts = pd.factorize(column.map(level_name, na_action="ignore"))
        for code, text in enumerate(texts):
            if found := re.fullmatch(r"\s*(\d{4})(?:-?(\d\d)(?:-?(\d\d)(?:[ T]\d\d:.*)?)?)?\s*", text):
                with suppress(ValueError):  # no such day
                    dates[codes == code] = np.datetime64("-".join(filter(None, found.groups())), "D")
    if (wrong := np.isnat(dates)).any():
        held = column[wrong].dropna().map(str)
        shown = f", which hold {', '.join(map(repr, map(shorten, held.unique()[:3])))}" if len(held) else ""
        raise BadInput(
            f"date column {name!r}: {_affected_rows(wrong)} have no date as in 2026-11-16{shown}. Write dates as year, month and day, or "
            "leave those rows out."
        )
    return dates


def read_identifiers(column: "pd.Series[object]") -> ObjectArray:
    """The ids in a column, unchanged, except that integers which pandas stores as floating-point numbers become integers again."""
    values: ObjectArray = column.to_numpy(dtype=object)
    if pd.api.types.is_float_dtype(column):
        integers = (column % 1 == 0).to_numpy(dtype=bool, na_value=False)
        values[integers] = [int(value) for value in values[integers]]
    return values


def identifier_problems(column: "pd.Series[object]", name: str, role: str) -> list[str]:
    """The problems of a column of ids: empty cells, numbers too large to be exact, the same id as a number and as text."""
    empty, problems = is_blank(column), list[str]()
    if empty.any():
        what = "patient id" if role == "patient" else "id"
        problems = [f"{role} column {name!r}: {_affected_rows(empty)} have no {what}. Fill them in or leave them out."]
    values = column.cat.categories.to_series() if column.dtype == "category" else column[~empty]
    problem = ""
    if pd.api.types.is_float_dtype(values):
        problem = precision_problem(values, getattr(values.dtype, "numpy_dtype", values.dtype))
    elif values.dtype == object:
        problem = precision_problem(values)
        is_text = values.map(lambda value: isinstance(value, str)).to_numpy(bool)
        both = sorted(set(values[is_text]) & set(map(level_name, values[~is_text])))
        if both and not problem:
            problem = (
                f"holds {_first_five(both)} as a number in some rows and as text in others, so that one may be counted as two. "
                "Read the column as text (in pandas dtype=str)."
            )
    return problems + ([f"{role} column {name!r} {problem}"] if problem else [])


def _is_nested(value: object) -> bool:
    """Whether a cell holds several values, or a tensor, which is never equal to another tensor."""
    return pd.api.types.is_list_like(value) or (hasattr(value, "__array__") and not np.isscalar(value))


def frame_from_arrays(
    arrays: Mapping[str, object], attribute: str, bins: Sequence[float] | None, labels: Sequence[str] | None = None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A frame of lists, arrays or tensors (n,) by their role, and its columns by role; groups are called as the attribute, labels y.

    With the names of `labels`, these are an array (n, labels). Floating-point numbers keep their type, which `precision_problem` needs.
    Raises `BadInput` if lengths differ, since pandas would fill up the shorter ones.
    """
    roles = {role: {"label": "y", "group": attribute}.get(role, role) for role, values in arrays.items() if values is not None}
    columns: dict[str, pd.Series[Any]] = {}
    for role, name in roles.items():
        values: Any = arrays[role]
        values = values.detach().cpu() if hasattr(values, "detach") else values
        if isinstance(values, (list, tuple)):  # tensors of one number each, or of one number per label, become numbers
            cells = [value.tolist() if hasattr(value, "tolist") and _is_nested(value) else value for value in values]
            array: npt.NDArray[Any] = np.asarray(cells, dtype=object)
        else:
            try:
                array = np.asarray(values)
            except (TypeError, ValueError, RuntimeError) as error:  # a type that NumPy lacks, such as bfloat16
                problem = f"{name} cannot be read as one value per row: {error}. Make it an array first, as with .float().numpy()"
                raise BadInput(problem) from error
            array = array if array.dtype.kind == "f" else np.asarray(values, dtype=object)
        if role == "label" and labels is not None:
            if array.ndim != 2 or array.shape[1] != len(labels):
                raise BadInput(f"{len(labels)} labels ({', '.join(labels)}) need y of shape (n, {len(labels)}); got {array.shape}")
            columns |= {label: pd.Series(column) for label, column in zip(labels, array.T, strict=True)}
        elif array.ndim != 1:
            advice = ", or labels=[...], which names the columns" if role == "label" else ""
            raise BadInput(f"{name} has shape {array.shape}; one value per row is needed, shape (n,){advice}")
        else:
            columns[name] = pd.Series(array)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise BadInput(f"arrays of the same rows have the same length; got {', '.join(f'{n:,} in {name}' for name, n in lengths.items())}")
    others = {"bins": None if bins is None else {attribute: bins}, "label": roles["label"] if labels is None else list(labels)}
    return pd.DataFrame(columns), {**roles, **others}


def _affected_rows(rows: BoolArray) -> str:
    return f"{int(rows.sum()):,} of {len(rows):,} rows (the first is row {int(rows.argmax()) + 1:,} below the header)"


def _first_five(values: Iterable[object]) -> str:
    shown = [shorten(str(value)) for value in values]
    return ", ".join(shown[:5]) + (" ..." if len(shown) > 5 else "")


def warn_of_repeated_patients(frame: pd.DataFrame, columns: Columns) -> None:
    """Warns if rows seem to be of the same patients: by ids that are alike; without named patients, by a column of ids or as duplicates."""
    if columns.patient is not None:
        column = frame[columns.patient]
        if not pd.api.types.is_numeric_dtype(column) and (alike := alike_names(set(map(str, column.dropna().unique())))):
            warn_of_alike_patients(alike, columns.patient)
        return

    def distinct(column: "pd.Series[object]") -> int:
        try:
            return int(column.nunique())
        except TypeError:  # cells that hold lists
            return 0

    used = {*columns.used, columns.id}
    for name, column in frame.items():
        if name in used or re.sub(r"[\W_]", "", str(name)).lower() not in PATIENT_COLUMNS:
            continue
        patients, rows = distinct(column), int(column.notna().sum())
        if 2 < patients < rows:  # two values are a yes or no, such as inpatient or not
            log.warning(
                "rows are treated as independent; column %r has repeated values (%s in %s rows): name it with --patient (patient=)",
                *(str(name), f"{patients:,}", f"{rows:,}"),
            )
            return
    if columns.id is not None:
        return
    decimals = [k for k, dtype in enumerate(frame.dtypes) if dtype.kind == "f"][:4]
    try:
        # Equal rows are first sought by a few columns: in a table of hundreds, comparing all of them takes seconds.
        suspects = frame.iloc[:, decimals].duplicated(keep=False).to_numpy(bool) if decimals else np.ones(len(frame), bool)
        repeated = np.zeros(len(frame), bool)
        repeated[suspects] = frame[suspects].duplicated().to_numpy(bool)
    except TypeError:  # cells that hold lists
        return
    rest = frame[~repeated]
    if not repeated.any() or len(rest) < FEWEST_DISTINCT:
        return
    if any(distinct(column) >= PATIENTS_APART * len(rest) for _, column in rest.items()):  # else equal rows may be of different patients
        log.warning(
            "rows are treated as independent; %s of %s rows are exact duplicates of others: leave them out, or name the column of patients "
            "with --patient (patient=)",
            *(f"{int(repeated.sum()):,}", f"{len(frame):,}"),
        )
