"""The values of a dialogue: what they are, where they stand, and what takes their place."""
