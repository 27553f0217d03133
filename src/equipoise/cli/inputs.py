"""Data files as the options of a command say how to read them, and what is wrong with those options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from equipoise import data, report
from equipoise.cli.console import counting
from equipoise.cli.options import OPTIONS, NetworkOptions, ScoreOptions
from equipoise.errors import BadInput, did_you_mean, pick, raise_all

NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {  # by option: what is allowed, in words and as a check
    "threshold": ("between 0 and 1", lambda x: 0 <= x <= 1),
    "test_fraction": ("between 0 and 1, as in 0.3", lambda x: 0 < x < 1),
    "level": ("at least 0.01 and at most 0.9999, as in 0.95", lambda x: 0.01 <= x <= 0.9999),
    "specificity": ("between 0 and 1, as in 0.9", lambda x: 0 < x < 1),
    "sensitivity": ("between 0 and 1, as in 0.9", lambda x: 0 < x < 1),
    "draws": ("at least 2", lambda x: x >= 2),
    "seed": ("at least 0", lambda x: x >= 0),
    "min_patients": ("at least 1", lambda x: x >= 1),
}


def number_problems(**given: float | None) -> list[str]:
    """The options whose number is not allowed."""
    return [
        f"--{name.replace('_', '-')} must be {NUMBERS[name][0]}; got {value}"
        for name, value in given.items()
        if value is not None and not NUMBERS[name][1](value)
    ]


def collected(problems: list[str], check: Callable[[], Any]) -> Any:
    """The result of a check; its problems are added to the others."""
    try:
        return check()
    except BadInput as error:
        problems += error.problems
        return None


@dataclass(frozen=True)
class Inputs:
    """The options that say how to read a data file, by the fields of `data.Reading`."""

    options: Mapping[str, Any]

    @property
    def columns(self) -> list[str]:
        """The columns of labels that were named."""
        return list(self.options["labels"] or [])

    @property
    def labels(self) -> list[str]:
        """What is audited or repaired: the classes of the only column, or the columns."""
        return list(self.options["classes"] or self.columns)

    @property
    def reading(self) -> data.Reading:
        """The options as the library takes them."""
        bins = dict(map(data.read_bins, self.options["bins"] or []))
        return data.Reading(**{**self.options, "labels": self.columns, **self._pixels(), "transform": self._transform(), "bins": bins})

    def _pixels(self) -> dict[str, Any]:
        """The options of preprocessing that are texts, parsed."""
        preset = self.options["preset"]
        base = data.PRESETS[pick("--preset", preset, data.PRESETS)]["channels"] if preset is not None else 1
        norm = data.read_norm(self.options["norm"], self.options["channels"] or base)
        return {"norm": norm, "resize": data.read_resize(self.options["resize"]), "crop": data.read_crop(self.options["crop"])}

    def _transform(self) -> data.Transform | None:
        if self.options["transform"] is None:
            return None
        from equipoise.models import load_transform

        return load_transform(self.options["transform"])

    def problems(self) -> list[str]:
        """Options that do not go together."""
        labels = self.columns
        if not labels:
            return ["--label is missing: name the column with the true label (or pair labels with scores by --score-prefix)"]
        twice = [f"--label {name} was given twice. Give each label once." for name in sorted({n for n in labels if labels.count(n) > 1})]
        return twice + self._of_classes() + self._of_groups() + self._of_images()

    def _of_classes(self) -> list[str]:
        classes = self.options["classes"] or []
        found = [f"--class {name} was given twice. Give each class once." for name in sorted({c for c in classes if classes.count(c) > 1})]
        if len(classes) == 1:
            found.append(f"--class needs two or more; got {classes[0]!r}. Repeat it for every output of the network, in their order.")
        if classes and len(self.columns) > 1:
            found.append("--class takes one --label, the column that holds the class of each row. Omit the others.")
        if classes and self.options["positive"] is not None:
            found.append("--class and --positive cannot be combined: classes have no positive value. Omit one of them.")
        return found

    def _of_groups(self) -> list[str]:
        found: list[str] = []
        columns, groups, conflicts = [], self.options["group"], self.options["conflicts"]
        for text in self.options["bins"] or []:
            if (read := collected(found, partial(data.read_bins, text))) is not None:
                columns.append(read[0])
        found += [f"--bins {name} was given twice. Give each column once." for name in sorted({c for c in columns if columns.count(c) > 1})]
        found += [
            f"--bins names {name!r}, which is not a --group.{did_you_mean(name, groups)} Add --group {name}, or omit its bins."
            for name in dict.fromkeys(columns)
            if name not in groups
        ]
        if conflicts != "row":  # looking at the others imports pandas
            collected(found, lambda: pick("value of --conflicts", conflicts, data.CONFLICTS))
        if conflicts != "row" and self.options["patient"] is None:
            found.append(f"--conflicts {conflicts} requires patient ids. Give their column with --patient.")
        return found

    def _of_images(self) -> list[str]:
        if self.options["images"] is None:
            given = [name for name, one in OPTIONS.items() if one.panel == "Images" and self.options[name] != one.default]
            return [f"{OPTIONS[name].flag or f'--{name}'.replace('_', '-')} requires --images. Omit it." for name in given]
        found = ["--feature is for tabular networks; the inputs are the --images. Omit it."] if self.options["features"] else []
        if self.options["id"] is not None:
            found.append("--id is for tables without images; with --images the image name is the id. Omit it.")
        own = {name: self.options[name] for name in ("size", "resize", "crop", "interpolation", "norm", "preset")}
        if self.options["transform"] is not None:
            taken = [OPTIONS[name].flag or f"--{name}" for name, value in own.items() if value is not None]
            return found + ([f"--transform does all of the preprocessing. Omit {', '.join(taken)}, or --transform."] if taken else [])
        if (read := collected(found, self._pixels)) is not None:
            norm, how = read.pop("norm"), {name: self.options[name] for name in ("size", "interpolation", "channels", "preset")}
            collected(found, lambda: data.preprocessing_of(**how, **read, **norm))
        return found


@dataclass(frozen=True)
class Source:
    """What a command is about: a data file with scores, or with a network that makes them."""

    file: Path
    network: NetworkOptions
    inputs: Inputs
    scores: ScoreOptions

    @property
    def columns(self) -> list[str]:
        """The columns of the scores to audit or repair, one per label; none with a network."""
        return list(self.scores.score or []) if self.scores.check_scores is None else []

    @property
    def known(self) -> list[str]:
        """The columns of --check-scores with the scores that the network is known to give."""
        return list(self.scores.score or []) if self.scores.check_scores is not None else []

    @property
    def kind(self) -> str:
        """Whether there are labels or classes."""
        return "classes" if self.inputs.options["classes"] else "labels"

    @property
    def of_networks(self) -> dict[str, object]:
        """The options that only a network takes."""
        named, options = self.network, self.inputs.options
        found: dict[str, object] = {"--weights": named.weights, "--output-type": named.output_type, "--output-name": named.output_name}
        return found | {"--class": options["classes"], "--images": options["images"]}


def source_of(file: Path, network: NetworkOptions, inputs: Inputs, scores: ScoreOptions) -> Source:
    """The file with the score column of each label: as named, or by a prefix of all score columns."""
    prefix = scores.score_prefix
    if prefix is None:
        return Source(file, network, inputs, scores)
    if scores.score:
        raise BadInput("--score names score columns one by one, --score-prefix all at once; use one of them")
    found = data.paired_columns(file, prefix)
    if lacking := [label for label in inputs.columns if label not in found]:
        raise BadInput(
            *(f"label {label!r} has no score column {prefix + label!r} next to it" for label in lacking),
            f"The pairs of label and score are: {', '.join(found)}. Name those, or correct --score-prefix {prefix}",
            source=file.name,
        )
    chosen = {label: found[label] for label in inputs.columns or found}
    labelled = Inputs({**inputs.options, "labels": list(chosen)})
    return Source(file, network, labelled, replace(scores, score=list(chosen.values())))


def role_problems(source: Source, network_only: Mapping[str, object]) -> list[str]:
    """What is wrong with the options of a network, or of scores: exactly one of them is audited or repaired."""
    problems, columns, labels, model = [], source.columns, source.inputs.labels, source.network.model
    if bool(columns) == (model is not None):
        problems.append("give either a column of scores with --score (or --score-prefix) or a network with --model (and --weights)")
    if columns and len(columns) != len(labels):
        problems.append(f"{len(labels)} --label and {len(columns)} --score do not match; give one score per label, in the same order")
    if model is None:
        problems += [f"{option} requires --model. Omit it." for option, value in network_only.items() if value]
    return problems


@dataclass(frozen=True)
class Opened:
    """A file that was read, with its words for people."""

    read: data.Read

    @property
    def cohort(self) -> data.Cohort:
        return self.read.cohort

    def counts(self) -> dict[str, object]:
        return self.read.counts()

    def to_dict(self) -> dict[str, object]:
        return self.read.to_dict()

    def preprocessing(self) -> dict[str, object] | None:
        """How images became inputs, as plain values."""
        return self.cohort.source.to_dict() if isinstance(self.cohort.source, data.Images) else None

    def summary(self, varying: bool = True) -> list[str]:
        """Rows left out and, unless an audit reports them itself, patients in several groups; without names."""
        found = data.varying_in(self.cohort.attributes, self.cohort.patients) if varying else ()
        return [*self._left_out(), *(report.varying_words(each) for each in found)]

    def lines(self, varying: bool = True) -> list[str]:
        """The summary for the user's terminal, with the first images that were left out."""
        left_out = self.read.left_out
        more = f"  and {len(left_out) - 5:,} more (--json lists them)"
        named = [f"  {one}" for one in left_out[:5]] + ([more] if len(left_out) > 5 else [])
        said, at = self.summary(varying), len(self._left_out())
        return [*said[:at], *named, *said[at:]]

    def _left_out(self) -> list[str]:
        read = self.read
        said = [f"{read.not_frontal:,} rows that are not frontal views were left out"] if read.not_frontal else []
        if read.left_out:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in data.counted(read.left_out).items())
            said.append(f"{len(read.left_out):,} unreadable images were left out: {kinds}")
        return said


