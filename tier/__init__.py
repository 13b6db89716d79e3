"""TIER: train models whose explanations do not give away who was in the training data, and audit those that do."""
