"""One slot: its loop, tasks, gates, outputs and snapshots. One thread owns everything here."""
