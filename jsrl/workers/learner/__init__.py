"""Learners: batches in, updates, params out."""
