"""Saving a comparison as a bundle: weights under their original keys, the rule, the audits, the report, cards, and checksums.

A file that cannot be written (such as an ONNX export of an unsupported operator) is listed in run.json under `failures`; the others are
written.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from equipoise.data import LabelKind, add_path_to_errors, sha256_of, write_text
from equipoise.errors import EquipoiseError
from equipoise.measures import UPPER_BOUND, AuditSpec, Baseline, LabelAudit, records
from equipoise.methods import Judgement, Progress, joint_met, joint_outcome, rule_to_dict
from equipoise.models import HEADS, Exported, Predictor, heads_of, is_network, onnx_in, plain_weights, rank, save_weights, to_onnx
from equipoise.presenting import presenter
from equipoise.repair.candidates import ScoredCandidate
from equipoise.repair.findings import Findings, MethodRow
from equipoise.repair.folder import LABELS_SCHEMA, check_folder, filling
from equipoise.repair.progress import Bars, no_bars
from equipoise.repair.saved_predictor import SavedPredictor, save_predictor
from equipoise.repair.schema import RUN, RUN_FORMAT, Provenance, Run, SavedOnnx, SetSize
from equipoise.repair.sections import ReportSpec
from equipoise.repair.serving import Serving
from equipoise.repair.verify import sealed

AUDITS, AUDITS_VERSION = "equipoise.debias", 5
LABELS_VERSION = 2


class Compared(Protocol):
    """The attributes of a `Comparison` that are saved. The class itself cannot be imported here: its method `save` imports this module."""

    @property
    def original(self) -> ScoredCandidate: ...
    @property
    def candidates(self) -> tuple[ScoredCandidate, ...]: ...
    @property
    def result(self) -> ScoredCandidate: ...
    @property
    def title(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def kind(self) -> LabelKind: ...
    @property
    def provenance(self) -> Provenance: ...
    @property
    def settings(self) -> AuditSpec: ...
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


@dataclass(frozen=True, eq=False)
class Saved:
    """The files of a saved bundle, the content of audit.json, and the reasons why files could not be written."""

    folder: Path
    files: tuple[str, ...]
    document: Mapping[str, object]
    failures: Mapping[str, str]
    onnx: Exported | None = None


def folders(folder: Path, labels: Sequence[str]) -> dict[str, Path]:
    """The folder of each label: the folder itself for one label, otherwise one inside it with the label's name.

    >>> [str(place) for place in folders(Path("out"), ["Effusion", "Pleural thickening/old"]).values()]
    ['out/Effusion', 'out/Pleural-thickening-old']
    """
    if len(labels) == 1:
        return {labels[0]: folder}
    places: dict[str, Path] = {}
    for label in labels:
        name = plain = re.sub(r"[^\w.-]+", "-", label).strip("-.") or "label"
        number = 2
        while any(place.name.lower() == name.lower() for place in places.values()):  # some file systems ignore case
            name, number = f"{plain}-{number}", number + 1
        places[label] = folder / name
    return places


def save_all(
    comparisons: Mapping[str, Compared],
    folder: Path,
    serving: Mapping[str, Serving],
    options: ReportSpec = ReportSpec(),
    *,
    overwrite: bool = False,
    title: str = "",
    bars: Bars = no_bars,
) -> dict[str, Saved]:
    """The saved bundles of all labels, written completely or not at all: one label in `folder`, several in one subfolder each.

    With several labels, `folder` has an overview with this title. Of several processes that share a job (torchrun), only the first writes;
    the others return no bundles.
    """
    if rank() > 0:
        return {}
    check_folder(folder, overwrite)
    with filling(folder, overwrite=overwrite) as temporary:
        places = folders(folder, list(comparisons))
        if len(places) == 1:
            return {label: _write_bundle(case, temporary, folder, serving[label], options, bars) for label, case in comparisons.items()}
        saved = {}
        for label, place in places.items():
            (temporary / place.name).mkdir()
            saved[label] = _write_bundle(comparisons[label], temporary / place.name, place, serving[label], options, bars)
        _write_overview(temporary, comparisons, saved, places, title, options)
    return saved


def _write_overview(
    temporary: Path,
    comparisons: Mapping[str, Compared],
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
    for file, text in presenter("overview")(title, comparisons, saved, places, options).items():
        write_text(temporary / file, text)


def _write_bundle(case: Compared, temporary: Path, folder: Path, serving: Serving, options: ReportSpec, bars: Bars) -> Saved:
    """Writes the files of a bundle into a temporary folder, which will be renamed to `folder`."""
    failures = dict(case.failures)
    candidate = case.result.candidate
    if is_network(candidate.model):
        save_weights(candidate.model, temporary, serving.checkpoint)
    predictor = save_predictor(candidate.model, temporary) if isinstance(candidate.model, Predictor) else None
    _write_json(temporary / "rule.json", rule_to_dict(candidate.rule))
    with add_path_to_errors(temporary / "trace.csv"):
        _traces(case).to_csv(temporary / "trace.csv", index=False)
    onnx = None
    if options.onnx and is_network(candidate.model):
        onnx = _write_onnx(case, temporary, serving, options, failures, bars)
    with bars("audit") as step:
        found = case.measured(step)  # one audit, from which audit.json, the cards, the report and the terminal are written
    document = audit_document(case, found)
    _write_json(temporary / "audit.json", document)
    for page, render in presenter("documents_of")(case, options).items():
        with bars(page) as step, _recording(failures, page):
            for file, text in render().items():
                with add_path_to_errors(temporary / file):
                    write_text(temporary / file, text)
            step(1, 1)
    with add_path_to_errors(temporary / "README.txt"):
        text = presenter("readme")(case, folder, temporary, serving, options, onnx, failures)
        (temporary / "README.txt").write_text(text, encoding="utf-8")
    checksums = {path.name: sha256_of(path) for path in sorted(temporary.iterdir())}
    run = _run_of(case, serving, onnx, failures, checksums, predictor)
    with add_path_to_errors(temporary / RUN):
        (temporary / RUN).write_text(sealed(json.loads(RUN_FORMAT.dump_json(run, fallback=str))), encoding="utf-8")
    files = tuple(sorted(path.name for path in temporary.iterdir()))
    return Saved(folder, files, document, failures, onnx)


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
    case: Compared, temporary: Path, serving: Serving, options: ReportSpec, failures: dict[str, str], bars: Bars
) -> Exported | None:
    """Writes model.onnx and compares it with torch; None if the export failed."""
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


def _traces(case: Compared) -> pd.DataFrame:
    """Every step of every method on the repair set, with a column that marks the chosen one."""
    frames = []
    for tried in (case.original, *case.candidates):
        trace = tried.candidate.trace
        frame = trace.assign(chosen=[k == tried.candidate.chosen for k in range(len(trace))])
        frame.insert(0, "method", tried.name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _run_of(
    case: Compared,
    serving: Serving,
    onnx: Exported | None,
    failures: Mapping[str, str],
    files: Mapping[str, str],
    predictor: SavedPredictor | None,
) -> Run:
    """The run.json of a comparison and the files written for it."""
    candidate = case.result.candidate
    heads = None if candidate.rule_only else heads_of(candidate.network, plain_weights(candidate.network, serving.checkpoint))
    return Run(
        title=case.title,
        label=case.label,
        provenance=case.provenance,
        model=serving.model,
        predictor=predictor,
        heads=None if heads is None else {"file": HEADS, **heads.to_dict()},  # they are not among the network's weights
        inputs=serving.inputs,
        groups=[attribute.name for attribute in case.result.test.attributes],
        method=candidate.method,
        ran=candidate.ran,
        settings=dict(candidate.settings),
        methods=[tried.name for tried in case.candidates],
        goal={"words": str(candidate.goal), **vars(candidate.goal)},
        outcome=case.judgement.outcome,
        met=case.judgement.met,
        sets={"repair": _size(case.result.valid), "test": _size(case.result.test)},
        onnx=None if onnx is None else SavedOnnx(max_difference=onnx.max_difference, opset=onnx.opset, rows=onnx.rows),
        failures=dict(failures),
        files=dict(files),
    )


def _size(scores: Any) -> SetSize | None:
    if scores is None:
        return None
    return SetSize(rows=len(scores), patients=None if scores.patients is None else len(set(scores.patients)))


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes plain values, with null in place of NaN and infinity, which JSON does not have."""
    plain = json.loads(json.dumps(content, default=str), parse_constant=lambda _: None)
    with add_path_to_errors(path):
        path.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
