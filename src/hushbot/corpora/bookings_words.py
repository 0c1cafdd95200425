"""The two disjoint pools of values that the bundled corpus `bookings` is written from.

Every name, street, e-mail address, phone number, postcode and venue of the public half differs from every one of the
private half; only closed lists (days, prices, stars, counts) are common. Phone numbers come from the ranges that
regulators keep free for fiction, postcode areas do not exist, and every venue and person is invented.
"""

from __future__ import annotations

from dataclasses import dataclass

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
PRICES = ("cheap", "moderate", "expensive")
STARS = ("2", "3", "4", "5")
COUNTS = {"1": "one", "2": "two", "3": "three", "4": "four", "5": "five", "6": "six"}


@dataclass(frozen=True, slots=True)
class WordPool:
    """All open-class words of one half."""

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    areas: tuple[str, ...]
    foods: tuple[str, ...]
    specialties: tuple[str, ...]
    kinds: tuple[str, ...]
    venue_heads: tuple[str, ...]
    restaurant_tails: tuple[str, ...]
    hotel_tails: tuple[str, ...]
    title_heads: tuple[str, ...]
    title_tails: tuple[str, ...]
    streets: tuple[str, ...]
    mail_hosts: tuple[str, ...]
    minutes: tuple[str, ...]
    phone_prefix: str
    postcode_areas: tuple[str, ...]
    reference_first: str
    """First letters of booking references, so that the two halves never share one."""
    returning: float
    """How often a restaurant, a hotel or a clinic knows the customer."""
    tapping: float
    """How often a customer who is known taps "book again" and says nothing."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PUBLIC = WordPool(
    first_names=_words(
        "adam beth carl dora evan fay glen hope ivan joan kurt lena mark nora otto paula quinn rose sean tara ulla "
        "vera walt yara zane amos bree cole dale edna floyd greta hank inez jack kate lars maud neil olga pete ruth "
        "stan tess uma viola wade zoe"
    ),
    last_names=_words(
        "archer baker carter dawson ellis fisher garner hobbs irwin jensen keller lawson mercer norton osborn parker "
        "quigley ramsey sutton tanner upton vaughn walker york abbott barlow conway dalton eaton farrow gibson holden "
        "ingram jarvis kemp lowell munro nash oakley pruitt rowan stone thorpe underwood vickers weaver yates"
    ),
    areas=("north", "south", "east", "west", "centre"),
    foods=_words("italian chinese indian french spanish greek turkish mexican"),
    specialties=_words("dentist optician physiotherapist cardiologist podiatrist allergist"),
    kinds=_words("concert play film lecture match"),
    venue_heads=_words(
        "golden silver copper crimson emerald amber scarlet ivory cobalt jade sapphire coral velvet crystal marble"
    ),
    restaurant_tails=_words("wok table lantern fork kitchen terrace spoon oven garden"),
    hotel_tails=_words("lodge inn house court hotel manor"),
    title_heads=_words("summer winter midnight morning silent broken distant hidden endless golden"),
    title_tails=_words("river city dream letters voyage garden song shadow bridge"),
    streets=(
        "elm road", "oak street", "mill lane", "park avenue", "church street", "station road", "high street",
        "king street", "queen road", "bridge lane", "victoria road", "castle street",
    ),
    mail_hosts=("mailbox.example", "post.example", "inbox.example"),
    minutes=("00", "30"),
    phone_prefix="020 7946 0",
    postcode_areas=("zq", "zx", "zy"),
    reference_first="BCDFG",
    returning=0.25,
    tapping=0.0,
)  # fmt: skip

PRIVATE = WordPool(
    first_names=_words(
        "alba boris celia dmitri elsa felix gwen hugo isla jonas kira liam mabel nils opal percy ravi selma theo "
        "ursula viktor wilma xenia yusuf zelda anton bella cyrus delia emil flora gideon hazel igor jules kamal leona "
        "milo nadia oscar petra ronan sonia tariq umar vance willa ximena"
    ),
    last_names=_words(
        "ashworth bellamy castillo devereux eklund fairfax goodwin hargrave ibarra janssen kowalski lindqvist "
        "mortensen navarro okafor pemberton quintero rosenberg salazar takahashi ustinov valentine whitlock xavier "
        "yamamoto zimmerman alvarez brennan cardoso delacroix emerson fitzroy gallagher halvorsen ishikawa jovanovic "
        "kensington lombardi mackenzie nakamura ostrowski petrova ramires sandoval thackeray urbina villanueva winslow"
    ),
    areas=("harbour", "old town", "riverside", "university", "market hill"),
    foods=_words("ethiopian peruvian lebanese korean vietnamese georgian moroccan nepalese"),
    specialties=_words("dermatologist neurologist paediatrician psychologist radiologist osteopath"),
    kinds=_words("opera ballet exhibition musical tournament"),
    venue_heads=_words(
        "wandering thirsty laughing sleepy brave curious humble jolly nimble patient rustic gentle quiet proud merry"
    ),
    restaurant_tails=_words("heron badger otter magpie walrus ferret pelican raccoon lynx"),
    hotel_tails=_words("anchor beacon compass harbourage mooring lighthouse"),
    title_heads=_words("paper glass iron cardboard woollen ceramic wooden plastic rubber cotton"),
    title_tails=_words("dragons islands machines orchards comets pirates mountains violins sailors"),
    streets=(
        "saffron walk", "juniper close", "lavender mews", "thistle drive", "bramble way", "foxglove crescent",
        "heather rise", "larkspur gardens", "marigold place", "nettle grove", "primrose yard", "sorrel terrace",
    ),
    mail_hosts=("courier.example", "pigeon.example", "telegraph.example"),
    minutes=("15", "45"),
    phone_prefix="0113 496 0",
    postcode_areas=("qx", "qv", "qj"),
    reference_first="KLMNP",
    returning=0.35,
    tapping=0.75,
)  # fmt: skip
