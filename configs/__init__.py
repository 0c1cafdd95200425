"""Hydra configuration groups; a package so that `pkg://hushbot.configs` resolves."""
