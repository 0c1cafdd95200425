"""From dialogues to a trained model on disk."""
