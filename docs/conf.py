"""The site of the docs (make docs): README.md and the pages of docs/ as they are, with a search and a table of contents."""

project = "shardwright"
html_title = project
html_theme = "furo"
html_show_copyright = html_show_sphinx = False
extensions = ["myst_parser"]
myst_heading_anchors = 4
root_doc = "README"
PAGES = (
    "train validate epochs text mix masks chat lengths trace migrate frameworks build answer recipes guide examples clusters"
    " exchange troubleshooting api format benchmarks decisions"
).split()
include_patterns = ["README.md", "CONTRIBUTING.md", *(f"docs/{page}.md" for page in PAGES)]
CONTENTS = "\n".join(["\n```{toctree}", ":hidden:", *(f"docs/{page}" for page in PAGES), "CONTRIBUTING", "```\n"])


def setup(app) -> None:
    """Give README.md, which GitHub shows, the table of contents of the site."""

    def append_contents(app, page: str, source: list[str]) -> None:
        source[0] += CONTENTS * (page == root_doc)

    app.connect("source-read", append_contents)
