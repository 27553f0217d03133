"""Cards as written, and what their XML and their metadata hold."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from equipoise.comparison import Comparison
from equipoise.report.model_card import cards

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "model-card.md"
NAMESPACE = "{https://mc.chai.org/v0.2/schema.xsd}"
TOML = """
[model]
name = "Ward 3 triage"
license = "apache-2.0"
keywords = ["x-ray", "a: b"]
release_date = 2026-03-02
[use]
intended = "**Sorts** the list <script>alert(1)</script>"
[[safety.results]]
label = "Delay"
value = 2.1
low = 1.8
high = 2.6
level = 0.95
unit = "seconds"
"""


def written_cards(case: Comparison, folder: Path, toml: str | None = None) -> tuple[str, ET.Element]:
    place = None
    if toml is not None:
        place = folder / "card.toml"
        place.write_text(toml, encoding="utf-8")
    texts = cards(case, place)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return texts["card.md"], ET.fromstring(texts["card.xml"].encode())


def text_at(root: ET.Element, path: str) -> str:
    found = root.find("/".join(f"{NAMESPACE}{part}" for part in path.split("/")))
    assert found is not None, path
    return found.text or ""


def results_of(root: ET.Element, kind: str) -> dict[str, dict]:
    rows = root.find(f"{NAMESPACE}KeyMetrics/{NAMESPACE}{kind}/{NAMESPACE}Results")
    return {row[0].text: json.loads(row[1].text) for row in rows}


def metadata_of(markdown: str) -> dict:
    yaml = pytest.importorskip("yaml", reason="reading the metadata back needs PyYAML")
    assert markdown.startswith("---\n")
    return yaml.safe_load(markdown.split("\n---\n")[0].removeprefix("---\n"))
