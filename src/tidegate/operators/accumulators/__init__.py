"""The running values of aggregate functions, by slot: one module per way of keeping them."""
