"""The public test kit. May import anything; nothing imports it."""
