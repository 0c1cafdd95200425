"""Train privacy-hardened task-oriented dialogue bots, and audit every bot you train."""

__version__ = "0.1.0"
