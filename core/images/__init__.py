"""Operations on images and labels: resizing, cropping, flipping, their order, tiles, colours of classes.

Not here: files and records (datasets/), and pictures for people (core/report). Begin with input_preprocess.py, the order.
"""
