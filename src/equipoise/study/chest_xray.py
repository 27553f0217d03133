"""The chest X-ray studies as data: the paper's on MIMIC-CXR, and the same on images that anybody can get (NIH) or draw (phantoms).

Settings of the paper's study are those of Table `tab:hyperparams`, of the appendix on implementation and of the published configuration
files. Its networks start from ImageNet weights, and so do those of `nih-pretrained`; the others from random weights unless a file is named
(`pretrained`). The paper has no floors for NIH: there, performance may fall by 0.02.
"""

from collections.abc import Callable
from typing import Any

from equipoise.study.baselines import BOUND, IN_PROCESSING, POST

LITE = "efficientnet-lite0"
TITLES = {"vgg-16": "VGG-16", "resnet-18": "ResNet-18", "squeezenet": "SqueezeNet", LITE: "EfficientNet-Lite0, pretrained"}
# What is pruned; SqueezeNet's and EfficientNet-Lite's (the first convolution, as of ResNet-18) are ours.
LAYERS = {"vgg-16": "features.*", "resnet-18": "conv1", "squeezenet": "features.*", LITE: "conv_stem"}
FINDINGS = {"sex": "enlarged cardiomediastinum", "ethnicity": "pneumonia"}
FLOORS = {"pruning": {"sex": 0.65, "ethnicity": 0.55}, "bias-gda": {"sex": 0.75, "ethnicity": 0.55}}
GDA = {"sex": {"learning_rate": 1e-5, "epochs": 10}, "ethnicity": {"learning_rate": 7.5e-6, "epochs": 8}}
EVALUATIONS = {"sex": 5, "ethnicity": 8}  # of bias GD/A, per epoch
BOUNDS = {"sex": 0.03, "ethnicity": BOUND}  # on the gap, for every method that has one
ADVERSARIAL = {
    "sex": {"learning_rate": 1e-4, "epochs": 5, "max_gap": BOUNDS["sex"], "margin": 0.02},
    "ethnicity": {"learning_rate": 1e-4, "epochs": 4, "max_gap": BOUNDS["ethnicity"], "margin": 0.01},
}
IN_PROCESSING_IMAGES = {"learning_rate": 1e-4, "batch": 32, "epochs": 20, "weight": 0.5, "optimiser": "adamw"}
UNITS = 1_500  # per step
PRUNING_ENDS = {"max_steps": 10, "stop_below": 0.55}  # VGG-16 has 13.5 million units: without an end, 9,032 steps
# Without pretrained weights, chosen by validation loss on splits 0 and 1 of any finding: more patience, no fall of the rate, and for
# VGG-16, which has no batch norm, a smaller one. From there bias-gda changes balanced accuracy within ten steps, hence more looks.
FROM_SCRATCH = {"patience": 10, "step": 20}
COMMON: dict[str, Any] = {  # how the chest X-ray classifiers are trained and compared
    "measures": ["eod"],
    "protocol": "balanced",
    "stack": 1,
    "keep_networks": False,  # VGG-16 has 134 million weights
    "training": {
        "epochs": 20,
        "batch": 32,
        "learning_rate": 1e-4,
        "patience": 5,
        "optimiser": "adamw",
        "schedule": "step",
        "step": 7,
        "augment": True,
    },
}
NIH_FINDINGS = {"any": "any finding", "effusion": "effusion", "atelectasis": "atelectasis"}


def _mimic_cxr(attribute: str, network: str) -> str:
    return f"mimic-cxr-{attribute}-{network}"


def _by_data(of: Callable[[str, str], Any]) -> dict[str, Any]:
    """A table by the data of the MIMIC-CXR study, from something of the attribute and the network."""
    return {_mimic_cxr(attribute, network): of(attribute, network) for network in ("vgg-16", "resnet-18") for attribute in FINDINGS}


def _nih(network: str) -> list[dict[str, Any]]:
    """The three tasks of a network on NIH."""
    return [
        {
            "source": "nih",
            "name": f"nih-{finding}-{network}",
            "title": f"{TITLES[network]}, {title}: sex",
            "options": {"finding": finding, "attribute": "sex"},
            "model": network,
            "training": {"learning_rate": 3e-5} if network == "vgg-16" else {},
        }
        for finding, title in NIH_FINDINGS.items()
    ]


AGE = 50  # years from which a patient belongs to the older group, the reference


