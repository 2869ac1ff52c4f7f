"""The cue folder: what it holds, how it is written and read."""

from softcue.cue.cue import Cue, backbone_config, load, start_from
from softcue.cue.cue_file import CueFile, read_cue_file

__all__ = ["Cue", "CueFile", "backbone_config", "load", "read_cue_file", "start_from"]
