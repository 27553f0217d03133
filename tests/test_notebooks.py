"""The example notebooks: they hold the outputs of a run, and their code still gives them."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
NEEDS_DATA = {"vendor_scores"}


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_was_run_in_order_without_errors_and_names_no_machine(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"execute_result", "stream"}
    assert any("text/html" in output.get("data", {}) for output in outputs)
    assert not any(place in json.dumps(outputs) for place in ("/home", "/root", "/work", "/tmp"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_code_gives_the_conclusions_that_it_shows(path: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch) -> None:
    """Without a kernel: each cell is run in one namespace, and HTML is compared by its conclusion."""
    if path.stem in NEEDS_DATA:
        root = request.getfixturevalue("data_root")
        if not (root / "chexnet-nih").is_dir():
            pytest.skip("real data: chexnet-nih under EQUIPOISE_DATA")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "notebook"}
    compared = 0
    for cell in code_cells(path):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), path.name, "eval"), names)
        shown = ["".join(output["data"]["text/html"]) for output in cell["outputs"] if "text/html" in output.get("data", {})]
        if shown and type(value).__module__.startswith("equipoise"):
            assert _conclusion(value._repr_html_()) == _conclusion(shown[0])
            compared += 1
    assert compared >= 3


def _conclusion(html: str) -> str:
    """The conclusion without its numbers: trained networks, and so a small gap's digits and sign, depend on the processor."""
    return re.sub(r"[\u2212+]?\d[\d,.]*", "#", html.split("<strong>")[1].split("</strong>")[0])
