"""Makes text of HTML pages: by resiliparse, by trafilatura, or by a function of the user.

Limits on a page's bytes, tags and depth bound the time of a page, since an extractor's time grows with the square of the
depth. With a limit on time, equal pages could have unequal texts on a slow machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError, did_you_mean, not_installed, value_text

MOST_BYTES = 64 << 20  # in a record of a WARC file, and in an unpacked page
MOST_TAGS = 100_000
MOST_DEPTH = 256
OVER_A_LIMIT = "page over a limit"
_DEEP = ">".join("*" * MOST_DEPTH)  # a selector of elements at that depth
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")  # byte order marks, which take precedence over a declared charset

EXTRACTORS = RESILIPARSE, TRAFILATURA = "resiliparse", "trafilatura"
PageFunction = Callable[[bytes, str | None], str | None]
Extract = str | PageFunction
"""How a user names an extractor: ``resiliparse``, ``trafilatura``, ``module:function``, or a function."""


class SkippedPageError(Exception):
    """A page without usable text. The message is one of a few phrases, which are counted."""


class Extractor:
    """Makes text of pages. Raises ``ConfigError`` if the name is unknown or a package is missing.

    >>> Extractor("resiliparse")("<main><p>Größe</p></main>".encode("latin-1"), "latin-1", None)
    'Größe'
    """

    def __init__(self, extract: Extract = RESILIPARSE) -> None:
        try:
            from resiliparse.parse import encoding, html
        except ImportError:
            raise not_installed("HTML of WARC files", "fastwarc resiliparse") from None
        self._encoding, self._tree = encoding, html.HTMLTree
        self._text_of = _built_in(extract) if isinstance(extract, str) and ":" not in extract else None
        self._function: PageFunction | None = None
        if self._text_of is None:
            self._function = find_page_function(extract)

    def __call__(self, body: bytes, charset: str | None, url: str | None) -> str:
        """Return the text of a page whose server declared ``charset``. Raises ``SkippedPageError`` if it has none."""
        tags = body.count(b"<")
        if len(body) > MOST_BYTES or tags > MOST_TAGS:
            raise SkippedPageError(OVER_A_LIMIT)
        html = self._decode(body, charset)
        tree = self._tree.parse(html)
        if tags > MOST_DEPTH and tree.document is not None and tree.document.query_selector(_DEEP) is not None:
            raise SkippedPageError(OVER_A_LIMIT)
        if self._function is not None:
            text = self._function(body, url)
            if text is not None and not isinstance(text, str):
                raise ConfigError(f"extract: the function must return text or None, got {value_text(text)}")
        else:
            assert self._text_of is not None
            text = self._text_of(html, tree)
        if not text:
            raise SkippedPageError("page without text")
        return text

    def _decode(self, body: bytes, charset: str | None) -> str:
        """Decode a page: by its byte order mark, the server's charset, the page's own, or a guess from its bytes."""
        known = self._encoding
        name = None if body.startswith(_MARKS) else known.map_encoding_to_html5(charset or "", False)
        text: str = known.bytes_to_str(body, name or known.detect_encoding(body, from_html_meta=True) or "utf-8")
        return text


def find_page_function(extract: Extract) -> PageFunction:
    """Return the function that a user passed or named. Raises ``ConfigError`` if there is none."""
    if not isinstance(extract, str):
        if not callable(extract):
            raise ConfigError(f"extract must be a name or a function of HTML and url, got {value_text(extract)}")
        return extract
    from filters.rules.resolve import find_function
    from filters.rules.user_modules import find_module

    name = os.path.basename(extract)
    module = find_module(extract, os.curdir, f"extract {name!r}")
    return find_function(name, {}, module, "extract")


def _built_in(name: str) -> Callable[[str, Any], str | None]:
    if name == RESILIPARSE:
        from resiliparse.extract.html2text import extract_plain_text

        return lambda html, tree: extract_plain_text(tree, main_content=True)
    if name == TRAFILATURA:
        try:
            import trafilatura
        except ImportError:
            raise not_installed("extract trafilatura", "trafilatura lxml_html_clean") from None
        # The options of FineWeb without `deduplicate`, which remembers pages: a text would depend on earlier pages.
        options: dict[str, Any] = {"favor_precision": True, "include_comments": False, "deduplicate": False}
        return lambda html, tree: trafilatura.extract(html, **options)
    near = did_you_mean(name, EXTRACTORS)
    raise ConfigError(f"extract: unknown extractor {name!r}{near}; name one of your own as module:function")
