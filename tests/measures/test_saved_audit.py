"""An audit saved from Python is the one that is read again, and that the command writes a report of."""

from pathlib import Path

import numpy as np

import equipoise as eq
from support.command import ran


def test_what_is_saved_is_read_again_and_reported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    audit = eq.audit(eq.Scores.from_arrays(y, (y + rng.random(300)) / 2, rng.choice(["F", "M"], 300), reference="M"))
    path = audit.save(tmp_path / "audit.json")
    assert eq.read_audit(path).to_dict() == audit.to_dict()
    assert ran("report", path).code == 0
    both = eq.audit({"a": audit_scores(y, rng), "b": audit_scores(y, rng)})
    assert ("a" in both, "c" in both, "eod" in audit, "nothing" in audit, 3 in audit) == (True, False, True, False, False)


def audit_scores(y: np.ndarray, rng: np.random.Generator) -> eq.Scores:
    return eq.Scores.from_arrays(y, rng.random(len(y)), rng.choice(["F", "M"], len(y)), reference="M")
