"""The generated table of the items of TRIPOD+AI (Collins et al., BMJ 2024) and where a repair's output has them."""

from collections.abc import Callable, Mapping

from blocks.rows import table

CARD, RUN = "card.md (facts from card.toml)", "run.json"
ITEMS: tuple[tuple[str, str, str], ...] = (  # number, subject, and section of the report, file, or why it has none
    ("1, 2", "title and abstract", "section `verdict`"),
    ("3", "background: setting, target population, known differences between groups", CARD),
    ("4", "objectives", f"section `method`; {RUN} (`goal`)"),
    ("5", "sources and dates of data", f"section `cohort`; {CARD}"),
    ("6", "eligibility and setting of participants", f"section `cohort`; {CARD}"),
    ("7", "data preparation", f"section `method`; {RUN} (`inputs`)"),
    ("8", "outcome, how and by whom it was assessed", CARD),
    ("9", "predictors", f"{RUN} (`inputs`); {CARD}"),
    ("10", "sample size", "section `cohort`; before a study, `equipoise plan`"),
    ("11", "missing data", "section `cohort`"),
    ("12", "analytical methods: model, rule, thresholds, heterogeneity", f"section `method`; {RUN} (`settings`)"),
    ("13", "class imbalance", "section `cohort`; recalibration in section `method`"),
    ("14", "fairness: approaches and their rationale", "sections `verdict`, `options` and `method`"),
    ("15", "model output: probability or class, and its threshold", "section `curves`; rule.json"),
    ("16", "differences between development and evaluation data", "section `cohort`"),
    ("17", "ethical approval", "not known to Equipoise"),
    ("18", "funding, conflicts, protocol, registration, data, code", f"{CARD}; code and versions in {RUN}"),
    ("19", "patient and public involvement", "not known to Equipoise"),
    ("20", "participants: flow, characteristics by group", "sections `cohort` and `groups`"),
    ("21", "model development: participants and events per analysis", "section `cohort`"),
    ("22", "full specification of the model", f"rule.json, the weights, {RUN}"),
    ("23", "performance with intervals, also by group", "sections `gaps`, `groups` and `curves`"),
    ("24", "model updating", "sections `verdict` and `method`"),
    ("25", "interpretation, also of fairness", "section `verdict`; the committee's in section `signoff`"),
    ("26", "limitations", "section `limits`"),
    ("27", "usability: inputs of poor quality, users, next steps", CARD),
)


def tripod() -> str:
    """One row per item."""
    return table(("item", "subject", "where"), ITEMS)


BLOCKS: Mapping[str, Callable[[], str]] = {"tripod": tripod}
