"""The top floor: one module of wiring per command."""
