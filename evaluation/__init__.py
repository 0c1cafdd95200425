"""What is made of a trained bot: utility, the attack suite, reports and trackers."""
