"""Rounds of compaction: what is asked for, the plan, and the session that runs it."""
