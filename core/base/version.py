"""The version of this program, which setup.py and the files of a run state."""

VERSION = '1.1.0.dev0'
