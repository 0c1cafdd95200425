"""What other libraries would say where only our tables belong.

Guarantees: DeepSpeed, which transformers imports wherever it is installed, says nothing on stdout but errors. It has to
be told before it is imported, and nothing is imported for that.
"""

from __future__ import annotations

import logging


def quieten_deepspeed() -> None:
    """Have DeepSpeed, which logs to stdout, keep its hints to itself."""
    logging.getLogger("DeepSpeed").addFilter(_is_error)  # DeepSpeed sets a level of its own, and leaves filters alone


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