def _nih_pretrained() -> list[dict[str, Any]]:
    """The three tasks by sex and by age, for the network that starts from ImageNet weights."""
    attributes: dict[str, dict[str, Any]] = {"sex": {"attribute": "sex"}, "age": {"attribute": "age", "older": AGE}}
    return [
        {
            "source": "nih",
            "name": f"nih-{finding}-{attribute}",
            "title": f"{TITLES[LITE]}, {title}: {attribute}",
            "options": {"finding": finding, **options},
            "model": LITE,
            "pretrained": "imagenet",
        }
        for attribute, options in attributes.items()
        for finding, title in NIH_FINDINGS.items()
    ]


# The validation parts of single findings hold about 160 images: performance there is known to 0.04, so 0.03 of it may be lost.
BEYOND: list[dict[str, Any]] = [
    {"method": "standard"},
    {"method": "bias-gda", "settings": {"batch": 32, "evals_per_epoch": 10, **GDA["sex"]}},
    {"method": "constrained", "settings": {"learning_rate": 1e-4, "batch": 64}},
    {"method": "constrained", "name": "constrained-honest", "settings": {"learning_rate": 1e-4, "batch": 64}, "selection": "honest"},
    {"method": "bias-score"},
    {"method": "bias-score", "name": "bias-score-0.03", "max_loss": 0.03},
    {"method": "bias-score", "name": "bias-score-train", "train": True},  # sex is learnt from the train part as well
    {"method": "bias-score", "name": "bias-score-train-0.03", "max_loss": 0.03, "train": True},
    {"method": "group-thresholds"},
]
CHEST_XRAYS: dict[str, dict[str, Any]] = {
    "paper-mimic-cxr": {
        "name": "paper-mimic-cxr",
        "about": "Table 3, its validation twin and in-processing: VGG-16 and ResNet-18 on MIMIC-CXR, enlarged cardiomediastinum by sex and "
        "pneumonia by ethnicity; needs the credentialed files, and a GPU",
        **COMMON,
        "training": {**COMMON["training"], "patience": 20, "step": 5},  # all epochs, then the weights with the lowest validation loss
        "pretrained": "imagenet",
        "data": [
            {
                "source": "mimic-cxr",
                "name": _mimic_cxr(attribute, network),
                "title": f"{TITLES[network]}, {finding}: {attribute}",
                "options": {"finding": finding, "attribute": attribute},
                "model": network,
                "published": f"mimic-cxr/{attribute}/{network}",
            }
            for network in ("vgg-16", "resnet-18")
            for attribute, finding in FINDINGS.items()
        ],
        "methods": [
            {"method": "standard"},
            *(
                {
                    "method": method,
                    "overrides": _by_data(lambda attribute, _: {"max_gap": BOUNDS[attribute]}),
                    "max_gap": _by_data(lambda attribute, _: BOUNDS[attribute]),
                }
                for method in ("random", "reject-option")
            ),
            {"method": "equalised-odds", "max_gap": _by_data(lambda attribute, _: BOUNDS[attribute])},
            {
                "method": "adversarial-finetune",
                "overrides": _by_data(lambda attribute, _: ADVERSARIAL[attribute]),
                "max_gap": _by_data(lambda attribute, _: BOUNDS[attribute]),
            },
            {
                "method": "pruning",
                "settings": {"units": UNITS, **PRUNING_ENDS},
                "overrides": _by_data(lambda _, network: {"layers": LAYERS[network]}),
                "min_performance": _by_data(lambda attribute, _: FLOORS["pruning"][attribute]),
            },
            {
                "method": "bias-gda",
                "settings": {"batch": 32},
                "overrides": _by_data(lambda attribute, _: {**GDA[attribute], "evals_per_epoch": EVALUATIONS[attribute]}),
                "min_performance": _by_data(lambda attribute, _: FLOORS["bias-gda"][attribute]),
            },
            {
                **IN_PROCESSING,
                "settings": IN_PROCESSING_IMAGES,
                "max_gap": _by_data(lambda attribute, _: BOUNDS[attribute]),
            },
        ],
    },
    "nih": {
        "name": "nih",
        "about": "the paper's chest X-ray study on NIH ChestX-ray14, by sex: any finding, effusion and atelectasis, each against no "
        "finding; ResNet-18, VGG-16 and SqueezeNet; performance may fall by 0.02; wants a GPU",
        **COMMON,
        "training": {**COMMON["training"], **FROM_SCRATCH},
        "data": [entry for network in ("resnet-18", "vgg-16", "squeezenet") for entry in _nih(network)],
        "methods": [
            *POST,
            {"method": "adversarial-finetune", "settings": ADVERSARIAL["sex"], "max_gap": ADVERSARIAL["sex"]["max_gap"]},
            {
                "method": "pruning",
                "settings": {"units": UNITS, "max_steps": 60},
                "overrides": {f"nih-{f}-{n}": {"layers": LAYERS[n]} for n in ("resnet-18", "vgg-16", "squeezenet") for f in NIH_FINDINGS},
            },
            {"method": "bias-gda", "settings": {"batch": 32, "evals_per_epoch": 10, **GDA["sex"]}},
            {**IN_PROCESSING, "settings": {"learning_rate": 1e-4, "batch": 64, "epochs": 12}},
        ],
    },
    "nih-beyond": {
        "name": "nih-beyond",
        "about": "repairs beyond the paper on NIH ChestX-ray14 by sex, ResNet-18, in the paper's protocol; wants a GPU",
        **COMMON,
        "training": {**COMMON["training"], **FROM_SCRATCH},
        "data": [*_nih("resnet-18"), *({**entry, "optional": True} for n in ("vgg-16", "squeezenet") for entry in _nih(n))],
        "methods": BEYOND,
    },
    "nih-pretrained": {
        "name": "nih-pretrained",
        "about": "NIH ChestX-ray14 with a network that starts from ImageNet weights (EfficientNet-Lite0): any finding, effusion and "
        f"atelectasis, by sex and by age (under {AGE}), all methods, trained as in the paper; wants a GPU and equipoise[pretrained]",
        **COMMON,
        "data": _nih_pretrained(),
        "methods": [
            *POST,
            {"method": "group-thresholds"},
            {"method": "adversarial-finetune", "settings": ADVERSARIAL["sex"], "max_gap": ADVERSARIAL["sex"]["max_gap"]},
            {"method": "pruning", "settings": {"units": UNITS, "max_steps": 60, "layers": LAYERS[LITE]}},
            {"method": "bias-gda", "settings": {"batch": 32, "evals_per_epoch": 10, **GDA["sex"]}},
            {**IN_PROCESSING, "settings": {"learning_rate": 1e-4, "batch": 64, "epochs": 12}},
            {"method": "constrained", "settings": {"learning_rate": 1e-4, "batch": 64}},
            {"method": "bias-score"},
            {"method": "bias-score", "name": "bias-score-train", "train": True},
        ],
    },
    "nih-folds": {
        "name": "nih-folds",
        "about": "the same with more power: five folds by patient, test folds as they are, all folds pooled; 20 splits are 4 deals",
        **COMMON,
        "protocol": "folds",
        "training": {**COMMON["training"], **FROM_SCRATCH},
        "data": [*_nih("resnet-18"), *({**entry, "optional": True} for n in ("vgg-16", "squeezenet") for entry in _nih(n))],
        "methods": BEYOND,
    },
    "phantom": {
        "name": "phantom",
        "about": "the same on simulated chest X-rays, drawn anew for each split: small, for a CPU; needs no files",
        **COMMON,
        "splits": 3,
        "training": {
            "epochs": 8,
            "batch": 32,
            "learning_rate": 1e-3,
            "patience": 4,
            "optimiser": "adamw",
            "schedule": "plateau",
            "augment": False,
        },
        "data": [
            {
                "source": "phantom",
                "title": "ResNet-18, simulated widened mediastinum: sex",
                "options": {"n": 1_000, "size": 64},
                "redraw": True,
                "model": "resnet-18",
            }
        ],
        "methods": [
            {"method": "standard"},
            {"method": "random", "settings": {"max_gap": BOUND, "trials": 21}, "max_gap": BOUND},
            *POST[2:],
            {
                "method": "adversarial-finetune",
                "settings": {**ADVERSARIAL["sex"], "critic_steps": 20, "actor_steps": 10},
                "max_gap": ADVERSARIAL["sex"]["max_gap"],
            },
            {"method": "pruning", "settings": {"units": 150, "layers": "conv1", "max_steps": 30}},
            {"method": "bias-gda", "settings": {"learning_rate": 5e-5, "batch": 32, "epochs": 6, "evals_per_epoch": 3}},
            {"method": "adversarial-training", "settings": {"epochs": 5, "batch": 32}, "max_gap": BOUND},
        ],
    },
}
