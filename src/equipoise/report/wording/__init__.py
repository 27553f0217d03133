"""Results in words: every sentence that depends on a result is made here, for pages, cards, terminal and notebook alike.

`names` holds the terms (measures, rates, groups); `audits`, `repairs` and `comparisons` the sentences about each kind of result; `inputs`
the notes on its rows; `notes` those of a repair; `cards` the paragraphs of a model card. Templates hold the fixed text.
"""
