"""Comparisons of settings over seeds: planning, running, statistics and tables."""

SUMMARY, PAGE = "adapt.json", "report.html"
"""What the folder of a finished adaptation holds."""
