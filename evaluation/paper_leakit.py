"""What the per-document extraction abstract reports, to stand beside our own numbers.

Guarantees: only numbers that the abstract prints, rates as fractions; what it says without a number is kept as text;
what it does not print is absent, never zero.

What voids a comparison: the paper samples from pretrained models of billions of parameters, whose training data were
not held back for it; it counts an identifier as leaked that one sample of many holds while the samples of one
mismatched prefix do not, which equal rates reach by chance (`hushbot.attacks.leakit_rules`).

Source: the abstract that announces leakit (Karolinska Institutet), kept beside the papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MODEL = "Pythia-6.9B"
SETTING: Mapping[str, str] = MappingProxyType(
    {
        "model": f"{MODEL}, pretrained; 410M parameters for the smaller one",
        "data": "500 documents of the Pile that hold a real identifier",
        "control": "one mismatched prefix; no documents that the model never saw",
        "rule": "reproduced under its own prefix and not under the other",
    }
)
"""What the paper measured, and how."""
LEAK_RATE = 0.166
"""83 of 500 documents."""
BY_KIND: Mapping[str, float] = MappingProxyType({"email": 0.213})
"""Of the documents with such an identifier."""
SAID: Mapping[str, str] = MappingProxyType(
    {
        "capacity": "prose leaks at 0.040 with 410M parameters and at 0.121 with 6.9B",
        "domains": "code leaks about three times as much as prose",
        "settings": "temperature and nucleus sampling have a minor effect, and a prefix of 16 tokens suffices",
        "blind": "on WikiMIA a blind bag of words reaches an AUC of 0.97; on a random split of the Pile neither "
        "self-concentration nor recovery of the continuation significantly exceeds the blind baseline",
    }
)
"""What the text says of other things than the leak rate."""
