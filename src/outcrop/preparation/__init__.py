"""A run is prepared in three steps, each written as an artifact: ``sample`` draws batches, ``plan`` says where each row
will lie, ``pack`` writes the rows of each batch. ``prepare`` does all of them, and skips what is there. ``cached_rows``
chooses what is cached in memory, ``segments`` searches the layout of the segmented disk cache, ``pack_files`` has the
files and the journal of packing. ``plan_memory`` and ``pack_memory`` divide the budget, ``needs`` says which budgets
are enough.
"""
