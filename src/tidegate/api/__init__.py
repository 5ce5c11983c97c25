"""What users call: the writer, the query, the options."""
