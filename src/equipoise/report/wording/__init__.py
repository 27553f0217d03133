"""Results in words: every sentence that depends on a result is made here, for pages, cards, terminal and notebook alike.

`names` holds the terms (measures, rates, groups); `audits`, `repairs` and `comparisons` the sentences about each kind of result; `notes`
the notes of a repair; `cards` the paragraphs of a model card. Templates hold the fixed text.
"""
