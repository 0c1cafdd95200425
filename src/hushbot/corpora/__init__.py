"""Corpora: every format in, one `Corpus` out."""
