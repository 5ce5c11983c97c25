"""Operators: rows in, rows out, state snapshotted. They know neither channels nor barriers nor Spark."""
