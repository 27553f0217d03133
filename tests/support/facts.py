"""The facts that a message must name, whatever the sentence around them."""

import re


def facts(*expected: object) -> str:
    """A pattern for `pytest.raises(match=...)` that finds every fact, each as a whole word or number, in any order.

    >>> bool(re.search(facts("age", 2), "2 of 14 rows of 'age' are empty")), bool(re.search(facts("age", 1), "21 ages"))
    (True, False)
    """
    return "(?s)^" + "".join(rf"(?=.*{_whole(str(fact))})" for fact in expected)


def says(text: object, *expected: object) -> bool:
    """Whether a text names every fact.

    >>> says("row 4 of 'sex'", "sex", 4), says("row 14 of 'sex'", "sex", 4)
    (True, False)
    """
    return re.search(facts(*expected), str(text)) is not None


def suggests(name: str) -> str:
    """A pattern for `pytest.raises(match=...)`: the message of an unknown name proposes this one.

    >>> from equipoise.errors import UnknownName
    >>> bool(re.search(suggests("eod"), str(UnknownName("measure", "eodd", ["spd", "eod"]))))
    True
    """
    return rf"Did you mean {re.escape(repr(name))}\?"


def _whole(fact: str) -> str:
    before = r"(?<![\w.,])" if re.match(r"\d", fact) else r"(?<!\w)" if re.match(r"\w", fact) else ""
    after = r"(?![\w]|[.,]\d)" if re.search(r"\d$", fact) else r"(?!\w)" if re.search(r"\w$", fact) else ""
    return f"{before}{re.escape(fact)}{after}"
