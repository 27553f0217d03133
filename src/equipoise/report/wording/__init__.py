"""Results in words: every sentence that depends on a result is made here, for pages, cards, terminal and notebook alike.

`names` holds the terms (measures, rates, groups); `audits` and `repairs` the sentences about each kind of result and its rows; `notes` the
notes of a repair. Templates hold the fixed text.
"""
