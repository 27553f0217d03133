"""Networks of several labels and of classes with the cohort that they are repaired on, fitted once per file."""

import pytest
from torch import nn

from equipoise.data import Cohort
from support.multilabel import classes_cohort, fitted, labels_cohort, network


@pytest.fixture(scope="module")
def labels() -> tuple[nn.Module, Cohort]:
    return fitted(network(6, 2), labels_cohort(1500, 0)), labels_cohort(1500, 1)


@pytest.fixture(scope="module")
def classes() -> tuple[nn.Module, Cohort]:
    return fitted(network(6, 3), classes_cohort(1800, 0)), classes_cohort(1800, 1)
