"""A run is prepared in three steps, each written as an artifact: ``sample`` draws batches, ``plan`` says where each row
will lie, ``pack`` writes the rows of each batch. ``prepare`` does all of them, and skips what is there. ``segments``
searches the layout of the segmented disk cache, ``pack_files`` has the files and the journal of packing. ``needs`` says
which memory budgets are enough.
"""
