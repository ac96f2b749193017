"""Trainings to known numbers on real data, side by side with reference programs."""
