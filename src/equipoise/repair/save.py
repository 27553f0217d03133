"""Saving a comparison as a bundle: weights under their original keys, the rule, the audits, the report, cards, and checksums over all.

What cannot be made (an operator that ONNX lacks) is listed in run.json; the rest is written all the same.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from torch import nn

from equipoise.data import naming, sha256_of, write_text
from equipoise.errors import BadInput, EquipoiseError
from equipoise.measures import UPPER_BOUND, Audit, Baseline, Settings, Threshold, records
from equipoise.methods import Judgement, Progress, joint_met, joint_outcome, rule_to_dict
from equipoise.models import HEADS, Exported, Predictor, code_of, heads_of, onnx_in, plain_weights, save_weights, to_onnx
from equipoise.presenting import presenter
from equipoise.repair.findings import Findings, MethodRow
from equipoise.repair.folder import LABELS_SCHEMA, check_folder, filling, folders
from equipoise.repair.provenance import OWN_NETWORK, Provenance, Serving
from equipoise.repair.saved_predictor import save_predictor
from equipoise.repair.schema import NETWORK_KIND, PREDICTOR_KIND, RULE_KIND, RUN, SCHEMA, SCHEMA_VERSION
from equipoise.repair.trial import Bars, Tried, no_bars
from equipoise.repair.verified import sealed

AUDITS, AUDITS_VERSION = "equipoise.debias", 5
LABELS_VERSION = 2


class Compared(Protocol):
    """What is saved: the chosen candidate of a comparison, with everything that was found about it."""

    @property
    def original(self) -> Tried: ...
    @property
    def candidates(self) -> tuple[Tried, ...]: ...
    @property
    def result(self) -> Tried: ...
    @property
    def title(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def provenance(self) -> Provenance: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def failures(self) -> Mapping[str, str]: ...
    @property
    def probes(self) -> Any: ...
    @property
    def baseline(self) -> Baseline | None: ...
    @property
    def forced(self) -> bool: ...
    @property
    def judgement(self) -> Judgement: ...
    def measured(self, progress: Progress | None = None) -> Findings: ...


@dataclass(frozen=True)
class Options:
    """What is written in addition to the weights."""

    onnx: bool = True
    onnx_rule: bool = False
    thumbnails: bool = False
    card: Path | None = None
    overwrite: bool = False
    group_names: Mapping[str, str] = field(default_factory=dict)  # words for groups in the report


@dataclass(frozen=True, eq=False)
class Saved:
    """What a folder holds, the document of audit.json, and what could not be made."""

    folder: Path
    files: tuple[str, ...]
    document: Mapping[str, object]
    failures: Mapping[str, str]
    onnx: Exported | None = None


def save_all(
    comparisons: Mapping[str, Compared],
    folder: Path,
    serving: Mapping[str, Serving],
    options: Options = Options(),
    *,
    title: str = "",
    bars: Bars = no_bars,
) -> dict[str, Saved]:
    """The bundles of all labels, whole or not at all: one label in the folder itself, several in a folder each with an overview."""
    check_folder(folder, options.overwrite)
    with filling(folder, overwrite=options.overwrite) as place:
        places = folders(folder, list(comparisons))
        if len(places) == 1:
            return {label: write_files(case, place, folder, serving[label], options, bars=bars) for label, case in comparisons.items()}
        saved = {}
        for label, shown in places.items():
            (place / shown.name).mkdir()
            saved[label] = write_files(comparisons[label], place / shown.name, shown, serving[label], options, bars=bars)
        _write_overview(place, comparisons, saved, places, title, options)
    return saved


def _write_overview(
    place: Path,
    comparisons: Mapping[str, Compared],
    saved: Mapping[str, Saved],
    places: Mapping[str, Path],
    title: str,
    options: Options,
) -> None:
    """The files about all labels: audit.json, report.html and README.txt."""
    document = {
        "schema": LABELS_SCHEMA,
        "schema_version": LABELS_VERSION,
        "kind": next(iter(comparisons.values())).kind,
        "chosen": next(iter(comparisons.values())).result.name,
        "outcome": str(joint_outcome(case.judgement.outcome for case in comparisons.values())),
        "met": joint_met(case.judgement.met for case in comparisons.values()),
        "folders": {label: path.name for label, path in places.items()},
        "labels": {label: _finite(one.document) for label, one in saved.items()},
    }
    _json(place / "audit.json", document)
    for file, text in presenter("overview")(title, comparisons, saved, places, options).items():
        write_text(place / file, text)


def write_files(
    case: Compared, place: Path, folder: Path, serving: Serving, options: Options = Options(), *, bars: Bars = no_bars
) -> Saved:
    """Writes the files of a bundle into `place`, which is to become `folder`."""
    failed = dict(case.failures)
    candidate = case.result.candidate
    if isinstance(candidate.model, nn.Module):
        save_weights(candidate.model, place, serving.came)
    about = save_predictor(candidate.model, place) if isinstance(candidate.model, Predictor) else None
    _json(place / "rule.json", rule_to_dict(candidate.rule))
    with naming(place / "trace.csv"):
        traces(case).to_csv(place / "trace.csv", index=False)
    onnx = _onnx(case, place, serving, options, failed, bars) if options.onnx and isinstance(candidate.model, nn.Module) else None
    with bars("bootstrap") as step:
        found = case.measured(step)  # one audit, from which audit.json, the cards, the report and the terminal are written
    document = audit_document(case, found)
    _json(place / "audit.json", document)
    for what, make in presenter("pages")(case, options).items():
        with bars(what) as step, _named(failed, what):
            for file, text in make().items():
                with naming(place / file):
                    write_text(place / file, text)
            step(1, 1)
    with naming(place / "README.txt"):
        text = presenter("readme")(case, folder, place, serving, options, onnx, failed)
        (place / "README.txt").write_text(text, encoding="utf-8")
    checksums = {path.name: sha256_of(path) for path in sorted(place.iterdir())}
    run = _run(case, serving, onnx, failed, checksums, about)
    with naming(place / RUN):
        (place / RUN).write_text(sealed(_finite(run)), encoding="utf-8")
    files = tuple(sorted(path.name for path in place.iterdir()))
    return Saved(folder, files, document, failed, onnx)


@contextmanager
def _named(failures: dict[str, str], what: str) -> Iterator[None]:
    """Records a failure, so that a repair that took hours is not lost with it. A full disk stays an error of its own."""
    try:
        yield
    except OSError:
        raise
    except EquipoiseError as error:
        failures[what] = str(error)
    except Exception as error:  # a defect of ours: the network is worth more than the page
        failures[what] = f"{type(error).__name__}: {error}"


def _onnx(case: Compared, place: Path, serving: Serving, options: Options, failures: dict[str, str], bars: Bars) -> Exported | None:
    rule = case.result.candidate.rule
    asked = options.onnx_rule or onnx_in(case.result.candidate.network) is not None  # an ONNX file comes back as one that decides
    threshold = rule.value if asked and isinstance(rule, Threshold) else None
    if options.onnx_rule and threshold is None:
        failures["the rule in model.onnx"] = "only a threshold for all patients can be part of the network; this rule is in rule.json"
    exported = None
    with bars("ONNX") as step, _named(failures, "model.onnx"), naming(place / "model.onnx"):
        assert serving.sample is not None  # a network is served with rows to check it on
        exported = to_onnx(case.result.candidate.network, serving.sample, place / "model.onnx", threshold, output=serving.output)
        step(1, 1)
    if exported is not None and not exported.agrees:
        failures["agreement of model.onnx"] = (
            f"its outputs differ from torch's by up to {exported.max_difference:.1e} on {exported.rows} rows, where the largest is "
            f"{exported.largest:.3g}. Compare them before use."
        )
    return exported


def audit_document(case: Compared, found: Findings) -> dict[str, object]:
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
        "limit": _limit(found.methods[0]),
        "methods": {
            tried.name: _method(tried, own, row)
            for tried, own, row in zip(case.candidates, found.audits[1:], found.methods[1:], strict=True)
        },
        "change": _change(found),
        **({} if case.baseline is None else {"baseline": case.baseline.to_dict()}),
        **({} if case.probes is None else {"encoding": {side: records(frame) for side, frame in vars(case.probes).items()}}),
    }


def _change(found: Findings) -> dict[str, object]:
    """The changes from before to after on the same patients, as the report and the cards show them."""
    rates = [
        {"attribute": found.main, "group": s.group, "rate": s.rate, "before": s.before, "after": s.after, **s.change.to_dict()}
        for s in found.shifts
    ]
    gap = {"group": found.gap_before.group, "reference": found.gap_before.reference, **found.gap_change.to_dict()}
    return {"gap": gap, "performance": found.performance_change.to_dict(), "rates": rates}


def _limit(row: MethodRow) -> dict[str, object] | None:
    """The group-aware upper bound at the same |gap| on the original test scores, and how far below it this is."""
    return None if row.below is None else {"performance": row.performance.value + row.below, "below": row.below, "what": UPPER_BOUND}


def _method(tried: Tried, found: Audit, shown: MethodRow) -> dict[str, object]:
    candidate, row = tried.candidate, tried.chosen_row
    rows = None if tried.valid is None else len(tried.valid)
    judgement = shown.judgement
    assert judgement is not None  # every candidate is judged; only the original is not
    return {
        "outcome": str(judgement.outcome),
        "met": judgement.met,
        "judgement": judgement.to_dict(),
        "why": [note.to_dict() for note in candidate.why],
        "step": int(row["step"]),
        "repair_set": {"gap": float(row["gap"]), "performance": float(row["performance"]), "rows": rows},
        "rule": candidate.rule.describe(),
        "needs_group": candidate.rule.needs_group,
        "ran": candidate.ran,
        "settings": dict(candidate.settings),
        "notes": [note.to_dict() for note in candidate.notes],
        "seconds": tried.seconds,
        "limit": _limit(shown),
        "test_set": found.to_dict(),
    }


def traces(case: Compared) -> pd.DataFrame:
    """Every step of every method on the repair set, and which was chosen."""
    frames = []
    for tried in (case.original, *case.candidates):
        trace = tried.candidate.trace
        frame = trace.assign(chosen=[k == tried.candidate.chosen for k in range(len(trace))])
        frame.insert(0, "method", tried.name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _run(
    case: Compared,
    serving: Serving,
    onnx: Exported | None,
    failures: Mapping[str, str],
    files: Mapping[str, str],
    predictor: Mapping[str, Any] | None,
) -> dict[str, object]:
    """Everything that is needed to reproduce the repair and to serve the network."""
    provenance, candidate = case.provenance, case.result.candidate
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "title": case.title,
        "label": case.label,
        "command": provenance.command,
        "when": provenance.when,
        "seed": provenance.seed,
        "versions": dict(provenance.versions),
        "hashes": dict(provenance.hashes),
        "limits": list(provenance.limits),
        "kind": NETWORK_KIND if isinstance(candidate.model, nn.Module) else RULE_KIND if predictor is None else PREDICTOR_KIND,
        "model": _model(serving, provenance.model) if isinstance(candidate.model, nn.Module) else None,
        "predictor": predictor,
        "heads": _heads(candidate.model, serving) if isinstance(candidate.model, nn.Module) else None,
        "inputs": dict(serving.inputs),
        "groups": [attribute.name for attribute in case.result.test.attributes],
        "method": candidate.method,
        "ran": candidate.ran,
        "settings": dict(candidate.settings),
        "methods": [tried.name for tried in case.candidates],
        "goal": {"words": str(candidate.goal), **vars(candidate.goal)},
        "outcome": str(case.judgement.outcome),
        "met": case.judgement.met,
        "sets": {"repair": _size(case.result.valid), "test": _size(case.result.test)},
        "onnx": None if onnx is None else {"max_difference": onnx.max_difference, "opset": onnx.opset, "rows": onnx.rows},
        "failures": dict(failures),
        "files": dict(files),
    }


def _model(serving: Serving, named: str) -> dict[str, object]:
    """How the network is built again; its code with the checksum of the bytes that were run."""
    code = serving.code
    if code is None and serving.model not in (None, OWN_NETWORK):
        with suppress(BadInput):  # not found from here: `apply` asks for it
            code = code_of(str(serving.model))
    about = None if code is None else {"path": None if code.path is None else str(code.path), "sha256": code.sha256}
    return {
        "named": named,
        "load": serving.model,
        "output": serving.output,
        "output_name": serving.output_name,
        "classes": serving.classes,
        "code": about,
    }


def _heads(model: nn.Module, serving: Serving) -> dict[str, object] | None:
    """The heads around the network, which are not among its own weights."""
    heads = heads_of(model, plain_weights(model, serving.came))
    return None if heads is None else {"file": HEADS, **heads.to_dict()}


def _size(scores: Any) -> dict[str, int | None] | None:
    if scores is None:
        return None
    return {"rows": len(scores), "patients": None if scores.patients is None else len(set(scores.patients))}


def _json(path: Path, content: Mapping[str, object]) -> None:
    with naming(path):
        path.write_text(json.dumps(_finite(content), indent=2, allow_nan=False, default=str) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """The value without NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
