"""Words that tell nobody apart, and invented words that mean nothing.

Guarantees: `NewWords` gives one word for one word, whatever its case and accents, no word twice and none that it was
told to avoid, so that a first name alone, a name in an address and a shortened name stay what they were to each other.
`distinctive` yields the words of a value that may stand for all of it.

Void as a dictionary: the lists hold what dialogues about bookings are made of, not the language.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

_RUN = re.compile(r"(?:[^\W\d_][\u0300-\u036f]*)+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


STOP = _words(
    "a about above after again all along also am an and any are around as at away back be been before being below both "
    "but by can could did do does doing don done down each else ever every few for from get getting give go going got "
    "had has have having he her here hers him his how i if in into is it its just keep let like ll made make many may "
    "me might mine more most much must my near need next no none nor not now of off on once one only or other our ours "
    "out over own per please re really s same say see shall she should since so some still such t than thank thanks "
    "that the their them then there these they thing things this those through to today together tomorrow too under "
    "until up upon us ve very via want was way we well went were what when where which while who whom whose why will "
    "with within without would yes yet you your yours found offer okay ok hi hello hey bye sure"
)
"""Function words: never exchanged."""
KINDS = _words(
    "academy airport apartment arms art arts ave avenue bank bar bay bed bistro blvd bnb boulevard breakfast bridge "
    "cafe caffe center centre church cinema city clinic close club college court doctor downtown dr drive east "
    "garden gardens gallery grill guest guesthouse hall hill hospital hostel hotel house inn international kitchen "
    "lane library lodge lounge mall market mr mrs ms museum n north park parkway place plaza police pool prof pub rd "
    "resort restaurant road room rooms s salon school shop south spa square st stadium station store street studio "
    "suites swimming take tavern terrace theater theatre town tower view village walk west"
)
"""Words that say what a value is rather than which one: kept where a name is invented."""
COMMON = KINDS | _words(
    "address adult adults afternoon american annual approval available average bad best better big black blue book "
    "booked booking bus business call car card cash chance change cheap check class code cost count country coming "
    "date day days deal department detail details dinner direct door early easy email employee end evening event "
    "events expensive family far fast fee feel few fine first five flight food four free friend full fun game good "
    "great green group happy help high home hour hours idea important information interested issue items job kind know "
    "last late leave left less life light line list little live local long look looking lot love low lunch main man "
    "meal meeting mind minutes moderate money month months morning movie music name nearby new nice night nights noon "
    "number office old open options order party pay payment people person phone pick plan play popular possible "
    "postcode price private problem public quick quiet range rated rating ready real reason red reference rent request "
    "reservation reserve return review ride right san santa saint schedule seat seats second send service set show six "
    "size small song songs sound special spot start star stars stay stop table taxi team ten three ticket tickets time "
    "times top tour train travel trip try two type used visit wait watch water wedding week weekend white wifi woman "
    "work working world year years young"
)
"""Words that a value may be made of and that other sentences use all the same."""
# Two halves make a word; each half is odd enough that none of them is English.
_STARTS = _listed(
    "abr arv astr balq bend birv brel brimt calv cendr corv crell dalm dorv drunm elbr env farb fendr ferl "
    "galdr gorv grelt halv hembr holl ilv irm jarv jendr jolm kalb kelv kindr lambr left lorv malb merdr mistr "
    "nalv nerb norv olbr onv orl palv pendr pirm quelb quorv ralm renv rilb salv sendr silm tarv tendr tolm "
    "ulbr umv urdr valm vendr vorsh walbr wend wilm yalv yendr yorm zalbr zend zilv"
)
_ENDS = _listed("ac aldi an ard ax ebec ek el elin em eth ic id ilo in ira isk ock olan om or oth ub ul um unt ur yn")
_N_TRIES = 200


@lru_cache(maxsize=65536)
def fold(text: str) -> str:
    """Return a text in small letters and without accents.

    >>> fold("Café"), fold("Stra\u00dfe")
    ('cafe', 'strasse')
    """
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def invented(rng: random.Random) -> str:
    """Return a word that means nothing."""
    return rng.choice(_STARTS) + rng.choice(_ENDS)


def distinctive(text: str) -> list[str]:
    """Return the words of a text of several words that may stand for it, such as a first name; folded."""
    found = [fold(match[0]) for match in _RUN.finditer(text)]
    if len(found) < 2:
        return []
    return [word for word in found if len(word) > 2 and word not in STOP and word not in COMMON]


class NewWords:
    """The invented words of one rewrite."""

    def __init__(self, rng: random.Random, avoid: Iterable[str] = ()) -> None:
        """Take the generator and the folded words that are in use already."""
        self._rng = rng
        self._taken = set(avoid)
        self._known: dict[str, str] = {}

    def word(self, old: str) -> str:
        """Return what takes a word's place: letters for one or two letters, else an invented word."""
        key = fold(old)
        if key not in self._known:
            self._known[key] = self._fresh(key)
            self._taken.add(self._known[key])
        return self._known[key]

    def _fresh(self, key: str) -> str:
        for _ in range(_N_TRIES):
            made = invented(self._rng) if len(key) > 2 else _letters(key, self._rng)
            if made != key and made not in self._taken and made not in STOP and made not in COMMON:
                return made
        # A dialogue that uses up hundreds of words: make longer ones.
        return invented(self._rng) + invented(self._rng)


def _letters(word: str, rng: random.Random) -> str:
    return "".join(rng.choice("bcdfghjklmnpqrtvwxz") for _ in word)
