"""Audits in experiment trackers: numbers as metrics, the audit as JSON and its report as a page, through the trackers' public functions.

import mlflow
from equipoise.tracking import log_to_mlflow
with mlflow.start_run():
    log_to_mlflow(audit)
"""

import importlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from equipoise.errors import BadInput, MissingExtra
from equipoise.measures import Audit, Audits

RATES = ("selection_rate", "tpr", "fpr", "ppv", "npv")  # of each group
ENDS = ("value", "low", "high")
AT_ONCE = 1_000  # metrics that MLflow takes in one call
FOLDER = "equipoise"  # of the files in a run


def numbers_of(audit: Audit | Audits) -> dict[str, float]:
    """The numbers of an audit under names that trackers accept: each measure with the ends of its interval, and the rates of each group.

    Of several labels, each name begins with the label. What could not be computed is left out.

    >>> import equipoise as eq
    >>> scores = eq.Scores.from_arrays([1, 1, 0, 0] * 10, [0.9, 0.4, 0.6, 0.1] * 10, ["F", "M"] * 20, reference="M")
    >>> found = numbers_of(eq.audit(scores, threshold=0.5))
    >>> found["eod"], found["group/F/tpr"]
    (1.0, 1.0)
    """
    found: dict[str, float] = {}
    for name, value in _numbers(audit):
        if not math.isnan(value):
            found[_distinct(name, found)] = value
    return found


def _numbers(audit: Audit | Audits, before: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(audit, Audits):
        for label, own in audit.items():
            yield from _numbers(own, f"{before}{_plain(label)}/")
        return
    yield f"{before}findings", float(audit.findings)
    for measure, estimate in audit.estimates.items():
        for end in ENDS:
            yield f"{before}{_plain(measure)}{'' if end == 'value' else f'_{end}'}", float(getattr(estimate, end))
    frame = audit.groups.rename_axis("group").reset_index()
    several = frame["attribute"].nunique() > 1
    for row in frame.to_dict("records"):
        place = f"{_plain(row['attribute'])}/{_plain(row['group'])}" if several else _plain(row["group"])
        for rate in RATES:
            yield f"{before}group/{place}/{rate}", float(row[rate])


def log_to_mlflow(audit: Audit | Audits, *, prefix: str = "") -> str:
    """The id of the run of MLflow that the audit was logged to: the active one, or a new one.

    Metrics are those of `numbers_of`, each with the prefix; the files are equipoise/audit.json and equipoise/audit.html.
    """
    mlflow = _imported("mlflow", "logging to MLflow")
    numbers = [(f"{prefix}{name}", value) for name, value in numbers_of(audit).items()]
    for start in range(0, len(numbers), AT_ONCE):
        mlflow.log_metrics(dict(numbers[start : start + AT_ONCE]))
    with TemporaryDirectory() as name:
        mlflow.log_artifacts(str(_written(audit, Path(name))), artifact_path=FOLDER)
    return str(mlflow.active_run().info.run_id)


def log_to_wandb(audit: Audit | Audits, run: Any = None, *, prefix: str = "") -> str:
    """The id of the run of Weights & Biases that the audit was logged to: `run`, or the active one.

    Metrics are those of `numbers_of`, each with the prefix; the artifact "equipoise-audit" holds audit.json and audit.html.
    """
    wandb = _imported("wandb", "logging to Weights & Biases")
    run = wandb.run if run is None else run
    if run is None:
        raise BadInput("no run of Weights & Biases is active: call wandb.init(...) before, or pass its run")
    run.log({f"{prefix}{name}": value for name, value in numbers_of(audit).items()})
    with TemporaryDirectory() as name:
        artifact = wandb.Artifact("equipoise-audit", type="audit")
        artifact.add_dir(str(_written(audit, Path(name))))  # copied into the run, so that the folder may go
        run.log_artifact(artifact)
    return str(run.id)


def _written(audit: Audit | Audits, folder: Path) -> Path:
    """The folder with the audit as JSON and as a report."""
    (folder / "audit.json").write_text(json.dumps(audit.to_dict(), indent=2), encoding="utf-8")
    audit.report(folder / "audit.html")
    return folder


def _imported(package: str, purpose: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtra(package, package, purpose) from error


def _plain(name: object) -> str:
    """A name of letters, digits, spaces and -_. only: others, and slashes, become _."""
    return re.sub(r"[^\w .-]", "_", str(name), flags=re.ASCII).strip()[:100] or "_"


def _distinct(name: str, taken: dict[str, float]) -> str:
    """The name, with a number where two names became the same."""
    return name if name not in taken else next(new for k in range(2, len(taken) + 3) if (new := f"{name} {k}") not in taken)
