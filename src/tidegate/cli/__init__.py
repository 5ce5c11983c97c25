"""The `tidegate` command: its commands talk to people, and leave the work to the layers below."""
