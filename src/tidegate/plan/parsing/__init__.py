"""Text as values by the rules of Spark's readers: for the file sources and for functions over string columns.

Below connectors and kernels alike; knows no file and no expression.
"""
