"""The rooms that the programs stand on; docs/architecture.md says which room stands on which.

Here belongs what knows no flag and no data set; flags live in common.py and the programs, data sets in datasets/. Begin with
core/networks/feature_extractor.py, the table of backbones.
"""
