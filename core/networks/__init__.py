"""The backbones, from a normalised image to features: the table of them, one file or folder for each family.

Not here: what follows the features (core/head), single layers (core/layers). Begin with feature_extractor.py, the table.
"""
