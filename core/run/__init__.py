"""A run and its folder: its options, flags and checkpoints, the hooks around its steps, what a prediction may take of memory.

Not here: several processes (core/cluster), and what is measured (core/report). Begin with training_folder.py.
"""
