"""Plans of studies: read from a TOML file or a preset, validated as a whole, narrowed and adjusted.

    name = "my-hospital"
    splits = 20                                    # seeds first_seed, first_seed + 1, ...
    measures = ["eod"]
    model = "networks.py:make"                     # default: the paper's MLP; for images also a backbone such as resnet-18
    protocol = "balanced"                          # default: "split", a random split

    [[data]]
    file = "patients.csv"                          # or source = "adult", with options = { attribute_as_input = false }
    name = "icu"
    label = "died"
    group = "sex"
    reference = "M"
    patient = "subject_id"

    [[methods]]
    method = "bias-gda"
    settings = { epochs = 50 }
    overrides = { icu = { learning_rate = 1e-6 } } # settings for these data only
    min_performance = { icu = { eod = 0.70 } }     # or one number; by measure, by data, or by both
    train = false                                  # true gives bias-score and auto the training set as well
    training = "published"                         # one of the study's `trainings`; default: its `training`

    [trainings.published]                          # another recipe, for the arms that name it
    restore = "last"

Data and methods may also be plain lists of names. An entry of data may have its own `model`. `pretrained`, in an entry of data or for the
whole study (one value, or a table by backbone), is a file with initial weights of a backbone, or "imagenet" for its published weights.
Paths are relative to the folder of the TOML file. The presets are in the folder `presets`.
"""

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from equipoise.errors import BadInput, UnknownName, did_you_mean, raise_all
from equipoise.measures import canonical_name
from equipoise.study.networks import IMAGENET, MLP, backbones
from equipoise.study.plan import PROTOCOLS, Arm, Limit, Plan
from equipoise.study.sources import FILE, SOURCE, FromFile, FromSource, option_types

