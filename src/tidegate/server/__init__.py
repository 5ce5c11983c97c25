"""What a query shows over HTTP. Reads views only: it can slow down or stop nothing."""
