"""HTML as a reader sees it: its elements, its text by section, and whether every element is closed."""

from html.parser import HTMLParser

VOID = {"meta", "img", "input", "br", "line", "circle", "rect", "link"}


class Read(HTMLParser):
    """The elements of a page, its text by section, and whether every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.section = ""
        self.paragraphs: list[tuple[str, str]] = []  # class and text
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = dict(attrs)["id"]
        if tag == "p":
            self.paragraphs.append((str(dict(attrs).get("class", "")), ""))

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> closes nothing"
        if tag == "section":
            self.section = ""

    def handle_data(self, data):
        self.text[self.section] = self.text.get(self.section, "") + data
        if "p" in self.open:
            kind, text = self.paragraphs[-1]
            self.paragraphs[-1] = (kind, text + data)

    @property
    def names(self) -> list[str]:
        """The name of every element, in their order."""
        return [tag for tag, _ in self.tags]

    @property
    def conclusion(self) -> str | None:
        """What the page says of the difference, in a word."""
        [found] = [attributes["data-conclusion"] for _, attributes in self.tags if "data-conclusion" in attributes]
        return found

    def has(self, identifier: str) -> bool:
        return any(attributes.get("id") == identifier for _, attributes in self.tags)

    def words(self, section: str) -> str:
        return " ".join(self.text.get(section, "").split())
