"""The papers that the methods come from, as BibTeX."""

_PAPER = """@inproceedings{marcinkevics2022debiasing,
  title     = {Debiasing Deep Chest {X}-Ray Classifiers using Intra- and Post-processing Methods},
  author    = {Marcinkevics, Ricards and Ozkan, Ece and Vogt, Julia E.},
  booktitle = {Proceedings of the 7th Machine Learning for Healthcare Conference},
  year      = {2022}
}"""
_SAVANI = """@inproceedings{savani2020intra,
  title     = {Intra-Processing Methods for Debiasing Neural Networks},
  author    = {Savani, Yash and White, Colin and Govindarajulu, Naveen Sundar},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2020}
}"""
_ZHANG = """@inproceedings{zhang2018mitigating,
  title     = {Mitigating Unwanted Biases with Adversarial Learning},
  author    = {Zhang, Brian Hu and Lemoine, Blake and Mitchell, Margaret},
  booktitle = {AAAI/ACM Conference on AI, Ethics, and Society},
  year      = {2018}
}"""
_KAMIRAN = """@inproceedings{kamiran2012decision,
  title     = {Decision Theory for Discrimination-Aware Classification},
  author    = {Kamiran, Faisal and Karim, Asim and Zhang, Xiangliang},
  booktitle = {IEEE International Conference on Data Mining},
  year      = {2012}
}"""
_HARDT = """@inproceedings{hardt2016equality,
  title     = {Equality of Opportunity in Supervised Learning},
  author    = {Hardt, Moritz and Price, Eric and Srebro, Nathan},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2016}
}"""
_COTTER = """@inproceedings{cotter2019two,
  title     = {Two-Player Games for Efficient Non-Convex Constrained Optimization},
  author    = {Cotter, Andrew and Jiang, Heinrich and Sridharan, Karthik},
  booktitle = {International Conference on Algorithmic Learning Theory},
  year      = {2019}
}"""
_MENON = """@inproceedings{menon2018cost,
  title     = {The Cost of Fairness in Binary Classification},
  author    = {Menon, Aditya Krishna and Williamson, Robert C.},
  booktitle = {Conference on Fairness, Accountability and Transparency},
  year      = {2018}
}"""

# The search of group-thresholds is our own, and auto is the method that it takes: they have none.
PAPERS: dict[str, str] = {
    "bias-gda": _PAPER,
    "pruning": _PAPER,
    "constrained": _COTTER,
    "bias-score": _MENON,
    "random": _SAVANI,
    "adversarial-finetune": _SAVANI,
    "adversarial-training": _ZHANG,
    "reject-option": _KAMIRAN,
    "equalised-odds": _HARDT,
}
