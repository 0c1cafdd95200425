"""Hardening recipes: one file each, chosen by `_target_` in `configs/recipe/`."""
