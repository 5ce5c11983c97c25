"""What all tests share: how Hypothesis behaves."""

from hypothesis import settings

# No deadline per example: how long one takes says more about the machine than about the code.
settings.register_profile("tidegate", deadline=None, print_blob=True)
settings.load_profile("tidegate")
