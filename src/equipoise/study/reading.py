"""Plans of studies: read from a TOML file or a preset, checked as a whole before anything runs, narrowed and adjusted.

    name = "my-hospital"
    splits = 20                                    # seeds first_seed, first_seed + 1, ...
    measures = ["eod"]
    model = "networks.py:make"                     # default: the paper's MLP; for images also a backbone such as resnet-18
    protocol = "balanced"                          # default: a plain split; see equipoise.data.splits

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
    training = "published"                         # default: the study's own training; else one of its `trainings`

    [trainings.published]                          # networks trained in another way, for the arms that name it
    restore = "last"

Data and methods may also be plain lists of names. An entry of data may have a `model` of its own; a backbone may start from the weights in
a file, `pretrained`, of its data, of the study, or (a table) of the study by backbone, or from its published ones, `pretrained =
"imagenet"`. Paths are relative to the folder of the TOML file. The presets are in the folder `presets`.
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
from equipoise.measures import named
from equipoise.study.networks import IMAGENET, MLP, backbones
from equipoise.study.plan import PROTOCOLS, Arm, Limit, Plan
from equipoise.study.sources import FILE, SOURCE, FromFile, FromSource, option_types

_FOLDER = files("equipoise.study") / "presets"
PRESETS = tuple(sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml")))


def read_plan(source: str | Path) -> Plan:
    """The plan of a preset by name, or in a TOML file; one error with everything that is wrong with it."""
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
    """The plan in a plain dictionary. With a folder, paths are relative to it and the files must exist."""
    tidy = _tidied(raw, folder)
    problems: list[str] = []
    plan = None
    try:
        plan = TypeAdapter(Plan).validate_json(json.dumps(tidy, default=str), strict=True)
    except ValidationError as error:
        problems += _worded(error)
    problems += _crossed(tidy)
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
    """The plan restricted to these splits and names. Without names, all but the optional data."""
    problems = []
    measures = None if measures is None else [_canonical(measure) for measure in measures]
    for kind, asked, known in (
        ("data in this study", data, [d.name for d in plan.data]),
        ("method in this study", methods, [a.name for a in plan.methods]),
        ("measure in this study", measures, list(plan.measures)),
    ):
        problems += [p for name in asked or () if name not in known for p in UnknownName(kind, name, known).problems]
    if splits is not None and splits < 1:
        problems.append(f"splits must be at least 1; got {splits}")
    raise_all(problems, plan.name)
    kept_data = tuple(d for d in plan.data if (d.name in data if data else not d.optional))
    kept_measures = tuple(m for m in plan.measures if not measures or m in measures)
    names = [d.name for d in kept_data]
    arms = [a for a in plan.methods if not methods or a.name in methods]
    recipes = {a.training for a in arms}
    return dataclasses.replace(
        plan,
        splits=plan.splits if splits is None else splits,
        data=kept_data,
        methods=tuple(
            dataclasses.replace(
                a,
                overrides={k: v for k, v in a.overrides.items() if k in names},
                min_performance=_cut(a.min_performance, names, kept_measures),
                max_gap=_cut(a.max_gap, names, kept_measures),
            )
            for a in arms
        ),
        measures=kept_measures,
        trainings={name: recipe for name, recipe in plan.trainings.items() if name in recipes},
    )


def with_options(plan: Plan, **options: Any) -> Plan:
    """The plan with options of loaders set wherever a source has them; None leaves an option unchanged.

    An option that no source of the plan has is an error.
    """
    given = {name: value for name, value in options.items() if value is not None}
    taken = {d.name: given.keys() & option_types(d.source).keys() if isinstance(d, FromSource) else set() for d in plan.data}
    idle = sorted(given.keys() - set().union(*taken.values()))
    raise_all([f"{name} is an option of none of the data: {', '.join(taken)}. Leave it out." for name in idle], plan.name)
    data = (
        dataclasses.replace(d, options={**d.options, **{n: given[n] for n in taken[d.name]}}) if isinstance(d, FromSource) else d
        for d in plan.data
    )
    return dataclasses.replace(plan, data=tuple(data))


def with_weights(plan: Plan, weights: Sequence[str]) -> Plan:
    """The plan with weights that backbones start from, each as resnet-18=file, or resnet-18=imagenet for the published ones."""
    if not weights:
        return plan
    pairs = [text.partition("=") for text in weights]
    problems = [f"expected weights as resnet-18=file; got {text!r}" for text in weights if not all(text.partition("=")[::2])]
    given = {name: file if file == IMAGENET else str(Path(file).absolute()) for name, _, file in pairs}
    if not problems:
        problems += _idle_weights({"data": [{"model": plan.network(d.name).model} for d in plan.data], "pretrained": given})
        problems += [f"no such file: {file}. Check the name." for file in given.values() if file != IMAGENET and not Path(file).is_file()]
    raise_all(problems, plan.name)
    before = plan.pretrained if isinstance(plan.pretrained, dict) else dict.fromkeys(backbones(), plan.pretrained)
    return dataclasses.replace(plan, pretrained={**{k: v for k, v in before.items() if v}, **given})


def without_weights(plan: Plan) -> Plan:
    """The plan with networks that start from random weights."""
    return dataclasses.replace(plan, pretrained="", data=tuple(dataclasses.replace(d, pretrained="") for d in plan.data))


def _cut(limit: Limit | None, data: Sequence[str], measures: Sequence[str]) -> Limit | None:
    """A limit without the entries for data and measures that are not in the study."""
    if not isinstance(limit, Mapping):
        return limit
    kept = {k: v for k, v in limit.items() if k in data or k in measures}
    return {k: {m: n for m, n in v.items() if m in measures} if isinstance(v, Mapping) else v for k, v in kept.items()} or None


def _tidied(raw: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """The same with names filled in and paths made absolute. Values of a wrong type are left for the schema to report."""
    tidy = dict(raw)
    for key, kind in (("data", "source"), ("methods", "method")):
        if isinstance(entries := tidy.get(key), (list, tuple)):
            tidy[key] = [_entry(e, kind, folder) for e in entries]
    data = [str(e["name"]) for e in _entries(tidy, "data") if "name" in e]
    for entry in _entries(tidy, "methods"):
        for limit in ("min_performance", "max_gap"):
            if isinstance(entry.get(limit), Mapping):
                entry[limit] = _by_name(entry[limit], data)
    if isinstance(tidy.get("protocol"), str) and tidy["protocol"] in PROTOCOLS:
        tidy.setdefault("fractions", PROTOCOLS[tidy["protocol"]])
    return _placed(tidy, folder)


def _by_name(table: Mapping[str, Any], data: Sequence[str]) -> dict[str, Any]:
    """A table of limits with canonical names of measures; names of data stay."""
    return {k if k in data else _canonical(k): _by_name(v, ()) if isinstance(v, Mapping) else v for k, v in table.items()}


def _canonical(measure: Any) -> str:
    """The canonical name of a measure; anything else stays, to be reported elsewhere."""
    try:
        return named(measure)
    except (BadInput, TypeError):
        return str(measure)


def _entry(entry: Any, kind: str, folder: Path | None) -> Any:
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
    return _placed(full, folder)


def _placed(values: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """The same with the files of networks, in a study or an entry of data, made absolute."""
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


def _entries(tidy: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    entries = tidy.get(key)
    return (e for e in entries if isinstance(e, dict)) if isinstance(entries, list) else iter(())


def _paths(tidy: Mapping[str, Any]) -> Iterator[Path]:
    yield from (Path(e["file"]) for e in _entries(tidy, "data") if isinstance(e.get("file"), str))
    for owner in (tidy, *_entries(tidy, "data")):
        place = str(owner.get("model") or MLP).rpartition(":")[0]
        if place.endswith(".py"):
            yield Path(place)
        weights = owner.get("pretrained")
        named_files = weights.values() if isinstance(weights, Mapping) else (weights,)
        yield from (Path(w) for w in named_files if isinstance(w, str) and w not in ("", IMAGENET))


def _crossed(tidy: Mapping[str, Any]) -> Iterator[str]:
    """Problems between entries: duplicate names, settings and limits for what is not in the study, weights for no backbone."""
    measures = tidy.get("measures")
    listed = [_canonical(m) for m in measures] if isinstance(measures, (list, tuple)) else ["spd", "eod"]
    data = [str(e["name"]) for e in _entries(tidy, "data") if "name" in e]
    arms = [str(e["name"]) for e in _entries(tidy, "methods") if "name" in e]
    for kind, names in (("data", data), ("methods", arms)):
        folded = [n.casefold() for n in names]
        twice = dict.fromkeys(n for n in names if folded.count(n.casefold()) > 1)
        yield from (f"{kind}: the name {n!r} is used more than once. Give each entry a name of its own." for n in twice)
    yield from _idle_weights(tidy)
    recipes = [str(name) for name in tidy["trainings"]] if isinstance(tidy.get("trainings"), Mapping) else []
    for position, entry in enumerate(_entries(tidy, "methods")):
        for name in entry["overrides"] if isinstance(entry.get("overrides"), Mapping) else ():
            if name not in data:
                yield f"methods[{position}].overrides: {name!r} is not among the data of this study.{_hint(name, data)}"
        recipe = entry.get("training")
        if isinstance(recipe, str) and recipe and recipe not in recipes:
            known = _hint(recipe, recipes) if recipes else f" The study has none; add [trainings.{recipe}]."
            yield f"methods[{position}].training: {recipe!r} is none of the study's trainings.{known}"
        for key in ("min_performance", "max_gap"):
            table = entry.get(key)
            for name, inner in table.items() if isinstance(table, Mapping) else ():
                where = f"methods[{position}].{key}"
                if name not in (*data, *listed):
                    yield f"{where}: {name!r} is neither data nor a measure of this study.{_hint(name, [*data, *listed])}"
                for measure in inner if isinstance(inner, Mapping) else ():
                    if measure not in listed:
                        yield f"{where}.{name}: {measure!r} is not a measure of this study.{_hint(measure, listed)}"


def _idle_weights(tidy: Mapping[str, Any]) -> Iterator[str]:
    """Problems with pretrained weights that no network would use."""
    models = [str(entry.get("model") or tidy.get("model") or MLP) for entry in _entries(tidy, "data")]
    for position, (entry, model) in enumerate(zip(_entries(tidy, "data"), models, strict=True)):
        if entry.get("pretrained") and model not in backbones():
            yield f"data[{position}].pretrained: only {', '.join(backbones())} start from a file; the model is {model!r}"
    common = tidy.get("pretrained")
    for name in common if isinstance(common, Mapping) else [""] if common else []:
        if name and name not in backbones():
            yield f"pretrained: {name!r} is not a backbone.{_hint(name, backbones())}"
        elif models and not any(model == name if name else model in backbones() for model in models):
            yield f"pretrained: none of the data has the model {name or ' or '.join(backbones())}. Name one with `model`, or leave it out."


def _worded(error: ValidationError) -> Iterator[str]:
    """Pydantic's findings as messages, each with its place."""
    owners: dict[str, type] = {"data": FromSource, "methods": Arm}
    types: dict[str, list[str]] = {}  # a value that may have several types has a finding for each
    for found in error.errors(include_url=False):
        parts = [p for p in found["loc"] if p not in (SOURCE, FILE, "str") and not str(p).startswith(("tuple[", "dict["))]
        *outer, last = parts or ["study"]
        inside, where = (_place(p) for p in (outer, parts))
        kind, value = found["type"], found.get("input")
        if kind == "unexpected_keyword_argument":
            owner = FromFile if FILE in found["loc"] else owners.get(str(parts[0]), Plan) if outer else Plan
            valid = [f.name for f in dataclasses.fields(owner)]
            near = [*valid, *(f.name for f in dataclasses.fields(FromFile))] if owner is FromSource else valid
            yield f"unknown key {last!r} {'in ' + inside if inside else 'at the top level'}.{_hint(last, valid, near)}"
        elif kind == "missing" and isinstance(last, str):
            yield f"{inside or 'the study'} lacks {last!r}. Add it."
        elif kind == "value_error":
            cause = found["ctx"]["error"]
            yield from (f"{where}: {p}" for p in (cause.problems if isinstance(cause, BadInput) else [str(cause)]))
        elif kind == "missing":
            types.setdefault(f"{inside}: got {value!r}; it", []).append("more values")
        else:
            wanted = found["msg"].removeprefix("Input should be ").replace("an object", "a table").replace("valid array", "list")
            types.setdefault(f"{where}: got {value!r}; it", []).append(wanted)
    for start, wanted_types in types.items():
        yield f"{start} should be {' or '.join(wanted_types)}".replace("should be more values", "should have more values")


def _hint(name: object, valid: Sequence[str], near: Sequence[str] = ()) -> str:
    return f"{did_you_mean(name, near or valid)} Valid: {', '.join(valid)}."


def _place(parts: Sequence[str | int]) -> str:
    """The place of something in a file: methods[2].settings."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts).lstrip(".")
