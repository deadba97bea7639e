# invar - the ledger, the hashes and (invar.ops, invar.torch) the kernels of Invar in Python.
# SPDX-License-Identifier: Apache-2.0
"""Invar in Python: record what every training step computed, and compare runs bit by bit.

    import invar

    with invar.Ledger("runs/a", config={"lr": 1e-3, "seed": 7}) as ledger:
        for batch in data:
            loss = train_step(model, batch)
            ledger.step(loss=loss, digests=invar.hash_tensors(model))

    print(invar.diff("runs/a", "runs/b"))

docs/python.md describes the package, docs/ledger.md what a ledger holds and promises.
"""
from invar._library import Error, library_version
from invar.hashing import Digests, TensorDigest, hash_bytes, hash_gradients, hash_tensors
from invar.ledger import Ledger
from invar.packs import Pack, read_pack
from invar.reading import Diff, Run, Verdict, diff, read, verify
from invar.rollouts import Header, Rollout, Sample, Sampling, read_rollout
from invar._commands import Replay, generate, pack, replay, score, train

__version__ = library_version()
__all__ = [
    "Diff", "Digests", "Error", "Header", "Ledger", "Pack", "Replay", "Rollout", "Run",
    "Sample", "Sampling", "TensorDigest", "Verdict", "diff", "generate", "hash_bytes",
    "hash_gradients", "hash_tensors", "pack", "read", "read_pack", "read_rollout", "replay",
    "score", "train", "verify",
]
