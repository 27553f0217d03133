"""`eq.Case`: data, model and goal of a hospital, audited or repaired."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

from equipoise.case.case_spec import CaseSpec, read_case_file

if TYPE_CHECKING:
    from equipoise.case.file_repair import Repaired
    from equipoise.measures import Audit


class Case(CaseSpec):
    """Data, model and goal of a hospital: `Case.load("case.toml").audit()`.

    >>> case = Case(data={"table": "scores.csv", "label": "sick", "group": "sex", "score": "p"}, goal={"max_gap": 0.05})
    >>> case.labels, str(case.goal)
    (['sick'], '|eod| <= 0.05')
    """

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The case in a TOML file, whose paths are relative to it."""
        return cls(**read_case_file(path))

    def audit(self) -> "Audit":
        """The audit of the model, or of the scores in the table."""
        from equipoise.case.file_audit import audit_file

        return audit_file(self).audit

    def debias(self) -> "Repaired":
        """The repair, evaluated on held-out patients: `.comparisons`, and `.save(folder)` for a folder to serve."""
        from equipoise.case.file_repair import prepare_file

        return prepare_file(self).repair()
