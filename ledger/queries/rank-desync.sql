-- rank-desync: Where did a replicated tensor first differ between ranks?
-- params: :run run, :count integer = 3
-- needs: SELECT count(*) FROM digest WHERE run = :run AND rank > 0
-- or: the run has tensors of one rank only, so there is nothing to compare
-- SPDX-License-Identifier: Apache-2.0
WITH shared AS MATERIALIZED (SELECT * FROM point WHERE replicated = 1)
SELECT x.step, x.seg, x.rank, p.name AS point, p.phase, p.layer, p.kind,
       lower(hex(substr(z.data, 1 + 16 * p.ord, 16))) AS hash,
       lower(hex(substr(x.data, 1 + 16 * p.ord, 16))) AS hash_of_rank
FROM digest x
JOIN digest z ON z.run = x.run AND z.step = x.step AND z.seg = x.seg AND z.rank = 0
JOIN shared p ON p.manifest = x.manifest
WHERE x.run = :run AND x.rank > 0 AND x.data <> z.data
  AND substr(x.data, 1 + 16 * p.ord, 16) <> substr(z.data, 1 + 16 * p.ord, 16)
ORDER BY x.step, x.seg, p.ord, x.rank LIMIT :count;
