"""Measures of many documents at once, equal to the plain definitions in `filters.measures`.

The lists here decide only how fast a measure is: other measures are computed by their plain definitions.

scan.py                the measures that most builds use, in one compiled pass
scan_kernels.py        its compiled loops over pieces and lines
repetition_kernels.py  its compiled loops over repeated lines and n-grams
sentence_kernels.py    its compiled loop over the sentences of a line
text_arrays.py         texts as arrays of code points
"""

SCANNED = (
    "characters", "words", "lines", "paragraphs", "longest_word", "mean_word_length", "alphabetic_ratio", "hash_ratio",
    "ellipsis_ratio", "stop_words", "bullet_line_ratio", "ellipsis_line_ratio", "terminal_line_ratio",
    "short_line_ratio", "sentences", "newline_ratio", "duplicate_line_ratio", "duplicate_line_char_ratio",
    "duplicate_paragraph_ratio", "duplicate_paragraph_char_ratio", "top_2_gram_ratio", "top_3_gram_ratio",
    "top_4_gram_ratio", "duplicate_5_gram_ratio", "duplicate_6_gram_ratio", "duplicate_7_gram_ratio",
    "duplicate_8_gram_ratio", "duplicate_9_gram_ratio", "duplicate_10_gram_ratio",
)  # fmt: skip
"""The measures that `filters.compiled.scan` takes in one compiled pass, in its order."""

LINE_MEASURES = frozenset(
    name
    for name in SCANNED
    if ("line_" in name and name != "newline_ratio") or "paragraph" in name or name in ("lines", "sentences")
)
NGRAM_MEASURES = frozenset(name for name in SCANNED if "_gram_" in name)
