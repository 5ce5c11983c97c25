"""Plans as values of our own: what Spark decided, lowered to what slots run. Knows no Spark class."""
