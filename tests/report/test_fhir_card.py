"""card.fhir.json: a DocumentReference of the profile AI-ModelCard that holds the other two cards, byte for byte."""

import json
import re
from base64 import b64decode

import pytest
from blocks import tripod

from equipoise.report import cards, repair_document
from support.cases import small_case

REQUIRED = {"resourceType", "status", "type", "content"}  # of a DocumentReference in R4, with `type` by the profile
KNOWN = {*REQUIRED, "meta", "language", "identifier", "category", "author", "description"}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return cards(small_case())


def test_it_has_the_elements_of_the_profile_and_no_others(texts: dict[str, str]) -> None:
    card = json.loads(texts["card.fhir.json"])
    assert REQUIRED <= set(card) <= KNOWN
    assert card["resourceType"] == "DocumentReference"
    assert card["meta"]["profile"] == ["http://hl7.org/fhir/uv/aitransparency/StructureDefinition/AI-ModelCard"]
    assert {coding["code"] for coding in card["type"]["coding"]} == {"AIModelCard"}
    assert [each["coding"][0]["code"] for each in card["category"]] == ["AIModelCardMarkdownFormat", "AIModelCardCHAIformat"]
    assert {coding["system"].rpartition("/")[2] for coding in card["type"]["coding"]} == {"AIinputsCS", "AImodelCardCS"}


def test_its_attachments_are_the_other_cards(texts: dict[str, str]) -> None:
    attachments = [each["attachment"] for each in json.loads(texts["card.fhir.json"])["content"]]
    assert {each["title"]: b64decode(each["data"]).decode() for each in attachments} == {
        name: texts[name] for name in ("card.md", "card.xml")
    }
    assert [each["contentType"] for each in attachments] == ["text/markdown", "application/xml"]


def test_the_same_repair_has_the_same_identifier(texts: dict[str, str]) -> None:
    again = json.loads(cards(small_case())["card.fhir.json"])
    assert again["identifier"] == json.loads(texts["card.fhir.json"])["identifier"]


def test_every_section_that_the_table_of_tripod_names_is_in_the_report() -> None:
    named = {name for *_, where in tripod.ITEMS for name in re.findall(r"`(\w+)`", where) if "section" in where}
    anchors = {section.anchor for section in repair_document(small_case()).sections}
    assert named - {"goal", "inputs", "settings"} <= anchors
    assert len(tripod.ITEMS) == 26  # items 1 and 2 share a line