def cohort_of(file: Path, reading: data.Reading) -> Opened:
    """The cohort in a data file, read with a progress bar."""
    return Opened(data.read_cohort(file, reading, progress=counting))


def group_names_of(texts: list[str] | None, cohort: data.Cohort | data.Scores | None = None) -> dict[str, str]:
    """The words for groups; with a cohort, an error where it has no such group.

    >>> group_names_of(["F=women", ">=60=older"])
    {'F': 'women', '>=60': 'older'}
    """
    found, problems = {}, []
    for text in texts or []:
        group, equals, words = (piece.strip() for piece in text.rpartition("="))
        if not equals or not group or not words:
            problems.append(f"--group-name must be VALUE=WORDS, as in F=women; got {text!r}")
        found[group] = words
    raise_all(problems)
    if cohort is not None:
        report.group_words(found, {a.name: a.levels for a in cohort.attributes})
    return found


ENDINGS = {"--report": (".html", ".htm"), "--pdf": (".pdf",)}
# What the JSON of --out must not be called.
OTHER_KINDS = (".html", ".htm", ".pdf", ".csv", ".tsv", ".xlsx", ".parquet", ".png", ".svg", ".md", ".docx")


def page_problems(places: Mapping[str, Path | None]) -> list[str]:
    """A problem for each of --report and --pdf whose name has another ending than what is written."""
    return [
        f"{option} writes {ENDINGS[option][0]}; got {place.name!r}. Use {option} {place.with_suffix(ENDINGS[option][0]).name}."
        for option, place in places.items()
        if place is not None and place.suffix.lower() not in ENDINGS[option]
    ]


def json_problems(save: Path | None) -> list[str]:
    """A problem where the --out of an audit names another format than JSON."""
    if save is None or save.suffix.lower() not in OTHER_KINDS:
        return []
    page = next((option for option, endings in ENDINGS.items() if save.suffix.lower() in endings), None)
    instead = f"{page} {save.name}" if page else "--figures FOLDER for figures (PNG and SVG)"
    return [f"--out writes JSON; {save.name!r} is another format. Use --out {save.with_suffix('.json').name}, or {instead}."]
