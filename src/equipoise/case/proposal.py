"""`propose`: the case that a table suggests, each setting with the reason for it, and `case_text`, which writes a commented case file.

A guess follows the name of a column and its values. Nothing is guessed where a setting is given.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from equipoise import data, models
from equipoise.case.case import ESTIMATOR_FILES, Case
from equipoise.errors import BadInput
from equipoise.specification import extra_of, fields_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from equipoise.data import FloatArray

# Words in the names of columns, by role
NAMES = {
    "patient": {"patient", "subject", "mrn", "person", "pid", "patientid", "subjectid"},
    "score": {"score", "scores", "prob", "proba", "probability", "pred", "prediction", "p", "risk", "output", "logit", "confidence"},
    "group": {"sex", "gender", "race", "ethnicity", "ethnic", "age", "skin", "fitzpatrick", "insurance", "language", "religion", "marital"},
    "label": {
        "label",
        "y",
        "target",
        "truth",
        "true",
        "gt",
        "outcome",
        "diagnosis",
        "disease",
        "sick",
        "finding",
        "event",
        "readmitted",
        "died",
        "mortality",
    },
    "date": {"date", "day", "datetime", "visit", "admission", "studydate", "visitdate"},
    "view": {"view", "projection", "viewposition", "position"},
    "id": {"id", "uid", "image", "study", "row", "accession", "encounter", "case"},
    "threshold": {"threshold", "cutoff", "thresh"},
}
MISSING_TEXTS = {
    "?",
    "na",
    "n/a",
    "nan",
    "null",
    "missing",
    "unknown",
    "unknown/invalid",
    "not recorded",
    "not available",
    ".",
    "-",
}
MISSING_TEXTS |= {
    "unspecified",
    "undisclosed",
    "unable to obtain",
    "declined",
    "patient declined to answer",
    "-9",
    "-99",
    "-999",
    "999",
    "9999",
}
POSITIVE = {"1", "yes", "y", "true", "t", "positive", "pos", "sick", "present", "case", "abnormal", "dead", "died"}
WORDS = {"f": "women", "female": "women", "m": "men", "male": "men", "w": "women"}  # for groups in a column of sexes
EDGES = (18, 40, 60, 80)  # of ages
MOST_GROUPS, MOST_LEVELS = 2, 20
LEAST_PATIENTS = 30  # of a crossed group, with and without a label: a repair holds out a third of them
BUILDERS = ("build", "make", "create", "get_model", "build_model", "make_model", "create_model", "load", "model", "network")
TRANSFORMS = ("transform", "preprocess", "preprocessing", "prepare")
WEIGHTS = (".safetensors", ".pt", ".pth")
ASKED = ("data.label", "data.score", "data.group", "data.patient", "model.threshold")  # in a terminal
GIVEN = "given"


@dataclass
class Proposal:
    """The settings of a case by place, such as data.label, with the reason for each, and what remains to be checked."""

    values: dict[str, Any] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def take(self, place: str, value: Any, why: str) -> None:
        """Takes a value, unless the setting has one or there is none."""
        if place not in self.values and value not in (None, [], {}):
            self.values[place], self.why[place] = value, why

    def sections(self) -> dict[str, Any]:
        """The values as in a case file."""
        found: dict[str, Any] = {}
        for place, value in self.values.items():
            section, _, key = place.partition(".")
            found.setdefault(section, {})[key] = value
        return found

    @property
    def lacking(self) -> list[str]:
        """What a case needs and nothing suggests."""
        needed = {"data.label": "--label", "data.group": "--group"}
        found = [f"no column looks like the {place[5:]}. Name it: {flag}" for place, flag in needed.items() if place not in self.values]
        if "data.score" not in self.values and "model.load" not in self.values:
            found.append("no column looks like a score in [0, 1]. Name it: --score, or give the model: --model")
        return found


@dataclass(frozen=True)
class Profile:
    """A column: its words, its values without codes for missing ones, and those codes."""

    name: str
    values: pd.Series[Any]
    codes: list[str]

    @classmethod
    def of(cls, name: str, column: pd.Series[Any]) -> Profile:
        """The profile of a column of text."""
        texts = column.dropna().astype(str)
        texts = texts[texts.str.strip() != ""]
        codes = [text for text in texts.unique() if text.strip().casefold() in MISSING_TEXTS]
        left = texts[~texts.isin(codes)]
        return cls(name, left, codes) if len(left.unique()) > 1 else cls(name, texts, [])

    @property
    def words(self) -> set[str]:
        """The words of the name, in lower case."""
        return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", self.name)} | {self.name.lower()}

    def named(self, role: str) -> bool:
        """Whether the name has a word of a role."""
        return bool(self.words & NAMES[role])

    @property
    def distinct(self) -> list[str]:
        """The values, the most frequent first; fewer than 10,000."""
        return list(map(str, self.values.value_counts().index[:10_000]))

    @property
    def numbers(self) -> FloatArray | None:
        """The values as numbers; None if one is not."""
        numbers = pd.to_numeric(self.values, errors="coerce").to_numpy(np.float64)
        return numbers if len(numbers) and np.isfinite(numbers).all() else None

    @property
    def is_score(self) -> bool:
        """Whether these are numbers from 0 to 1, not all of them 0 or 1."""
        numbers = self.numbers
        return numbers is not None and bool(((numbers >= 0) & (numbers <= 1)).all() and len(np.unique(numbers)) > 10)

    @property
    def binary(self) -> list[str]:
        """The two values of a label, -1 left out, which stands for uncertain; empty for anything else."""
        found = [value for value in self.distinct[:4] if not (value in ("-1", "-1.0") and len(self.distinct) == 3)]
        return sorted(found) if len(found) == 2 == len(self.distinct) - (len(self.distinct) == 3 and len(found) == 2) else []


def propose(table: Path, given: Mapping[str, Any]) -> Proposal:
    """The case that a table suggests.

    - `table`: the file with one row per sample.
    - `given`: settings that are known, by place, as {"data.label": ["sick"]}; paths of a model or images too.
    """
    text = () if table.suffix.lower() in (".parquet", ".pq") else data.column_names(table)
    frame = data.read_table(table, text=text)
    columns = {str(name): Profile.of(str(name), frame[name].astype("object")) for name in frame.columns}
    made = Proposal({"data.table": str(table), **given}, {"data.table": GIVEN, **dict.fromkeys(given, GIVEN)})
    _propose_model(made)
    used = {name for value in given.values() for name in ([value] if isinstance(value, str) else value if isinstance(value, list) else [])}
    rest = {name: profile for name, profile in columns.items() if name not in used}
    _propose_ids(made, rest, len(frame))
    _propose_groups(made, rest)
    _propose_label_of_estimator(made, rest)
    _propose_labels(made, columns, rest)
    if "data.group" not in made.values:
        texts = [name for name, each in rest.items() if each.numbers is None and 2 <= len(each.distinct) <= 6]
        labels = made.values.get("data.label", [])
        made.take("data.group", [name for name in texts if name not in labels][:1], "has few values, in words")
    roles = [made.values.get(f"data.{role}", []) for role in ("label", "group", "score", "date", "within")]
    named = [name for role in roles for name in (role if isinstance(role, list) else [role]) if name in columns]
    codes = list(dict.fromkeys(code for name in named for code in columns[name].codes))
    codes += ["-1"] if any("-1" in columns[name].distinct for name in made.values.get("data.label", []) if name in columns) else []
    made.take("data.missing", codes, "codes for missing values in these columns")
    if made.why.get("data.group") not in (None, GIVEN):
        _enough_patients(made, columns)
    _propose_words(made, columns)
    if not made.lacking:
        _propose_reference(made, columns)
    return made


def _propose_model(made: Proposal) -> None:
    """The function in a file of code that builds the network, its weights next to it, and the transform in it."""
    load = made.values.get("model.load")
    if not isinstance(load, str) or not load.partition(":")[0].endswith(".py"):
        return
    path, _, name = load.partition(":")
    with suppress(OSError, SyntaxError):
        defined = [node for node in ast.parse(Path(path).read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
        free = [each.name for each in defined if len(each.args.args) == len(each.args.defaults)]
        builders = [each for each in BUILDERS if each in free] or free
        if not name and builders:
            made.values["model.load"], made.why["model.load"] = f"{path}:{builders[0]}", "the function that takes no argument"
        if "images.folder" in made.values:
            names = [each for each in TRANSFORMS if each in [node.name for node in defined]]
            made.take("images.transform", f"{path}:{names[0]}" if names else None, "the preprocessing next to the network")
    weights = [file for file in sorted(Path(path).parent.glob("*")) if file.suffix in WEIGHTS]
    made.take("model.weights", str(weights[0]) if len(weights) == 1 else None, "the only file of weights next to the code")


def _propose_label_of_estimator(made: Proposal, rest: dict[str, Profile]) -> None:
    """The column that holds the classes of an estimator; its inputs have no role and are taken out of the rest."""
    path = str(made.values.get("model.load", ""))
    if not path.endswith(ESTIMATOR_FILES) or made.values.get("data.features"):
        return
    how = {"trusted": made.values.get("model.trust_types", ()), "trust_pickle": bool(made.values.get("model.trust_pickle"))}
    columns = [name for name, each in rest.items() if each.binary]
    columns = sorted(columns, key=lambda name: not rest[name].named("label"))
    for value in (None, *(value for name in columns for value in rest[name].binary)):  # classes of text need a positive one
        try:
            estimator = models.load_predictor(path, positive=value, **how)
            break
        except BadInput as error:
            remarks = error.problems
    else:
        made.remarks += remarks
        return
    for name in estimator.columns or ():
        rest.pop(name, None)
    classes = {str(each) for each in estimator.classes}
    made.take(
        "data.label",
        [name for name in columns if name in rest and set(rest[name].binary) == classes][:1],
        f"holds the classes of the model: {', '.join(sorted(classes))}",
    )


def _propose_ids(made: Proposal, rest: dict[str, Profile], rows: int) -> None:
    """The columns of patients, rows, dates, views and names of images; each is taken out of the rest."""

    def take(place: str, names: Sequence[str], why: str) -> None:
        if names and place not in made.values:
            made.take(place, names[0], why)
            rest.pop(names[0])

    folder = made.values.get("images.folder")
    many = {name: each for name, each in rest.items() if len(each.distinct) > min(20, rows / 10) and not each.is_score}
    take("data.patient", [name for name, each in many.items() if each.named("patient")], "its name, and one value per patient")
    if folder is not None:
        files = {
            part for path in sorted(Path(folder).rglob("*"))[:50_000] for part in (path.name, path.stem, str(path.relative_to(folder)))
        }
        inside = [name for name, each in many.items() if name in rest and set(each.distinct[:20]) <= files]
        take("images.column", inside, "holds names of files in the folder")
    else:
        unique = [
            name for name, each in many.items() if name in rest and each.named("id") and len(each.values) == rows and each.values.is_unique
        ]
        take("data.id", unique, "its name, and no value twice")
    day = r"\d{4}-\d{2}-\d{2}.*|(19|20)\d{6}"
    dated = [name for name, each in rest.items() if each.named("date") and len(each.values) and each.values.str.fullmatch(day).all()]
    take("data.date", dated, "its name, and dates as values")
    views = [name for name, each in rest.items() if each.named("view") and 2 <= len(each.distinct) <= 12]
    place, why = ("data.within", "gaps are also reported among images of the same view") if folder is None else ("data.view", "its name")
    take(place, views, why)
    if isinstance(view := made.values.get("data.within"), str):
        made.values["data.within"] = [view]


def _propose_groups(made: Proposal, rest: dict[str, Profile]) -> None:
    """The columns of groups, and the edges that cut ages; they are taken out of the rest."""
    named = {name: each for name, each in rest.items() if each.named("group") and len(each.distinct) > 1}
    if "data.group" not in made.values:
        ages = [name for name, each in named.items() if each.numbers is not None and len(each.distinct) > MOST_LEVELS]
        few = [name for name, each in named.items() if len(each.distinct) <= MOST_LEVELS]
        made.take("data.group", [*few, *ages], "their names" if len(named) > 1 else "its name, and few values")
    for name in named:
        rest.pop(name)
    for name in made.values.get("data.group", []):
        numbers = named[name].numbers if name in named else None
        if numbers is None or len(np.unique(numbers)) <= MOST_LEVELS:
            continue
        shares = [float((numbers < edge).mean()) for edge in EDGES]
        edges = [edge for edge, share, last in zip(EDGES, shares, [0.0, *shares], strict=False) if share - last > 0.05 and share < 0.95]
        edges = edges or [int(np.median(numbers))]
        made.take("data.bins", {name: edges}, "numbers are cut into ranges")


def _propose_labels(made: Proposal, columns: Mapping[str, Profile], rest: Mapping[str, Profile]) -> None:
    """The labels, their scores and thresholds, and the value of the label that counts as positive."""
    binary = {name: each for name, each in rest.items() if each.binary}
    if "model.load" not in made.values:
        _propose_scores(made, columns, binary, rest)
    named = [name for name, each in binary.items() if each.named("label")]
    guess = (named or list(binary))[:1]
    others = [name for name in (named or binary) if name not in guess]
    if others and "data.label" not in made.values:
        made.remarks.append(f"also a label, perhaps: {', '.join(others)}")
    made.take("data.label", guess, "its name, and two values" if named else "has two values")
    single = [each for each in rest.values() if each.named("threshold") and len(each.distinct) == 1 and each.numbers is not None]
    if single:
        made.take("model.threshold", float(single[0].distinct[0]), f"the only value of {single[0].name}")
    label = columns.get(str(next(iter(made.values.get("data.label", [])), "")))
    if label is not None and label.binary and {value.removesuffix(".0") for value in label.binary} != {"0", "1"}:
        positive = [value for value in label.binary if value.casefold() in POSITIVE]
        rare = min(label.binary, key=lambda value: int((label.values == value).sum()))
        made.take("data.positive", positive[0] if len(positive) == 1 else rare, "it says so" if positive else "the rarer value: check it")


def _propose_scores(made: Proposal, columns: Mapping[str, Profile], binary: Mapping[str, Profile], rest: Mapping[str, Profile]) -> None:
    """The score of each label: the column with the label's name in its own, or the one that ranks a label best; and its threshold."""
    logits = {name for name, each in rest.items() if "logit" in each.words and each.numbers is not None and not each.is_score}
    scores = {name: each for name, each in rest.items() if each.is_score or name in logits}
    scores = {name: each for name, each in scores.items() if each.named("score")} or scores
    scores = {name: columns[name] for name in made.values.get("data.score", scores) if name in columns}
    labels = {name: columns[name] for name in made.values.get("data.label", binary) if name in columns and columns[name].binary}
    plain = {name: re.sub(r"[\W_]", "", name).casefold() for name in (*scores, *labels)}
    pairs, more = dict[str, str](), list[str]()  # the score of each label, and others
    for label in sorted(labels, key=len, reverse=True):  # Nodule or mass before Mass
        within = [name for name in scores if len(plain[label]) > 1 and plain[label] in plain[name] and name not in pairs.values()]
        if within:
            pairs[label] = within[0]
        more += within[1:] if "data.score" not in made.values else []
    if more := [name for name in more if name not in pairs.values()]:
        made.remarks.append(f"{len(more)} more columns of scores, such as {more[0]}: each label has one here")
    reason = "the label's name is in its own"
    decisions = {name: found for name, each in binary.items() for score in scores if (found := _separated(scores[score], each)) is not None}
    left = [label for label in labels if label not in decisions or label in made.values.get("data.label", [])]
    if not pairs and scores and left:
        best = max(((label, score) for label in left for score in scores), key=lambda pair: _rank(labels[pair[0]], scores[pair[1]]))
        pairs, reason = {best[0]: best[1]}, f"it ranks {best[0]} (AUROC {_ranked_apart(scores[best[1]], labels[best[0]]):.2f})"
    pairs = {label: pairs[label] for label in made.values.get("data.label", labels) if label in pairs}
    made.take("data.label", list(pairs), "two values, and a score of its own")
    if len(pairs) == len(made.values.get("data.label", ())):
        made.take("data.score", list(pairs.values()), reason)
    made.take("data.logits", bool(logits & {*made.values.get("data.score", ())}) or None, "values outside of [0, 1]")
    decided = {label: (name, at) for label, score in pairs.items() for name in decisions if (at := _separated(scores[score], binary[name]))}
    if pairs and len(decided) == len(pairs):
        thresholds: dict[str, Any] = {label: at for label, (_, at) in decided.items()}
        names = ", ".join(name for name, _ in decided.values())
        made.take("model.threshold", thresholds if len(pairs) > 1 else next(iter(thresholds.values())), f"{names} begins there")


