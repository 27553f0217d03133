"""How the options say to read a data file, and the problems of these and of other shared options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from equipoise import data, measures, report
from equipoise.cli.options import OPTIONS, flag_of
from equipoise.errors import BadInput, did_you_mean, pick, raise_all

NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {  # by option: the valid values, in words and as a check
    "threshold": ("between 0 and 1", lambda x: 0 <= x <= 1),
    "test_fraction": ("between 0 and 1, as in 0.3", lambda x: 0 < x < 1),
    "level": ("at least 0.01 and at most 0.9999, as in 0.95", lambda x: 0.01 <= x <= 0.9999),
    "specificity": ("between 0 and 1, as in 0.9", lambda x: 0 < x < 1),
    "sensitivity": ("between 0 and 1, as in 0.9", lambda x: 0 < x < 1),
    "draws": ("at least 2", lambda x: x >= 2),
    "seed": ("at least 0", lambda x: x >= 0),
    "min_patients": ("at least 1", lambda x: x >= 1),
}
ENDINGS = {"--report": (".html", ".htm"), "--pdf": (".pdf",)}
NOT_JSON = (".html", ".htm", ".pdf", ".csv", ".tsv", ".xlsx", ".parquet", ".png", ".svg", ".md", ".docx")  # refused by --out of an audit


def number_problems(**options: float | None) -> list[str]:
    """One problem per option with an invalid number."""
    return [
        f"--{name.replace('_', '-')} must be {NUMBERS[name][0]}; got {value}"
        for name, value in options.items()
        if value is not None and not NUMBERS[name][1](value)
    ]


def collected(problems: list[str], check: Callable[[], Any]) -> Any:
    """The result of `check`, or None if it raises `BadInput`, whose problems are then added to `problems`."""
    try:
        return check()
    except BadInput as error:
        problems += error.problems
        return None


def repeated(values: Sequence[str]) -> list[str]:
    """The values that occur more than once, sorted."""
    return sorted({value for value in values if values.count(value) > 1})


@dataclass(frozen=True)
class Inputs:
    """The options that say how to read a data file, by field of `data.ReadOptions`."""

    options: Mapping[str, Any]

    @property
    def columns(self) -> list[str]:
        """The label columns."""
        return list(self.options["labels"] or [])

    @property
    def labels(self) -> list[str]:
        """What is audited or repaired: the classes of the only label column, or the label columns."""
        return list(self.options["classes"] or self.columns)

    @property
    def reading(self) -> data.ReadOptions:
        """The options as the library takes them."""
        transform = self.options["transform"]
        if transform is not None:
            from equipoise.models import load_transform

            transform = load_transform(transform)
        bins = dict(map(data.read_bins, self.options["bins"] or []))
        parsed = {"labels": self.columns, **self._parsed_preprocessing(), "transform": transform, "bins": bins}
        return data.ReadOptions(**{**self.options, **parsed})

    def _parsed_preprocessing(self) -> dict[str, Any]:
        preset = self.options["preset"]
        channels = data.PRESETS[pick("--preset", preset, data.PRESETS)]["channels"] if preset is not None else 1
        norm = data.read_norm(self.options["norm"], self.options["channels"] or channels)
        return {"norm": norm, "resize": data.read_resize(self.options["resize"]), "crop": data.read_crop(self.options["crop"])}

    def problems(self) -> list[str]:
        """Options that cannot be combined, or are invalid."""
        if not self.columns:
            return ["--label is missing: name the column with the true label (or pair labels with scores by --score-prefix)"]
        problems = [f"--label {name} was given twice. Give each label once." for name in repeated(self.columns)]
        return problems + self._class_problems() + self._group_problems() + self._image_problems()

    def _class_problems(self) -> list[str]:
        classes = self.options["classes"] or []
        problems = [f"--class {name} was given twice. Give each class once." for name in repeated(classes)]
        if len(classes) == 1:
            problems.append(f"--class needs two or more; got {classes[0]!r}. Repeat it for every output of the network, in their order.")
        if classes and len(self.columns) > 1:
            problems.append("--class takes one --label, the column that holds the class of each row. Omit the others.")
        if classes and self.options["positive"] is not None:
            problems.append("--class and --positive cannot be combined: classes have no positive value. Omit one of them.")
        return problems

    def _group_problems(self) -> list[str]:
        problems: list[str] = []
        groups, conflicts = self.options["group"], self.options["conflicts"]
        bins = [collected(problems, partial(data.read_bins, text)) for text in self.options["bins"] or []]
        columns = [column_and_edges[0] for column_and_edges in bins if column_and_edges is not None]
        problems += [f"--bins {name} was given twice. Give each column once." for name in repeated(columns)]
        problems += [
            f"--bins names {name!r}, which is not a --group.{did_you_mean(name, groups)} Add --group {name}, or omit its bins."
            for name in dict.fromkeys(columns)
            if name not in groups
        ]
        if conflicts != "row":  # data.CONFLICTS imports pandas
            collected(problems, lambda: pick("value of --conflicts", conflicts, data.CONFLICTS))
            if self.options["patient"] is None:
                problems.append(f"--conflicts {conflicts} requires patient ids. Give their column with --patient.")
        return problems

    def _image_problems(self) -> list[str]:
        options = self.options
        if options["images"] is None:
            used = [name for name, option in OPTIONS.items() if option.panel == "Images" and options[name] != option.default]
            return [f"{flag_of(name)} requires --images. Omit it." for name in used]
        problems = ["--feature is for tabular networks; the inputs are the --images. Omit it."] if options["features"] else []
        if options["id"] is not None:
            problems.append("--id is for tables without images; with --images the image name is the id. Omit it.")
        if options["transform"] is not None:
            names = ("size", "resize", "crop", "interpolation", "norm", "preset")
            if used := [flag_of(name) for name in names if options[name] is not None]:
                problems.append(f"--transform does all of the preprocessing. Omit {', '.join(used)}, or --transform.")
        elif (parsed := collected(problems, self._parsed_preprocessing)) is not None:
            norm, others = parsed.pop("norm"), {name: options[name] for name in ("size", "interpolation", "channels", "preset")}
            collected(problems, lambda: data.make_preprocessing(**others, **parsed, **norm))
        return problems


def parse_thresholds(
    texts: Sequence[str] | None, names: Sequence[str], kind: str = "label", *, in_order: bool = False
) -> float | dict[str, float] | None:
    """The threshold of all labels (or of another `kind` of thing), or that of each by name, from --threshold.

    With `in_order`, the thresholds of all may also be given without names, in the order of `names`.

    >>> parse_thresholds(["0.2"], ["Effusion", "Mass"]), parse_thresholds(["Mass=0.08", "Effusion=0.2"], ["Effusion", "Mass"])
    (0.2, {'Effusion': 0.2, 'Mass': 0.08})
    """
    problems: list[str] = []
    named: list[tuple[str, float]] = []  # with an empty name, if the text has none
    for text in texts or []:
        name, equals, number = (piece.strip() for piece in text.rpartition("="))
        try:
            named.append((name if equals else "", float(number)))
        except ValueError:
            problems.append(f"invalid value {text!r} for --threshold: expected a number, or {kind.upper()}=NUMBER")
    values = [value for _, value in named]
    problems += [problem for value in values for problem in number_problems(threshold=value)]
    by_name = f"give each {kind} its own: {' '.join(f'--threshold {name}=NUMBER' for name in names[:2])}{' ...' if len(names) > 2 else '.'}"
    given = [name for name, _ in named if name]
    if given and len(given) < len(named):
        problems.append(f"--threshold was given with and without a {kind}: {', '.join(texts or [])}. Give one number for all, or {by_name}")
    elif not given and len(values) > 1 and not (in_order and len(values) == len(names)):
        instead = f", or {by_name}" if len(names) > 1 else "."
        problems.append(f"--threshold was given {len(values)} times: {', '.join(texts or [])}. Give it once{instead}")
    problems += [f"--threshold {name} was given twice. Give each {kind} once." for name in repeated(given)]
    raise_all(problems)
    if not given:
        return None if not values else values[0] if len(values) == 1 else dict(zip(names, values, strict=True))
    by_label = measures.thresholds_by_name(dict(named), names, kind)
    return by_label[names[0]] if len(names) == 1 else {name: value for name, value in by_label.items() if value is not None}


def group_names_of(texts: list[str] | None) -> dict[str, str]:
    """The words for groups, from --group-name.

    >>> group_names_of(["F=women", ">=60=older"])
    {'F': 'women', '>=60': 'older'}
    """
    names, problems = {}, []
    for text in texts or []:
        group, equals, words = (piece.strip() for piece in text.rpartition("="))
        if not equals or not group or not words:
            problems.append(f"--group-name must be VALUE=WORDS, as in F=women; got {text!r}")
        elif group in names:
            problems.append(f"--group-name {group} was given twice. Give each group once.")
        names[group] = words
    raise_all(problems)
    return names


def page_problems(places: Mapping[str, Path | None]) -> list[str]:
    """One problem for each of --report and --pdf whose file name has another extension."""
    return [
        f"{option} writes {ENDINGS[option][0]}; got {place.name!r}. Use {option} {place.with_suffix(ENDINGS[option][0]).name}."
        for option, place in places.items()
        if place is not None and place.suffix.lower() not in ENDINGS[option]
    ]


def json_problems(save: Path | None) -> list[str]:
    """A problem if the --out of an audit has the extension of another format than JSON."""
    if save is None or save.suffix.lower() not in NOT_JSON:
        return []
    page = next((option for option, endings in ENDINGS.items() if save.suffix.lower() in endings), None)
    instead = f"{page} {save.name}" if page else "--figures FOLDER for figures (PNG and SVG)"
    return [f"--out writes JSON; {save.name!r} is another format. Use --out {save.with_suffix('.json').name}, or {instead}."]


def check_places(*places: Path | None, pdf: Path | None = None) -> None:
    """Raises an error before any work if a file cannot be written, or if there is no program to print the PDF."""
    for place in (*places, pdf):
        if place:
            data.check_writable(place)
    if pdf:
        report.check_printer()
