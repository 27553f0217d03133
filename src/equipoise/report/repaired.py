"""The folder of a repaired network: weights as they came, the rule, the audits, the report, and all that is needed to do it again.

What cannot be made (an operator that ONNX lacks) is named in run.json; the rest is written all the same.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor, nn

from equipoise.data import naming
from equipoise.errors import BadInput, EquipoiseError
from equipoise.measures import Audit, Threshold
from equipoise.methods import rule_to_dict
from equipoise.models import (
    HEADS,
    MASKED_LOADING,
    Checkpoint,
    Code,
    Exported,
    code_of,
    heads_of,
    masks_in,
    plain_weights,
    program_in,
    save_weights,
    state_like,
    state_prefix,
    to_onnx,
)
from equipoise.report.bundle import SCHEMA, SCHEMA_VERSION, sealed
from equipoise.report.case import Case, Repair
from equipoise.report.findings import Findings, MethodRow, audits_of, find
from equipoise.report.folder import WEIGHTS, check_folder, filling
from equipoise.report.limits import LIMIT_WORDS
from equipoise.report.trial import Bars

AUDITS, AUDITS_VERSION = "equipoise.debias", 2
IN_THE_LARGE = "calibration_in_the_large"  # a rate of the report


@dataclass(frozen=True, eq=False)
class Serving:
    """What is known of the network and its inputs beyond the case, so that new patients can be served the same way."""

    model: str  # as `load_model` takes it, with an absolute path
    output: str  # logit or probability
    sample: Tensor  # a few real rows, to check the ONNX file with
    inputs: Mapping[str, Any] = field(default_factory=dict)  # how rows become inputs: plain values
    output_name: str | None = None  # of a network with many outputs
    came: Checkpoint | None = None  # the weights' file
    code: Code | None = None  # that was run to build the network; None for a backbone


@dataclass(frozen=True)
class Options:
    """What is to be written beside the weights."""

    onnx: bool = True
    onnx_rule: bool = False
    thumbnails: bool = False
    card: Path | None = None
    draws: int = 1000
    overwrite: bool = False


@dataclass(frozen=True, eq=False)
class Written:
    """What lies in the folder, the audits of the patients kept aside, and what could not be made."""

    folder: Path
    files: tuple[str, ...]
    audits: tuple[Audit, ...]  # of the original and of each repair
    found: Findings
    document: Mapping[str, object]  # that of audit.json
    failures: Mapping[str, str]
    onnx: Exported | None = None


def write_repaired(case: Case, folder: Path, serving: Serving, options: Options = Options(), *, failures: Mapping[str, str] | None = None,
                   bars: Bars | None = None) -> Written:  # fmt: skip
    """Writes the folder, whole or not at all. `failures` are those of the trial; those of writing are added to them."""
    check_folder(folder, options.overwrite)
    with filling(folder, overwrite=options.overwrite) as place:
        return write_files(case, place, folder, serving, options, failures=failures, bars=bars)


def write_files(case: Case, place: Path, folder: Path, serving: Serving, options: Options = Options(), *,
                failures: Mapping[str, str] | None = None, bars: Bars | None = None) -> Written:  # fmt: skip
    """Writes the files of a repaired network into `place`, which is to become `folder`."""
    bars = bars or (lambda _: nullcontext(lambda _done, _of: None))
    failed = dict(failures or {})
    save_weights(case.result.candidate.model, place, serving.came)
    _json(place / "rule.json", rule_to_dict(case.result.candidate.rule))
    with naming(place / "trace.csv"):
        traces(case).to_csv(place / "trace.csv", index=False)
    onnx = _onnx(case, place, serving, options, failed, bars) if options.onnx else None
    with bars("bootstrap") as step:
        audits = audits_of(case, draws=options.draws, progress=step)
    found = find(case, audits)  # one audit, from which audit.json, the cards, the report and the terminal are written
    document = audit_document(case, audits, found)
    _json(place / "audit.json", document)
    with bars("model card") as step, _named(failed, "card.md and card.xml"), naming(place / "card.md"):
        from equipoise.report.card import write_cards

        write_cards(case, place, options.card, found=found)
        step(1, 1)
    with bars("report") as step, _named(failed, "report.html"), naming(place / "report.html"):
        from equipoise.report.page import write_page

        write_page(case, place / "report.html", thumbnails=options.thumbnails, found=found)
        step(1, 1)
    with naming(place / "README.txt"):
        (place / "README.txt").write_text(_readme(case, folder, place, serving, options, onnx, failed), encoding="utf-8")
    run = _run(case, serving, options, onnx, failed, {path.name: _sha256_of(path) for path in sorted(place.iterdir())})
    with naming(place / "run.json"):
        (place / "run.json").write_text(sealed(_finite(run)), encoding="utf-8")
    files = tuple(sorted(path.name for path in place.iterdir()))
    return Written(folder, files, audits, found, document, failed, onnx)


@contextmanager
def _named(failures: dict[str, str], what: str) -> Iterator[None]:
    """Puts a failure among the others, so that a repair that took hours is not lost with it. A full disk stays an error of its own."""
    try:
        yield
    except OSError:
        raise
    except EquipoiseError as error:
        failures[what] = str(error)
    except Exception as error:  # a defect of ours: the network is worth more than the page
        failures[what] = f"{type(error).__name__}: {error}"


def _onnx(case: Case, place: Path, serving: Serving, options: Options, failures: dict[str, str], bars: Bars) -> Exported | None:
    rule = case.result.candidate.rule
    threshold = rule.value if options.onnx_rule and isinstance(rule, Threshold) else None
    if options.onnx_rule and threshold is None:
        failures["the rule in model.onnx"] = "only a plain threshold can be a part of the network; this rule is in rule.json"
    exported = None
    with bars("ONNX") as step, _named(failures, "model.onnx"), naming(place / "model.onnx"):
        exported = to_onnx(case.result.candidate.model, serving.sample, place / "model.onnx", threshold, output=serving.output)
        step(1, 1)
    if exported is not None and not exported.agrees:
        failures["agreement of model.onnx"] = (
            f"its outputs differ from torch's by up to {exported.max_difference:.1e} on {exported.rows} rows, where the largest is "
            f"{exported.largest:.3g}. Compare them before use."
        )
    return exported


def audit_document(case: Case, audits: Sequence[Audit], found: Findings) -> dict[str, object]:
    """What audit.json holds: the audits before and after, of every method, and the paired changes, on held-out patients."""
    candidate = case.result.candidate
    return {
        "schema": AUDITS,
        "schema_version": AUDITS_VERSION,
        "chosen": case.result.name,
        "met": candidate.met,
        "why": candidate.why,
        "goal": {"words": candidate.goal.describe(), **vars(candidate.goal)},
        "before": audits[0].to_dict(),
        "after": audits[1 + case.chosen].to_dict(),
        "limit": _limit(found.methods[0]),
        "methods": {
            repair.name: _method(repair, own, row) for repair, own, row in zip(case.repairs, audits[1:], found.methods[1:], strict=True)
        },
        "change": _change(found),
        "calibration_in_the_large": _level(found),
        **({} if case.probes is None else {"encoding": {side: _records(frame) for side, frame in vars(case.probes).items()}}),
    }


def _change(found: Findings) -> dict[str, object]:
    """The changes from before to after on the same patients, as the report and the cards show them."""
    rates = [
        {"attribute": found.main, "group": s.group, "rate": s.rate, "before": s.before, "after": s.after, **s.change.to_dict()}
        for s in found.shifts
    ]
    return {"gap_size": found.gap_change.to_dict(), "performance": found.performance_change.to_dict(), "rates": rates}


def _level(found: Findings) -> list[dict[str, object]]:
    """Mean score minus the share of positives of each group, before and after."""
    rows = [(name, row) for name, blocks in found.rates.items() for block in blocks if block.rate == IN_THE_LARGE for row in block.rows]
    return [{"attribute": name, "group": row.group, "before": row.before.to_dict(), "after": row.after.to_dict()} for name, row in rows]


def _limit(row: MethodRow) -> dict[str, object] | None:
    """The best rule that knows the group at the same |gap|, on the test scores as they came, and how far below it this is."""
    return None if row.below is None else {"performance": row.performance.value + row.below, "below": row.below, "what": LIMIT_WORDS}


def _records(frame: pd.DataFrame) -> list[dict[str, object]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def _method(repair: Repair, found: Audit, shown: MethodRow) -> dict[str, object]:
    candidate = repair.candidate
    row = candidate.trace.iloc[candidate.chosen]
    return {
        "met": candidate.met,
        "why": candidate.why,
        "step": int(row["step"]),
        "repair_part": {"gap": float(row["gap"]), "performance": float(row["performance"]), "rows": len(repair.valid)},
        "rule": candidate.rule.describe(),
        "needs_group": candidate.rule.needs_group,
        "ran": candidate.ran,
        "settings": dict(candidate.settings),
        "notes": list(candidate.notes),
        "seconds": repair.seconds,
        "limit": _limit(shown),
        "test_part": found.to_dict(),
    }


def traces(case: Case) -> pd.DataFrame:
    """Every step of every method on the repair part, and which was chosen."""
    frames = []
    for repair in (case.original, *case.repairs):
        trace = repair.candidate.trace
        frame = trace.assign(chosen=[k == repair.candidate.chosen for k in range(len(trace))])
        frame.insert(0, "method", repair.name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _run(
    case: Case, serving: Serving, options: Options, onnx: Exported | None, failures: Mapping[str, str], files: Mapping[str, str]
) -> dict[str, object]:
    """Everything that is needed to do it again, and to serve the network."""
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
        "model": _model(serving, provenance.model),
        "heads": _heads(candidate.model, serving),
        "inputs": dict(serving.inputs),
        "groups": [attribute.name for attribute in case.result.test.attributes],
        "method": candidate.method,
        "ran": candidate.ran,
        "settings": dict(candidate.settings),
        "methods": [repair.name for repair in case.repairs],
        "goal": {"words": candidate.goal.describe(), **vars(candidate.goal)},
        "met": candidate.met,
        "parts": {"repair": _size(case.result.valid), "test": _size(case.result.test)},
        "draws": options.draws,
        "onnx": None if onnx is None else {"max_difference": onnx.max_difference, "opset": onnx.opset, "rows": onnx.rows},
        "failures": dict(failures),
        "files": dict(files),
    }


def _model(serving: Serving, named: str) -> dict[str, object]:
    """How the network is built again; its code with the checksum of the bytes that were run."""
    code = serving.code
    if code is None:
        with suppress(BadInput):  # not to be found from here: `apply` will ask for it
            code = code_of(serving.model)
    about = None if code is None else {"path": None if code.path is None else str(code.path), "sha256": code.sha256}
    return {"named": named, "load": serving.model, "output": serving.output, "output_name": serving.output_name, "code": about}


def _heads(model: nn.Module, serving: Serving) -> dict[str, object] | None:
    """What lies around the network beside its own weights, for `apply` to know that it must be there."""
    heads = heads_of(model, plain_weights(model, serving.came))
    return None if heads is None else {"file": HEADS, **heads.to_dict()}


def _size(scores: Any) -> dict[str, int | None]:
    return {"rows": len(scores), "patients": None if scores.patients is None else len(set(scores.patients))}


def verdict(case: Case) -> str:
    """One sentence on the repair part, with the measure, the groups and whether the goal was met."""
    candidate = case.result.candidate
    first, row = candidate.trace.iloc[0], candidate.trace.iloc[candidate.chosen]
    attribute = case.result.valid.attribute
    who = f"{', '.join(attribute.others)} minus {attribute.reference}" if len(attribute.others) < 4 else f"{attribute.name}, the largest"
    name = f"{candidate.method} ({candidate.ran})" if candidate.ran != candidate.method else candidate.method
    return (
        f"{name} changed {candidate.goal.measure} ({who}) from {first['gap']:+.3f} to {row['gap']:+.3f} "
        f"on the {len(case.result.valid):,} rows that it was repaired on; "
        f"the goal ({candidate.goal.describe()}) was {'met' if candidate.met else 'NOT met'} there."
    )


def _readme(
    case: Case, folder: Path, place: Path, serving: Serving, options: Options, onnx: Exported | None, failures: Mapping[str, str]
) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("equipoise.report"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )  # plain text
    model, rule, came = case.result.candidate.model, case.result.candidate.rule, serving.came
    original = plain_weights(model, came)
    heads = heads_of(model, original)
    program = "repaired.pt2" if program_in(model) else None
    return environment.get_template("README.txt.j2").render(
        title=case.title,
        version=case.provenance.versions.get("equipoise", ""),
        when=case.provenance.when,
        verdict=verdict(case),
        rule=rule.describe(),
        needs_group=rule.needs_group,
        randomised=rule.randomised,
        program=program,
        file=next(name for name in WEIGHTS[1:] if (place / name).exists()),
        heads=HEADS if heads else None,
        reading=str(heads.reading) if heads else "",
        output_name=serving.output_name,
        under=came.under if came is not None else None,
        prefix=state_prefix(original, model),
        masks=masks_in(state_like(original, model)),
        masked_loading=MASKED_LOADING.rstrip(),
        onnx=onnx,
        onnx_rule=options.onnx_rule and isinstance(rule, Threshold),
        output=serving.output,
        images=bool(serving.inputs.get("images")),
        folder=folder,
        backbone=serving.code is None,
        failures=failures,
    )


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json(path: Path, content: Mapping[str, object]) -> None:
    with naming(path):
        path.write_text(json.dumps(_finite(content), indent=2, allow_nan=False, default=str) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