def _rank(label: Profile, score: Profile) -> tuple[bool, float]:
    """How likely a column is the label of a score: by its name, then by how well the score ranks it."""
    return label.named("label"), _ranked_apart(score, label)


def _both(score: Profile, label: Profile) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Scores, and whether the label has its last value, of the rows that have both."""
    rows = score.values.index.intersection(label.values.index[label.values.isin(label.binary)])
    numbers = pd.to_numeric(score.values[rows], errors="coerce").to_numpy(np.float64)
    return numbers, (label.values[rows] == label.binary[-1]).to_numpy()


def _ranked_apart(score: Profile, label: Profile) -> float:
    """How well a score ranks two values, in either order."""
    numbers, last = _both(score, label)
    if not 0 < last.sum() < len(last):
        return 0.5
    auroc = (rankdata(numbers)[last].sum() - last.sum() * (last.sum() + 1) / 2) / (last.sum() * (~last).sum())
    return float(max(auroc, 1 - auroc))


def _separated(score: Profile, label: Profile) -> float | None:
    """The shortest decimal number at or above which a column is 1, if a score decides it; None if it does not."""
    numbers, last = _both(score, label)
    if not 0 < last.sum() < len(last) or (low := numbers[~last].max()) >= (high := numbers[last].min()):
        return None
    return next((value for digits in range(1, 9) if low < (value := float(np.round(high, digits))) <= high), float(high))


def _enough_patients(made: Proposal, columns: Mapping[str, Profile]) -> None:
    """Drops edges of ages, merges groups, leaves out attributes until each crossed group has enough patients with and without a label."""
    names, patient = list(made.values["data.group"]), columns.get(str(made.values.get("data.patient")))
    labels = [columns[name] for name in made.values.get("data.label", []) if name in columns and columns[name].binary]
    bins, merged = {name: list(edges) for name, edges in made.values.get("data.bins", {}).items()}, dict[str, list[str]]()
    left_out: list[str] = []

    def groups(name: str) -> pd.Series[Any]:
        values = columns[name].values
        if name in bins:
            return pd.Series(np.digitize(values.astype(float), bins[name]), values.index)
        return values.where(~values.isin(merged.get(name, [])), "other")

    def smallest(chosen: Sequence[str]) -> tuple[int, Sequence[Any]]:
        """The fewest patients of a crossed group with or without a label, and the group."""
        frame = pd.concat({name: groups(name) for name in chosen}, axis=1).dropna()
        unit = frame.index.to_series() if patient is None else patient.values.reindex(frame.index)
        found: list[tuple[int, Sequence[Any]]] = []
        for label in labels:
            counts = (
                pd.DataFrame({**frame, "": label.values[label.values.isin(label.binary)], " ": unit})
                .dropna()
                .groupby([*chosen, ""])[" "]
                .nunique()
            )
            cells = counts.unstack(fill_value=0).min(axis=1)  # noqa: PD010 (of an index)
            if len(cells):
                found.append((int(cells.min()), cells.idxmin() if len(chosen) > 1 else (cells.idxmin(),)))
        return min(found, key=lambda cell: cell[0], default=(LEAST_PATIENTS, ()))

    while names:
        sizes = [(smallest([name]), [name]) for name in names]
        if len(names) > MOST_GROUPS and all(size >= LEAST_PATIENTS for (size, _), _ in sizes):
            made.remarks.append(f"also a group, perhaps: {', '.join(names[MOST_GROUPS:])}")
            names = names[:MOST_GROUPS]
        sizes += [(smallest(names), names)] if len(names) > 1 else []
        (_, group), chosen = next((each for each in sizes if each[0][0] < LEAST_PATIENTS), ((LEAST_PATIENTS, ()), []))
        if not chosen:
            break
        binned = next((name for name in chosen if name in bins and len(bins[name]) > 1), None)
        rare = {
            name: [level for level in reversed(columns[name].distinct[2:]) if level not in merged.get(name, [])]
            for name in chosen
            if name not in bins
        }
        mergeable = next((name for name, levels in rare.items() if len(levels) > (name not in merged)), None)
        if binned is not None:
            del bins[binned][max(0, int(group[chosen.index(binned)]) - 1)]
        elif mergeable is not None:
            merged[mergeable] = [*merged.get(mergeable, []), *rare[mergeable][: 1 if mergeable in merged else 2]]
        elif len(names) == 1:
            break
        else:
            left_out.append(names.pop(names.index(chosen[-1])))
    if left_out:
        made.remarks.append(
            f"{', '.join(left_out)}: fewer than {LEAST_PATIENTS} patients with or without the label in a group, so left out of data.group"
        )
    made.values["data.group"], made.values["data.bins"] = names, {name: bins[name] for name in names if name in bins}
    for place in ("data.group", "data.bins"):
        if not made.values[place]:
            del made.values[place]
    few = [level for name in names for level in merged.get(name, [])]
    made.take("data.merge", {"other": few} if few else None, "groups of few patients")


def _propose_words(made: Proposal, columns: Mapping[str, Profile]) -> None:
    """Words for F and M; codes of groups are pointed out."""
    for name in made.values.get("data.group", []):
        if name not in columns or name in made.values.get("data.bins", {}):
            continue
        levels = columns[name].distinct
        if columns[name].words & {"sex", "gender"} and all(level.casefold() in WORDS for level in levels):
            made.take("report.words", {level: WORDS[level.casefold()] for level in sorted(levels)}, f"the groups of {name}")
        elif columns[name].numbers is not None:
            made.remarks.append(f"{name} holds the codes {', '.join(sorted(levels))}: give them words in [report], words")


def _propose_reference(made: Proposal, columns: Mapping[str, Profile]) -> None:
    """The largest group of each column, written down, so that another table has the same reference; problems of the table are remarks."""
    known = {key: value for key, value in made.sections()["data"].items() if key != "table"}
    if "data.reference" in made.values:
        return
    if "data.score" not in made.values:  # rows of a model are not read here: their inputs may be images
        if not {"bins", "merge"} & known.keys() and {*known["group"]} <= columns.keys():
            made.take("data.reference", [columns[name].distinct[0] for name in known["group"]], "the largest group")
        return
    try:
        scores = data.read_scores(Path(made.values["data.table"]), data.Columns(**known))
    except BadInput as error:
        made.remarks += error.problems
        return
    attributes = next(iter(scores.values())).attributes[: len(made.values["data.group"])]
    made.take("data.reference", [attribute.reference for attribute in attributes], "the largest group")


# The file


def case_text(made: Proposal, schema: str) -> str:
    """The case file: a line per setting with the reason for it, and the daily settings that have none as comments with their help.

    - `made`: the proposal.
    - `schema`: the place of the JSON Schema, which the first line names for editors.
    """
    given = made.sections()
    parts = [f"#:schema {schema}", "# Made by `equipoise init`. Check each line that ends with a reason: it was guessed."]
    parts += [f"# {remark}" for remark in made.remarks]
    unused = {"score", "score_prefix"} if "load" in given.get("model", {}) else {"output"}
    for section in fields_of(Case):
        values = given.get(section, {})
        reasons = {key: made.why[f"{section}.{key}"] for key in values}
        order = sorted(values, key=list(fields_of(Case, section)).index)
        lines = [f"{key} = {_toml(_single(values[key]))}{'' if reasons[key] == GIVEN else f'  # {reasons[key]}'}" for key in order]
        if section in ("data", "model", "goal"):
            lines += [
                f"# {key} = ...  # {each.description}"
                for key, each in fields_of(Case, section).items()
                if extra_of(each).get("flag") and key not in values and key not in unused and key not in ("load", "weights")
            ]
        parts += ["", f"[{section}]", *lines] if lines else []
    return "\n".join(parts) + "\n"


def _single(value: Any) -> Any:
    """The only value of a list, which the file takes as it is."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _toml(value: Any) -> str:
    """A value as in TOML."""
    if isinstance(value, Mapping):
        names = [key if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else json.dumps(str(key), ensure_ascii=False) for key in value]
        return f"{{ {', '.join(f'{name} = {_toml(own)}' for name, own in zip(names, value.values(), strict=True))} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (bool, int, float, str)) else json.dumps(str(value))
