"""An OpenAI-compatible endpoint around a bot on this machine.

Guarantee: importing this package imports no torch; `serving` loads what it needs when it is called.

>>> import hushbot.serving
>>> hushbot.serving.__all__
['FAULTS', 'serving']
"""

from __future__ import annotations

from hushbot.serving.faults import FAULTS
from hushbot.serving.server import serving

__all__ = ["FAULTS", "serving"]
