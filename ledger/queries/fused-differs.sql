-- fused-differs: Which fused call first gave other bits than its parts (debug-determinism = full)?
-- params: :run run, :count integer = 3
-- needs: SELECT count(*) FROM point WHERE name LIKE '%.parts'
--   AND manifest IN (SELECT manifest FROM digest WHERE run = :run)
-- or: no fused call was computed by its parts; train with --debug-determinism full
-- SPDX-License-Identifier: Apache-2.0
SELECT d.step, d.seg, d.rank, p.name AS point, p.phase, p.layer, p.op AS fused, q.op AS last_part,
       lower(hex(substr(d.data, 1 + 16 * p.ord, 16))) AS hash,
       lower(hex(substr(d.data, 1 + 16 * q.ord, 16))) AS hash_of_parts
FROM digest d
JOIN point p ON p.manifest = d.manifest
JOIN point q ON q.manifest = d.manifest AND q.name = p.name || '.parts'
WHERE d.run = :run
  AND substr(d.data, 1 + 16 * p.ord, 16) <> substr(d.data, 1 + 16 * q.ord, 16)
ORDER BY d.step, d.seg, p.ord, d.rank LIMIT :count;
