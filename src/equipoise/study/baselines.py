"""The arms that every study of the paper has. Where the paper gives no floor, the goal is a bound of 0.05 on the gap."""

from typing import Any

BOUND = 0.05
POST: list[dict[str, Any]] = [
    {"method": "standard"},
    {"method": "random", "settings": {"bound": BOUND}, "bound": BOUND},
    {"method": "reject-option", "settings": {"bound": BOUND}, "bound": BOUND},
    {"method": "equalised-odds", "bound": BOUND},
]
BASELINES: list[dict[str, Any]] = [*POST, {"method": "adversarial-finetune", "settings": {"bound": BOUND}, "bound": BOUND}]
IN_PROCESSING: dict[str, Any] = {"method": "adversarial-training", "bound": BOUND}
