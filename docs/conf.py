"""The site of the docs (make docs): README.md and the pages of docs/ as they are, with a search and a table of contents."""

project = "shardwright"
html_title = project
html_theme = "furo"
html_show_copyright = html_show_sphinx = False
extensions = ["myst_parser"]
myst_heading_anchors = 4
root_doc = "README"
GROUPS = {
    "Start": "start migrate",
    "Build": "build recipes",
    "Train": "train epochs mix text masks chat lengths frameworks clusters speed experiments",
    "Answer": "answer trace troubleshooting",
    "Look up": "api format benchmarks decisions",
}
PAGES = " ".join(GROUPS.values()).split()
include_patterns = ["README.md", "CONTRIBUTING.md", *(f"docs/{page}.md" for page in PAGES)]


def _contents() -> str:
    groups = {name: [f"docs/{page}" for page in pages.split()] for name, pages in GROUPS.items()}
    groups["Look up"].append("CONTRIBUTING")
    return "\n".join(
        "\n".join(["\n```{toctree}", f":caption: {name}", ":hidden:", "", *pages, "```\n"])
        for name, pages in groups.items()
    )


def setup(app) -> None:
    """Give README.md, which GitHub shows, the table of contents of the site."""

    def append_contents(app, page: str, source: list[str]) -> None:
        source[0] += _contents() * (page == root_doc)

    app.connect("source-read", append_contents)
