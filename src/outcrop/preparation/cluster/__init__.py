"""Packing with several processes, or machines: the files of ``outcrop prepare``, byte for byte.

``pieces`` cuts packing into pieces that may be made in any order, by anybody, and more than once. ``local`` has
processes of this machine make them (``write_pieces``), ``on_ray`` tasks of a Ray cluster, from which they move to who
writes them (``move_pieces``).
"""
