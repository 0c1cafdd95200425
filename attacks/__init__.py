"""Attacks: one file each, chosen by `_target_` in `configs/attack/`."""
