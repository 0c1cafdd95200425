"""What the auditor knows beyond the split, told to the attacks that can use it.

Guarantees: an attack that does not ask for it runs as it is; nothing here depends on the bot. Without a database that
lists its entries nothing is published, and the attack says so.
"""

from __future__ import annotations

from hushbot.corpora.corpus import Corpus
from hushbot.protocols import Attack, ClaimTest, InformedAttack, Published
from hushbot.types import PrivacyInfo


def informed(attack: Attack, corpus: Corpus, *, learns_changes: bool) -> Attack:
    """Return the attack with what the corpus's database publishes and the layout of the bot's training text."""
    if not isinstance(attack, InformedAttack):
        return attack
    published: list[str] = sorted(corpus.database.entries()) if isinstance(corpus.database, Published) else []
    return attack.informed(published, learns_changes=learns_changes)


def confronted(attack: Attack, privacy: PrivacyInfo | None) -> Attack:
    """Return the attack with the guarantee that the training claims, for one that can put it to the test."""
    if privacy is None or not isinstance(attack, ClaimTest):
        return attack
    return attack.confronted(privacy)
