"""The papers that methods come from, as BibTeX; a method names its own in its registration."""

MARCINKEVICS = """@inproceedings{marcinkevics2022debiasing,
  title     = {Debiasing Deep Chest {X}-Ray Classifiers using Intra- and Post-processing Methods},
  author    = {Marcinkevics, Ricards and Ozkan, Ece and Vogt, Julia E.},
  booktitle = {Proceedings of the 7th Machine Learning for Healthcare Conference},
  year      = {2022}
}"""
SAVANI = """@inproceedings{savani2020intra,
  title     = {Intra-Processing Methods for Debiasing Neural Networks},
  author    = {Savani, Yash and White, Colin and Govindarajulu, Naveen Sundar},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2020}
}"""
ZHANG = """@inproceedings{zhang2018mitigating,
  title     = {Mitigating Unwanted Biases with Adversarial Learning},
  author    = {Zhang, Brian Hu and Lemoine, Blake and Mitchell, Margaret},
  booktitle = {AAAI/ACM Conference on AI, Ethics, and Society},
  year      = {2018}
}"""
KAMIRAN = """@inproceedings{kamiran2012decision,
  title     = {Decision Theory for Discrimination-Aware Classification},
  author    = {Kamiran, Faisal and Karim, Asim and Zhang, Xiangliang},
  booktitle = {IEEE International Conference on Data Mining},
  year      = {2012}
}"""
HARDT = """@inproceedings{hardt2016equality,
  title     = {Equality of Opportunity in Supervised Learning},
  author    = {Hardt, Moritz and Price, Eric and Srebro, Nathan},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2016}
}"""
COTTER = """@inproceedings{cotter2019two,
  title     = {Two-Player Games for Efficient Non-Convex Constrained Optimization},
  author    = {Cotter, Andrew and Jiang, Heinrich and Sridharan, Karthik},
  booktitle = {International Conference on Algorithmic Learning Theory},
  year      = {2019}
}"""
MENON = """@inproceedings{menon2018cost,
  title     = {The Cost of Fairness in Binary Classification},
  author    = {Menon, Aditya Krishna and Williamson, Robert C.},
  booktitle = {Conference on Fairness, Accountability and Transparency},
  year      = {2018}
}"""
