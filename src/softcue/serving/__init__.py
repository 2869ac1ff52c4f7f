"""Many cues on one frozen backbone, answered together: engine, batcher, HTTP app, client. Nothing here trains.

Imports stay in the modules: `softcue.serving.client` needs neither torch nor fastapi.
"""
