"""What the dialogue-state extraction paper reports, to stand beside our own numbers.

Guarantees: only numbers that the paper prints, in its units (rates in percent); figures have no numbers of their own
there, so of them only what the text says is kept, as text. What the paper does not print is absent, never zero.

Source: Extracting Training Dialogue Data from Large Language Model based Task Bots, Tables II to IV and section V.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MODEL = "Llama-2-7B with LoRA"
SETTING: Mapping[str, str] = MappingProxyType(
    {
        "model": f"{MODEL}; state precision 91.43%, recall 71.52%, F1 80.26%",
        "data": "MultiWOZ, 8,438 dialogues, all of them trained on",
        "samples": "10,000 per method, the best 100 after ranking",
        "control": "none: nobody was held out to say what anybody would have guessed",
        "counted": "a state is correct if it equals, or is part of, a training state",
    }
)
"""What the paper measured, and how."""

_METRICS = ("states", "state_precision", "triplets", "values", "value_precision")
_STRAWMAN: Mapping[str, tuple[float, ...]] = {
    "vanilla": (336, 14.37, 1.60, 231, 15.00),
    "temperature": (207, 4.59, 1.29, 234, 5.76),
    "decaying_temperature": (75, 3.32, 1.51, 223, 17.13),
    "beam_search": (5, 100, 1.2, 4, 100),
    "group_beam_search": (15, 65.22, 1.47, 16, 64.00),
    "beam_sampling": (715, 11.95, 1.95, 315, 10.73),
}
_RANKINGS = ("none", "ppl", "ppl_zlib", "c_ppl", "dc_ppl")
_RANKED: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("vanilla", "state_precision"): (14.37, 26.00, 26.00, 24.00, 42.00),
    ("vanilla", "triplets"): (1.60, 2.27, 2.00),
    ("vanilla", "value_precision"): (15.00, 60.52, 54.90, 55.00, 70.27),
    ("temperature", "state_precision"): (4.59, 19.00, 11.00, 14.00, 23.00),
    ("temperature", "triplets"): (1.29, 1.53, 1.45),
    ("temperature", "value_precision"): (5.76, 38.56, 33.00, 36.95, 46.45),
    ("beam_sampling", "state_precision"): (11.95, 23.00, 21.00, 29.00, 40.00),
    ("beam_sampling", "triplets"): (1.95, 2.52, 2.71),
    ("beam_sampling", "value_precision"): (10.73, 66.97, 68.10, 70.19, 76.34),
}

UNRANKED: Mapping[tuple[str, str], float] = MappingProxyType(
    {(decoder, name): value for decoder, row in _STRAWMAN.items() for name, value in zip(_METRICS, row, strict=True)}
)
"""(decoder, metric) of Table III."""
RANKED: Mapping[tuple[str, str, str], float] = MappingProxyType(
    {
        (decoder, ranking, name): value
        for (decoder, name), row in _RANKED.items()
        for ranking, value in zip(_RANKINGS, row, strict=False)  # triplets stand in Table II alone
    }
)
"""(decoder, ranking, metric) of Tables II and IV; `none` is all states, the others are the best 100."""

SAID: Mapping[str, str] = MappingProxyType(
    {
        "fig4": "model against model at temperature 5: all domains and slots, domain precision above 82%, slot "
        "precision above 60%",
        "fig5": "model against model needs 3 to 5 times fewer questions than temperature sampling",
        "fig6": "schema-guided sampling above all baselines, a little below the gold schema; greedy above beam search "
        "and decaying temperature; precision falls with the prefix up to 6 triplets",
        "fig7": "a larger k or nucleus: more values, fewer states; typical sampling not monotone; some repetition "
        "penalty helps",
        "fig8": "repetitions per member fall logarithmically with the prefix",
        "fig9": "the true slot ranks first in 40% rising to 70%, the true value in 20% to 30%",
        "fig10": "DC-PPL best: above 70% of states and 100% of values in the best case",
        "fig11": "members and non-members overlap under PPL and PPL-zlib, less so under C-PPL and DC-PPL",
        "fig12": "other decoders have higher PII scores, schema-guided sampling a comparable or higher marginal score",
    }
)
"""What the text says of each figure."""
