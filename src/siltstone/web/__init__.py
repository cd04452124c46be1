"""The pages, the JSON API and the metrics of the compaction service."""
