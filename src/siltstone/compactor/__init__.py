"""Compaction of rows by primary key: plan, kernels (Arrow in, Arrow out), rounds, completion, index."""
