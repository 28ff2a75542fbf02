"""Several clones, workers and machines: who they are, how they find each other, how gradients become updates.

Not here: the folder and the checkpoints of the run (core/run). Begin with cluster.py.
"""
