"""BibTeX of the papers that more than one method comes from; others are in the file of their method."""

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
