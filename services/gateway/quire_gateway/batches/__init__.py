"""Batch jobs: many requests of one file, run at low priority, each answered once whatever happens to the process."""
