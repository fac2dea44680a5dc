"""Comparisons of settings over seeds: planning, running, statistics and tables."""
