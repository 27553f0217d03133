"""Audit an already-trained classifier for group bias and repair it after training.

import equipoise as eq
cohort = eq.load("compas")
parts = eq.split(cohort, seed=0)
model = eq.train(parts.train, parts.valid, seed=0)
print(eq.audit(model, parts.test))
"""

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
