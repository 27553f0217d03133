"""Audits in experiment trackers (MLflow, Weights & Biases): numbers as metrics, the audit as JSON, and its report as a page.

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
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from equipoise.errors import BadInput, MissingExtra
from equipoise.measures import ESTIMATED_RATES, Audit, LabelAudit

BATCH = 1_000  # most metrics that MLflow accepts in one call


def numbers_of(audit: Audit) -> dict[str, float]:
    """The numbers of an audit under names that trackers accept: each measure with the ends of its interval, and the rates of each group.

    With several labels, each name begins with the label. Numbers that could not be computed are left out.

    >>> import equipoise as eq
    >>> scores = eq.Scores.from_arrays([1, 1, 0, 0] * 10, [0.9, 0.4, 0.6, 0.1] * 10, ["F", "M"] * 20, reference="M")
    >>> numbers = numbers_of(eq.audit(scores, threshold=0.5))
    >>> numbers["eod"], numbers["group/F/tpr"]
    (1.0, 1.0)
    """
    numbers: dict[str, float] = {}
    for label, each in audit.prefixed.items():
        for name, value in _named_numbers(each):
            full = f"{_plain(label)}/{name}" if label else name
            if not math.isnan(value):
                numbers[next(key for k in range(1, len(numbers) + 2) if (key := full if k == 1 else f"{full} {k}") not in numbers)] = value
    return numbers


def _named_numbers(audit: LabelAudit) -> Iterator[tuple[str, float]]:
    yield "findings", float(audit.findings)
    for measure, estimate in audit.estimates.items():
        name = _plain(measure)
        yield from ((name, float(estimate.value)), (f"{name}_low", float(estimate.low)), (f"{name}_high", float(estimate.high)))
    frame = audit.groups.rename_axis("group").reset_index()
    several = frame["attribute"].nunique() > 1
    for row in frame.to_dict("records"):
        group = f"{_plain(row['attribute'])}/{_plain(row['group'])}" if several else _plain(row["group"])
        for rate in ESTIMATED_RATES:
            yield f"group/{group}/{rate}", float(row[rate])


def log_to_mlflow(audit: Audit, *, prefix: str = "") -> str:
    """The id of the MLflow run that the audit was logged to: the active run, or a new one.

    Metrics are those of `numbers_of`, each with the prefix; the files are equipoise/audit.json and equipoise/audit.html.
    """
    mlflow = _imported("mlflow", "logging to MLflow")
    numbers = [(f"{prefix}{name}", value) for name, value in numbers_of(audit).items()]
    for start in range(0, len(numbers), BATCH):
        mlflow.log_metrics(dict(numbers[start : start + BATCH]))
    with _files(audit) as folder:
        mlflow.log_artifacts(folder, artifact_path="equipoise")
    return str(mlflow.active_run().info.run_id)


def log_to_wandb(audit: Audit, run: Any = None, *, prefix: str = "") -> str:
    """The id of the Weights & Biases run that the audit was logged to: `run`, or the active one.

    Metrics are those of `numbers_of`, each with the prefix; the artifact "equipoise-audit" holds audit.json and audit.html.
    """
    wandb = _imported("wandb", "logging to Weights & Biases")
    run = wandb.run if run is None else run
    if run is None:
        raise BadInput("no run of Weights & Biases is active: call wandb.init(...) before, or pass its run")
    run.log({f"{prefix}{name}": value for name, value in numbers_of(audit).items()})
    with _files(audit) as folder:
        artifact = wandb.Artifact("equipoise-audit", type="audit")
        artifact.add_dir(folder)  # which copies the files, so the folder may be removed
        run.log_artifact(artifact)
    return str(run.id)


@contextmanager
def _files(audit: Audit) -> Iterator[str]:
    """A temporary folder with the audit as JSON and as a report."""
    with TemporaryDirectory() as folder:
        Path(folder, "audit.json").write_text(json.dumps(audit.to_dict(), indent=2), encoding="utf-8")
        audit.report(Path(folder, "audit.html"))
        yield folder


def _imported(package: str, purpose: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtra(package, package, purpose) from error


def _plain(name: object) -> str:
    """The name with every character other than ASCII letters, digits, spaces and -_. replaced by _."""
    return re.sub(r"[^\w .-]", "_", str(name), flags=re.ASCII).strip()[:100] or "_"
