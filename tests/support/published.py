"""A repair as published: bias GD/A unless another method is named, chosen by the rows that it was tuned on."""

from functools import partial

from equipoise.methods import debias as any_debias

debias = partial(any_debias, method="bias-gda", selection="paper")
