"""The arms that every study of the paper has. Where the paper gives no minimum performance, the goal is a bound of 0.05 on the gap.

`as_published` gives the arms as the published code runs them: on the weights of the last epoch, with AIF360's reject option (which always
favours the group other than the reference, over its own grid), equalised odds from decisions at 0.5, the last epoch of adversarial
fine-tuning, pruned units that may be chosen again, and bias GD/A in training mode.
"""

from collections.abc import Mapping, Sequence
from typing import Any

BOUND = 0.05
POST: list[dict[str, Any]] = [
    {"method": "standard"},
    {"method": "random", "settings": {"max_gap": BOUND}, "max_gap": BOUND},
    {"method": "reject-option", "settings": {"max_gap": BOUND}, "max_gap": BOUND},
    {"method": "equalised-odds", "max_gap": BOUND},
]
BASELINES: list[dict[str, Any]] = [*POST, {"method": "adversarial-finetune", "settings": {"max_gap": BOUND}, "max_gap": BOUND}]
IN_PROCESSING: dict[str, Any] = {"method": "adversarial-training", "max_gap": BOUND}

PUBLISHED = "published"
# Validation loss every tenth epoch, eleven of them without a lower one, and then the weights of that epoch.
PUBLISHED_TRAINING: dict[str, dict[str, Any]] = {PUBLISHED: {"restore": "last", "patience": 110}}
PUBLISHED_SETTINGS: dict[str, dict[str, Any]] = {
    "reject-option": {"direction": "kamiran", "quantiles": 0},
    "equalised-odds": {"base": "threshold"},
    "adversarial-finetune": {"restore": "last"},
    "pruning": {"reselect": True},
    "bias-gda": {"mode": "train"},
}


def as_published(arms: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The arms as published, each named after its method."""
    return [
        {
            **arm,
            "name": f"{arm['method']}-{PUBLISHED}",
            "settings": {**arm.get("settings", {}), **PUBLISHED_SETTINGS.get(arm["method"], {})},
            "training": PUBLISHED,
        }
        for arm in arms
    ]
