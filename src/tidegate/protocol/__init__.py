"""Decisions, pure: events in, actions out. No I/O, clock, thread, randomness or logging here."""
