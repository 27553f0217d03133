"""What a plan assumes about patients who are not yet collected. Importing this module imports neither numpy nor pandas."""

from equipoise.specification import Share, Specification, setting


class PlanSpec(Specification):
    """The section [plan]: the gap that is to be shown, and the patients in whom."""

    gap: float = setting("gap in sensitivity that is to be shown", 0.05, flag="--gap", gt=0, lt=1)
    sensitivity: Share = setting("sensitivity in the reference group", 0.8, flag="--sensitivity")
    share: float = setting("share of the group among those of it and of the reference", 0.5, flag="--share", gt=0, lt=1)
    prevalence: float = setting(
        "share of the patients with the finding; with 1, patients with the finding are counted", 1.0, flag="--prevalence", gt=0, le=1
    )
    visits: float = setting("visits or images per patient, on average", 1.0, flag="--visits", ge=1)
    correlation: Share = setting("correlation of the decisions on two visits of a patient", 0.5)
    test_fraction: float = setting("share of the patients that a repair holds out", 0.3, gt=0, le=1)
    level: float = setting("level of the intervals", 0.95, gt=0.5, lt=1)
