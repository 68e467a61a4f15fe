"""Keeping a model: `ps.save`, `ps.load` and `ps.to_torch`. docs/keeping.md says how the folder is laid out.

folder.py    the files of a saved model: written so that one is there whole or not at all, read with their checksums
index.py     index.json as values: what is in the other files
parts.py     what of a model is kept: tables, dense blocks, parameters and buffers
saving.py    save; loading.py load; agreeing.py how the other ranks wait for rank 0 in either
serving.py   to_torch; lookup.py the plain torch modules that it puts in place of ours
"""
