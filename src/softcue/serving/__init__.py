"""Serve many cues from one frozen backbone: engine, batcher, HTTP app, client. Nothing here trains.

Imports stay in the modules: `softcue.serving.client` needs neither torch nor fastapi.
"""
