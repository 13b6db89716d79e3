"""Membership inference attacks: arrays in, one score per image out, higher = member."""
