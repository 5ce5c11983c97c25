"""Bytes between processes: frames, the handshake, connections. Knows nothing of tasks or plans."""
