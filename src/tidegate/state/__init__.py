"""Keyed state: backends behind one contract. State belongs to key groups, a subtask owns a range of them."""
