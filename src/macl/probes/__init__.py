"""Evaluation of frozen features: kNN, linear probe, logistic regression, SVM."""
