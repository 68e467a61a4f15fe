"""DLRM, a click model (Naumov et al., arXiv 1906.00091), in plain torch: it does not know where its embeddings live.

    counts [B, 13] -> bottom MLP -> [B, dim] --+-- dot products of all pairs --+-- top MLP -> logit [B]
    ids    [B, 26] -> `bags`     -> 26 x dim --+        of the 27 vectors      |
                                   bottom's [B, dim] --------------------------+

`bags` may be ps.nn.EmbeddingBagCollection, whose rows live on servers, or any module with the same inputs and outputs.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from click_log import CATEGORIES, COUNTS

DIM = 16
HIDDEN = (128, 64)  # of both MLPs, without their ends


class DLRM(nn.Module):
    """`bags` maps a batch's ids by feature to float32[B, n_features * dim], the features side by side."""

    pairs: Tensor

    def __init__(self, bags: nn.Module, dim: int = DIM, n_features: int = CATEGORIES) -> None:
        super().__init__()
        vectors = n_features + 1
        self.bags = bags
        self.dim = dim
        self.bottom = mlp((COUNTS, *HIDDEN, dim))
        self.top = mlp((dim + vectors * (vectors - 1) // 2, *HIDDEN, 1))
        self.register_buffer("pairs", torch.triu_indices(vectors, vectors, offset=1), persistent=False)

    def forward(self, counts: Tensor, sparse: Mapping[str, Tensor]) -> Tensor:
        """Return the logits, float32[B]."""
        dense = self.bottom(counts)
        vectors = torch.cat([dense.unsqueeze(1), self.bags(sparse).view(len(counts), -1, self.dim)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        logits: Tensor = self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], dim=1))
        return logits.squeeze(1)


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Return linear layers of these sizes with a ReLU between each two."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
