"""The driver's side: performs what the protocol decides, keeps the views that users read."""
