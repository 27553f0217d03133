"""The fields of a model card that join what the user wrote in card.toml with what Equipoise knows."""

from equipoise.methods import METHODS
from equipoise.report import card_words as words
from equipoise.report.card_facts import NOT_PROVIDED, Facts
from equipoise.report.card_findings import CardFindings
from equipoise.report.card_text import name

KEPT_ASIDE = "Recorded data of patients kept aside: a test part that the repair and the selection did not see."


def joined(*paragraphs: str) -> str:
    """Paragraphs of Markdown, without those that are empty or not provided; 'not provided' if there are none."""
    return "\n\n".join(p for p in paragraphs if p and p != NOT_PROVIDED) or NOT_PROVIDED


def model_name(found: CardFindings, facts: Facts) -> str:
    """The user's name for the model, or the title of the run."""
    return name(found.case.title) if facts.model.name == NOT_PROVIDED else facts.model.name


def summary(found: CardFindings, facts: Facts) -> str:
    """The user's summary, or what is detected and that the classifier was repaired after training."""
    known = f"A classifier that detects {name(found.case.label)}, repaired after training with {name(found.case.result.name)}."
    return known if facts.model.summary == NOT_PROVIDED else facts.model.summary


def model_type(found: CardFindings, facts: Facts) -> str:
    """The user's word for the architecture, and the network's class and size."""
    network = found.case.result.candidate.model
    count = sum(p.numel() for p in network.parameters())
    known = f"{name(type(network).__name__)} (PyTorch), {count:,} parameters."
    return known if facts.model.type == NOT_PROVIDED else f"{facts.model.type} {known}"


def outputs(found: CardFindings) -> str:
    """What the classifier gives for a patient."""
    return f"A score from 0 to 1 for {name(found.case.label)}, and a decision: {words.rule(found.after)}."


def how_to_use(found: CardFindings, facts: Facts) -> str:
    """The user's directions, or that there are none, and what the decision rule asks for."""
    need = "needs each patient's group" if found.after.rule.needs_group else "does not need the protected attribute"
    return f"Directions: {facts.use.how}\n\nDecision: {words.rule(found.after)}. The rule {need} at prediction time."


def development(found: CardFindings, facts: Facts) -> str:
    """What the network was trained on, as the user says, and what the repair was found on."""
    return f"Training data: {facts.data.development}\n\nThe repair was found on the validation part: {words.size(found.case.result.valid)}."


def mitigation(found: CardFindings, facts: Facts) -> str:
    """What Equipoise did about the gap, and what the user did besides."""
    return f"{words.mitigation(found)}\n\nBesides Equipoise: {facts.data.mitigation}"


def patients_tested(found: CardFindings, facts: Facts) -> str:
    """Who the test patients are, counted and as the user describes them."""
    return f"{words.patients_tested(found)}\n\nFurther description: {facts.data.testing}"


def kind_of_test(facts: Facts) -> str:
    """The kind of test, as the user calls it, and that it is on patients kept aside."""
    return joined(facts.data.test_type, KEPT_ASIDE)


def bibliography(found: CardFindings, facts: Facts) -> str:
    """BibTeX: the user's entries, and the paper of the method. Empty if there is neither."""
    own = "" if facts.resources.citation == NOT_PROVIDED else facts.resources.citation.strip()
    return "\n\n".join(entry for entry in (own, METHODS[found.case.result.candidate.ran].paper) if entry)
