"""Saving a comparison as a bundle: weights under their original keys, the rule, the audits, the report, cards, README and checksums.

`Serving` is how the classifier and its inputs are recorded in run.json. A file that cannot be written (such as an ONNX export of an
unsupported operator) is listed there under `failures`; the others are written. Torch is imported only if there is a network.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from equipoise import methods, models, report
from equipoise.case import schema
from equipoise.case.audit import Bars, no_bars
from equipoise.case.case import CROSS
from equipoise.case.folder import CANDIDATES, INDEX, LABELS_SCHEMA, WEIGHT_FILES, check_folder, filling, recover, written_by_run
from equipoise.case.schema import OWN_NETWORK, RUN, SavedModel, ServedInputs
from equipoise.case.verify import verify
from equipoise.comparison import ORIGINAL, RULES, Comparison, Findings, MethodRow
from equipoise.data import Columns, FeatureTable, Rows, Scores
from equipoise.disk import add_path_to_errors, folders, sha256_of
from equipoise.errors import BadInput, EquipoiseError, pick
from equipoise.measures import UPPER_BOUND, records
from equipoise.report import ReportSpec

if TYPE_CHECKING:
    from torch import Tensor

    Exports = dict[tuple[object, ...], tuple[Path, models.Exported]]  # folders with the model.onnx of a label, by threshold and weights

AUDITS_SCHEMA, AUDITS_VERSION = "equipoise.debias", 5
LABELS_VERSION = 2
CARD_FILES = "card.md and card.xml"
SERVED_COLUMNS = {"patient", "id", "conflicts", "logits", "view"}
ROWS_CHECKED = 64  # of the test set, to compare ONNX with torch


@dataclass(frozen=True, eq=False)
class Saved:
    """The files of a saved bundle, the content of audit.json, and the reasons why files could not be written."""

    folder: Path
    files: tuple[str, ...]
    document: Mapping[str, object]
    failures: Mapping[str, str]
    onnx: models.Exported | None = None


@dataclass(frozen=True, eq=False)
class Serving:
    """How new patients are served in the same way: what run.json records of the classifier and its inputs, and what its files need."""

    inputs: ServedInputs
    model: SavedModel | None = None  # None: a rule without a network
    sample: Tensor | None = None  # a few real rows, to check the ONNX file with
    checkpoint: models.Checkpoint | None = None  # the original weights' file


def inputs_of(rows: Rows, columns: Columns | None = None, **names: Any) -> ServedInputs:
    """How new rows are prepared like these, which were read with these columns; `names` change some: score, view and image_column."""
    known: dict[str, Any] = {} if columns is None else columns.model_dump(include=SERVED_COLUMNS, exclude_unset=True)
    known |= {"group": [a.name for a in rows.attributes], "bins": {a.name: a.bins for a in rows.attributes if a.bins is not None}} | names
    if texts := rows.attributes[0].missing_texts:
        known["missing"] = texts
    if merged := rows.attributes[0].merged:
        known["merge"] = dict(merged)
    if isinstance(rows, Scores):
        return ServedInputs(**known, features=() if rows.features is None else tuple(map(str, rows.features.frame.columns)))
    if (preprocessing := rows.source.to_dict()) is not None:
        return ServedInputs(**known, images=schema.IMAGES_FORMAT.validate_json(json.dumps(preprocessing)))
    if not isinstance(rows.source, FeatureTable):
        return ServedInputs(**known, width=int(rows.inputs.shape[-1]))
    encoder, features = rows.source.fitted(), tuple(map(str, rows.source.frame.columns))
    encoded = schema.SavedEncoder(numeric=dict(encoder.numeric), levels=dict(encoder.levels))
    return ServedInputs(**known, features=features, encoder=encoded if rows.source.scale or encoder.levels else None)


def saved_model(load: str | None, output: str, *, code: models.Code | None = None, **more: Any) -> SavedModel:
    """How to build a network again from an argument of `load_model`; None: the network is given when the bundle is loaded.

    A path in it is made absolute, so that the model is found from any folder.
    """
    if load not in (None, OWN_NETWORK):
        place, colon, name = load.rpartition(":")
        if colon and (place.endswith((".py", ".onnx")) or "/" in place):
            load = f"{Path(place).absolute()}{colon}{name}".removesuffix(":")
        elif load.endswith((".pt2", ".onnx")) or models.is_folder(load):
            load = str(Path(load).absolute())
        with suppress(BadInput):  # not found from this folder: `apply` will require --model
            code = code or models.code_of(load)
    found = None if code is None else schema.SavedCode(path=None if code.path is None else str(code.path), sha256=code.sha256)
    return SavedModel(load=load, output=output, code=found, **more)


def saved_models(
    chosen: models.ChosenOutputs | None, labels: Sequence[str], load: str, code: models.Code | None, output: str, output_name: str | None
) -> dict[str, SavedModel]:
    """How the network of each label is built: with its output of the network; of the only label, with this output."""
    if chosen is None:
        return {labels[0]: saved_model(load, output, code=code, output_name=output_name)}
    if chosen.kind.argmax:  # the score of a class is the margin of its logit over the others
        classes = schema.SavedClasses(names=list(labels), columns=list(chosen.columns), output=chosen.output)
        return {label: saved_model(load, "logit", code=code, classes=classes) for label in labels}
    names = {label: None if chosen.flat else str(column) for label, column in zip(labels, chosen.columns, strict=True)}
    return {label: saved_model(load, chosen.output, code=code, output_name=name) for label, name in names.items()}


def save_comparison(
    case: Comparison, folder: Path, *, model: str | None, score: str | None, overwrite: bool, options: Mapping[str, Any]
) -> Path:
    """The folder with the bundle of a comparison that was made in Python, served as its network or its scores are.

    - `case`, `folder`, `overwrite`: the comparison, where its bundle is written, and whether that may replace an earlier one.
    - `model`: the factory of a network that is not Equipoise's, file.py:factory; without it, the network is given to `Bundle.load`.
    - `score`: of a rule for scores, the column that will hold new ones.
    - `options`: those of the section [report] of a case.
    """
    rows, network = case.rows, cast(Any, case.original.candidate.model)
    assert rows is not None
    if isinstance(rows, Scores):
        serving = Serving(inputs_of(rows, score=score or ("score" if network is None else schema.PREDICTOR_SCORE)))
    else:
        if model is None and (graph := models.onnx_in(network)) is not None and graph.content:
            model = f"{graph.source}:{graph.which}"
        load = model or (OWN_NETWORK if type(network) is models.MLP else None)
        saved = saved_model(load, models.output_kind(network, rows.inputs))
        serving = Serving(inputs_of(rows), saved, rows.inputs[:ROWS_CHECKED])
    save_all({case.label: case}, folder, {case.label: serving}, ReportSpec(**options), overwrite=overwrite)
    return folder


def save_all(
    comparisons: Mapping[str, Comparison],
    folder: Path,
    serving: Mapping[str, Serving],
    options: ReportSpec = ReportSpec(),
    *,
    overwrite: bool = False,
    keep: bool = False,
    title: str = "",
    bars: Bars = no_bars,
    made_from: Mapping[str, object] | None = None,
) -> dict[str, Saved]:
    """The saved bundles of all labels, written completely or not at all: one label in `folder`, several in one subfolder each.

    With several labels, `folder` has an overview with this title. `made_from` is the case, as plain values. With `keep`, what the folder
    held can be chosen again. Of several processes that share a job (torchrun), only the first writes; the others return no bundles.
    """
    if models.rank() > 0:
        return {}
    check_folder(folder, overwrite)
    several = [
        [ORIGINAL, *(tried.name for tried in comparison.candidates)]
        for comparison in comparisons.values()
        if len(comparison.candidates) > 1
    ]
    with filling(folder, overwrite=overwrite) as temporary:
        how: dict[str, Any] = {"serving": serving, "options": options, "title": title, "bars": bars, "made_from": made_from, "exports": {}}
        saved = _write_labels(comparisons, temporary, folder, **how)
        if keep:
            _keep_candidates(recover(folder), temporary / CANDIDATES)
        elif len(several) == len(comparisons):  # what the folder would hold for each candidate that all labels have
            chosen = {comparison.result.name for comparison in comparisons.values()}
            names = [name for name in several[0] if all(name in choices for choices in several)]
            places = folders(temporary / CANDIDATES, names)
            for name, place in places.items():
                place.mkdir(parents=True)
                if chosen == {name}:
                    _link_files(temporary, place)
                else:
                    chosen_again = {label: comparison.choose(name) for label, comparison in comparisons.items()}
                    _write_labels(chosen_again, place, folder, **how)
            index = {name: place.name for name, place in places.items()}
            _write(temporary / CANDIDATES / INDEX, _json(index))
    return saved


def _write_labels(
    comparisons: Mapping[str, Comparison],
    temporary: Path,
    folder: Path,
    *,
    serving: Mapping[str, Serving],
    options: ReportSpec,
    title: str,
    bars: Bars,
    made_from: Mapping[str, object] | None,
    exports: Exports,
) -> dict[str, Saved]:
    """Writes the bundles of all labels, with an overview if there are several, to a temporary folder, which will be renamed to `folder`."""
    places, saved = folders(folder, list(comparisons)), {}
    for label, place in places.items():
        here = temporary if len(places) == 1 else temporary / place.name
        here.mkdir(exist_ok=True)
        saved[label] = _write_bundle(comparisons[label], here, place, serving[label], options, bars, made_from, exports)
    if len(places) > 1:
        first = next(iter(comparisons.values()))
        document = {
            "schema": LABELS_SCHEMA,
            "schema_version": LABELS_VERSION,
            "kind": first.kind,
            "chosen": first.result.name,
            "outcome": str(methods.joint_outcome(case.outcome for case in comparisons.values())),
            "met": methods.joint_met(case.met for case in comparisons.values()),
            "folders": {label: place.name for label, place in places.items()},
            "labels": {label: bundle.document for label, bundle in saved.items()},
        }
        _write(temporary / "audit.json", _json(document))
        pages = report.overview(title, comparisons, {label: own.files for label, own in saved.items()}, places, options)
        for file, text in pages.items():
            _write(temporary / file, text)
    return saved


def _keep_candidates(folder: Path, candidates: Path) -> None:
    """Keeps the candidates of a folder in a new one; the first time, what the folder holds is the only one."""
    if (folder / CANDIDATES / INDEX).is_file():
        _link_files(folder / CANDIDATES, candidates)
        return
    name = json.loads((folder / "audit.json").read_text(encoding="utf-8"))["chosen"]
    place = folders(candidates, [name, ORIGINAL])[name]
    _link_files(folder, place, written_by_run(folder))
    _write(candidates / INDEX, _json({name: place.name}))


def _link_files(source: Path, target: Path, only: Container[Path] | None = None) -> None:
    """The files of a folder in another one, apart from candidates: as hard links where the file system has them."""
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if inside.parts[0] != CANDIDATES and path.is_file() and (only is None or inside in only):
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, target / inside)
            except OSError:
                shutil.copy2(path, target / inside)


def fits_choice(folder: Path, name: str, made_from: Mapping[str, object]) -> str:
    """What a folder holds, if the candidate is a rule for the original's scores that it does not hold, and that is fitted in a moment.

    Empty for any other candidate. Raises an error if the folder holds a repair of another case.
    """
    index = recover(folder) / CANDIDATES / INDEX
    if name not in (ORIGINAL, *RULES) or (index.is_file() and name in json.loads(index.read_text(encoding="utf-8"))):
        return ""
    if name in RULES and dict(cast(Any, made_from.get("repair", {}))).get("test") == CROSS:
        named = " ".join(f"--method {method}" for method in RULES.values())
        raise BadInput(f"nested cross-fitting judges methods, and {name!r} is none. Name it as one: {named}")
    inside = [folder] if (folder / RUN).is_file() else sorted(path.parent for path in folder.glob(f"*/{RUN}"))
    if inside:
        _check_made_from(folder, verify(inside[0]).run, made_from)
    return str(json.loads((folder / "audit.json").read_text(encoding="utf-8"))["chosen"]) if inside else ""


def _check_made_from(folder: Path, run: schema.Run, made_from: Mapping[str, object]) -> None:
    known, now = run.case or {}, json.loads(_json(made_from))
    keys = {(section, key) for given in (known, now) for section, values in given.items() for key in values}
    if changed := sorted(f"{section}.{key}" for section, key in keys if known.get(section, {}).get(key) != now.get(section, {}).get(key)):
        raise BadInput(f"{folder} was repaired with another {', '.join(changed)}. Run `equipoise debias` without --choose first.")


def choose_saved(folder: Path, name: str, made_from: Mapping[str, object]) -> dict[str, schema.Run]:
    """What run.json of each label holds after another candidate of the repair in a folder was taken, as it was fitted.

    - `folder`: that of a repair with several candidates.
    - `name`: the candidate to take.
    - `made_from`: the case as plain values; an error if the repair was made from another one, which would need to be fitted again.
    """
    index = recover(folder) / CANDIDATES / INDEX
    places = json.loads(index.read_text(encoding="utf-8")) if index.is_file() else {}
    if pick("candidate", name, [ORIGINAL, *RULES, *places]) not in places:
        raise BadInput(f"{folder} holds no repair to choose from. Run `equipoise debias` without --choose first.")
    source = index.parent / places[name]
    inside = [source] if (source / RUN).is_file() else sorted(path.parent for path in source.glob(f"*/{RUN}"))
    runs = {run.label: run for run in (verify(place).run for place in inside)}
    _check_made_from(folder, next(iter(runs.values())), made_from)
    with filling(folder) as temporary:
        _link_files(source, temporary)
        _link_files(index.parent, temporary / CANDIDATES)
    return runs


def _write_bundle(
    case: Comparison,
    temporary: Path,
    folder: Path,
    serving: Serving,
    options: ReportSpec,
    bars: Bars,
    made_from: Mapping[str, object] | None,
    exports: Exports,
) -> Saved:
    """Writes the files of a bundle into a temporary folder, which will be renamed to `folder`."""
    failures, weights, heads, onnx = dict(case.failures), dict[str, Any](), None, None
    candidate = case.result.candidate
    if serving.model is not None:
        weights = models.save_weights(candidate.network, temporary, serving.checkpoint)
        heads = None if weights["heads"] is None else {"file": weights["heads"], **weights["structure"]}
    predictor = _write_predictor(candidate.model, temporary) if isinstance(candidate.model, models.Predictor) else None
    _write(temporary / "rule.json", _json(methods.rule_to_dict(candidate.rule)))
    traces = []  # every step of every method on the repair set, with a column that marks the chosen one
    for tried in (case.original, *case.candidates):
        trace = tried.candidate.trace
        traces.append(trace.assign(chosen=[k == tried.candidate.chosen for k in range(len(trace))]))
        traces[-1].insert(0, "method", tried.name)
    with add_path_to_errors(temporary / "trace.csv"):
        pd.concat(traces, ignore_index=True).to_csv(temporary / "trace.csv", index=False)
    if options.onnx and serving.model is not None:
        onnx = _write_onnx(case, temporary, serving, options, failures, bars, exports)
    with bars("audit") as step:
        found = case.measured(step)  # one audit, from which audit.json, the cards, the report and the terminal are written
    document = findings_document(case, found)
    _write(temporary / "audit.json", _json(document))
    for page in (CARD_FILES, "report.html"):
        with bars(page) as step, _recording(failures, page):
            if page == CARD_FILES:
                texts = report.cards(case, options.card)
            else:
                texts = {page: report.page_of(report.repair_document(case, options.words, thumbnails=options.thumbnails))}
            for file, text in texts.items():
                _write(temporary / file, text)
            step(1, 1)
    _write(temporary / "README.txt", readme(case, folder, temporary, serving, options, weights, onnx, failures))
    sizes = {}
    for name, rows in (("repair", case.result.valid), ("test", case.result.test)):
        patients = None if rows is None or rows.patients is None else len(set(rows.patients))
        sizes[name] = None if rows is None else {"rows": len(rows), "patients": patients}
    run = schema.Run(
        title=case.title,
        label=case.label,
        provenance=case.provenance,
        case=None if made_from is None else dict(made_from),
        model=serving.model,
        predictor=predictor,
        heads=heads,
        inputs=serving.inputs,
        method=candidate.method,
        ran=candidate.ran,
        settings=dict(candidate.settings),
        methods=[tried.name for tried in case.candidates],
        goal={"words": str(candidate.goal), **vars(candidate.goal)},
        outcome=case.outcome,
        met=case.met,
        forced=case.forced,
        sets=cast(Any, sizes),
        onnx=None if onnx is None else {"max_difference": onnx.max_difference, "opset": onnx.opset, "rows": onnx.rows},
        failures=failures,
        files={path.name: sha256_of(path) for path in sorted(temporary.iterdir())},
    )
    _write(temporary / RUN, schema.sealed(json.loads(schema.RUN_FORMAT.dump_json(run, fallback=str))))
    return Saved(folder, tuple(sorted(path.name for path in temporary.iterdir())), document, failures, onnx)


def _write_predictor(model: models.Predictor, folder: Path) -> schema.SavedPredictor:
    """Writes an estimator with skops if that is installed and knows its types, otherwise as a pickle; a function is not written."""
    file, trusted = None, list[str]()
    if model.kind == "estimator":
        file, content, trusted = model.to_file()
        with add_path_to_errors(folder / file):
            (folder / file).write_bytes(content)
    columns = None if model.columns is None else list(model.columns)
    named, positive, libraries = type(model.model).__name__, cast(str, model.positive), dict(model.libraries)
    return schema.SavedPredictor(named=named, file=file, positive=positive, columns=columns, libraries=libraries, trusted=trusted)


@contextmanager
def _recording(failures: dict[str, str], what: str) -> Iterator[None]:
    """Records a failure instead of raising it, so that a repair that took hours is not lost. A full disk is still raised."""
    try:
        yield
    except OSError:
        raise
    except EquipoiseError as error:
        failures[what] = str(error)
    except Exception as error:  # a defect of Equipoise: the network is worth more than the page
        failures[what] = f"{type(error).__name__}: {error}"


def _write_onnx(
    case: Comparison, temporary: Path, serving: Serving, options: ReportSpec, failures: dict[str, str], bars: Bars, exports: Exports
) -> models.Exported | None:
    """Writes model.onnx and compares it with torch; None if the export failed.

    Candidates that are rules for the same network share its file, because an export takes longer than all the rest.
    """
    rule = case.result.candidate.rule
    # The repair of an ONNX file returns decisions.
    from_onnx = any(found(case.result.candidate.network) is not None for found in (models.onnx_in, models.rebuilt_in))
    threshold = rule.shared if options.onnx_rule or from_onnx else None
    if options.onnx_rule and threshold is None:
        failures["the rule in model.onnx"] = "only a threshold for all patients can be part of the network; this rule is in rule.json"
    weights = [sha256_of(path) for path in sorted(temporary.glob("*.safetensors"))]
    network, exported = (case.label, threshold, *weights), None
    if network in exports:
        source, exported = exports[network]
        _link_files(source, temporary, {Path("model.onnx"), Path("model.onnx.data")})
        return exported
    with bars("ONNX") as step, _recording(failures, "model.onnx"), add_path_to_errors(temporary / "model.onnx"):
        assert serving.sample is not None  # of a network there always is one
        assert serving.model is not None
        exported = models.to_onnx(
            case.result.candidate.network, serving.sample, temporary / "model.onnx", threshold, output=serving.model.output
        )
        step(1, 1)
    if exported is not None and not exported.agrees:
        failures["agreement of model.onnx"] = (
            f"its outputs differ from torch's by up to {exported.max_difference:.1e} on {exported.rows} rows, where the largest is "
            f"{exported.largest:.3g}. Compare them before use."
        )
    elif exported is not None:
        exports[network] = temporary, exported
    return exported


def findings_document(case: Comparison, found: Findings) -> dict[str, object]:
    """The content of audit.json: the audits before and after, of every method, and the paired changes, on held-out patients."""
    candidate, methods = case.result.candidate, {}
    for tried, audit, row in zip(case.candidates, found.audits[1:], found.methods[1:], strict=True):
        own, judgement = tried.candidate, row.judgement
        assert judgement is not None  # every candidate is judged; only the original is not
        rows = None if tried.valid is None else len(tried.valid)
        methods[tried.name] = {
            "outcome": str(judgement.outcome),
            "met": judgement.met,
            "judgement": judgement.to_dict(),
            "why": [note.to_dict() for note in own.why],
            "step": int(tried.chosen_row["step"]),
            "repair_set": {"gap": row.valid_gap, "performance": row.valid_performance, "rows": rows},
            "rule": own.rule.describe(),
            "needs_group": own.rule.needs_group,
            "ran": own.ran,
            "settings": dict(own.settings),
            "notes": [note.to_dict() for note in own.notes],
            "seconds": tried.seconds,
            "limit": _upper_bound(row),
            "test_set": audit.to_dict(),
        }
    rates = [
        {"attribute": found.main, "group": s.group, "rate": s.rate, "before": s.before, "after": s.after, **s.change.to_dict()}
        for s in found.shifts
    ]
    gap = {"group": found.gap_before.group, "reference": found.gap_before.reference, **found.gap_change.to_dict()}
    return {
        "schema": AUDITS_SCHEMA,
        "schema_version": AUDITS_VERSION,
        "outcome": str(found.judgement.outcome),
        "met": found.judgement.met,
        "judgement": found.judgement.to_dict(),
        "original": {"rule": case.original.candidate.rule.describe(), "in_use": candidate.goal.threshold is not None},
        "forced": case.forced,
        "chosen": case.result.name,
        "why": [note.to_dict() for note in candidate.why],
        "goal": {"words": str(candidate.goal), **vars(candidate.goal)},
        "before": found.before.to_dict(),
        "after": found.after.to_dict(),
        **({} if found.periods is None else {"periods": found.periods.to_dict()}),
        "limit": _upper_bound(found.methods[0]),
        "methods": methods,
        "change": {"gap": gap, "performance": found.performance_change.to_dict(), "rates": rates},
        **({} if case.baseline is None else {"baseline": case.baseline.to_dict()}),
        **({} if case.probes is None else {"encoding": {side: records(frame) for side, frame in case.probes.items()}}),
    }


def _upper_bound(row: MethodRow) -> dict[str, object] | None:
    """The group-aware upper bound at the same |gap| on the original test scores, and the distance below it."""
    return None if row.below is None else {"performance": row.performance.value + row.below, "below": row.below, "what": UPPER_BOUND}


def _write(path: Path, text: str) -> None:
    with add_path_to_errors(path):
        path.write_text(text, encoding="utf-8")


def _json(content: Mapping[str, object]) -> str:
    """Plain values as JSON, with null in place of NaN and infinity, which JSON does not have."""
    return json.dumps(json.loads(json.dumps(content, default=str), parse_constant=lambda _: None), indent=2) + "\n"


def readme(
    case: Comparison,
    folder: Path,
    place: Path,
    serving: Serving,
    options: ReportSpec,
    weights: dict[str, Any],
    onnx: models.Exported | None,
    failures: Mapping[str, str],
) -> str:
    """The README.txt of a bundle: how to load its weights, if it has any, and how to make decisions, with code that can be run."""
    rule = case.result.candidate.rule
    inputs, saved = serving.inputs, serving.model
    drawn_by = inputs.id or inputs.image_column or inputs.patient
    about: dict[str, Any] = {
        "case": case,
        "rule": rule,
        "inputs": inputs,
        "saved": saved,
        "verdict": f"{report.repair_answer(case, report.groups_called(case, options.words))} {report.repair_set_words(case)}",
        "drawn_by": drawn_by,
        "folder": folder,
        "failures": failures,
    }
    if saved is None:
        files = sorted(path.name for path in place.glob("predictor.*"))  # the classifier, unless only scores were given
        about |= {
            "reads": list(getattr(rule, "columns", ())),
            "groups": inputs.group if rule.needs_group else (),
            "predictor": case.result.candidate.model is not None,
            "predictor_file": files[0] if files else None,
        }
        return report.render("README_rule.txt.j2", about)
    about |= weights | {
        "file": next(name for name in WEIGHT_FILES[1:] if (place / name).exists()),
        "onnx": onnx,
        "onnx_rule": options.onnx_rule and rule.shared is not None,
        "own": saved.code is None and (inputs.images is None or inputs.images.transform is None),
        "prepared": report.preprocessing_words(asdict(inputs.images)) if inputs.images is not None else "",
    }
    return report.render("README.txt.j2", about)
