"""The networks found by architecture search, PNASNet and HNASNet: cells, their wiring, the ladder of resolutions.

Not here: the dense prediction cell, which is a head (core/head). Begin with nas_network.py.
"""
