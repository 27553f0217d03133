"""Goals for tests of methods: steps are chosen as in the paper, on the rows that the method was fitted to."""

from functools import partial

from equipoise.methods import Goal

paper_goal = partial(Goal, selection="paper")
