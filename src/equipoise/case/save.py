"""Saving a comparison as a bundle: weights under their original keys, the rule, the audits, the report, cards, and checksums.
from equipoise.report import ReportSpec

A file that cannot be written (such as an ONNX export of an unsupported operator) is listed in run.json under `failures`; the others are
written.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from equipoise.case.folder import LABELS_SCHEMA, check_folder, filling
from equipoise.case.progress import Bars, no_bars
from equipoise.case.readme import readme
from equipoise.case.schema import RUN, RUN_FORMAT, Run, SavedOnnx, SavedPredictor, SetSize
from equipoise.case.serving import Serving, saved_model, serving_of
from equipoise.case.verify import sealed
from equipoise.comparison import Comparison, Findings, MethodRow, ScoredCandidate
from equipoise.data import add_path_to_errors, folders, sha256_of, write_text
from equipoise.errors import EquipoiseError
from equipoise.measures import UPPER_BOUND, LabelAudit, records
from equipoise.methods import joint_met, joint_outcome, rule_to_dict
from equipoise.models import TRUSTED_TYPES, Predictor, rank
from equipoise.report import ReportSpec, documents_of, overview

if TYPE_CHECKING:
    from equipoise.models import Exported

AUDITS, AUDITS_VERSION = "equipoise.debias", 5
LABELS_VERSION = 2


@dataclass(frozen=True, eq=False)
class Saved:
    """The files of a saved bundle, the content of audit.json, and the reasons why files could not be written."""

    folder: Path
    files: tuple[str, ...]
    document: Mapping[str, object]
    failures: Mapping[str, str]
    onnx: "Exported | None" = None


def save_comparison(
    case: Comparison, folder: Path, *, model: str | None, score: str | None, overwrite: bool, options: Mapping[str, Any]
) -> Path:
    """The folder with the bundle of a comparison that was made in Python, served as its network or its scores are."""
    assert case.rows is not None
    serving = serving_of(case.original.candidate.model, case.rows)
    if model is not None and serving.model is not None:
        serving = replace(serving, model=saved_model(model, serving.model.output, output_name=serving.model.output_name))
    if score is not None:
        serving = replace(serving, inputs=replace(serving.inputs, score=score))
    save_all({case.label: case}, folder, {case.label: serving}, ReportSpec(**options), overwrite=overwrite)
    return folder


def save_all(
    comparisons: Mapping[str, Comparison],
    folder: Path,
    serving: Mapping[str, Serving],
    options: ReportSpec = ReportSpec(),
    *,
    overwrite: bool = False,
    title: str = "",
    bars: Bars = no_bars,
    made_from: Mapping[str, object] | None = None,
) -> dict[str, Saved]:
    """The saved bundles of all labels, written completely or not at all: one label in `folder`, several in one subfolder each.

    With several labels, `folder` has an overview with this title. `made_from` is the case, as plain values. Of several processes that
    share a job (torchrun), only the first writes; the others return no bundles.
    """
    if rank() > 0:
        return {}
    check_folder(folder, overwrite)
    with filling(folder, overwrite=overwrite) as temporary:
        places, saved = folders(folder, list(comparisons)), {}
        for label, place in places.items():
            here = temporary if len(places) == 1 else temporary / place.name
            here.mkdir(exist_ok=True)
            saved[label] = _write_bundle(comparisons[label], here, place, serving[label], options, bars, made_from)
        if len(places) > 1:
            _write_overview(temporary, comparisons, saved, places, title, options)
    return saved


def _write_overview(
    temporary: Path,
    comparisons: Mapping[str, Comparison],
    saved: Mapping[str, Saved],
    places: Mapping[str, Path],
    title: str,
    options: ReportSpec,
) -> None:
    """Writes the files about all labels: audit.json, report.html and README.txt."""
    first = next(iter(comparisons.values()))
    document = {
        "schema": LABELS_SCHEMA,
        "schema_version": LABELS_VERSION,
        "kind": first.kind,
        "chosen": first.result.name,
        "outcome": str(joint_outcome(case.judgement.outcome for case in comparisons.values())),
        "met": joint_met(case.judgement.met for case in comparisons.values()),
        "folders": {label: place.name for label, place in places.items()},
        "labels": {label: bundle.document for label, bundle in saved.items()},
    }
    _write_json(temporary / "audit.json", document)
    for file, text in overview(title, comparisons, {label: own.files for label, own in saved.items()}, places, options).items():
        write_text(temporary / file, text)


def _write_bundle(
    case: Comparison,
    temporary: Path,
    folder: Path,
    serving: Serving,
    options: ReportSpec,
    bars: Bars,
    made_from: Mapping[str, object] | None,
) -> Saved:
    """Writes the files of a bundle into a temporary folder, which will be renamed to `folder`."""
    failures = dict(case.failures)
    candidate = case.result.candidate
    heads = _write_network(candidate.network, temporary, serving) if serving.model is not None else None
    predictor = _write_predictor(candidate.model, temporary) if isinstance(candidate.model, Predictor) else None
    _write_json(temporary / "rule.json", rule_to_dict(candidate.rule))
    with add_path_to_errors(temporary / "trace.csv"):
        _traces(case).to_csv(temporary / "trace.csv", index=False)
    onnx = _write_onnx(case, temporary, serving, options, failures, bars) if options.onnx and serving.model is not None else None
    with bars("audit") as step:
        found = case.measured(step)  # one audit, from which audit.json, the cards, the report and the terminal are written
    document = audit_document(case, found)
    _write_json(temporary / "audit.json", document)
    for page, render in documents_of(case, options).items():
        with bars(page) as step, _recording(failures, page):
            for file, text in render().items():
                with add_path_to_errors(temporary / file):
                    write_text(temporary / file, text)
            step(1, 1)
    with add_path_to_errors(temporary / "README.txt"):
        text = readme(case, folder, temporary, serving, options, onnx, failures)
        (temporary / "README.txt").write_text(text, encoding="utf-8")
    run = Run(
        title=case.title,
        label=case.label,
        provenance=case.provenance,
        case=None if made_from is None else dict(made_from),
        model=serving.model,
        predictor=predictor,
        heads=heads,
        inputs=serving.inputs,
        groups=[attribute.name for attribute in case.result.test.attributes],
        method=candidate.method,
        ran=candidate.ran,
        settings=dict(candidate.settings),
        methods=[tried.name for tried in case.candidates],
        goal={"words": str(candidate.goal), **vars(candidate.goal)},
        outcome=case.judgement.outcome,
        met=case.judgement.met,
        forced=case.forced,
        sets={"repair": _size(case.result.valid), "test": _size(case.result.test)},
        onnx=None if onnx is None else SavedOnnx(max_difference=onnx.max_difference, opset=onnx.opset, rows=onnx.rows),
        failures=failures,
        files={path.name: sha256_of(path) for path in sorted(temporary.iterdir())},
    )
    with add_path_to_errors(temporary / RUN):
        (temporary / RUN).write_text(sealed(json.loads(RUN_FORMAT.dump_json(run, fallback=str))), encoding="utf-8")
    files = tuple(sorted(path.name for path in temporary.iterdir()))
    return Saved(folder, files, document, failures, onnx)


def _write_network(network: Any, folder: Path, serving: Serving) -> dict[str, Any] | None:
    """Writes the weights, and returns the heads around the network, which are not among them, for run.json."""
    from equipoise.models import HEADS, heads_of, plain_weights, save_weights

    save_weights(network, folder, serving.checkpoint)
    heads = heads_of(network, plain_weights(network, serving.checkpoint))
    return None if heads is None else {"file": HEADS, **heads.to_dict()}


def _write_predictor(model: Predictor, folder: Path) -> SavedPredictor:
    """Writes an estimator with skops if that is installed and knows its types, otherwise as a pickle; a function is not written."""
    file, content, trusted = None, b"", list[str]()
    if model.kind == "estimator":
        try:
            import skops.io

            file, content = "predictor.skops", skops.io.dumps(model.model)
            trusted = [name for name in skops.io.get_untrusted_types(data=content) if name not in TRUSTED_TYPES]
        except Exception:  # not installed, or a type that it cannot write
            import joblib

            joblib.dump(model.model, stream := BytesIO())
            file, content = "predictor.joblib", stream.getvalue()
        with add_path_to_errors(folder / file):
            (folder / file).write_bytes(content)
    columns = None if model.columns is None else list(model.columns)
    named, positive, libraries = type(model.model).__name__, cast(str, model.positive), dict(model.libraries)
    return SavedPredictor(named=named, file=file, positive=positive, columns=columns, libraries=libraries, trusted=trusted)


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
    case: Comparison, temporary: Path, serving: Serving, options: ReportSpec, failures: dict[str, str], bars: Bars
) -> "Exported | None":
    """Writes model.onnx and compares it with torch; None if the export failed."""
    from equipoise.models import onnx_in, to_onnx

    rule = case.result.candidate.rule
    with_rule = options.onnx_rule or onnx_in(case.result.candidate.network) is not None  # the repair of an ONNX file returns decisions
    threshold = rule.shared if with_rule else None
    if options.onnx_rule and threshold is None:
        failures["the rule in model.onnx"] = "only a threshold for all patients can be part of the network; this rule is in rule.json"
    exported = None
    with bars("ONNX") as step, _recording(failures, "model.onnx"), add_path_to_errors(temporary / "model.onnx"):
        assert serving.sample is not None  # of a network there always is one
        assert serving.model is not None
        network, output = case.result.candidate.network, serving.model.output
        exported = to_onnx(network, serving.sample, temporary / "model.onnx", threshold, output=output)
        step(1, 1)
    if exported is not None and not exported.agrees:
        failures["agreement of model.onnx"] = (
            f"its outputs differ from torch's by up to {exported.max_difference:.1e} on {exported.rows} rows, where the largest is "
            f"{exported.largest:.3g}. Compare them before use."
        )
    return exported


def audit_document(case: Comparison, found: Findings) -> dict[str, object]:
    """The content of audit.json: the audits before and after, of every method, and the paired changes, on held-out patients."""
    candidate = case.result.candidate
    return {
        "schema": AUDITS,
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
        "limit": _upper_bound(found.methods[0]),
        "methods": {
            tried.name: _method_document(tried, audit, row)
            for tried, audit, row in zip(case.candidates, found.audits[1:], found.methods[1:], strict=True)
        },
        "change": _changes(found),
        **({} if case.baseline is None else {"baseline": case.baseline.to_dict()}),
        **({} if case.probes is None else {"encoding": {side: records(frame) for side, frame in vars(case.probes).items()}}),
    }


def _changes(found: Findings) -> dict[str, object]:
    """The changes from before to after on the same patients, as in the report and the cards."""
    rates = [
        {"attribute": found.main, "group": s.group, "rate": s.rate, "before": s.before, "after": s.after, **s.change.to_dict()}
        for s in found.shifts
    ]
    gap = {"group": found.gap_before.group, "reference": found.gap_before.reference, **found.gap_change.to_dict()}
    return {"gap": gap, "performance": found.performance_change.to_dict(), "rates": rates}


def _upper_bound(row: MethodRow) -> dict[str, object] | None:
    """The group-aware upper bound at the same |gap| on the original test scores, and the distance below it."""
    return None if row.below is None else {"performance": row.performance.value + row.below, "below": row.below, "what": UPPER_BOUND}


def _method_document(tried: ScoredCandidate, audit: LabelAudit, row: MethodRow) -> dict[str, object]:
    candidate, judgement = tried.candidate, row.judgement
    assert judgement is not None  # every candidate is judged; only the original is not
    rows = None if tried.valid is None else len(tried.valid)
    return {
        "outcome": str(judgement.outcome),
        "met": judgement.met,
        "judgement": judgement.to_dict(),
        "why": [note.to_dict() for note in candidate.why],
        "step": int(tried.chosen_row["step"]),
        "repair_set": {"gap": row.valid_gap, "performance": row.valid_performance, "rows": rows},
        "rule": candidate.rule.describe(),
        "needs_group": candidate.rule.needs_group,
        "ran": candidate.ran,
        "settings": dict(candidate.settings),
        "notes": [note.to_dict() for note in candidate.notes],
        "seconds": tried.seconds,
        "limit": _upper_bound(row),
        "test_set": audit.to_dict(),
    }


def _traces(case: Comparison) -> pd.DataFrame:
    """Every step of every method on the repair set, with a column that marks the chosen one."""
    frames = []
    for tried in (case.original, *case.candidates):
        trace = tried.candidate.trace
        frame = trace.assign(chosen=[k == tried.candidate.chosen for k in range(len(trace))])
        frame.insert(0, "method", tried.name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _size(scores: Any) -> SetSize | None:
    if scores is None:
        return None
    return SetSize(rows=len(scores), patients=None if scores.patients is None else len(set(scores.patients)))


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes plain values, with null in place of NaN and infinity, which JSON does not have."""
    plain = json.loads(json.dumps(content, default=str), parse_constant=lambda _: None)
    with add_path_to_errors(path):
        path.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
