"""Audit an already-trained classifier for group bias and repair it after training.

import equipoise as eq
cohort = eq.load("compas")
parts = eq.split(cohort, seed=0)
model = eq.train(parts.train, parts.valid, seed=0)
print(eq.audit(model, parts.test))
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.data.catalogue import load
    from equipoise.data.cohort import Cohort
    from equipoise.data.scores import Scores
    from equipoise.data.splits import Parts, split
    from equipoise.errors import BadInput, EquipoiseError
    from equipoise.measures.audit import Audit, audit
    from equipoise.methods.base import Candidate, Goal
    from equipoise.methods.registry import debias
    from equipoise.models.train import Training, train

__version__ = "0.1.0"
__all__ = [
    "Audit",
    "BadInput",
    "Candidate",
    "Cohort",
    "EquipoiseError",
    "Goal",
    "Parts",
    "Scores",
    "Training",
    "__version__",
    "audit",
    "debias",
    "load",
    "split",
    "train",
]

_PLACES = {
    "data.catalogue": ("load",),
    "data.cohort": ("Cohort",),
    "data.scores": ("Scores",),
    "data.splits": ("Parts", "split"),
    "errors": ("BadInput", "EquipoiseError"),
    "measures.audit": ("Audit", "audit"),
    "methods.base": ("Candidate", "Goal"),
    "methods.registry": ("debias",),
    "models.train": ("Training", "train"),
}  # a name is imported when it is used: the command line must be able to answer Ctrl-C before torch is there

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        place = next((place for place, names in _PLACES.items() if name in names), None)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(importlib.import_module(f"{__name__}.{place}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
