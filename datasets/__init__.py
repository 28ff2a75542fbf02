"""Data sets: their descriptions, the record format, converters to it, the check of records, folders of photographs.

Not here: operations on images that are read already (core/images), batches for training (data_generator.py). Begin with
dataset_info.py.
"""
