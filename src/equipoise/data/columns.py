"""Who is what in a table: the specification of its columns.

Importing this module imports neither numpy nor pandas, because the command line needs the fields for its help.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, ValidationInfo

from equipoise.errors import BadInput, collecting, did_you_mean, raise_all
from equipoise.specification import Specification, one_of, setting

if TYPE_CHECKING:
    from equipoise.data.attribute import Attribute

CONFLICTS = {  # the treatment of patients with more than one recorded group, and its description
    "row": "each row counts in its own group",
    "first": "the first group in the table was used for all their rows",
    "majority": "the most frequent group, and of equally frequent ones the first, was used for all their rows",
    "blank": "their rows count as having no group",
    "error": "they are refused",
}


# The fields that name columns. A column has one role, but groups may also make patients comparable; none is an input by default.
NOT_IN_BATCHES = ("date", "within", "audit_label")  # roles that only a table that is read as a whole may have
ROLES = ("label", "group", "score", "patient", "weight", *NOT_IN_BATCHES)


class LabelKind(StrEnum):
    """What the outputs of a model are: labels, each decided by a threshold, or classes, of which argmax chooses one."""

    LABELS = "labels"
    CLASSES = "classes"

    @property
    def argmax(self) -> bool:
        """Whether the highest output decides, and not a threshold each."""
        return self is LabelKind.CLASSES

    @property
    def one(self) -> str:
        """The word for one of them."""
        return "class" if self.argmax else "label"


def _values(value: Any) -> tuple[Any, ...]:
    """The values of a list, an array or an index, or the only value; none for None, which as a reference stands for the largest group."""
    several = {"list", "tuple", "ndarray", "Index"} & {kind.__name__ for kind in type(value).__mro__}
    return () if value is None else tuple(value) if several else (value,)


def _names(value: Any, info: ValidationInfo) -> tuple[str, ...]:
    """The names of one or several columns; raises an error if they are for example the columns themselves."""
    names = _values(value)
    if not all(isinstance(name, str) for name in names):
        raise BadInput(f"{info.field_name} must be the name of a column or a list of names; got {type(value).__name__}")
    return names


def _name(value: Any, info: ValidationInfo) -> str | int | None:
    if not isinstance(value, (str, int, type(None))):
        raise BadInput(f"{info.field_name} must be the name of a column; got {type(value).__name__}")
    return value


def _bins(value: Any, info: ValidationInfo) -> dict[str, Any]:
    """The edges by column: a mapping, or texts such as age=40,60,80."""
    if not value or isinstance(value, Mapping):
        return dict(value or {})
    try:
        texts = _names(value, info)
    except BadInput:
        raise BadInput(f"bins must be the edges by column, as in {{'age': [40, 60, 80]}}; got {value!r}") from None
    from equipoise.data.attribute import parse_edges

    problems: list[str] = []
    edges: dict[str, Any] = {}
    for text in texts:
        name, _, numbers = text.rpartition("=")
        if not name:
            problems.append(f"--bins must be COLUMN=EDGE,EDGE,... as in age=40,60,80; got {text!r}")
        elif name in edges:
            problems.append(f"bins (--bins) of {name} were given twice. Give each column once.")
        else:
            with collecting(problems):
                edges[name] = parse_edges([edge.strip() for edge in numbers.split(",")], name)
    raise_all(problems)
    return edges


def _merged(value: Any) -> dict[str, tuple[Any, ...]]:
    """The groups by the name of what they are merged into."""
    if value and not isinstance(value, Mapping):
        raise BadInput(f"merge must be groups by the name that they get together, as in {{'other': ['A', 'B']}}; got {value!r}")
    return {str(name): _values(groups) for name, groups in dict(value or {}).items()}


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Name = Annotated[Any, BeforeValidator(_name)]
Values = Annotated[tuple[Any, ...], BeforeValidator(_values)]


class Columns(Specification):
    """Who is label, group, patient, score and so on in a table.

    >>> Columns(label="sick", group=["sex", "age"], bins={"age": [40, 60]}).group
    ('sex', 'age')
    """

    label: Names = setting("column with the true label, 0 or 1 (empty: unknown); several are audited together", (), flag="--label")
    group: Names = setting("column with the protected attribute; several are also crossed", (), flag="--group")
    reference: Values = setting("reference (privileged) group; one per group column", (), flag="--reference", shown="the largest group")
    patient: Name = setting("column with patient ids; intervals then count patients instead of rows", None, flag="--patient")
    id: Name = setting("column with unique row ids", None)
    score: Names = setting("column with the score in [0, 1], in place of a model; one per label", (), flag="--score")
    audit_label: Names = setting("column with an adjudicated label of some rows, empty in others; one per label, audited too", ())
    within: Names = setting(
        "column whose values make patients comparable, as the view of an image: gaps are also reported within them; several are crossed",
        (),
        flag="--within",
    )
    score_prefix: str | None = setting(
        "prefix of score columns: score_ pairs score_Effusion with the label Effusion; without labels, all pairs are used",
        None,
        flag="--score-prefix",
    )
    logits: bool = setting("the scores are logits, which the logistic function maps to scores", False)
    bins: Annotated[dict[str, Any], BeforeValidator(_bins)] = setting(
        "edges that cut a numeric group column, as in age=40,60,80: <40, 40-59, 60-79, 80+", default_factory=dict, flag="--bins"
    )
    positive: Any = setting("label value that counts as positive, if labels are not 0 and 1", None)
    classes: Values = setting("classes of the only label, decided by argmax, in the order of the network's outputs", ())
    missing: Values = setting(
        "texts that are read as missing, as ? or NA, in every column with a role but ids and patients; inputs stay as they are", ()
    )
    merge: Annotated[dict[str, tuple[Any, ...]], BeforeValidator(_merged)] = setting(
        'groups that count as one, by its name: { other = ["A", "B"] }', default_factory=dict
    )
    weight: Name = setting("column with sample weights (positive numbers), as of a case-control or survey sample", None)
    date: Name = setting("column with the date of each row, as in 2026-11-16, by which repair.test_after holds out later patients", None)
    conflicts: Annotated[str, one_of("rule for data.conflicts:", CONFLICTS)] = setting(
        f"patients recorded in several groups: {', '.join(CONFLICTS)}", "row"
    )
    features: Names = setting("input columns of a tabular model, in order", (), shown="all columns without another role")
    view: str | None = setting("column with the view of the images; only frontal views (PA, AP) are used", None)
    max_table_bytes: int | None = setting("largest table to read, in bytes after decompression", None, ge=1)
    raw: bool = setting("whether inputs may be text and empty cells, for a classifier that encodes them itself", False, hidden=True)

    @property
    def outputs(self) -> list[str]:
        """What is audited or repaired: the labels, or the classes of the only label."""
        return list(map(str, self.classes or self.label))

    @property
    def kind(self) -> LabelKind:
        """The kind of outputs: labels or classes."""
        return LabelKind.CLASSES if self.classes else LabelKind.LABELS

    @property
    def used(self) -> dict[str, list[str]]:
        """The roles of each column that has one, apart from features and ids."""
        roles: dict[str, list[str]] = {}
        for role in ROLES:
            names = _values(getattr(self, role))
            for name in names if role == "group" else dict.fromkeys(names):
                roles.setdefault(name, []).append(role)
        return roles

    @property
    def text(self) -> set[str]:
        """The columns of identifiers, dates and groups, which are read as text; a binned group is read as a number."""
        groups = {name for name in self.group if name not in self.bins}
        strata = {name for name in self.within if name not in self.bins}
        return groups | strata | {name for name in (self.patient, self.id, self.date) if name is not None}

    @property
    def words(self) -> tuple[str, ...]:
        """The label columns that are read as text, since a positive value or classes are named."""
        return (*self.label, *self.audit_label) if self.positive is not None or self.classes else ()

    @property
    def references(self) -> tuple[Any, ...]:
        """The reference of each group column; None for the largest group."""
        return self.reference or (None,) * len(self.group)

    def with_bins_of(self, attributes: "Sequence[Attribute]") -> Self:
        """The columns of another file with the bins of these rows, so that the groups have the same names."""
        return self.changed(bins={a.name: a.bins for a in attributes if a.bins is not None})

    def like(self, attributes: "Sequence[Attribute]") -> Self:
        """The columns of another file with the bins and the reference groups of these rows."""
        return self.with_bins_of(attributes).changed(reference=[attribute.reference for attribute in attributes])

    def paired(self, table: Path) -> Self:
        """The columns with the score column of each label in the header of a table: the label's name after `score_prefix`."""
        from equipoise.data.table_files import column_names

        names, prefix = column_names(table), str(self.score_prefix)
        scores = {name.removeprefix(prefix): name for name in names if name.startswith(prefix) and name != prefix}
        pairs = {label: score for label, score in scores.items() if label in names}
        if not pairs:
            unpaired = f" {', '.join(map(repr, list(scores.values())[:5]))} have no label column." if scores else ""
            raise BadInput(
                f"no pair of a label column and a score column that begins with {prefix!r}.{unpaired} The columns are: {', '.join(names)}.",
                source=str(table),
            )
        if lacking := [label for label in self.label if label not in pairs]:
            raise BadInput(
                *(f"label {label!r} has no score column {prefix + label!r} next to it" for label in lacking),
                f"The pairs of label and score are: {', '.join(pairs)}. Name those, or correct data.score_prefix (--score-prefix {prefix})",
                source=table.name,
            )
        chosen = {label: pairs[label] for label in self.label or pairs}
        return self.changed(label=list(chosen), score=list(chosen.values()), score_prefix=None)

    def problems(self) -> list[str]:
        """Problems that no table can solve: columns without or with two roles, references and classes that do not match, wrong bins."""
        problems = [f"no {role} column was named ({role}=, --{role})" for role in ("label", "group") if not getattr(self, role)]
        problems += [f"label (--label) {name!r} was named twice. Name each label once." for name in repeated(self.label)]
        problems += [
            f"column {name!r} has more than one role: {', '.join(uses)}. Give each a column of its own."
            for name, uses in self.used.items()
            if len(uses) > 1 and {*uses} != {"group", "within"}
        ]
        if self.reference and len(self.reference) != len(self.group):
            count, found = len(self.group), list(self.reference)
            problems.append(f"{count} group columns need {count} references, one each in the same order; got {len(found)}: {found}")
        if self.score and self.label and len(self.score) != len(self.label):
            counts = f"{len(self.label)} --label and {len(self.score)} --score"
            problems.append(f"{counts} do not match; give one score per label, in the same order")
        if self.audit_label and len(self.audit_label) != len(self.label):
            counts = f"{len(self.label)} label and {len(self.audit_label)} audit_label"
            problems.append(f"{counts} columns do not match; give one audit_label per label, in the same order")
        if self.audit_label and self.classes:
            problems.append("audit_label is for labels, not for the classes of one. Omit it.")
        names = list(map(str, self.classes))
        problems += [f"class {name!r} was named twice. Name each class once." for name in repeated(names)]
        if len(names) == 1:
            problems.append(f"classes needs two or more, in the order of the network's outputs; got {names}")
        if names and len(self.label) > 1:
            problems.append(f"classes are those of one label column; got {len(self.label)} columns: {', '.join(self.label)}")
        if names and self.positive is not None:
            problems.append("classes have no positive value. Leave out classes or positive.")
        for name, edges in self.bins.items():
            from equipoise.data.attribute import parse_edges

            if name not in (*self.group, *self.within):
                hint = did_you_mean(name, (*self.group, *self.within))
                problems.append(
                    f"bins are given for {name!r}, which is not a group column.{hint} Name it as one (--group), or omit its bins."
                )
            with collecting(problems):
                parse_edges(edges, name)
        named = {"reference": self.reference, "positive": _values(self.positive), "classes": self.classes}
        for code in self.missing:
            if not isinstance(code, (str, int, float)) or code != code:
                problems.append(f"missing (data.missing) must be texts or numbers, as in ['?', 'NA']; got {code!r}")
            problems += [
                f"{str(code)!r} is read as missing (data.missing) and is also the {role} (data.{role}). Leave it out of one of them."
                for role, values in named.items()
                if str(code) in map(str, values)
            ]
        merged = [str(group) for groups in self.merge.values() for group in groups]
        problems += [f"group {group!r} is merged more than once (data.merge). Name it once." for group in repeated(merged)]
        problems += [f"merge (data.merge) names no group that becomes {name!r}" for name, groups in self.merge.items() if not groups]
        for group in dict.fromkeys(merged):
            if group in map(str, self.reference) and group not in self.merge:
                problems.append(f"{group!r} is merged (data.merge) and is also the reference. Name what it becomes as the reference.")
            if group in map(str, self.missing):
                problems.append(
                    f"{group!r} is merged (data.merge) and is also read as missing (data.missing). Leave it out of one of them."
                )
        if self.conflicts != "row" and self.patient is None:
            rule = f"conflicts={self.conflicts!r}"
            advice = "Name it (patient=, --patient), or leave conflicts out."
            problems.append(f"{rule} is about patients, and no patient column was named. {advice}")
        return problems


def repeated(values: Sequence[str]) -> list[str]:
    """The values that occur more than once, sorted."""
    return sorted(value for value, count in Counter(values).items() if count > 1)
