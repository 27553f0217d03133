"""Errors keep their kind, message and problems on their way out of another process."""

import pickle

import pytest

from equipoise.errors import BadInput, EmptyCell, EquipoiseError, MissingExtra, Misuse, UnknownName


@pytest.mark.parametrize(
    "error",
    [
        EquipoiseError("no"),
        BadInput("no column 'sex'", "score above 1", source="scores.csv"),
        EmptyCell("no positives in F"),
        UnknownName("method", "prunning", ["pruning", "random"]),
        Misuse("eq.split", "a Cohort", 3, {"int": "Make one first."}),
        MissingExtra("ray", "ray", "a cluster"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_a_process(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert getattr(again, "problems", None) == getattr(error, "problems", None)


def test_advice_is_not_counted_as_a_problem_and_stays_with_the_problems():
    error = BadInput("a.png: no such file", "b.png: is empty", source="9 images", advice="Leave them out.")
    assert str(error) == "2 problems in 9 images:\n- a.png: no such file\n- b.png: is empty\nLeave them out."
    assert error.problems == ("a.png: no such file", "b.png: is empty. Leave them out.")
    assert str(BadInput("a.png: no such file", source="9 images", advice="Leave it out.")) == "9 images: a.png: no such file. Leave it out."
