"""Durable data: the store, where everything lies in it, manifests, the job log."""
