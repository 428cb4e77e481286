"""Preparing with several processes, or machines: the files of ``outcrop prepare``, byte for byte.

:mod:`outcrop.cluster.pieces` cuts packing into pieces that may be made in any order, by anybody, and more than once.
:mod:`outcrop.cluster.local` has processes of this machine make them.
"""
