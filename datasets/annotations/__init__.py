"""What labelling tools export, read as one form: images, the shapes or label pictures that belong to them, names of classes.

Not here: pictures, which are read and written as records by datasets; nothing in this room decodes an image. Begin with
annotation_set.py, then readers.py, the table of tools.
"""
