"""Options made from fields of a specification."""

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from equipoise.cli.options import takes_case
from equipoise.specification import Specification, setting


class Drawing(Specification):
    """A section with options of every kind."""

    colour: bool = setting("draw in colour", False, flag="--colour")
    frame: bool = setting("draw a frame", True, flag="--frame")
    width: int = setting("width in pixels", 100, flag="--width")


class DrawingCase(Specification):
    """A case of one section."""

    drawing: Drawing = Field(default_factory=Drawing)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (False, True, 100)),
        (["--colour", "--width", "7"], (True, True, 7)),
        (["--no-frame"], (False, False, 100)),
        (["--set", "drawing.colour=true", "--frame"], (True, True, 100)),
        (["--set", "drawing.colour=true", "--no-colour"], (False, True, 100)),
    ],
)
def test_the_flag_of_a_boolean_takes_no_value(arguments: list[str], expected: tuple[bool, bool, int]) -> None:
    drawn = []

    def draw(*, case) -> None:
        drawn.append(case().drawing)

    app = typer.Typer()
    app.command()(takes_case(DrawingCase, "drawing")(draw))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert [(d.colour, d.frame, d.width) for d in drawn] == [expected]


def test_one_value_of_a_list_needs_no_brackets(run, tmp_path):
    rows = "".join(f"{k % 2},{(3 * k) % 10 / 10},{'FM'[k // 2 % 2]}\n" for k in range(200))
    (tmp_path / "t.csv").write_text("y,p,sex\n" + rows)
    command = ("audit", "t.csv", "--label", "y", "--score", "p", "--group", "sex", "--json")
    one = run(*command, "--set", "audit.primary=eod")
    assert one.code == 0, one.err
    assert one.out == run(*command, "--set", 'audit.primary=["eod"]').out
    assert run(*command, "--set", "audit.thresholds=0.1:0.3").code == 0  # one text, which is a range
