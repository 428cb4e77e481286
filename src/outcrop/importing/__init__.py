"""Graphs of others become stores: ``graph`` and ``triples`` import what ``sources`` read, as ``options`` says;
``generate`` makes one up. ``import_budget`` finds the smallest memory budget that an import works with."""
