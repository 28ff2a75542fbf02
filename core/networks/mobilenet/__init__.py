"""The MobileNet family: MobileNetV2, MobileNetV3 and the EdgeTPU variant as rows of blocks.

Not here: layers that other families use (core/layers). Begin with mobilenet.py, which runs the rows of the other two files.
"""
