"""Embeddings whose rows live on servers, as torch modules: `ps.nn.Embedding`, `EmbeddingBag`, `EmbeddingBagCollection`.

table.py       a table as a model uses it; leaves.py the row leaves of the step
state.py       what a state_dict says of them
reading.py     from inputs to leaves: each id once, one pull; what ps.prefetch asked for ahead
compiling.py   what torch.compile leaves alone; naming.py what parts are called within its wrapper and others
embedding.py   Embedding and EmbeddingBag; pooling.py their bags; collection.py many features at once
"""

from ps_worker.nn.collection import EmbeddingBagCollection
from ps_worker.nn.embedding import Embedding, EmbeddingBag
from ps_worker.nn.reading import RowModule

__all__ = ["Embedding", "EmbeddingBag", "EmbeddingBagCollection", "RowModule"]
