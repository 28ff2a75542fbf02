"""Layers that networks and heads are made of, in floating point, in 16 bits and in simulated 8 bits, and tensor helpers.

Not here: whole networks (core/networks) and what happens to images before the first layer (core/images). Begin with layers.py.
"""