_FOLDER = files("equipoise.study") / "presets"
PRESETS = tuple(sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml")))


def read_plan(source: str | Path) -> Plan:
    """The plan of a preset, by name, or in a TOML file. Raises one error with every problem."""
    path = Path(source)
    preset = str(source) in PRESETS
    if not preset and path.suffix != ".toml" and not path.is_file():
        raise UnknownName("study", str(source), [*PRESETS, "or a file that ends in .toml"])
    if not preset and not path.is_file():
        raise BadInput(f"no such file: {path}. Name a TOML file, or one of the studies {', '.join(PRESETS)}.")
    try:
        raw = tomllib.loads((_FOLDER / f"{source}.toml" if preset else path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a TOML file: {error}. Correct that place.") from error
    name, folder = (str(source), None) if preset else (path.stem, path.absolute().parent)
    return make_plan({"name": name, **raw}, source=str(source), folder=folder)


def make_plan(raw: Mapping[str, Any], *, source: str = "study", folder: Path | None = None) -> Plan:
    """The plan in a dictionary. If `folder` is given, paths are relative to it and the files must exist."""
    tidy = _normalised(raw, folder)
    problems: list[str] = []
    plan = None
    try:
        plan = TypeAdapter(Plan).validate_json(json.dumps(tidy, default=str), strict=True)
    except ValidationError as error:
        problems += _messages(error)
    problems += _cross_entry_problems(tidy)
    if folder is not None:
        problems += [f"no such file: {path}. Check the name; it is relative to {folder}." for path in _paths(tidy) if not path.is_file()]
    raise_all(list(dict.fromkeys(problems)), source)
    assert plan is not None  # without a plan there were problems
    return plan


def narrow(
    plan: Plan,
    *,
    splits: int | None = None,
    data: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    measures: Sequence[str] | None = None,
) -> Plan:
    """The plan restricted to these splits and names. Without names of data, the optional ones are left out."""
    problems = []
    measures = None if measures is None else [_canonical(measure) for measure in measures]
    for kind, names, known in (
        ("data in this study", data, [d.name for d in plan.data]),
        ("method in this study", methods, [a.name for a in plan.methods]),
        ("measure in this study", measures, list(plan.measures)),
    ):
        problems += [p for name in names or () if name not in known for p in UnknownName(kind, name, known).problems]
    if splits is not None and splits < 1:
        problems.append(f"splits must be at least 1; got {splits}")
    raise_all(problems, plan.name)
    kept_data = tuple(d for d in plan.data if (d.name in data if data else not d.optional))
    kept_measures = tuple(m for m in plan.measures if not measures or m in measures)
    data_names = [d.name for d in kept_data]
    arms = [a for a in plan.methods if not methods or a.name in methods]
    recipes = {a.training for a in arms}
    return dataclasses.replace(
        plan,
        splits=plan.splits if splits is None else splits,
        data=kept_data,
        methods=tuple(
            dataclasses.replace(
                a,
                overrides={k: v for k, v in a.overrides.items() if k in data_names},
                min_performance=_narrow_limit(a.min_performance, data_names, kept_measures),
                max_gap=_narrow_limit(a.max_gap, data_names, kept_measures),
            )
            for a in arms
        ),
        measures=kept_measures,
        trainings={name: recipe for name, recipe in plan.trainings.items() if name in recipes},
    )


def with_options(plan: Plan, **options: Any) -> Plan:
    """The plan with these options set for every source that has them; None leaves an option unchanged.

    Raises an error if no source has an option.
    """
    new = {name: value for name, value in options.items() if value is not None}
    unused = set(new)
    data: list[FromSource | FromFile] = []
    for entry in plan.data:
        if isinstance(entry, FromSource):
            taken = new.keys() & option_types(entry.source).keys()
            unused -= taken
            entry = dataclasses.replace(entry, options={**entry.options, **{name: new[name] for name in taken}})
        data.append(entry)
    listed = ", ".join(entry.name for entry in data)
    raise_all([f"{name} is an option of none of the data: {listed}. Leave it out." for name in sorted(unused)], plan.name)
    return dataclasses.replace(plan, data=tuple(data))


def with_weights(plan: Plan, weights: Sequence[str]) -> Plan:
    """The plan with initial weights of backbones, each as resnet-18=file, or resnet-18=imagenet for the published ones."""
    if not weights:
        return plan
    pairs = [text.partition("=") for text in weights]
    problems = [f"expected weights as resnet-18=file; got {text!r}" for text in weights if not all(text.partition("=")[::2])]
    names = [name for name, *_ in pairs]
    problems += [f"weights of {name} were given twice. Give each network once." for name in dict.fromkeys(names) if names.count(name) > 1]
    new = {name: file if file == IMAGENET else str(Path(file).absolute()) for name, _, file in pairs}
    if not problems:
        problems += _unused_weights({"data": [{"model": plan.network(d.name).model} for d in plan.data], "pretrained": new})
        problems += [f"no such file: {file}. Check the name." for file in new.values() if file != IMAGENET and not Path(file).is_file()]
    raise_all(problems, plan.name)
    before = plan.pretrained if isinstance(plan.pretrained, dict) else dict.fromkeys(backbones(), plan.pretrained)
    return dataclasses.replace(plan, pretrained={**{k: v for k, v in before.items() if v}, **new})


def without_weights(plan: Plan) -> Plan:
    """The plan with networks that start from random weights."""
    return dataclasses.replace(plan, pretrained="", data=tuple(dataclasses.replace(d, pretrained="") for d in plan.data))


def _narrow_limit(limit: Limit | None, data: Sequence[str], measures: Sequence[str]) -> Limit | None:
    """The limit without entries for other data and measures."""
    if not isinstance(limit, Mapping):
        return limit
    kept = {k: v for k, v in limit.items() if k in data or k in measures}
    return {k: {m: n for m, n in v.items() if m in measures} if isinstance(v, Mapping) else v for k, v in kept.items()} or None


def _normalised(raw: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """The dictionary with names filled in and absolute paths. Values of a wrong type are left for the schema to report."""
    tidy = dict(raw)
    for key, kind in (("data", "source"), ("methods", "method")):
        if isinstance(entries := tidy.get(key), (list, tuple)):
            tidy[key] = [_normalised_entry(e, kind, folder) for e in entries]
    data = _names(tidy, "data")
    for entry in _entries(tidy, "methods"):
        for limit in ("min_performance", "max_gap"):
            if isinstance(entry.get(limit), Mapping):
                entry[limit] = _with_canonical_measures(entry[limit], data)
    if isinstance(tidy.get("protocol"), str) and tidy["protocol"] in PROTOCOLS:
        tidy.setdefault("fractions", PROTOCOLS[tidy["protocol"]])
    return _with_absolute_files(tidy, folder)


def _with_canonical_measures(table: Mapping[str, Any], data: Sequence[str]) -> dict[str, Any]:
    """A table of limits, whose keys are names of data or measures, with canonical names of measures."""
    return {
        key if key in data else _canonical(key): _with_canonical_measures(value, ()) if isinstance(value, Mapping) else value
        for key, value in table.items()
    }


def _canonical(measure: Any) -> str:
    """The canonical name of a measure; an unknown one is returned unchanged, and reported by the schema."""
    try:
        return canonical_name(measure)
    except (BadInput, TypeError):
        return str(measure)


def _normalised_entry(entry: Any, kind: str, folder: Path | None) -> Any:
    full = {kind: entry} if isinstance(entry, str) else entry
    if not isinstance(full, Mapping):
        return full
    full = dict(full)
    if isinstance(full.get("file"), str):
        full.setdefault("name", Path(full["file"]).stem)
        full["file"] = str((folder or Path()) / full["file"])
    elif isinstance(full.get(kind), str):
        full.setdefault("name", full[kind])
    options = full.get("options")
    if folder is not None and isinstance(options, Mapping) and isinstance(options.get("mimic_iv"), str):
        full["options"] = {**options, "mimic_iv": str(folder / options["mimic_iv"])}
    return _with_absolute_files(full, folder)


def _with_absolute_files(values: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """A study or an entry of data with absolute paths to the code and weights of its network."""
    if folder is None:
        return values
    model, weights = values.get("model"), values.get("pretrained")
    if isinstance(model, str) and model.partition(":")[0].endswith(".py"):
        values["model"] = str(folder / model)

    def absolute(file: Any) -> Any:
        return str(folder / file) if isinstance(file, str) and file not in ("", IMAGENET) else file

    if weights is not None:
        values["pretrained"] = {k: absolute(v) for k, v in weights.items()} if isinstance(weights, Mapping) else absolute(weights)
    return values


def _entries(tidy: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = tidy.get(key)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _names(tidy: Mapping[str, Any], key: str) -> list[str]:
    return [str(entry["name"]) for entry in _entries(tidy, key) if "name" in entry]


def _paths(tidy: Mapping[str, Any]) -> Iterator[Path]:
    """The files that a study names: data, code and weights."""
    yield from (Path(e["file"]) for e in _entries(tidy, "data") if isinstance(e.get("file"), str))
    for owner in (tidy, *_entries(tidy, "data")):
        place = str(owner.get("model") or MLP).rpartition(":")[0]
        if place.endswith(".py"):
            yield Path(place)
        weights = owner.get("pretrained")
        listed = weights.values() if isinstance(weights, Mapping) else (weights,)
        yield from (Path(w) for w in listed if isinstance(w, str) and w not in ("", IMAGENET))


def _cross_entry_problems(tidy: Mapping[str, Any]) -> Iterator[str]:
    """Problems between entries: duplicate names, settings or limits for names that are not in the study, unused weights."""
    measures = tidy.get("measures")
    listed = [_canonical(m) for m in measures] if isinstance(measures, (list, tuple)) else ["spd", "eod"]
    data = _names(tidy, "data")
    for kind in ("data", "methods"):
        names = _names(tidy, kind)
        folded = [name.casefold() for name in names]
        duplicates = dict.fromkeys(name for name in names if folded.count(name.casefold()) > 1)
        yield from (f"{kind}: the name {name!r} is used more than once. Give each entry a unique name." for name in duplicates)
    yield from _unused_weights(tidy)
    recipes = [str(name) for name in tidy["trainings"]] if isinstance(tidy.get("trainings"), Mapping) else []
    for position, entry in enumerate(_entries(tidy, "methods")):
        for name in entry["overrides"] if isinstance(entry.get("overrides"), Mapping) else ():
            if name not in data:
                yield f"methods[{position}].overrides: {name!r} is not among the data of this study.{_hint(name, data)}"
        recipe = entry.get("training")
        if isinstance(recipe, str) and recipe and recipe not in recipes:
            hint = _hint(recipe, recipes) if recipes else f" The study has none; add [trainings.{recipe}]."
            yield f"methods[{position}].training: {recipe!r} is none of the study's trainings.{hint}"
        for key in ("min_performance", "max_gap"):
            table = entry.get(key)
            for name, inner in table.items() if isinstance(table, Mapping) else ():
                where = f"methods[{position}].{key}"
                if name not in (*data, *listed):
                    yield f"{where}: {name!r} is neither data nor a measure of this study.{_hint(name, [*data, *listed])}"
                for measure in inner if isinstance(inner, Mapping) else ():
                    if measure not in listed:
                        yield f"{where}.{name}: {measure!r} is not a measure of this study.{_hint(measure, listed)}"


def _unused_weights(tidy: Mapping[str, Any]) -> Iterator[str]:
    """Problems with pretrained weights that no network would use."""
    models = []
    for position, entry in enumerate(_entries(tidy, "data")):
        model = str(entry.get("model") or tidy.get("model") or MLP)
        models.append(model)
        if entry.get("pretrained") and model not in backbones():
            yield f"data[{position}].pretrained: only {', '.join(backbones())} start from a file; the model is {model!r}"
    common = tidy.get("pretrained")  # one value is checked as the name ""
    for name in common if isinstance(common, Mapping) else [""] if common else []:
        if name and name not in backbones():
            yield f"pretrained: {name!r} is not a backbone.{_hint(name, backbones())}"
        elif models and not any(model == name if name else model in backbones() for model in models):
            yield f"pretrained: none of the data has the model {name or ' or '.join(backbones())}. Name one with `model`, or leave it out."


def _messages(error: ValidationError) -> Iterator[str]:
    """Pydantic's errors as messages, each with its location in the file."""
    owners: dict[str, type] = {"data": FromSource, "methods": Arm}
    types: dict[str, list[str]] = {}  # pydantic reports one error for each type that a value may have
    for problem in error.errors(include_url=False):
        parts = [p for p in problem["loc"] if p not in (SOURCE, FILE, "str") and not str(p).startswith(("tuple[", "dict["))]
        *outer, last = parts or ["study"]
        inside, where = (_location(p) for p in (outer, parts))
        kind, value = problem["type"], problem.get("input")
        if kind == "unexpected_keyword_argument":
            owner = FromFile if FILE in problem["loc"] else owners.get(str(parts[0]), Plan) if outer else Plan
            valid = [f.name for f in dataclasses.fields(owner)]
            near = [*valid, *(f.name for f in dataclasses.fields(FromFile))] if owner is FromSource else valid
            yield f"unknown key {last!r} {'in ' + inside if inside else 'at the top level'}.{_hint(last, valid, near)}"
        elif kind == "missing" and isinstance(last, str):
            yield f"{inside or 'the study'} lacks {last!r}. Add it."
        elif kind == "value_error":
            cause = problem["ctx"]["error"]
            yield from (f"{where}: {p}" for p in (cause.problems if isinstance(cause, BadInput) else [str(cause)]))
        elif kind == "missing":
            types.setdefault(f"{inside}: got {value!r}; it", []).append("more values")
        else:
            expected = problem["msg"].removeprefix("Input should be ").replace("an object", "a table").replace("valid array", "list")
            types.setdefault(f"{where}: got {value!r}; it", []).append(expected)
    for start, alternatives in types.items():
        yield f"{start} should be {' or '.join(alternatives)}".replace("should be more values", "should have more values")


def _hint(name: object, valid: Sequence[str], near: Sequence[str] = ()) -> str:
    return f"{did_you_mean(name, near or valid)} Valid: {', '.join(valid)}."


def _location(parts: Sequence[str | int]) -> str:
    """A location in the file, such as methods[2].settings."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts).lstrip(".")
