"""Optimizers and learning-rate schedules, with their typed recipe sections."""
