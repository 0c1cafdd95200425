"""Targets: the score-based black box that attacks see."""
