"""Small audits for the report tests: random scores in groups with any names."""

import numpy as np
import pandas as pd

from equipoise.comparison import audit
from equipoise.data import LabelKind, Scores
from equipoise.measures import Audit

HOSTILE = ["[red]x[/red]", "<script>alert(1)</script>", "</script><b>", "M" * 5000, "مجموعة", "\x1b[31mred\x1b[0m", "two\nlines"]


def frame_of(names: list[str], n: int = 60, column: str = "sex") -> pd.DataFrame:
    """n rows of each group, with both labels."""
    rng = np.random.default_rng(0)
    rows = n * len(names)
    y = np.tile([0, 1], rows)[:rows]
    return pd.DataFrame({column: np.repeat(names, n), "y": y, "p": np.clip(rng.normal(0.4 + 0.2 * y, 0.2), 0, 1)})


def audit_of(frame: pd.DataFrame, name: str = "tiny.csv", **options) -> tuple[Scores, Audit]:
    """The scores and their audit, by the first column unless `group` says otherwise."""
    group = options.pop("group", str(frame.columns[0]))
    reference = options.pop("reference", None)
    patient = options.pop("patient", None)
    scores = Scores.from_frame(frame, label="y", score="p", group=group, reference=reference, patient=patient, name=name)
    return scores, audit(scores, **({"threshold": 0.5} | options))


def joined(name: str = "tiny.csv", **audits: Audit) -> Audit:
    """The audit of several labels, from an audit of each."""
    return Audit({label: each.only for label, each in audits.items()}, LabelKind.LABELS, name)
