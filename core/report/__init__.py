"""What a person gets to see of a network: metrics, their tables and files, pictures of predictions.

Not here: predicting itself (model.py), operations on images for the network (core/images). Begin with metrics.py.
"""
